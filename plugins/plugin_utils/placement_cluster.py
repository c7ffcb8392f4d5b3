# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What forbids regrading in the whole cluster: too few voters, voters nobody knows, another implementation.

Pure. What concerns one host is `placement_server`'s and `placement_docker`'s.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.odd_json import text, texts

from . import placement
from .placement import Cluster, Server
from .placement_server import removed_words, unmarked_words

LEAST_VOTERS = 3
# What is read of the cluster, in the order in which it is asked for.
READ = {
    "members": "etcd's members",
    "leases": "the Leases of kube-system",
    "authority": "the cluster's certificate authority",
}

Rule = Callable[[List[Server], Cluster], Iterator[str]]


def voters(_servers: List[Server], cluster: Cluster) -> Iterator[str]:
    if "members" in cluster.unread:
        return  # and said
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
            at = ", ".join(texts(member.get("peerURLs"))) or "no address"
            yield (
                f"etcd has the voter {name} (member {_hex(member)} at {at}), which is no Node of the cluster. k3s "
                "names a member after its server's Node: see by name and address which server it is, and whether its "
                "k3s runs. If it does, or may run again, bring it and its Node back. Only where it is gone for good, "
                "first make sure that it will not come back (its k3s uninstalled, or its disk erased), see that all "
                "other members are healthy, and then remove its member by hand: "
                f"`etcdctl member remove {_hex(member)}`. This role removes no member."
            )
        elif node not in known:
            yield (
                f"etcd has the voter {name} (Node {node}), which no host of the group {cluster.group_name} is. Name "
                f"that server in the inventory, with github_runner_cluster_node_name: {node}."
            )


def _hex(member: Dict[str, Any]) -> str:
    """Its ID as etcdctl names it; k3s tells it as a number."""
    number = member.get("ID")
    return f"{number:x}" if isinstance(number, int) else text(number) or "of unknown ID"


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


def same_node(servers: List[Server], cluster: Cluster) -> Iterator[str]:
    """Among all hosts of the group: the other one may be left out of this run."""
    hosts_of: Dict[str, List[str]] = {}
    for host, node_name in {**cluster.group, **{server.host: server.node_name for server in servers}}.items():
        hosts_of.setdefault(node_name, []).append(host)
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


def no_api(servers: List[Server], cluster: Cluster) -> Iterator[str]:
    said = "; ".join(f"{host}: {placement.short(words)}" for host, words in sorted(cluster.unanswered.items()))
    units = {server.found.get("kind") == "unit" for server in servers}
    names = [
        "github_runner_cluster_api_port",
        *(["github_runner_cluster_container_name"] if units != {True} else []),
        *(["github_runner_cluster_regrade_k3s"] if True in units else []),
    ]
    yield (
        f"No server of the group {cluster.group_name} answered on its own API ({said or 'it has no host'}), so the "
        "voters cannot be counted. Bring at least one server to full and run the role again, or put right how it is "
        f"asked: {' and '.join(names)}."
    )


def unread(cluster: Cluster) -> Iterator[str]:
    """One line, as one cause is likely: the server was asked for all of it in a row."""
    if cluster.unread:
        what = [READ[key] for key in READ if key in cluster.unread]
        listed = " and ".join([", ".join(what[:-1]), what[-1]] if what[1:] else what)
        said = placement.short(next(cluster.unread[key] for key in READ if key in cluster.unread))
        yield (
            f"{listed} could not be read through {cluster.asked} ({said}). Bring its API and etcd to answer, then run "
            "again."
        )
