# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What forbids regrading in the whole cluster: too few voters, voters nobody knows, another implementation.

Pure. What concerns one host is `placement_server`'s and `placement_docker`'s.
"""

from __future__ import annotations

from typing import Callable, Dict, Iterator, List, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.odd_json import text

from . import placement
from .placement import Cluster, Server
from .placement_server import removed_words, unmarked_words

LEAST_VOTERS = 3

Rule = Callable[[List[Server], Cluster], Iterator[str]]


def voters(_servers: List[Server], cluster: Cluster) -> Iterator[str]:
    found = [member for member in cluster.members if text(member.get("name")) and not member.get("isLearner")]
    names = sorted(text(member.get("name")) for member in found)
    if len(found) < LEAST_VOTERS:
        yield (
            f"etcd has {len(found)} voting member(s) ({', '.join(names) or 'none'}) and stepping one down needs "
            f"{LEAST_VOTERS}, so that the others keep a quorum. Join more servers first."
        )
    known = set(cluster.group.values())
    for member in sorted(found, key=lambda member: text(member.get("name"))):
        name, node = text(member.get("name")), placement.node_of(member, cluster.nodes)
        if not node:
            yield (
                f"etcd has the voter {name}, which is no Node of the cluster. Bring that server and its Node back, "
                "or, where it is gone for good, see to it that its member is removed first."
            )
        elif node not in known:
            yield (
                f"etcd has the voter {name} (Node {node}), which no host of the group {cluster.group_name} is. Name "
                f"that server in the inventory, with github_runner_cluster_node_name: {node}."
            )


def group(_servers: List[Server], cluster: Cluster) -> Iterator[str]:
    hosts = sorted(cluster.group)
    if len(hosts) < 2:
        yield (
            f"The inventory's group {cluster.group_name} has no other server ({', '.join(hosts) or 'no host'}), so "
            "nobody would keep the quorum. Name all servers of the cluster in it."
        )
    elif len(hosts) < LEAST_VOTERS:
        yield (
            f"The inventory's group {cluster.group_name} has {len(hosts)} host(s) ({', '.join(hosts)}) and at least "
            f"{LEAST_VOTERS} are needed. Name all servers of the cluster in it."
        )


def same_node(servers: List[Server], _cluster: Cluster) -> Iterator[str]:
    hosts_of: Dict[str, List[str]] = {}
    for server in servers:
        hosts_of.setdefault(server.node_name, []).append(server.host)
    for node_name, hosts in sorted(hosts_of.items()):
        if len(hosts) > 1:
            yield (
                f"{', '.join(sorted(hosts))} all name the Node {node_name}. Give each its own "
                "github_runner_cluster_node_name, and each server one host in the inventory."
            )


def other_nodes(servers: List[Server], cluster: Cluster) -> Iterator[str]:
    """The Nodes that no host of this run speaks for."""
    told = {server.node_name for server in servers}
    for name in sorted(set(cluster.nodes) - told):
        yield from removed_words(name, cluster)
        yield from unmarked_words(name, cluster)


def other_lease(_servers: List[Server], cluster: Cluster) -> Iterator[str]:
    for name in sorted(cluster.leases):
        if "regrade" in name.lower() and name != cluster.lease:
            yield (
                f"The Lease kube-system/{name} is of another implementation of regrading (this role's is "
                f"{cluster.lease}): the two would step two servers at a time. Turn that one off on every host and "
                f"delete its Lease (`kubectl delete lease {name} --namespace=kube-system`)."
            )


RULES: Tuple[Rule, ...] = (voters, group, same_node, other_nodes, other_lease)

def lost(cluster: Cluster) -> Iterator[str]:
    """A line for each host of the run that nothing is known of: what is wrong with it would not be told."""
    for one in cluster.lost:
        if one.gone:
            why = "it had dropped out of this run before; its own failure stands above"
            cure = "Cure that"
        elif one.away:
            why = f"it cannot be reached: {placement.short(one.error)}"
            cure = "Bring it back"
        else:
            why = placement.short(one.error)
            cure = "Cure that (the failure stands above in full)"
        again = "and run the role again, or leave it out with --limit"
        yield f"{one.host}: could not be looked at ({why}). {cure} {again}."


NO_API = (
    "No server of the group answered on its own API, so the voters cannot be counted. "
    "Bring at least one server to full and run the role again."
)
