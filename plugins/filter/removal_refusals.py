# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the role refuses to turn regrading off, as one pure function over facts the role gathered.

No lookups and no calls belong here: the role's tasks gather, this judges, and the tests hold the table.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: removal_refusals
short_description: Say which servers keep regrading from being turned off, and why
version_added: 0.1.0
author: The exadev.k3s_regrade contributors
description:
  - Takes what every host's C(regrade status) and the cluster's Nodes say, and returns one line for each server
    that is not known to be at full. An empty list allows the removal.
positional: _input, nodes
options:
  _input:
    description:
      - What was found on each host that has something of ours. Keys V(host), V(node_name), V(status) (the report
        of C(regrade status --json), or none where there is no service left to ask) and V(error) (why the report
        could not be had, or empty).
    type: list
    elements: dict
    required: true
  nodes:
    description: The Nodes of the cluster as its API lists them. Empty where no API answered.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Refuse to turn off while a server is below full
  ansible.builtin.assert:
    that: refusals | length == 0
    fail_msg: "{{ refusals | join(' ') }}"
  vars:
    refusals: "{{ servers | exadev.k3s_regrade.removal_refusals(nodes) }}"
"""

RETURN = r"""
_value:
  description: One line for each refusal.
  type: list
  elements: str
"""

from typing import Any, Callable, Dict, List

FULL = "full"
LEVEL_LABEL = "github-runner.exadev.com/regrade-level"
STEP_ANNOTATION = "github-runner.exadev.com/regrade-step"


def _report_refusal(server: Dict[str, Any]) -> str:
    """What this host's own report says against the removal, or an empty text."""
    if server.get("error"):
        return "its level could not be read: %s. Cure that and run the role again." % server["error"]
    status = server.get("status")
    if status is None:
        return ""
    if status.get("recorded") not in (None, FULL):
        return "its record says %s. Bring it to full with `regrade step to full` first." % status["recorded"]
    if status.get("level") is None:
        return "its level is unknown: %s. Cure that and run the role again." % (
            status.get("level_unknown") or "no reason was given"
        )
    if status["level"] != FULL:
        return "it runs at %s. Bring it to full with `regrade step to full` first." % status["level"]
    if status.get("journal"):
        return "a step of it is open. Wait for its end, or settle it with `regrade settle`."
    return ""


def removal_refusals(servers: List[Dict[str, Any]], nodes: List[Dict[str, Any]]) -> List[str]:
    """Lines that forbid turning regrading off; an empty list allows it."""
    if not nodes:
        return [
            "No server of the group answered on its own API, so the levels of the others cannot be read. "
            "Bring at least one server to full and run the role again."
        ]
    host_of = {server["node_name"]: server["host"] for server in servers}
    lines = []
    told = set()
    for server in servers:
        refusal = _report_refusal(server)
        if refusal:
            told.add(server["node_name"])
            lines.append("%s: %s" % (server["host"], refusal))
    for node in nodes:
        name = node["metadata"]["name"]
        if name in told:
            continue
        host = host_of.get(name, name)
        level = (node["metadata"].get("labels") or {}).get(LEVEL_LABEL)
        if level is not None:
            lines.append(
                "%s: its Node %s is labelled %s. Bring it to full with `regrade step to full` first."
                % (host, name, level)
            )
        elif STEP_ANNOTATION in (node["metadata"].get("annotations") or {}):
            lines.append("%s: a step is open on its Node %s. Wait for its end." % (host, name))
    return lines


class FilterModule:
    """The filter, as Ansible looks it up."""

    def filters(self) -> Dict[str, Callable[..., List[str]]]:
        return {"removal_refusals": removal_refusals}
