# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What forbids regrading on one server that runs in a container: the engine, the container, and how it is made.

Pure. What holds of any server is `placement_server`'s.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Callable, Iterator, Optional, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    docker_record as record,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.docker_engine import (
    REFUSED_POLICIES,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.docker_probe import (
    plain_address,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.level_record import (
    RecordRefused,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.odd_json import (
    mapping,
    number,
    text,
    texts,
)

from . import placement
from .placement import Cluster, Server

Rule = Callable[[Server, Cluster], Iterator[str]]

LEAST_API = (1, 41)
LEAST_ENGINE = "20.10"
LEAST_COMPOSE = (2, 18)
VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:-[\w.]+)?[+-]k3s\d+")
PROJECT_LABEL = "com.docker.compose.project"
DO_IT_ON = f"Do it on {placement.ONE_BY_ONE}."
OTHERS_NETWORK = ("container:", "service:")

# k3s in its image ends at the first signal without shutting anything down, so that a stop loses etcd's last writes
# and its leadership in disorder (k3s#12919): seen on these, and mended in 1.31.14, 1.32.10 and 1.33.6 (k3s#12930 to
# #12932).
DIES = ((1, 33, 4), (1, 33, 5))
# Released with the same change and before the mending (k3s#12929 is 1.34's), and not tried.
MAY_DIE = ((1, 31, 12), (1, 31, 13), (1, 32, 8), (1, 32, 9), (1, 34, 0), (1, 34, 1))


def engine(server: Server, _cluster: Cluster) -> Iterator[str]:
    docker = server.docker
    error = text(docker.get("engine_error"))
    if docker.get("podman"):
        yield (
            "podman answers to the name `docker`, and its containers are not started again as Docker's are. "
            "Run k3s with Docker's own engine, or leave github_runner_cluster_regrade off on this host."
        )
    elif error == "missing":
        yield (
            "there is no `docker` command. Install Docker's engine and Compose, or leave "
            "github_runner_cluster_regrade off on this host."
        )
    elif not docker.get("socket_there") and "version" not in error:
        yield (
            f"there is no Docker socket at {docker.get('socket')}{f' ({error})' if error else ''}. Start Docker, or "
            "name its socket in github_runner_cluster_regrade_docker_socket (`docker context inspect` tells it)."
        )
    elif "permission denied" in error.lower():
        yield f"Docker may not be asked ({error}). Run the role with become: true."
    elif error:
        yield f"Docker gives no answer ({error}). Bring `docker version` to work on this host as root."


def fit_engine(server: Server, cluster: Cluster) -> Iterator[str]:
    docker = server.docker
    if next(engine(server, cluster), ""):
        return
    if any("name=rootless" in option for option in texts(docker.get("security"))):
        yield (
            "its Docker engine is rootless, where k3s is not supported as a server. Run k3s with the system's engine."
        )
    api = _numbers(text(docker.get("api")))
    if api and api < LEAST_API:
        yield (
            f"its Docker engine {docker.get('engine')} is too old (API {docker.get('api')}). Install {LEAST_ENGINE} or "
            f"newer, on {placement.ONE_BY_ONE}."
        )
    compose = _numbers(text(docker.get("compose")).lstrip("v"))
    if not docker.get("compose") or () < compose < LEAST_COMPOSE:  # one built by hand need not tell a number
        found = f"is {docker.get('compose')}" if compose else "is not there"
        least = ".".join(map(str, LEAST_COMPOSE))
        yield f"Compose {found}. Install Docker's Compose plugin, {least} or newer (`docker compose version`)."


def restart_policy(server: Server, _cluster: Cluster) -> Iterator[str]:
    host = mapping(server.docker, "inspect", "HostConfig")
    policy = text(mapping(host, "RestartPolicy").get("Name"))
    if policy in REFUSED_POLICIES:
        yield (
            f"its k3s container has the restart policy {policy or 'no'}: k3s would stay away after it ends with "
            f"code 0, and its vote with it. `docker update --restart=unless-stopped {server.docker.get('container')}` "
            "needs no restart. Put the same in Compose under the service (`restart: unless-stopped`); the next `up` "
            f"makes the container anew for it, so do that on {placement.ONE_BY_ONE}."
        )


def record_place(server: Server, cluster: Cluster) -> Iterator[str]:
    inspect = mapping(server.docker, "inspect")
    configured = placement.flags_of(cluster.nodes.get(server.node_name, {})).get("data-dir", "")
    try:
        record.place(inspect, record.data_folder(inspect, configured))
    except RecordRefused as refused:
        moves = (
            "Its data has to move along (stop k3s, copy the folder into the volume, then start it there): without it "
            f"the server comes back as a stranger. {DO_IT_ON}"
        )
        named = "volumes: [" in str(refused)
        yield f"its level would be lost with the container: {refused}. {moves if named else DO_IT_ON}"


def pinned(server: Server, cluster: Cluster) -> Iterator[str]:
    inspect = mapping(server.docker, "inspect")
    mode = text(mapping(inspect, "HostConfig").get("NetworkMode"))
    if mode == "host" or mode.startswith(OTHERS_NETWORK):
        return
    own = placement.addresses_of(cluster.nodes.get(server.node_name, {}))
    networks = mapping(inspect, "NetworkSettings", "Networks")
    project = text(mapping(inspect, "Config", "Labels").get(PROJECT_LABEL))
    for name in sorted(networks):
        # Compose names a network after its project; Docker's own takes no fixed address.
        key_in_compose = (
            "k3s"
            if name == "bridge"
            else name[len(project) + 1 :]
            if name.startswith(f"{project}_")
            else name
        )
        for key, length, pin, line in (
            ("IPAddress", "IPPrefixLen", "IPv4Address", "ipv4_address"),
            ("GlobalIPv6Address", "GlobalIPv6PrefixLen", "IPv6Address", "ipv6_address"),
        ):
            address = text(mapping(networks, name).get(key))
            fixed = text(mapping(networks, name, "IPAMConfig").get(pin))
            # One that is not its Node's (a proxy's network, say) may change.
            if not address or fixed or (own and plain_address(address) not in own):
                continue
            subnet = _subnet(address, mapping(networks, name).get(length))
            yield (
                f"the address of its container on the network {name} ({address}) is not pinned: after a restart it "
                "may be another one, and etcd then refuses the server for ever. In Compose under the service: "
                f"`networks: {{{key_in_compose}: {{{line}: {address}}}}}`, and at the top level: "
                f"`networks: {{{key_in_compose}: {{ipam: {{config: [{{subnet: {subnet}}}]}}}}}}`. "
                f"{DO_IT_ON}"
            )


def _subnet(address: str, length: object) -> str:
    try:
        return str(ipaddress.ip_network(f"{address}/{number(length)}", strict=False))
    except ValueError:
        return "..."


def version(server: Server, cluster: Cluster) -> Iterator[str]:
    found = _version(server, cluster, DIES)
    if found:
        yield (
            f"its k3s is {found}, which in a container ends at once when it is stopped, without shutting down etcd "
            f"(k3s#12919). Take 1.33.6 or newer, on {placement.ONE_BY_ONE}."
        )


ENGINE: Tuple[Rule, ...] = (engine, fit_engine)
CONTAINER: Tuple[Rule, ...] = (restart_policy, record_place, pinned, version)


def may_die(server: Server, cluster: Cluster) -> Iterator[str]:
    found = _version(server, cluster, MAY_DIE) if server.docker else ""
    if found:
        yield (
            f"its k3s is {found}, which may end at once when its container is stopped, without shutting down etcd "
            f"(k3s#12919). Take a newer patch release of its minor version, on {placement.ONE_BY_ONE}."
        )


WARNINGS: Tuple[Rule, ...] = (may_die,)


def _version(server: Server, cluster: Cluster, among: Tuple[Tuple[int, int, int], ...]) -> str:
    """The first of its two versions that is among them: the one that ran last at full, and the image's."""
    node = cluster.nodes.get(server.node_name, {})
    for said in (
        text(mapping(node, "status", "nodeInfo").get("kubeletVersion")),
        text(mapping(server.docker, "inspect", "Config").get("Image")),
    ):
        found = VERSION.search(said)
        if found and tuple(int(part) for part in found.groups()) in among:
            return ".".join(found.groups())
    return ""


def _numbers(said: str) -> Tuple[int, ...]:
    found: Optional[re.Match[str]] = re.match(r"(\d+)\.(\d+)", said)
    return tuple(int(part) for part in found.groups()) if found else ()
