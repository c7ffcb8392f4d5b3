# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the role refuses to turn regrading on, as one pure function over facts the role gathered.

No lookups and no calls belong here: the role's tasks gather, the rules of `plugin_utils` judge, and the tests hold
the table.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: placement_refusals
short_description: Say on which hosts regrading must not be turned on, and why
version_added: 0.1.0
author: The exadev.k3s_regrade contributors
description:
  - Takes what was found on every host and in the cluster, and returns one line for each thing that forbids
    turning regrading on, naming the host, what was found and what to do. An empty list allows it.
positional: _input, cluster
options:
  _input:
    description:
      - One entry for each host of the run. Keys V(host), V(node_name), V(settings) (the text of the settings file
        as it will be), V(mesh), V(allow_cloud_provider), V(project) (the Compose project of the service) and
        V(found) (RV(exadev.k3s_regrade.regrade_placement_info#module:server)).
    type: list
    elements: dict
    required: true
  cluster:
    description:
      - What was found in the cluster. Keys V(nodes) (the Nodes as its API lists them, none where no API answered),
        V(members) (the members of etcd as k3s lists them at C(/db/info)), V(group_name), V(group) (the hosts of the
        inventory's group of servers, whether in this run or not, each with the name of its Node), V(lease) (the name
        of our Lease), V(leases) (a line for each Lease of C(kube-system), its name and its holder with a tabulator
        between), V(lost) (one entry for each host of the run that could not be looked at, with V(host), V(gone)
        where it had dropped out of the run before, V(away) where it cannot be reached, and V(error)),
        V(asked) (the host whose API was asked), V(unread) (what it did not tell, of V(members), V(leases) and
        V(authority), each with what it said instead) and V(unanswered) (the hosts whose own API did not answer, with
        what was said).
    type: dict
    required: true
seealso:
  - plugin: exadev.k3s_regrade.placement_warnings
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Refuse what regrading must not be turned on for
  ansible.builtin.assert:
    that: refusals | length == 0
    fail_msg: "{{ refusals | join(' | ') }}"
  vars:
    refusals: "{{ servers | exadev.k3s_regrade.placement_refusals(cluster) }}"
"""

RETURN = r"""
_value:
  description: One line for each refusal.
  type: list
  elements: str
"""

from typing import Any, Callable, Dict, Iterator, List

from ansible_collections.exadev.k3s_regrade.plugins.plugin_utils import (
    placement,
    placement_cluster,
    placement_docker,
    placement_server,
    placement_unit,
)


def _seen(server: placement.Server, cluster: placement.Cluster) -> bool:
    """Whether it is a k3s server that runs."""
    rules = (*(placement_docker.ENGINE if server.docker else ()), placement_server.looked_at)
    return not [line for rule in rules for line in rule(server, cluster)]


def _of_host(server: placement.Server, cluster: placement.Cluster) -> Iterator[str]:
    """Everything that is wrong with one host, so that it is put right in one go."""
    if server.found.get("role") == "agent":
        yield from placement_server.agent(server, cluster)
        return  # what a server needs is nothing to an agent
    for stage in (
        placement_docker.ENGINE if server.docker else (),
        (placement_server.looked_at,),
        placement_docker.CONTAINER if server.docker else placement_unit.UNIT,
    ):
        lines = [line for rule in stage for line in rule(server, cluster)]
        yield from lines
        if lines:
            break  # what comes after rests on it
    for rule in placement_server.RULES:
        yield from rule(server, cluster)


def placement_refusals(servers: List[Dict[str, Any]], cluster: Dict[str, Any]) -> List[str]:
    """Lines that forbid turning regrading on; an empty list allows it."""
    whole = placement.cluster(cluster)
    run = placement.looked_at(servers, whole)
    lines = [f"{server.host}: {line}" for server in run for line in _of_host(server, whole)]
    lines += placement_cluster.lost(whole)
    if not whole.nodes:
        # Where no server could be looked at, that no API answers is no news.
        seen = [server for server in run if _seen(server, whole)]
        return lines + list(placement_cluster.no_api(run, whole)) if seen or not lines else lines
    lines += placement_cluster.unread(whole)
    return lines + [line for rule in placement_cluster.RULES for line in rule(run, whole)]


class FilterModule:
    """The filter, as Ansible looks it up."""

    def filters(self) -> Dict[str, Callable[..., List[str]]]:
        return {"placement_refusals": placement_refusals}
