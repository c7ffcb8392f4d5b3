# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What the placement checks are given, as values: one server, the cluster, and how a Node is read.

Pure, and of any server whatever runs it. What is refused stands in `placement_server`, `placement_docker` and
`placement_cluster`.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.docker_probe import (
    plain_address,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.odd_json import (
    mapping,
    mappings,
    parsed,
    string_pairs,
    text,
    texts,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings as core_settings
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import SettingsWrong
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.marks import MEMBER_NAME

Node = Dict[str, Any]
# At the end of every cure that takes k3s down: two servers at once would take the quorum with them.
ONE_BY_ONE = "one server after the other, waiting until each is Ready before the next"
MOST_SAID = 200  # characters of what another program said
FRAMED = re.compile(r"^((Task|Action|Module) failed: )+")  # Ansible's own words before a failure


class Server(NamedTuple):
    """One host of the run. `found` is what the module regrade_placement_info answered there."""

    host: str
    node_name: str
    mesh: str
    allow_cloud_provider: bool
    project: str  # Compose project of our service
    settings: Optional[
        core_settings.Settings
    ]  # None where they cannot be used, and `settings_error` says why
    settings_error: str
    found: Dict[str, Any]

    @property
    def docker(self) -> Dict[str, Any]:
        return mapping(self.found, "docker")

    @property
    def addresses(self) -> Tuple[str, ...]:
        """Those of the network its k3s runs in."""
        return tuple(plain_address(address) for address in texts(self.found.get("addresses")))


class Lost(NamedTuple):
    """A host of the run that nothing is known of, and why."""

    host: str
    gone: bool  # it had left the run before it was looked at
    away: bool  # it could not be reached
    error: str


class Cluster(NamedTuple):
    """`nodes` by name; `group` the hosts of the inventory's group with their Nodes' names, in this run or not;
    `leases` of kube-system with their holders; `lost` the hosts of the run that could not be looked at; `asked` the
    host whose API was asked, `unread` what it did not tell, and `unanswered` the hosts whose own API did not answer,
    both with what was said instead."""

    nodes: Dict[str, Node]
    members: List[Dict[str, Any]]
    group_name: str
    group: Dict[str, str]
    lease: str
    leases: Dict[str, str]
    lost: Tuple[Lost, ...]
    asked: str
    unread: Dict[str, str]
    unanswered: Dict[str, str]


def server(given: Dict[str, Any]) -> Server:
    loaded, error = None, ""
    try:
        loaded = core_settings.load(str(given["settings"]), {}, "its settings")
    except SettingsWrong as wrong:
        error = str(wrong)
    return Server(
        host=str(given["host"]),
        node_name=str(given["node_name"]),
        mesh=str(given["mesh"]),
        allow_cloud_provider=bool(given["allow_cloud_provider"]),
        project=str(given["project"]),
        settings=loaded,
        settings_error=error,
        found=mapping(given["found"]),
    )


def cluster(given: Dict[str, Any]) -> Cluster:
    lines = [line.split("\t") for line in str(given["leases"]).splitlines() if line]
    return Cluster(
        nodes={text(mapping(node, "metadata").get("name")): node for node in mappings(given["nodes"])},
        members=mappings(given["members"]),
        group_name=str(given["group_name"]),
        group={str(host): str(name) for host, name in mapping(given["group"]).items()},
        lease=str(given["lease"]),
        leases={words[0]: words[1] if len(words) > 1 else "" for words in lines},
        lost=tuple(
            Lost(str(entry["host"]), bool(entry["gone"]), bool(entry["away"]), str(entry["error"]))
            for entry in mappings(given["lost"])
        ),
        asked=str(given["asked"]),
        unread=string_pairs(given["unread"]),
        unanswered=string_pairs(given["unanswered"]),
    )


def looked_at(servers: List[Dict[str, Any]], cluster: Cluster) -> List[Server]:
    """The hosts to judge: of one that was lost, what is there may be of an earlier run."""
    lost = {one.host for one in cluster.lost}
    return [server(given) for given in servers if given["host"] not in lost]


def short(said: str) -> str:
    """The last line that says something, as far as it is worth reading in the middle of a sentence."""
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    line = FRAMED.sub("", lines[-1]).rstrip(".") if lines else "no answer"
    return line if len(line) <= MOST_SAID else f"{line[:MOST_SAID]}..."


# --- Reading a Node ---


def labels_of(node: Node) -> Dict[str, str]:
    return string_pairs(mapping(node, "metadata", "labels"))


def annotations_of(node: Node) -> Dict[str, str]:
    return string_pairs(mapping(node, "metadata", "annotations"))


def addresses_of(node: Node) -> Tuple[str, ...]:
    """Its InternalIP addresses: those etcd and its API are at."""
    return tuple(
        plain_address(text(entry.get("address")))
        for entry in mappings(mapping(node, "status").get("addresses"))
        if entry.get("type") == "InternalIP"
    )


def node_at(found: Tuple[str, ...], nodes: Dict[str, Node]) -> str:
    """The name of the one Node at one of these addresses, "" where there is none or more than one."""
    at = [name for name, node in nodes.items() if set(addresses_of(node)) & set(found)]
    return at[0] if len(at) == 1 else ""


def flags_of(node: Node) -> Dict[str, str]:
    """k3s's own configuration as it started last at full, files and all, by flag ("true" for a bare one).

    k3s writes it on the Node with its secrets masked. Never shown: a newer k3s may know a secret we do not.
    """
    try:
        words = texts(parsed(annotations_of(node).get("k3s.io/node-args", "[]")))
    except ValueError:
        return {}
    values: Dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("-"):
            name, sign, value = word.lstrip("-").partition("=")
            values[name] = value if sign else "true"
        elif name:
            values[name] = word
            name = ""
    return values


def founded(node: Node) -> bool:
    """Whether this server's k3s was started to found the cluster."""
    try:
        environment = string_pairs(parsed(annotations_of(node).get("k3s.io/node-env", "{}")))
    except ValueError:
        environment = {}
    said = (flags_of(node).get("cluster-init", "false"), environment.get("K3S_CLUSTER_INIT", "false"))
    return any(word.strip().lower() in ("true", "1", "yes") for word in said)


def node_of(member: Dict[str, Any], nodes: Dict[str, Node]) -> str:
    """The name of the Node that a member of etcd is, "" where none is."""
    name = text(member.get("name"))
    for node_name, node in nodes.items():
        if annotations_of(node).get(MEMBER_NAME) == name:
            return node_name
    peers = {plain_address(urlsplit(url).hostname or "") for url in texts(member.get("peerURLs"))}
    for node_name, node in nodes.items():
        if peers & set(addresses_of(node)):
            return node_name
    # k3s names a member after its Node, a hyphen and eight hexadecimal digits.
    return name.rpartition("-")[0] if name.rpartition("-")[0] in nodes else ""
