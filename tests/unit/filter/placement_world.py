# SPDX-License-Identifier: GPL-3.0-or-later
"""Three servers that nothing is wrong with, as the role's tasks would give them, and ways to change one thing.

No case belongs here.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List

from ansible_collections.exadev.k3s_regrade.plugins.filter.placement_refusals import placement_refusals
from ansible_collections.exadev.k3s_regrade.plugins.filter.placement_warnings import placement_warnings
from ansible_collections.exadev.k3s_regrade.tests.unit.role.test_role_files import rendered

GROUP = ("pi-a", "pi-b", "pi-c")
DATA = "/var/lib/rancher/k3s"
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3"
CGROUP = "/system.slice/docker-0a1b.scope"


class World:
    """`servers[0]` is pi-a's; what a case changes, it changes here."""

    def __init__(self) -> None:
        self.servers = [server(name, number) for number, name in enumerate(GROUP, 11)]
        self.nodes = [node(name, number) for number, name in enumerate(GROUP, 11)]
        self.members = [member(name, number) for number, name in enumerate(GROUP, 11)]
        self.group: Dict[str, str] = {name: name for name in GROUP}
        self.leases = {"k3s-regrade": "", "k3s-etcd": "pi-b"}
        self.lost: List[Dict[str, Any]] = []
        self.unread: Dict[str, str] = {}
        self.unanswered: Dict[str, str] = {}

    @property
    def found(self) -> Dict[str, Any]:
        found: Dict[str, Any] = self.servers[0]["found"]
        return found

    @property
    def docker(self) -> Dict[str, Any]:
        docker: Dict[str, Any] = self.found["docker"]
        return docker

    @property
    def inspect(self) -> Dict[str, Any]:
        inspect: Dict[str, Any] = self.docker["inspect"]
        return inspect

    @property
    def node(self) -> Dict[str, Any]:
        return self.nodes[0]

    def annotate(self, key: str, value: str, number: int = 0) -> None:
        self.nodes[number]["metadata"]["annotations"][key] = value

    def set(self, **variables: object) -> None:
        """Variables of the role, without their prefix, for pi-a."""
        given = {f"github_runner_cluster_regrade_{name}": value for name, value in variables.items()}
        self.servers[0]["settings"] = settings("pi-a", 11, **given)

    def calls(self, url: str, address: str, problem: str = "", words: str = "") -> None:
        """pi-a's KUBE_SERVER is one URL, and this is what came of it."""
        self.found["kube_server"] = [
            {"url": url, "addresses": [address], "problem": problem, "words": words},
        ]

    def lose(self, number: int, error: str = "", away: bool = False, gone: bool = False) -> None:
        """A host of the run could not be looked at."""
        host = self.servers.pop(number)["host"]
        self.lost.append({"host": host, "gone": gone, "away": away, "error": error})

    def unable(self, **docker: object) -> None:
        """Docker could not be asked about pi-a."""
        self.found.update(
            error=docker.get("error", ""),
            role="",
            running=False,
            addresses=[],
            cgroup="",
            memory_limits=[],
            memory_limit=0,
        )
        self.docker.update(docker, inspect=None)

    def silent(self, said: str) -> None:
        """No server answered on its own API."""
        self.nodes.clear()
        self.unanswered = dict.fromkeys(self.group, said)

    def as_unit(self, **found: object) -> None:
        """pi-a's k3s is a unit of systemd."""
        del self.found["docker"], self.found["memory_limit"]
        shown = {"unit": "k3s", "pid": 77, "restart": "always", "stop": "1min 30s", "unfit": ""}
        self.found.update({"kind": "unit", "others": [], "compose_folder": "", **shown, **found})

    def cluster(self) -> Dict[str, Any]:
        return {
            "nodes": self.nodes,
            "members": self.members,
            "group_name": "servers",
            "group": self.group,
            "lease": "k3s-regrade",
            "leases": "".join(f"{name}\t{holder}\n" for name, holder in self.leases.items()),
            "lost": self.lost,
            "asked": "pi-b",
            "unread": self.unread,
            "unanswered": self.unanswered,
        }

    def refusals(self) -> List[str]:
        return placement_refusals(self.servers, self.cluster())

    def warnings(self) -> List[str]:
        return placement_warnings(self.servers, self.cluster())


@functools.cache
def settings(name: str, number: int, **variables: object) -> str:
    peers = [f"https://10.0.0.{other}:6443" for other in (11, 12, 13) if other != number]
    return rendered(
        "settings.env.j2",
        github_runner_cluster_node_name=name,
        __github_runner_cluster_peers=peers,
        **variables,
    )


def server(name: str, number: int) -> Dict[str, Any]:
    peers = [f"10.0.0.{other}" for other in (11, 12, 13) if other != number]
    return {
        "host": name,
        "node_name": name,
        "mesh": "none",
        "allow_cloud_provider": False,
        "project": "cluster-regrade",
        "settings": settings(name, number),
        "found": {
            "kind": "container",
            "error": "",
            "role": "server",
            "running": True,
            "addresses": [f"10.0.0.{number}", "10.42.0.0"],
            "cgroup": CGROUP,
            "memory_limit": 0,
            "memory_limits": [],
            "memory_total": 4 << 30,
            "units": [],
            "pressure": PRESSURE,
            "pressure_error": "",
            "kube_server": [
                {"url": f"https://{peer}:6443", "addresses": [peer], "problem": "", "words": ""}
                for peer in peers
            ],
            "docker": docker(),
        },
    }


def docker() -> Dict[str, Any]:
    return {
        "container": "k3s",
        "socket": "/var/run/docker.sock",
        "socket_there": True,
        "engine": "27.5.1",
        "api": "1.47",
        "podman": False,
        "engine_error": "",
        "error": "",
        "security": ["name=seccomp,profile=builtin", "name=cgroupns"],
        "compose": "2.40.3",
        "others": [{"name": "k3s-regrade", "project": "cluster-regrade"}],
        "inspect": {
            "Args": ["server"],
            "Config": {
                "Image": "rancher/k3s:v1.34.9-k3s1",
                "Env": [],
                "Labels": {"com.docker.compose.project": "cluster"},
            },
            "State": {"Running": True, "Status": "running"},
            "HostConfig": {
                "NetworkMode": "host",
                "Memory": 0,
                "RestartPolicy": {"Name": "unless-stopped"},
                "LogConfig": {"Type": "json-file"},
                "Tmpfs": {"/run": ""},
            },
            "Mounts": [{"Type": "volume", "Name": "cluster_k3s-data", "Destination": DATA, "RW": True}],
            "NetworkSettings": {"Networks": {"host": {"IPAMConfig": {}, "IPAddress": ""}}},
        },
    }


def node(name: str, number: int, etcd: str = "true") -> Dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {"node-role.kubernetes.io/etcd": etcd},
            "annotations": {
                "etcd.k3s.cattle.io/node-name": f"{name}-0a1b2c{number}",
                "k3s.io/node-args": '["server","--node-ip","10.0.0.%d","--token","********"]' % number,
                "k3s.io/node-env": "{}",
            },
        },
        "spec": {"providerID": f"k3s://{name}"},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": f"10.0.0.{number}"},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {"kubeletVersion": "v1.34.9+k3s1"},
        },
    }


def member(name: str, number: int) -> Dict[str, Any]:
    # k3s leaves isLearner out where it is false.
    return {
        "ID": 2**60 + number,
        "name": f"{name}-0a1b2c{number}",
        "peerURLs": [f"https://10.0.0.{number}:2380"],
    }


def network(address: str, pinned: str = "", length: int = 16) -> Dict[str, Any]:
    return {
        "IPAMConfig": {"IPv4Address": pinned} if pinned else {},
        "IPAddress": address,
        "IPPrefixLen": length,
        "GlobalIPv6Address": "",
        "GlobalIPv6PrefixLen": 0,
    }
