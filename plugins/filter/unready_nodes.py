# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which Nodes are not Ready, and which of them on purpose, as one pure function over the Nodes.

No lookups and no calls belong here: the role's tasks gather, this tells, and the tests hold the table.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: unready_nodes
short_description: Say which Nodes are not Ready, and which of them are stepped down on purpose
version_added: 0.1.0
author: The exadev.k3s_regrade contributors
description:
  - Takes the Nodes as the cluster's API lists them, and returns those that are not Ready, and those that are not there.
  - One with a key V(regrade_level) is stepped down on purpose. Nothing has to wait for it.
positional: _input, expected
options:
  _input:
    description: The Nodes of the cluster as its API lists them. Empty where no API answered.
    type: list
    elements: dict
    required: true
  expected:
    description: Names of Nodes that must be there.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Say whom to wait for
  ansible.builtin.debug:
    msg: "{{ nodes | exadev.k3s_regrade.unready_nodes | rejectattr('regrade_level') | map(attribute='words') }}"
"""

RETURN = r"""
_value:
  description: The Nodes, by name.
  type: list
  elements: dict
  contains:
    name:
      description: The Node's name. Empty where no API answered.
      type: str
    regrade_level:
      description: The level its label names. None at V(full).
      type: str
    step:
      description: Whether a step of it is open.
      type: bool
    since:
      description: Since when it is not Ready, in UTC, or empty.
      type: str
    words:
      description: The name and what was found, for a person.
      type: str
"""

from typing import Any, Callable, Dict, List, Sequence

FULL = "full"
LEVEL_LABEL = "github-runner.exadev.com/regrade-level"
STEP_ANNOTATION = "github-runner.exadev.com/regrade-step"


def unready_nodes(nodes: List[Dict[str, Any]], expected: Sequence[str] = ()) -> List[Dict[str, Any]]:
    """The Nodes that are not Ready, or not there."""
    if not nodes:
        return [_found("", "no server of the group answers on its own API")]
    found = [_unready(node) for node in nodes if _ready(node).get("status") != "True"]
    there = [node["metadata"]["name"] for node in nodes]
    found += [_found(name, "%s (has no Node)" % name) for name in expected if name not in there]
    return sorted(found, key=lambda item: str(item["name"]))


def _ready(node: Dict[str, Any]) -> Dict[str, Any]:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item.get("type") == "Ready"), {})


def _unready(node: Dict[str, Any]) -> Dict[str, Any]:
    metadata = node["metadata"]
    level = (metadata.get("labels") or {}).get(LEVEL_LABEL, FULL)
    since = _ready(node).get("lastTransitionTime") or ""
    words = "%s (not Ready%s" % (metadata["name"], " since %s" % since if since else "")
    return _found(
        metadata["name"],
        words + (")" if level == FULL else ", stepped down to %s)" % level),
        None if level == FULL else level,
        STEP_ANNOTATION in (metadata.get("annotations") or {}),
        since,
    )


def _found(name: str, words: str, level: Any = None, step: bool = False, since: str = "") -> Dict[str, Any]:
    return {"name": name, "regrade_level": level, "step": step, "since": since, "words": words}


class FilterModule:
    """The filter, as Ansible looks it up."""

    def filters(self) -> Dict[str, Callable[..., List[Dict[str, Any]]]]:
        return {"unready_nodes": unready_nodes}
