# SPDX-License-Identifier: GPL-3.0-or-later
"""What the bed looks like: its settings, its three servers, and the files that make each of them one.

Pure: no Docker, no files, no clock. Written with the standard library alone, so YAML is emitted as JSON, which it
contains.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

LABEL = "exadev.bed"
"""On every container, network and volume of a bed; its value is the bed's name."""

MADE_FROM = "exadev.bed.made-from"
"""On every host: the key of what it was made from."""

DOCKER, SYSTEMD = "docker", "systemd"
"""The bed's shapes: k3s in a container of each host's own engine, or a unit of each host's systemd."""

PROJECT = "cluster"
PROJECT_FOLDER = "/srv/cluster"
CONTAINER = "k3s"
UNIT = "k3s.service"
CONFIG = "/etc/rancher/k3s"
DATA = "/var/lib/rancher/k3s"
CONFIG_ON_DATA = f"{DATA}/config/config.yaml"
# Shared by the three servers of a bed on a network of its own on one machine: no secret.
TOKEN = "three-servers-on-one-machine"


class BadSetting(ValueError):
    """A setting that cannot be used; one line."""


@dataclass(frozen=True)
class Settings:
    """What can be chosen about a bed, from the environment."""

    name: str = "regrade-bed"
    subnet: str = "172.31.66.0/24"
    k3s_image: Optional[str] = None
    shape: str = DOCKER

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """From REGRADE_BED_NAME, REGRADE_BED_SUBNET, REGRADE_BED_SHAPE and REGRADE_K3S_IMAGE; empty is unset.

        The second shape gets a name and a network of its own, so that both stand side by side. Raises BadSetting.
        """
        name = environment.get("REGRADE_BED_NAME") or cls.name
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{1,40}", name):
            raise BadSetting(
                f"REGRADE_BED_NAME is {name!r}: use 2 to 41 lower-case letters, digits and hyphens"
            )
        subnet = environment.get("REGRADE_BED_SUBNET") or cls.subnet
        try:
            network = ipaddress.IPv4Network(subnet)
        except ValueError as error:
            raise BadSetting(
                f"REGRADE_BED_SUBNET is {subnet!r} ({error}): give a network such as {cls.subnet}"
            ) from error
        if network.num_addresses < 32:
            raise BadSetting(
                f"REGRADE_BED_SUBNET is {subnet!r}: too small, give a /27 or larger such as {cls.subnet}"
            )
        shape = environment.get("REGRADE_BED_SHAPE") or cls.shape
        if shape not in (DOCKER, SYSTEMD):
            raise BadSetting(f"REGRADE_BED_SHAPE is {shape!r}: {DOCKER} or {SYSTEMD} was expected")
        found = cls(name, subnet, environment.get("REGRADE_K3S_IMAGE") or None)
        return found.second() if shape == SYSTEMD else found

    def second(self) -> Settings:
        """Of the second shape beside this one. Raises BadSetting."""
        network = ipaddress.IPv4Network(self.subnet)
        return replace(self, name=f"{self.name}-{SYSTEMD}", subnet=_beside(network), shape=SYSTEMD)


def _beside(network: ipaddress.IPv4Network) -> str:
    """Another network of the same size: 128 further in the third part of the address, or as much before."""
    if network.prefixlen < 17:
        raise BadSetting(
            f"REGRADE_BED_SUBNET is {str(network)!r}: for REGRADE_BED_SHAPE={SYSTEMD} give a /17 or smaller"
        )
    return str(ipaddress.IPv4Network((int(network.network_address) ^ (128 << 8), network.prefixlen)))


@dataclass(frozen=True)
class Place:
    """One server of the bed: its Node's name, its address, the container that is its host."""

    name: str
    address: str
    host_container: str

    @property
    def volume(self) -> str:
        """The volume that holds the storage of the host's own engine."""
        return f"{self.host_container}-docker"


def places(settings: Settings) -> tuple[Place, ...]:
    """The three servers, at .11, .12 and .13 of the subnet."""
    first = ipaddress.IPv4Network(settings.subnet).network_address
    return tuple(Place(f"server{n}", str(first + 10 + n), f"{settings.name}-server{n}") for n in (1, 2, 3))


def ssh_config(all_places: tuple[Place, ...], key: Path) -> str:
    """What ssh has to know to reach the hosts by the names of their containers."""
    hosts = [f"Host {place.host_container}\n  HostName {place.address}\n" for place in all_places]
    options = {
        "User": "root",
        "IdentityFile": f'"{key}"',
        "IdentitiesOnly": "yes",
        # Made anew at the same addresses again and again.
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
        # A host that is gone is noticed, also by a connection that is kept for the next task.
        "ConnectTimeout": "10",
        "ServerAliveInterval": "3",
        "ServerAliveCountMax": "2",
    }
    return "".join(hosts) + "Host *\n" + "".join(f"  {name} {value}\n" for name, value in options.items())


def k3s_options(all_places: tuple[Place, ...], place: Place) -> dict[str, Any]:
    """k3s's own configuration of this server: server1 founds the cluster, the others join it."""
    options: dict[str, Any] = {"token": TOKEN, "node-name": place.name, "node-ip": place.address}
    if place == all_places[0]:
        options["cluster-init"] = True
    else:
        options["server"] = f"https://{all_places[0].address}:6443"
    return options


@dataclass(frozen=True)
class Files:
    """What is written for one server: below the project folder, and below k3s's data folder."""

    project: Mapping[str, bytes]
    data: Mapping[str, bytes]


def files(all_places: tuple[Place, ...], place: Place, image: str, pods: Optional[bytes] = None) -> Files:
    """The Compose project of one host, and ``pods``, an archive of images that k3s is to import.

    The three lay k3s's configuration in three ways, on purpose: in a mounted folder, on the data volume, and with
    nothing below /etc/rancher/k3s that outlives the container.
    """
    options = k3s_options(all_places, place)
    service: dict[str, Any] = {
        "image": image,
        "container_name": CONTAINER,
        "network_mode": "host",
        "privileged": True,
        "restart": "unless-stopped",
        "tmpfs": ["/run", "/var/run"],
        "command": ["server"],
        "volumes": [f"k3s-data:{DATA}", "./node:/etc/rancher/node"],
    }
    project: dict[str, bytes] = {}
    data: dict[str, bytes] = {}
    way = all_places.index(place)
    if way == 0:
        service["volumes"].append("./k3s:/etc/rancher/k3s")
        project["k3s/config.yaml"] = _yaml(options)
    elif way == 1:
        service["environment"] = {"K3S_CONFIG_FILE": CONFIG_ON_DATA}
        data["config/config.yaml"] = _yaml(options)
    else:
        service["command"] += [f"--{name}={value}" for name, value in options.items()]
    if pods is not None:
        data["agent/images/pods.tar"] = pods
    project["compose.yaml"] = _yaml(
        {"name": PROJECT, "services": {CONTAINER: service}, "volumes": {"k3s-data": {}}}
    )
    return Files(project, data)


def machine_files(all_places: tuple[Place, ...], place: Place) -> Mapping[str, bytes]:
    """What is written below /etc/rancher/k3s of one machine."""
    return {"config.yaml": _yaml(k3s_options(all_places, place))}


def _yaml(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def ready(nodes: Mapping[str, Any]) -> set[str]:
    """The names of the Nodes that are Ready, from ``kubectl get nodes -o json``."""
    return {
        node["metadata"]["name"]
        for node in nodes.get("items", [])
        for condition in node.get("status", {}).get("conditions", [])
        if condition.get("type") == "Ready" and condition.get("status") == "True"
    }
