# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster in memory of the simulation behind a real HTTPS server, asked by the real Kubernetes adapter.

So a whole step meets what only a wire can show: answers that come late, break off or never come, answers of
somebody else, certificates, tokens. `faults` look at each request first; the first that gives a reply wins.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional
from urllib.parse import parse_qs, urlsplit

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.kubernetes_api import (
    KubernetesCluster,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import Server
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Lease,
    Node,
    NodeChange,
    Pod,
    Taint,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import Conflict, Missing
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import (
    Authority,
    Reply,
    Request,
    StubApi,
    status,
)

Fault = Callable[[Request], Optional[Reply]]
ENDLESS = 2000  # requests of one test; a whole step makes some dozens
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/"


def lease_json(lease: Lease, name: str) -> Dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "kube-system", "resourceVersion": lease.resource_version},
        "spec": {
            "holderIdentity": lease.holder or None,
            "leaseDurationSeconds": lease.duration_seconds,
            "acquireTime": lease.acquire_time or None,
            "renewTime": lease.renew_time or None,
            "leaseTransitions": lease.transitions,
        },
    }


def node_json(node: Node) -> Dict[str, Any]:
    taints = [
        {"key": taint.key, "value": taint.value, "effect": taint.effect, "timeAdded": taint.time_added}
        for taint in node.taints
    ]
    cordon = {"f:spec": {"f:unschedulable": {}}}
    return {
        "metadata": {
            "name": node.name,
            "uid": node.uid,
            "resourceVersion": node.resource_version,
            "creationTimestamp": node.created,
            "labels": node.labels,
            "annotations": node.annotations,
            "managedFields": [{"manager": name, "fieldsV1": cordon} for name in node.cordoned_by],
        },
        "spec": {"unschedulable": node.unschedulable, "taints": taints},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address} for address in node.addresses],
            "conditions": [
                {
                    "type": kind,
                    "status": {True: "True", False: "False"}.get(value, "Unknown"),  # type: ignore[arg-type]
                    "lastHeartbeatTime": node.ready_heartbeat,
                }
                for kind, value in (("Ready", node.ready), ("EtcdIsVoter", node.etcd_is_voter))
            ],
        },
    }


def pod_json(pod: Pod) -> Dict[str, Any]:
    owners = [{"kind": pod.owner_kind, "controller": True}] if pod.owner_kind else []
    mirror = {"kubernetes.io/config.mirror": "x"} if pod.mirror else {}
    return {
        "metadata": {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "ownerReferences": owners,
            "annotations": mirror,
            "deletionTimestamp": "2026-01-01T00:00:00Z" if pod.terminating else None,
        },
        "status": {"phase": "Succeeded" if pod.finished else "Running"},
    }


class StubCluster:
    """Servers over one API on 127.0.0.1, which is every server's address."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.authority = Authority()
        self.folder = folder
        self.kubeconfig = self.authority.kubeconfig(folder / "config")
        self.faults: List[Fault] = []
        self.stub = StubApi(self.authority.server(folder), self._answer)
        self.memory = Cluster(
            KUBE_SERVER=self.stub.url,
            KUBECONFIG=str(self.kubeconfig),
            CALL_TIMEOUT_SECONDS="1",
            DRAIN_TIMEOUT_SECONDS="10",
            **settings,
        )
        for name in self.memory.hosts:
            self.memory.api.set_node(name, addresses=("127.0.0.1",))

    def process(self, name: str) -> Server:
        """A new process on that server, as the CLI composes one."""
        made = self.memory.process(name)
        return made._replace(world=made.world._replace(cluster=KubernetesCluster(made.world.settings)))

    def asked(self, method: str, part: str) -> int:
        return sum(request.method == method and part in request.path for request in self.stub.requests)

    def _answer(self, request: Request) -> Reply:
        if len(self.stub.requests) > ENDLESS:
            return status(403, "asked without end")
        for fault in tuple(self.faults):
            reply = fault(request)
            if reply is not None:
                return reply
        return self.serve(request)

    def serve(self, request: Request) -> Reply:
        """What a well API server does."""
        try:
            return self._served(request)
        except Conflict as error:
            return status(409, str(error))
        except Missing as error:
            return status(404, str(error))

    def _served(self, request: Request) -> Reply:
        api, path = self.memory.api, urlsplit(request.path).path
        name = path.rpartition("/")[2]
        if path == "/readyz/etcd":
            return Reply(200, "ok")
        if path.startswith(LEASES):
            if name == "k3s-etcd":
                return Reply(200, lease_json(api.k3s_etcd_lease(), name))
            if request.method == "PUT":
                return Reply(200, lease_json(api.write_lease(self._lease(request.body)), name))
            return Reply(200, lease_json(api.read_lease(), name))
        if path.endswith("/namespaces/kube-node-lease/leases"):
            items = [
                {"metadata": {"name": node}, "spec": {"renewTime": renewed}}
                for node, renewed in api.node_lease_renewals().items()
            ]
            return Reply(200, {"items": items})
        if path == "/api/v1/nodes":
            return Reply(200, {"items": [node_json(node) for node in api.nodes()]})
        if path.startswith("/api/v1/nodes/"):
            if request.method == "PATCH":
                return Reply(200, node_json(self._changed(name, request.body)))
            return Reply(200, node_json(api.node(name)))
        if path == "/api/v1/pods":
            (selector,) = parse_qs(urlsplit(request.path).query)["fieldSelector"]
            return Reply(200, {"items": [pod_json(pod) for pod in api.pods(selector.partition("=")[2])]})
        if path.endswith("/eviction"):
            return self._evicted(request)
        if path.endswith("/events"):
            about = api.nodes_by_name[request.body["involvedObject"]["name"]]
            api.record_event(about, request.body["type"], request.body["reason"], request.body["message"])
            return Reply(201, {})
        return status(404, f"no route {path}")

    @staticmethod
    def _lease(body: Dict[str, Any]) -> Lease:
        spec = body["spec"]
        return Lease(
            spec.get("holderIdentity") or "",
            spec.get("leaseDurationSeconds"),
            spec.get("acquireTime") or "",
            spec.get("renewTime") or "",
            spec.get("leaseTransitions") or 0,
            body["metadata"]["resourceVersion"],
        )

    def _changed(self, name: str, body: Dict[str, Any]) -> Node:
        """A merge patch: what is null goes, what is absent stays."""
        metadata, spec = body["metadata"], body.get("spec", {})
        taints = None
        if "taints" in spec:
            taints = tuple(
                Taint(entry["key"], entry.get("value", ""), entry["effect"], entry.get("timeAdded"))
                for entry in spec["taints"] or []
            )
        change = NodeChange(
            metadata.get("labels", {}),
            metadata.get("annotations", {}),
            taints,
            bool(spec["unschedulable"]) if "unschedulable" in spec else None,
        )
        return self.memory.api.change_node(name, change, metadata["resourceVersion"])

    def _evicted(self, request: Request) -> Reply:
        found = re.search(r"/namespaces/([^/]+)/pods/([^/]+)/eviction", request.path)
        assert found
        for pods in self.memory.api.pods_by_node.values():
            for pod in pods:
                if (pod.namespace, pod.name) == found.groups():
                    answer = self.memory.api.evict(pod)
                    if answer.accepted:
                        return Reply(201, {})
                    causes = [{"reason": "DisruptionBudget", "message": answer.reason}]
                    text = "Cannot evict pod as it would violate the pod's disruption budget."
                    return status(429, text, reason="TooManyRequests", details={"causes": causes})
        return status(404, f'pods "{found.group(2)}" not found')

    def close(self) -> None:
        self.stub.close()


def on(method: str, part: str, reply: Reply, times: int = 10**9, skip: int = 0) -> Fault:
    """A fault that gives `reply` to the requests that fit, `times` times, after `skip` of them."""
    seen = [0]

    def fault(request: Request) -> Optional[Reply]:
        if method not in ("", request.method) or part not in request.path:
            return None
        seen[0] += 1
        return reply if skip < seen[0] <= skip + times else None

    return fault


def applied_then(cluster: StubCluster, method: str, part: str, reply: Reply, times: int = 1) -> Fault:
    """A fault that carries the request out and answers with `reply` all the same: the answer is lost."""
    left = [times]

    def fault(request: Request) -> Optional[Reply]:
        if request.method != method or part not in request.path or not left[0]:
            return None
        left[0] -= 1
        cluster.serve(request)
        return reply

    return fault
