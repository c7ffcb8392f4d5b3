# SPDX-License-Identifier: GPL-3.0-or-later
"""The Kubernetes adapter against an API server that answers by script. Numbers: the field cases."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import ports
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import kubernetes_api
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings as settings_of
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Eviction,
    Lease,
    Node,
    NodeChange,
    Pod,
    Taint,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import (
    DAY,
    NOW,
    Authority,
    Reply,
    Request,
    StubApi,
    status,
)

LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/k3s-regrade"
POD = Pod("prod", "web-1", "pod-uid", "ReplicaSet", False, False, False)
TIMEOUT = 1.0
ANSWER_SECONDS = 15.0  # far less than an answer takes that must not be waited for, and time for a busy machine


def lease_json(version: str = "91", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "k3s-regrade",
            "namespace": "kube-system",
            "resourceVersion": version,
            "uid": "11",
            "labels": {"made-by": "role"},
            "managedFields": [{"manager": "x"}],
        },
        "spec": spec,
    }


class World:
    """A cluster adapter and the stubs it is pointed at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.pem = self.authority.server(folder)
        self.kubeconfig = self.authority.kubeconfig(folder / "config")
        self.stubs: list[StubApi] = []

    def stub(self, script: Callable[[Request], Reply] | Reply, pem: Path | None = None) -> StubApi:
        made = StubApi(pem or self.pem, script if callable(script) else lambda _request: script)
        self.stubs.append(made)
        return made

    def cluster(self, *urls: str, **given: str) -> kubernetes_api.KubernetesCluster:
        values = {
            "NODE_NAME": "pi1",
            "KUBE_SERVER": ",".join(urls),
            "KUBECONFIG": str(self.kubeconfig),
            "CALL_TIMEOUT_SECONDS": str(TIMEOUT),
            **given,
        }
        loaded = settings_of.load("\n".join(f"{key}={value}" for key, value in values.items()), {})
        return kubernetes_api.KubernetesCluster(loaded)

    def answering(self, script: Callable[[Request], Reply] | Reply) -> kubernetes_api.KubernetesCluster:
        return self.cluster(self.stub(script).url)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for stub in made.stubs:
        stub.close()


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text and "\n" not in text
    return text


# --- the Lease ---


@pytest.mark.parametrize(
    "spec",
    [
        {"holderIdentity": "gone-node", "leaseDurationSeconds": None, "renewTime": None},
        {},
        {"holderIdentity": None, "leaseTransitions": None},
    ],
)
def test_24_null_times_duration_and_holder_are_read(world: World, spec: dict[str, Any]) -> None:
    lease = world.answering(Reply(200, lease_json(**spec))).read_lease()
    assert lease == Lease(spec.get("holderIdentity") or "", None, "", "", 0, "91")


def test_21_times_are_handed_on_as_they_came_and_never_compared(world: World) -> None:
    spec = {
        "holderIdentity": "pi2",
        "leaseDurationSeconds": 900,
        "acquireTime": "2026-09-20T11:39:00.000000Z",
        "renewTime": "2036-09-20T11:40:00.000000Z",
        "leaseTransitions": 3,
    }
    lease = world.answering(Reply(200, lease_json(**spec))).read_lease()
    assert lease == Lease("pi2", 900, "2026-09-20T11:39:00.000000Z", "2036-09-20T11:40:00.000000Z", 3, "91")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000Z"),
        ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.000000Z"),
        ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.500000Z"),
        ("2026-01-01T00:00:00.123456789Z", "2026-01-01T00:00:00.123456Z"),
    ],
)
def test_23_lease_times_have_six_fractional_digits(world: World, given: str, written: str) -> None:
    stub = world.stub(lambda request: Reply(200, request.body or lease_json()))
    world.cluster(stub.url).write_lease(Lease("pi1/a", 60, given, given, 1, "91"))
    assert stub.requests[-1].body["spec"] == {
        "holderIdentity": "pi1/a",
        "leaseDurationSeconds": 60,
        "acquireTime": written,
        "renewTime": written,
        "leaseTransitions": 1,
    }


def test_23_a_time_that_is_none_is_our_bug_and_not_a_held_lease(world: World) -> None:
    stub = world.stub(lambda request: Reply(200, request.body or lease_json()))
    with pytest.raises(ports.ClusterError, match=r"bug of ours") as caught:
        world.cluster(stub.url).write_lease(Lease("pi1/a", 60, "yesterday", "", 1, "91"))
    assert not isinstance(caught.value, (ports.Conflict, ports.Unreachable))
    assert all(request.method == "GET" for request in stub.requests)


def test_23_a_400_is_our_bug_and_not_a_held_lease(world: World) -> None:
    def script(request: Request) -> Reply:
        return Reply(200, lease_json()) if request.method == "GET" else status(400, "cannot decode renewTime")

    with pytest.raises(ports.ClusterError, match=r"400, a bug of ours.*renewTime") as caught:
        world.answering(script).write_lease(Lease("pi1/a", 60, "", "", 1, "91"))
    assert type(caught.value) is ports.ClusterError


def test_a_release_clears_the_holder_and_keeps_what_others_wrote(world: World) -> None:
    stub = world.stub(
        lambda request: Reply(200, request.body or lease_json(holderIdentity="pi1/a", strategy="x"))
    )
    world.cluster(stub.url).write_lease(Lease("", None, "", "", 4, "91"))
    body = stub.requests[-1].body
    assert stub.requests[-1].method == "PUT" and stub.requests[-1].path == LEASE_PATH
    assert body["spec"] == {"leaseTransitions": 4, "strategy": "x"}
    assert body["metadata"]["labels"] == {"made-by": "role"}
    assert body["metadata"]["resourceVersion"] == "91"
    assert "managedFields" not in body["metadata"]


def test_25_a_lease_written_meanwhile_is_a_conflict_and_nothing_is_sent(world: World) -> None:
    stub = world.stub(Reply(200, lease_json(version="92", holderIdentity="pi2")))
    with pytest.raises(ports.Conflict, match=r"pi2"):
        world.cluster(stub.url).write_lease(Lease("pi1/a", 60, "", "", 1, "91"))
    assert [request.method for request in stub.requests] == ["GET"]


def test_25_a_409_is_a_conflict(world: World) -> None:
    def script(request: Request) -> Reply:
        return (
            Reply(200, lease_json())
            if request.method == "GET"
            else status(409, "the object has been modified")
        )

    with pytest.raises(ports.Conflict, match=r"object has been modified"):
        world.answering(script).write_lease(Lease("pi1/a", 60, "", "", 1, "91"))


@pytest.mark.parametrize("code", [401, 403])
@pytest.mark.parametrize("verb", ["get", "update"])
def test_26_no_permission_names_verb_resource_and_namespace(world: World, code: int, verb: str) -> None:
    def script(request: Request) -> Reply:
        if verb == "update" and request.method == "GET":
            return Reply(200, lease_json())
        return status(code, "leases.coordination.k8s.io is forbidden")

    with pytest.raises(ports.Forbidden) as caught:
        world.answering(script).write_lease(Lease("pi1/a", 60, "", "", 1, "91"))
    assert f"{verb} leases in namespace kube-system" in one_line(caught.value)


def test_26_a_missing_lease_says_to_run_the_role(world: World) -> None:
    with pytest.raises(ports.Missing, match=r"run the role"):
        world.answering(status(404, "leases k3s-regrade not found")).read_lease()


def test_20_an_etcd_without_space_is_unknown_and_not_held(world: World) -> None:
    def script(request: Request) -> Reply:
        if request.method == "GET":
            return Reply(200, lease_json())
        return status(500, "etcdserver: mvcc: database space exceeded")

    with pytest.raises(ports.Unreachable, match=r"outcome is unknown.*database space exceeded"):
        world.answering(script).write_lease(Lease("pi1/a", 60, "", "", 1, "91"))


# --- Nodes ---

NODE = {
    "metadata": {
        "name": "pi1",
        "uid": "0f0e",
        "resourceVersion": "7",
        "creationTimestamp": "2026-09-01T00:00:00Z",
        "labels": {"node-role.kubernetes.io/etcd": "true"},
        "annotations": {"a": "b"},
        "managedFields": [
            {
                "manager": "kubectl-cordon",
                "operation": "Update",
                "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
            },
            {"manager": "k3s", "fieldsV1": {"f:metadata": {"f:labels": {}}}},
            {"manager": "odd"},
        ],
    },
    "spec": {
        "unschedulable": True,
        "providerID": "k3s://pi1",
        "taints": [
            {
                "key": "node.kubernetes.io/unschedulable",
                "effect": "NoSchedule",
                "timeAdded": "2026-09-20T10:00:00Z",
            },
            {"key": "CriticalAddonsOnly", "value": "true", "effect": "NoExecute"},
        ],
    },
    "status": {
        "addresses": [
            {"type": "InternalIP", "address": "10.0.0.11"},
            {"type": "Hostname", "address": "pi1"},
            {"type": "InternalIP", "address": "fd00::11"},
        ],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "lastHeartbeatTime": "2026-09-20T10:40:00Z",
                "lastTransitionTime": "2026-09-20T10:00:00Z",
            },
            {"type": "EtcdIsVoter", "status": "True"},
        ],
    },
}


def test_a_node_is_read_with_who_cordoned_it(world: World) -> None:
    node = world.answering(Reply(200, NODE)).node("pi1")
    assert node == Node(
        name="pi1",
        uid="0f0e",
        resource_version="7",
        created="2026-09-01T00:00:00Z",
        addresses=("10.0.0.11", "fd00::11"),
        labels={"node-role.kubernetes.io/etcd": "true"},
        annotations={"a": "b"},
        taints=(
            Taint("node.kubernetes.io/unschedulable", "", "NoSchedule", "2026-09-20T10:00:00Z"),
            Taint("CriticalAddonsOnly", "true", "NoExecute"),
        ),
        unschedulable=True,
        cordoned_by=("kubectl-cordon",),
        ready=True,
        ready_heartbeat="2026-09-20T10:40:00Z",
        etcd_is_voter=True,
        provider_id="k3s://pi1",
        ready_since="2026-09-20T10:00:00Z",
    )


@pytest.mark.parametrize(
    ("conditions", "ready", "voter"),
    [
        ([{"type": "Ready", "status": "Unknown"}, {"type": "EtcdIsVoter", "status": "False"}], None, False),
        ([], None, None),
        (None, None, None),
    ],
)
def test_12_what_is_unknown_stays_unknown(world: World, conditions: Any, ready: Any, voter: Any) -> None:
    node = world.answering(
        Reply(200, {"metadata": {"name": "pi2"}, "status": {"conditions": conditions}})
    ).node("pi2")
    assert (node.ready, node.etcd_is_voter, node.ready_heartbeat) == (ready, voter, "")
    assert (node.taints, node.labels, node.cordoned_by) == ((), {}, ())


def test_nodes_come_from_one_quorum_list_of_etcd_servers(world: World) -> None:
    stub = world.stub(Reply(200, {"items": [NODE]}))
    assert [node.name for node in world.cluster(stub.url).nodes()] == ["pi1"]
    assert stub.requests[0].path == "/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fetcd%3Dtrue"


def test_all_nodes_are_agents_too_and_an_agent_is_never_asked_for_the_api(world: World) -> None:
    agent = {"metadata": {"name": "pi9"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.19"}]}}
    stub = world.stub(Reply(200, {"items": [NODE, agent]}))
    cluster = world.cluster(stub.url)
    assert [node.name for node in cluster.all_nodes()] == ["pi1", "pi9"]
    assert stub.requests[0].path == "/api/v1/nodes"
    stub.close()
    with pytest.raises(ports.Unreachable) as caught:
        cluster.node("pi1")
    assert "10.0.0.19" not in str(caught.value)


def test_a_node_is_changed_in_one_conditional_write(world: World) -> None:
    stub = world.stub(Reply(200, NODE))
    world.cluster(stub.url).change_node(
        "pi1",
        NodeChange(
            labels={"level": "etcd-only"},
            annotations={"step": None, "mark": "cordon"},
            taints=(
                Taint("a", "", "NoExecute", "2026-09-20T10:00:00Z"),
                Taint("level", "etcd-only", "NoSchedule"),
            ),
            unschedulable=True,
        ),
        "7",
    )
    (request,) = stub.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/pi1?fieldManager=k3s-regrade")
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    assert request.body == {
        "metadata": {
            "resourceVersion": "7",
            "labels": {"level": "etcd-only"},
            "annotations": {"step": None, "mark": "cordon"},
        },
        "spec": {
            "unschedulable": True,
            "taints": [
                {"key": "a", "effect": "NoExecute", "timeAdded": "2026-09-20T10:00:00Z"},
                {"key": "level", "value": "etcd-only", "effect": "NoSchedule"},
            ],
        },
    }


def test_a_field_that_is_not_named_is_not_written(world: World) -> None:
    stub = world.stub(Reply(200, NODE))
    cluster = world.cluster(stub.url)
    cluster.change_node("pi1", NodeChange(annotations={"step": "x"}), "7")
    cluster.change_node("pi1", NodeChange(taints=(), unschedulable=False), "7")
    assert stub.requests[0].body == {"metadata": {"resourceVersion": "7", "annotations": {"step": "x"}}}
    assert stub.requests[1].body == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": None, "unschedulable": None},
    }


def test_a_write_after_an_older_resource_version_is_a_conflict(world: World) -> None:
    with pytest.raises(ports.Conflict):
        world.answering(status(409, "please apply your changes to the latest version")).change_node(
            "pi1", NodeChange(unschedulable=True), "6"
        )


def test_what_the_api_finds_invalid_is_our_bug(world: World) -> None:
    with pytest.raises(ports.ClusterError, match=r"422, a bug of ours"):
        world.answering(status(422, "Invalid value")).change_node("pi1", NodeChange(labels={"a": "!"}), "6")


def test_node_leases_of_every_server(world: World) -> None:
    items = [
        {"metadata": {"name": "pi1"}, "spec": {"renewTime": "2026-09-20T10:00:03.123456Z"}},
        {"metadata": {"name": "pi2"}, "spec": {"renewTime": None}},
        {"metadata": {"name": "pi3"}},
    ]
    stub = world.stub(Reply(200, {"items": items}))
    assert world.cluster(stub.url).node_lease_renewals() == {
        "pi1": "2026-09-20T10:00:03.123456Z",
        "pi2": "",
        "pi3": "",
    }
    assert stub.requests[0].path == "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def test_an_event_is_about_the_node(world: World) -> None:
    stub = world.stub(Reply(201, {}))
    node = kubernetes_api._node(NODE)
    world.cluster(stub.url).record_event(node, "Warning", "RegradeBlocked", "why " * 1000)
    body = stub.requests[0].body
    assert stub.requests[0].path == "/api/v1/namespaces/default/events"
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "pi1", "uid": "0f0e"}
    assert (body["type"], body["reason"]) == ("Warning", "RegradeBlocked")
    assert len(body["message"]) <= 1024


# --- pods ---


def test_32_pods_of_one_node_and_what_they_are(world: World) -> None:
    def pod(name: str, **more: Any) -> dict[str, Any]:
        metadata = {"namespace": "prod", "name": name, "uid": f"u-{name}", **more.pop("metadata", {})}
        return {"metadata": metadata, **more}

    stub = world.stub(
        Reply(
            200,
            {
                "items": [
                    pod("bare"),
                    pod(
                        "mirror",
                        metadata={
                            "annotations": {"kubernetes.io/config.mirror": "x"},
                            "ownerReferences": [{"kind": "Node", "controller": True}],
                        },
                    ),
                    pod(
                        "daemon",
                        metadata={
                            "ownerReferences": [{"kind": "Odd"}, {"kind": "DaemonSet", "controller": True}]
                        },
                    ),
                    pod("done", status={"phase": "Succeeded"}),
                    pod(
                        "going",
                        metadata={"deletionTimestamp": "2026-09-20T10:00:00Z"},
                        status={"phase": "Running"},
                    ),
                ]
            },
        )
    )
    found = world.cluster(stub.url).pods("pi1")
    assert stub.requests[0].path == "/api/v1/pods?fieldSelector=spec.nodeName%3Dpi1"
    assert found == (
        Pod("prod", "bare", "u-bare", "", False, False, False),
        Pod("prod", "mirror", "u-mirror", "Node", True, False, False),
        Pod("prod", "daemon", "u-daemon", "DaemonSet", False, False, False),
        Pod("prod", "done", "u-done", "", False, True, False),
        Pod("prod", "going", "u-going", "", False, False, True),
    )


def test_an_eviction_names_the_pod_it_means(world: World) -> None:
    stub = world.stub(Reply(201, {}))
    assert world.cluster(stub.url).evict(POD) == Eviction(True)
    assert stub.requests[0].path == "/api/v1/namespaces/prod/pods/web-1/eviction"
    assert stub.requests[0].body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "web-1", "namespace": "prod"},
        "deleteOptions": {"preconditions": {"uid": "pod-uid"}},
    }


BUDGET = status(
    429,
    "Cannot evict pod as it would violate the pod's disruption budget.",
    reason="TooManyRequests",
    details={
        "causes": [
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget web needs 1 healthy pods and has 1 currently",
            }
        ]
    },
)


@pytest.mark.parametrize(
    ("reply", "accepted", "words"),
    [
        (status(404, 'pods "web-1" not found'), True, ""),
        (
            status(409, "Precondition failed: UID in precondition: pod-uid, UID in object meta: other"),
            True,
            "",
        ),
        (
            status(
                409,
                'Operation cannot be fulfilled on Pod "web-1": the UID in the precondition (pod-uid) does not '
                "match the UID in record (other). The object might have been deleted and then recreated",
            ),
            True,
            "recreated",
        ),
        (status(409, "Operation cannot be fulfilled, try again"), False, "try again"),
        (BUDGET, False, "budget web needs 1 healthy"),
        (
            status(
                500,
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
                "support.",
            ),
            False,
            "more than one PodDisruptionBudget",
        ),
        (
            status(500, 'Internal error occurred: failed calling webhook "guard.example"'),
            False,
            "the API answered 500: Internal error occurred: failed calling webhook",
        ),
        (status(504, "Timeout: request did not complete"), False, "the API answered 504: Timeout"),
    ],
)
def test_30_the_answers_of_the_eviction_api(world: World, reply: Reply, accepted: bool, words: str) -> None:
    answer = world.answering(reply).evict(POD)
    assert answer.accepted is accepted
    assert words in answer.reason


def test_an_eviction_that_is_not_allowed_is_no_blocked_pod(world: World) -> None:
    with pytest.raises(ports.Forbidden, match=r"create pods/eviction in namespace prod \(web-1\)"):
        world.answering(status(403, "forbidden")).evict(POD)


# --- which server is asked, and how long ---


def test_a_server_that_refuses_is_passed_over(world: World) -> None:
    good = world.stub(Reply(200, NODE))
    cluster = world.cluster(f"https://127.0.0.1:{free_port()}", good.url)
    assert cluster.node("pi1").name == "pi1"
    assert cluster.node("pi1").name == "pi1"


@pytest.mark.parametrize("words", ["apiserver disabled", "starting", "apiserver not ready"])
def test_a_server_below_full_is_passed_over_also_for_a_write(world: World, words: str) -> None:
    disabled = world.stub(status(503, words))
    good = world.stub(Reply(200, NODE))
    cluster = world.cluster(disabled.url, good.url)
    cluster.change_node("pi1", NodeChange(unschedulable=True), "7")
    cluster.node("pi1")
    assert len(disabled.requests) == 1, "the last good one is asked first from then on"
    assert len(good.requests) == 2


def test_another_503_is_an_unknown_outcome_and_not_sent_again(world: World) -> None:
    busy = world.stub(status(503, "etcdserver: leader changed"))
    good = world.stub(Reply(200, NODE))
    with pytest.raises(ports.Unreachable, match=r"unknown"):
        world.cluster(busy.url, good.url).change_node("pi1", NodeChange(unschedulable=True), "7")
    assert not good.requests


@pytest.mark.parametrize("code", [500, 503, 429])
def test_a_server_in_trouble_is_passed_over_by_a_read_and_not_asked_first_again(world: World, code: int) -> None:
    ill = world.stub(status(code, "etcdserver: request timed out"))
    good = world.stub(Reply(200, NODE))
    cluster = world.cluster(ill.url, good.url)
    assert cluster.node("pi1").name == "pi1"
    cluster.change_node("pi1", NodeChange(unschedulable=True), "7")
    assert (len(ill.requests), len(good.requests)) == (1, 2)


def test_a_write_that_a_server_fails_is_sent_once_and_the_next_call_goes_to_another(world: World) -> None:
    ill = world.stub(status(500, "etcdserver: leader changed"))
    good = world.stub(Reply(200, NODE))
    cluster = world.cluster(ill.url, good.url)
    with pytest.raises(ports.Unreachable, match=r"500, so the outcome is unknown .*leader changed"):
        cluster.change_node("pi1", NodeChange(unschedulable=True), "7")
    assert not good.requests
    cluster.change_node("pi1", NodeChange(unschedulable=True), "7")
    assert (len(ill.requests), len(good.requests)) == (1, 1)


def test_where_all_are_in_trouble_each_is_named_with_what_it_said(world: World) -> None:
    first = world.stub(status(500, "etcdserver: request timed out"))
    second = world.stub(status(500, "etcdserver: mvcc: database space exceeded"))
    with pytest.raises(ports.Unreachable) as caught:
        world.cluster(first.url, second.url).read_lease()
    said = one_line(caught.value)
    assert f"{first.url}: 500 etcdserver: request timed out" in said
    assert f"{second.url}: 500 etcdserver: mvcc: database space exceeded" in said


def test_an_operation_of_two_calls_has_one_time(world: World) -> None:
    """Each of the two answers within the time of one, and both together do not."""
    stub = world.stub(lambda request: Reply(200, lease_json(), late=0.7 * TIMEOUT))
    with pytest.raises(ports.Unreachable):
        world.cluster(stub.url).write_lease(Lease("pi1/a", 60, "", "", 1, "91"))


@pytest.mark.parametrize("version", ["", "91"])
def test_nothing_is_written_without_a_resource_version(world: World, version: str) -> None:
    """The API takes a write with an empty one for a write without conditions."""
    lease = lease_json(version="")
    del lease["metadata"]["resourceVersion"]
    stub = world.stub(Reply(200, lease))
    with pytest.raises(ports.Conflict):
        world.cluster(stub.url).write_lease(Lease("pi1/a", 60, "", "", 1, version))
    with pytest.raises(ports.ClusterError, match=r"Node pi1 has no resourceVersion"):
        world.cluster(stub.url).change_node("pi1", NodeChange(unschedulable=True), "")
    assert {request.method for request in stub.requests} == {"GET"}


def test_no_server_answers(world: World) -> None:
    first, second = free_port(), free_port()
    with pytest.raises(ports.Unreachable) as caught:
        world.cluster(f"https://127.0.0.1:{first}", f"https://127.0.0.1:{second}").read_lease()
    said = one_line(caught.value)
    assert (
        f"127.0.0.1:{first}: connection refused" in said and f"127.0.0.1:{second}: connection refused" in said
    )
    assert "8080" not in said


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, NODE, late=20),
        Reply(200, {"items": [NODE] * 500}, hang=True),
        Reply(200, NODE, trickle=0.05),
    ],
    ids=["late", "61-large-body-hangs", "a-byte-at-a-time"],
)
@pytest.mark.parametrize("write", [False, True])
def test_61_every_call_has_an_end(world: World, reply: Reply, write: bool) -> None:
    stub = world.stub(reply)
    cluster = world.cluster(stub.url)
    begun = time.monotonic()
    with pytest.raises(ports.Unreachable, match=r"within 1 s|no answer within"):
        if write:
            cluster.change_node("pi1", NodeChange(unschedulable=True), "7")
        else:
            cluster.nodes()
    assert time.monotonic() - begun < ANSWER_SECONDS
    assert len(stub.requests) == 1, "sent once"


def test_a_hanging_handshake_leaves_time_for_the_next_server(world: World) -> None:
    with socket.socket() as paused:
        paused.bind(("127.0.0.1", 0))
        paused.listen()
        paused.setblocking(False)
        good = world.stub(Reply(200, NODE))
        cluster = world.cluster(f"https://127.0.0.1:{paused.getsockname()[1]}", good.url)
        assert cluster.node("pi1").name == "pi1"
        paused.accept()[0].close()
        assert cluster.node("pi1").name == "pi1"
        with pytest.raises(BlockingIOError):  # it is not asked first again
            paused.accept()


def test_an_answer_that_breaks_off_is_unknown(world: World) -> None:
    with pytest.raises(ports.Unreachable, match=r"unknown"):
        world.answering(Reply(200, NODE, short=True)).change_node("pi1", NodeChange(unschedulable=True), "7")


def test_a_write_whose_connection_is_dropped_is_sent_once(world: World) -> None:
    stub = world.stub(lambda request: Reply(200, lease_json()) if request.method == "GET" else Reply(drop=True))
    with pytest.raises(ports.Unreachable, match=r"unknown.*connection closed without an answer"):
        world.cluster(stub.url).write_lease(Lease("pi1/a", 60, "", "", 1, "91"))
    assert [request.method for request in stub.requests] == ["GET", "PUT"]


@pytest.mark.parametrize("body", ["<html>a proxy</html>", "[]"])
def test_an_answer_that_is_no_object_is_unknown(world: World, body: str) -> None:
    with pytest.raises(ports.Unreachable, match=r"no JSON object"):
        world.answering(Reply(200, body)).read_lease()


def test_overload_is_not_our_bug(world: World) -> None:
    with pytest.raises(ports.Unreachable, match=r"429"):
        world.answering(status(429, "too many requests, please try again later")).nodes()


def test_redirects_are_not_followed(world: World) -> None:
    elsewhere = world.stub(Reply(200, NODE))
    stub = world.stub(Reply(302, {}))
    with pytest.raises(ports.ClusterError):
        world.cluster(stub.url).node("pi1")
    assert not elsewhere.requests


def test_peers_found_in_the_nodes_are_asked_when_those_of_the_setting_are_gone(world: World) -> None:
    peer = {
        "metadata": {"name": "pi2"},
        "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]},
    }
    stub = world.stub(Reply(200, {"items": [peer], **peer}))
    gone = f"https://127.0.0.2:{stub.port}"
    cluster = world.cluster(stub.url)
    cluster.nodes()
    assert cluster._urls == [stub.url], "the same address is not listed twice"
    alone = world.cluster(gone)
    alone._learn((kubernetes_api._node(peer),))
    assert alone.node("pi2").name == "pi2"


def test_two_threads_may_ask_at_once(world: World) -> None:
    both = threading.Barrier(2)

    def once_both_have_asked(_request: Request) -> Reply:
        both.wait(15)
        return Reply(200, NODE)

    cluster = world.cluster(world.stub(once_both_have_asked).url, CALL_TIMEOUT_SECONDS="20")
    with ThreadPoolExecutor(2) as pool:
        assert [node.name for node in pool.map(cluster.node, ("pi1", "pi1"))] == ["pi1", "pi1"]


def test_the_environments_proxy_is_not_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    assert world.answering(Reply(200, NODE)).node("pi1").name == "pi1"


# --- peers ---


def test_a_peer_is_asked_directly(world: World) -> None:
    stub = world.stub(lambda request: Reply(200, "ok" if request.path == "/readyz/etcd" else lease_json()))
    answer = world.cluster(f"https://10.255.255.1:{stub.port}").ask_peer("127.0.0.1")
    assert answer == ("", "")
    assert [request.path for request in stub.requests] == ["/readyz/etcd", LEASE_PATH]


def test_a_peer_with_its_etcd_port_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_api, "PEER_TIMEOUT_SECONDS", 0.5)
    stub = world.stub(
        lambda request: (
            status(500, "etcd failed: reason withheld")
            if "readyz" in request.path
            else Reply(200, lease_json(), late=20)
        )
    )
    begun = time.monotonic()
    answer = world.cluster(stub.url).ask_peer("127.0.0.1")
    assert time.monotonic() - begun < ANSWER_SECONDS
    assert "500" in answer.readyz_etcd and "reason withheld" in answer.readyz_etcd
    assert "no answer within 0.5 s" in answer.lease_read


def test_a_stopped_peer_never_raises(world: World) -> None:
    answer = world.cluster(f"https://127.0.0.1:{free_port()}").ask_peer("127.0.0.1")
    assert "connection refused" in answer.readyz_etcd and "connection refused" in answer.lease_read


def test_a_peer_at_etcd_only_with_its_port_moved_says_so_there(world: World) -> None:
    stub = world.stub(status(503, "apiserver disabled"))
    urls, moved = (f"https://127.0.0.1:{free_port()}",), {"ETCD_ONLY_HTTPS_PORT": str(stub.port)}
    answer = world.cluster(*urls, **moved).ask_peer("127.0.0.1")
    assert "connection refused; " in answer.readyz_etcd and "apiserver disabled" in answer.readyz_etcd
    assert answer.lease_read == answer.readyz_etcd
    assert [request.path for request in stub.requests] == ["/readyz"]
    assert "disabled" not in world.cluster(*urls, ETCD_ONLY_HTTPS_PORT="0").ask_peer("127.0.0.1").readyz_etcd


def test_a_peer_below_full_and_one_without_rights(world: World) -> None:
    stub = world.stub(
        lambda request: (
            status(503, "apiserver disabled") if "readyz" in request.path else status(403, "forbidden")
        )
    )
    answer = world.cluster(stub.url).ask_peer("127.0.0.1")
    assert "apiserver disabled" in answer.readyz_etcd
    assert "no permission to get leases in namespace kube-system" in answer.lease_read


def test_the_endpoints_and_the_lease_of_k3s(world: World) -> None:
    def script(request: Request) -> Reply:
        if request.path.endswith("/leases/k3s-etcd"):
            return Reply(200, lease_json(holderIdentity="pi2", renewTime="2026-09-20T10:39:00.000000Z"))
        assert request.path == "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
        return Reply(200, {"endpoints": [{"addresses": ["10.0.0.11"]}, {"addresses": ["10.0.0.12"]}]})

    cluster = world.answering(script)
    assert cluster.api_addresses() == ("10.0.0.11", "10.0.0.12")
    assert cluster.k3s_etcd_lease().holder == "pi2"
    assert world.answering(Reply(200, {"endpoints": None})).api_addresses() == ()


# --- certificates and the kubeconfig ---


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"end": NOW - DAY / 2}, "its certificate has expired"),
        ({"start": NOW + DAY / 2}, "not valid yet"),
        ({"address": "10.9.9.9"}, "not for this address"),
    ],
)
def test_59_certificates_in_plain_words(world: World, made: dict[str, Any], words: str) -> None:
    stub = world.stub(Reply(200, NODE), world.authority.server(world.folder, **made))
    with pytest.raises(ports.Unreachable) as caught:
        world.cluster(stub.url).node("pi1")
    assert words in one_line(caught.value)
    assert not stub.requests


def test_59_a_certificate_of_somebody_else(world: World) -> None:
    stub = world.stub(Reply(200, NODE), Authority().server(world.folder))
    with pytest.raises(ports.Unreachable, match=r"not signed by the kubeconfig's CA"):
        world.cluster(stub.url).node("pi1")


def test_59_a_token_that_is_not_valid_any_more(world: World) -> None:
    with pytest.raises(ports.Forbidden, match=r"token.*not valid any more"):
        world.answering(status(401, "Unauthorized")).node("pi1")


def test_59_the_kubeconfig_is_read_at_every_call_and_only_its_ca_and_token_used(world: World) -> None:
    stub = world.stub(Reply(200, NODE))
    cluster = world.cluster(stub.url)
    cluster.node("pi1")
    world.authority.kubeconfig(world.kubeconfig, token="another")
    cluster.node("pi1")
    cluster.ask_peer("127.0.0.1")
    assert [request.headers["Authorization"] for request in stub.requests] == [
        "Bearer t0ken-of-ours",
        "Bearer another",
        "Bearer another",
        "Bearer another",
    ]


def test_59_a_kubeconfig_with_another_ca_is_used_from_the_next_call_on(world: World) -> None:
    """Certificates of the cluster were renewed, and the role ran, while a step was under way."""
    renewed = Authority()
    old, new = world.stub(Reply(200, NODE)), world.stub(Reply(200, NODE), renewed.server(world.folder))
    cluster = world.cluster(old.url, new.url)
    cluster.node("pi1")
    renewed.kubeconfig(world.kubeconfig)
    old.close()
    assert cluster.node("pi1").name == "pi1"
    assert len(new.requests) == 1


@pytest.mark.parametrize("damage", ["gone", "folder", "half", "empty"])
def test_60_a_kubeconfig_that_breaks_between_calls_is_named_and_its_return_seen(world: World, damage: str) -> None:
    stub = world.stub(Reply(200, NODE))
    cluster = world.cluster(stub.url)
    cluster.node("pi1")
    whole = world.kubeconfig.read_text()
    world.kubeconfig.unlink()
    if damage == "folder":  # what Docker makes of a bind mount whose file is missing
        world.kubeconfig.mkdir()
    elif damage != "gone":
        world.kubeconfig.write_text(whole[: len(whole) // 2] if damage == "half" else "")
    for call in (cluster.read_lease, cluster.nodes, lambda: cluster.change_node("pi1", NodeChange(), "7")):
        with pytest.raises(ports.ClusterError) as caught:
            call()
        assert f"kubeconfig {world.kubeconfig}" in one_line(caught.value) and "run the role" in str(caught.value)
        assert "t0ken" not in str(caught.value) and "8080" not in str(caught.value)
    assert str(world.kubeconfig) in cluster.ask_peer("127.0.0.1").readyz_etcd, "which never raises"
    assert len(stub.requests) == 1
    if damage == "folder":
        world.kubeconfig.rmdir()
    world.kubeconfig.write_text(whole)
    assert cluster.node("pi1").name == "pi1"


@pytest.mark.parametrize("which", ["file", "folder"])
def test_60_an_unreadable_kubeconfig_is_named_with_its_mode(world: World, which: str) -> None:
    folder = world.folder / "kube"
    folder.mkdir()
    world.kubeconfig = world.authority.kubeconfig(folder / "config")
    culprit = world.kubeconfig if which == "file" else folder
    for path in world.folder, *world.folder.parents:
        if path != Path("/tmp") and path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    culprit.chmod(0o600)
    # Permissions do not bind root, so the look is taken as another user; what it needs is imported before.
    script = f"""
import os, sys
sys.path[:0] = {sys.path!r}
import yaml
from {kubernetes_api.__name__} import read_kubeconfig
from {ports.__name__} import ClusterError
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    read_kubeconfig({str(world.kubeconfig)!r})
except ClusterError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=False)
    said = done.stdout.strip()
    assert f"kubeconfig {world.kubeconfig} cannot be read" in said, done.stderr
    assert f"{culprit} has mode 0600" in said and "this process is uid" in said and "8080" not in said


def test_60_a_missing_kubeconfig(world: World) -> None:
    world.kubeconfig.unlink()
    with pytest.raises(ports.ClusterError, match=r"No such file.*set KUBECONFIG"):
        world.cluster("https://127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("{", "no YAML"),
        ("clusters: []\nusers: []\n", "certificate-authority-data"),
        (
            "clusters: [{name: c, cluster: {certificate-authority-data: '!!'}}]\n",
            "certificate-authority-data",
        ),
    ],
)
def test_60_a_kubeconfig_that_is_none(world: World, text: str, words: str) -> None:
    world.kubeconfig.write_text(text)
    with pytest.raises(ports.ClusterError) as caught:
        world.cluster("https://127.0.0.1:1")
    assert words in one_line(caught.value) and str(world.kubeconfig) in str(caught.value)


def test_60_a_kubeconfig_with_a_client_certificate_alone(world: World) -> None:
    document = json.loads(world.kubeconfig.read_text())
    document["users"][0]["user"] = {"client-certificate-data": "eA=="}
    world.kubeconfig.write_text(json.dumps(document))
    with pytest.raises(ports.ClusterError, match=r"no bearer token"):
        world.cluster("https://127.0.0.1:1")


def test_without_a_server_nothing_is_guessed(world: World) -> None:
    with pytest.raises(ports.ClusterError, match=r"KUBE_SERVER is not set"):
        world.cluster()


def test_no_secret_is_in_an_error(world: World) -> None:
    for reply in (status(401, "no"), status(403, "no"), status(500, "no"), Reply(200, "x")):
        with pytest.raises(ports.ClusterError) as caught:
            world.answering(reply).read_lease()
        assert "t0ken-of-ours" not in str(caught.value)


# --- an administrator's kubeconfig ---


def admin_config(world: World, **user: str) -> dict[str, Any]:
    """With a client certificate, as k3s's own; `user` instead of it."""
    pem = world.authority.server(world.folder).read_text()
    key, certificate = pem[: pem.index("-----BEGIN CERTIFICATE")], pem[pem.index("-----BEGIN CERTIFICATE") :]
    given = user or {
        "client-certificate-data": base64.b64encode(certificate.encode()).decode(),
        "client-key-data": base64.b64encode(key.encode()).decode(),
    }
    document: dict[str, Any] = json.loads(world.kubeconfig.read_text())
    document["users"] = [{"name": "u", "user": given}]
    return document


def admin(world: World, document: Any, *urls: str, path: str = "") -> kubernetes_api.KubernetesCluster:
    file = world.folder / "admin"
    file.write_text(json.dumps(document))
    values = {
        "NODE_NAME": "pi1", "KUBE_SERVER": ",".join(urls), "KUBECONFIG": path or str(file),
        "CALL_TIMEOUT_SECONDS": str(TIMEOUT),
    }  # fmt: skip
    return kubernetes_api.KubernetesCluster(settings_of.load("", values), admin=True)


def test_a_client_certificate_is_shown_and_no_token_sent(world: World) -> None:
    answer = Reply(200, lease_json(holderIdentity="pi2"))
    stub = StubApi(world.pem, lambda _request: answer, clients=world.authority.pem())
    world.stubs.append(stub)
    assert admin(world, admin_config(world), stub.url).read_lease().holder == "pi2"
    assert "Authorization" not in stub.requests[-1].headers
    with pytest.raises(ports.ClusterError):
        world.cluster(stub.url).read_lease()


def test_an_administrators_key_is_on_no_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    document = admin_config(world)
    raw = json.dumps(document).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    cluster = admin(world, {}, "https://127.0.0.1:1", path="-")
    files = cluster._access().files
    assert [os.readlink(path).startswith("/memfd:") for path in files] == [True, True]
    assert "PRIVATE KEY" in Path(files[1]).read_text()
    assert cluster._access() is cluster._access()  # stdin is read once


def test_the_server_an_administrators_names_is_asked_last(world: World) -> None:
    stub = world.stub(Reply(200, lease_json()))
    document = admin_config(world, token="of-an-administrator")
    document["clusters"][0]["cluster"]["server"] = stub.url
    cluster = admin(world, document, f"https://127.0.0.1:{free_port()}")
    cluster.read_lease()
    assert stub.requests[-1].headers["Authorization"] == "Bearer of-an-administrator"


@pytest.mark.parametrize("user", [{"client-certificate": "/root/admin.crt"}, {"client-key-data": "AAAA"}])
def test_an_administrators_kubeconfig_that_only_names_files_is_refused(world: World, user: dict[str, str]) -> None:
    with pytest.raises(ports.ClusterError, match=r"neither a token nor client-certificate-data.*--flatten"):
        admin(world, admin_config(world, **user), "https://127.0.0.1:1")


def test_an_administrators_kubeconfig_that_may_not_is_not_put_on_the_role(world: World) -> None:
    stub = world.stub(status(403, "nodes is forbidden"))
    with pytest.raises(ports.Forbidden, match=r"the kubeconfig given may not list nodes") as caught:
        admin(world, admin_config(world), stub.url).nodes()
    assert "role" not in one_line(caught.value)
