# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the role refuses to turn regrading on, as one pure function over facts the role gathered.

No lookups and no calls belong here: the role's tasks gather, this judges, and the tests hold the table.
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
positional: _input, nodes, members, group
options:
  _input:
    description:
      - What was found on each host. Keys V(host), V(node_name), V(running) (whether the container runs, or none
        where there is no such container), V(role) (the k3s subcommand, C(server) or C(agent)), V(error) (why
        the container could not be looked at, or empty), V(pressure) (the text of the file the pressure is read
        from) and V(pressure_error) (why that could not be read, or empty).
    type: list
    elements: dict
    required: true
  nodes:
    description: The Nodes of the cluster as its API lists them. Empty where no API answered.
    type: list
    elements: dict
    required: true
  members:
    description: The members of etcd as k3s lists them at C(/db/info).
    type: list
    elements: dict
    required: true
  group:
    description: Names of all hosts in the inventory's group of servers, whether in this run or not.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Refuse what regrading must not be turned on for
  ansible.builtin.assert:
    that: refusals | length == 0
    fail_msg: "{{ refusals | join(' ') }}"
  vars:
    refusals: "{{ servers | exadev.k3s_regrade.placement_refusals(nodes, members, groups['servers']) }}"
"""

RETURN = r"""
_value:
  description: One line for each refusal.
  type: list
  elements: str
"""

import re
from typing import Any, Callable, Dict, List

STALL = re.compile(r"^some .*\btotal=\d+\b", re.M)
ETCD_ROLE_LABEL = "node-role.kubernetes.io/etcd"
LEAST_VOTERS = 3


def _host_refusal(server: Dict[str, Any], nodes_by_name: Dict[str, Any]) -> str:
    """What forbids regrading on this one host, or an empty text."""
    if server.get("error"):
        return (
            "its k3s container could not be looked at: %s. Name the container in "
            "github_runner_cluster_container_name, or take the host out of the run." % server["error"]
        )
    if server.get("role") == "agent":
        return (
            "its container runs `k3s agent`, and an agent holds no etcd vote to keep. "
            "Leave github_runner_cluster_regrade off on this host."
        )
    if server.get("role") != "server":
        return (
            "its container does not run `k3s server`. Name the container of the server in "
            "github_runner_cluster_container_name."
        )
    if not server.get("running"):
        return "its k3s container does not run. Start it and run the role again."
    if server["pressure_error"] or not STALL.search(server["pressure"]):
        # Absent, empty, EOPNOTSUPP: which state it is does not tell the two causes apart.
        return (
            "its memory pressure cannot be read (%s). The kernel is built without CONFIG_PSI (take one that has it), "
            "or PSI is switched off (add psi=1 to the kernel command line, on Raspberry Pi OS in "
            "/boot/firmware/cmdline.txt, and reboot). Where the file is another one, name it in "
            "github_runner_cluster_regrade_pressure_file."
            % (
                " ".join(server["pressure_error"].split())
                or ("no line `some ... total=`" if server["pressure"].strip() else "the file is empty")
            )
        )
    if not nodes_by_name:
        return ""
    node = nodes_by_name.get(server["node_name"])
    if node is None:
        return (
            "the cluster has no Node %s (it has %s). Name this server's Node in "
            "github_runner_cluster_node_name." % (server["node_name"], ", ".join(sorted(nodes_by_name)))
        )
    if node["metadata"].get("labels", {}).get(ETCD_ROLE_LABEL) != "true":
        return (
            "its Node %s has no etcd role, so it holds no vote to keep. "
            "Leave github_runner_cluster_regrade off on this host." % server["node_name"]
        )
    return ""


def _cluster_refusals(
    servers: List[Dict[str, Any]],
    nodes: List[Dict[str, Any]],
    members: List[Dict[str, Any]],
    group: List[str],
) -> List[str]:
    """What forbids regrading in the whole cluster."""
    if not nodes:
        return [
            "No server of the group answered on its own API, so the voters cannot be counted. "
            "Bring at least one server to full and run the role again."
        ]
    lines = []
    voters = [member for member in members if member.get("name") and not member.get("isLearner")]
    if len(voters) < LEAST_VOTERS:
        lines.append(
            "etcd has %d voting member(s) (%s) and stepping one down needs %d, so that the others keep a quorum. "
            "Join more servers first."
            % (len(voters), ", ".join(sorted(voter["name"] for voter in voters)) or "none", LEAST_VOTERS)
        )
    if len(group) < LEAST_VOTERS:
        lines.append(
            "The inventory's group of servers has %d host(s) (%s) and at least %d are needed. "
            "Name all servers of the cluster in it." % (len(group), ", ".join(sorted(group)), LEAST_VOTERS)
        )
    hosts_of: Dict[str, List[str]] = {}
    for server in servers:
        hosts_of.setdefault(server["node_name"], []).append(server["host"])
    for node_name, hosts in sorted(hosts_of.items()):
        if len(hosts) > 1:
            lines.append(
                "%s all name the Node %s. Give each its own github_runner_cluster_node_name."
                % (", ".join(sorted(hosts)), node_name)
            )
    return lines


def placement_refusals(
    servers: List[Dict[str, Any]],
    nodes: List[Dict[str, Any]],
    members: List[Dict[str, Any]],
    group: List[str],
) -> List[str]:
    """Lines that forbid turning regrading on; an empty list allows it."""
    nodes_by_name = {node["metadata"]["name"]: node for node in nodes}
    lines = []
    for server in servers:
        refusal = _host_refusal(server, nodes_by_name)
        if refusal:
            lines.append("%s: %s" % (server["host"], refusal))
    # A count of voters means nothing to a reader whose hosts are not servers in the first place.
    return lines or _cluster_refusals(servers, nodes, members, group)


class FilterModule:
    """The filter, as Ansible looks it up."""

    def filters(self) -> Dict[str, Callable[..., List[str]]]:
        return {"placement_refusals": placement_refusals}
