# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the role warns of where it turns regrading on, as one pure function over facts the role gathered.

No lookups and no calls belong here: the role's tasks gather, the rules of `plugin_utils` judge, and the tests hold
the table.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: placement_warnings
short_description: Say of which hosts something may go wrong with regrading on
version_added: 0.1.0
author: The exadev.k3s_regrade contributors
description:
  - Takes the same as P(exadev.k3s_regrade.placement_refusals#filter), and returns one line for each thing that does not
    forbid turning regrading on and that a person should know of, naming the host.
positional: _input, cluster
options:
  _input:
    description: What was found on each host.
    type: list
    elements: dict
    required: true
  cluster:
    description: What was found in the cluster.
    type: dict
    required: true
seealso:
  - plugin: exadev.k3s_regrade.placement_refusals
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Warn of what may go wrong
  ansible.builtin.debug:
    msg: "{{ servers | exadev.k3s_regrade.placement_warnings(cluster) }}"
"""

RETURN = r"""
_value:
  description: One line for each warning.
  type: list
  elements: str
"""

from typing import Any, Callable, Dict, List

from ansible_collections.exadev.k3s_regrade.plugins.plugin_utils import (
    placement,
    placement_docker,
    placement_server,
)


def placement_warnings(servers: List[Dict[str, Any]], cluster: Dict[str, Any]) -> List[str]:
    """Lines of warning; an empty list where there is nothing to say."""
    whole = placement.cluster(cluster)
    run = placement.looked_at(servers, whole)
    return [
        f"{server.host}: {line}"
        for server in run
        for rule in (*placement_docker.WARNINGS, *placement_server.WARNINGS)
        for line in rule(server, whole)
    ]


class FilterModule:
    """The filter, as Ansible looks it up."""

    def filters(self) -> Dict[str, Callable[..., List[str]]]:
        return {"placement_warnings": placement_warnings}
