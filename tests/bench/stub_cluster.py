# SPDX-License-Identifier: GPL-3.0-or-later
"""Three servers as the real command sees them: the first one's Docker engine and k3s, and the APIs of its two peers.

The APIs hold what a step reads and writes, with objects as long as those of a small real cluster, and count every
request. What a real API does beyond that (rights, admission, etcd) is tested on the bed.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlsplit

from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import (
    Authority,
    Reply,
    Request,
    StubApi,
    status,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_engine import FakeK3s, StubEngine

OWN, PEERS = "pi1", {"pi2": "127.0.0.2", "pi3": "127.0.0.3"}
SERVERS = {OWN: "127.0.0.1", **PEERS}
MEMBER_IDS = {"pi1": 9372538179322589801, "pi2": 2, "pi3": 3}
PODS = 30  # of one server, each as long as a pod of a small service
IMAGES = 50  # kubelet reports as many of each Node

Json = dict[str, Any]


def member_name(name: str) -> str:
    return f"{name}-0a1b2c3d"


def _node(name: str) -> Json:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"node-role.kubernetes.io/etcd": "true", "kubernetes.io/hostname": name},
            "annotations": {
                "etcd.k3s.cattle.io/node-name": member_name(name),
                "etcd.k3s.cattle.io/node-address": SERVERS[name],
            },
            "managedFields": [
                {"manager": f"manager-{at}", "fieldsV1": {f"f:{at}": {f"f:{key}": {} for key in range(30)}}}
                for at in range(5)
            ],
        },
        "spec": {},
        "status": {
            "addresses": [{"type": "InternalIP", "address": SERVERS[name]}],
            "images": [
                {"names": [f"registry.example/team/image-{at}@sha256:{at:064x}"], "sizeBytes": at << 20}
                for at in range(IMAGES)
            ],
        },
    }


def _pod(at: int) -> Json:
    return {
        "metadata": {
            "name": f"web-{at}",
            "namespace": "prod",
            "uid": f"uid-of-web-{at}",
            "ownerReferences": [{"kind": "DaemonSet" if at % 3 == 0 else "ReplicaSet", "controller": True}],
            "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:{key}": {} for key in range(100)}}],
        },
        "spec": {
            "containers": [
                {"name": "web", "env": [{"name": f"KEY_{key}", "value": "of a service"} for key in range(60)]}
            ]
        },
        "status": {"phase": "Running"},
    }


class Cluster:
    """What the APIs hold. Every peer answers from it."""

    def __init__(self, k3s: FakeK3s) -> None:
        self._k3s = k3s
        self._lock = threading.Lock()
        self._versions = itertools.count(100)
        self._reads = itertools.count()
        self.nodes = {name: _node(name) for name in SERVERS}
        self.pods = {f"web-{at}": _pod(at) for at in range(PODS)}
        self.lease: Json = {"metadata": {"name": "k3s-regrade", "namespace": "kube-system"}, "spec": {}}
        for item in (*self.nodes.values(), self.lease):
            self._written(item)

    def _written(self, item: Json) -> Json:
        item["metadata"]["resourceVersion"] = str(next(self._versions))
        return item

    def answer(self, request: Request) -> Reply:
        with self._lock:
            return self._answer(request)

    def _answer(self, request: Request) -> Reply:
        path, last = urlsplit(request.path).path, urlsplit(request.path).path.rpartition("/")[2]
        if path == "/readyz/etcd":
            return Reply(200, "ok")
        if path.endswith("/kube-system/leases/k3s-regrade"):
            if request.method == "PUT":
                if (
                    request.body["metadata"].get("resourceVersion")
                    != self.lease["metadata"]["resourceVersion"]
                ):
                    return status(409, "the object has been modified")
                self.lease = self._written(request.body)
            return Reply(200, self.lease)
        if path.endswith("/kube-system/leases/k3s-etcd"):
            return Reply(
                200, {"spec": {"holderIdentity": "pi2", "renewTime": f"renewal {next(self._reads)}"}}
            )
        if path.endswith("/kube-node-lease/leases"):
            renewed = {"renewTime": f"renewal {next(self._reads)}"}
            return Reply(200, {"items": [{"metadata": {"name": name}, "spec": renewed} for name in SERVERS]})
        if path.endswith("/endpointslices/kubernetes"):
            return Reply(200, {"endpoints": [{"addresses": list(PEERS.values())}]})
        if path == "/api/v1/nodes":
            return Reply(200, {"items": [self._shown(name) for name in self.nodes]})
        if path.startswith("/api/v1/nodes/"):
            if request.method == "PATCH" and not self._merged(self.nodes[last], request.body):
                return status(409, "the object has been modified")
            return Reply(200, self._shown(last))
        if path == "/api/v1/pods":
            return Reply(200, {"items": list(self.pods.values())})
        if path.endswith("/events"):
            return Reply(201, request.body)
        evicted = re.search(r"/pods/([^/]+)/eviction$", path)
        if evicted:
            self.pods.pop(evicted.group(1), None)
            return Reply(201, {"kind": "Status", "status": "Success"})
        return status(404, f"{path} is not held here")

    def _shown(self, name: str) -> Json:
        """The Node with the conditions of now: our own has a heartbeat of its own for each boot."""
        beat = f"2026-01-01T00:00:{self._k3s.boots if name == OWN else 0:02d}Z"
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": beat}
        found = self.nodes[name]
        return {
            **found,
            "status": {**found["status"], "conditions": [ready, {"type": "EtcdIsVoter", "status": "True"}]},
        }

    def _merged(self, node: Json, patch: Json) -> bool:
        """A merge patch as the API server takes it; False where the resourceVersion has moved."""
        metadata = dict(patch["metadata"])
        if metadata.pop("resourceVersion") != node["metadata"]["resourceVersion"]:
            return False
        for part, wanted in (
            ("labels", metadata.get("labels")),
            ("annotations", metadata.get("annotations")),
        ):
            _merge(node["metadata"][part], wanted)
        _merge(node["spec"], patch.get("spec"))
        # Who cordons is known by the field's manager; all writes here are the product's.
        cordon = {"manager": "k3s-regrade", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
        others = [entry for entry in node["metadata"]["managedFields"] if entry != cordon]
        node["metadata"]["managedFields"] = [*others, *([cordon] if "unschedulable" in node["spec"] else [])]
        self._written(node)
        return True


def _merge(into: Json, wanted: Optional[Json]) -> None:
    for key, value in (wanted or {}).items():
        if value is None:
            into.pop(key, None)
        else:
            into[key] = value


class Servers:
    """The stubs, and the environment in which the real command meets them."""

    def __init__(self, folder: Path) -> None:
        authority = Authority()
        kubeconfig = authority.kubeconfig(folder / "kubeconfig")
        k3s = FakeK3s(folder, authority.server(folder), _free_port())
        k3s.members = [
            {
                "ID": MEMBER_IDS[name],
                "name": member_name(name),
                "peerURLs": [f"https://{address}:2380"],
                "clientURLs": [f"https://{address}:2379"],
            }
            for name, address in SERVERS.items()
        ]
        self.k3s = k3s
        self.engine = StubEngine(folder / "docker.sock", k3s)
        self.engine.boot()
        self.cluster = Cluster(k3s)
        port = _free_port()  # one for all: a step asks each peer at the port of KUBE_SERVER
        self.apis = [
            StubApi(authority.server(folder, address), self.cluster.answer, port, host=address)
            for address in PEERS.values()
        ]
        self.environment = {
            "NODE_NAME": OWN,
            "KUBE_SERVER": ",".join(api.url for api in self.apis),
            "KUBECONFIG": str(kubeconfig),
            "DOCKER_HOST": self.engine.url,
            "STATE_DIR": str(folder / "state"),
            "LOCK_FILE": str(folder / "lock"),
            "ETCD_ONLY_HTTPS_PORT": str(_free_port()),
        }

    def calls(self) -> tuple[int, int]:
        """Requests so far: of the Kubernetes APIs (this server's own too), and of the Docker engine."""
        return sum(len(api.requests) for api in self.apis) + self.k3s.looks(), len(self.engine.calls)

    def close(self) -> None:
        for api in self.apis:
            api.close()
        self.engine.close()


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    made = Servers(folder)
    try:
        yield made
    finally:
        made.close()


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("0.0.0.0", 0))
        return int(made.getsockname()[1])
