# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole steps over real HTTPS where the API fails on the way: one outcome each, told in one line, in bounded time.

Every failure is tried from the first request, and again where it begins just before the restart. Until a restart
was asked for the step is refused or undone; after it the step stays open with its Lease. Once the failure ends,
settling brings record, marks and running level together, whatever was left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, List, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import kubernetes_api
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import settle, step_to
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    RegradeError,
    StepFailed,
)
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster, pod
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import (
    DAY,
    NOW,
    Authority,
    Reply,
    Request,
    StubApi,
    status,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_cluster import (
    Fault,
    StubCluster,
    applied_then,
    on,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.properties.shapes import one_line

S = "server1"
LEASE, NODE, NODES, NODE_LEASES = "/leases/k3s-regrade", f"/nodes/{S}", "/nodes?", "/kube-node-lease/"
PODS, EVICTION, EVENTS = "/pods?", "/eviction", "/events"
TIMED_OUT = status(500, "etcdserver: request timed out")
NO_SPACE = status(500, "etcdserver: mvcc: database space exceeded")
FORBIDDEN = status(403, 'is forbidden: User "system:serviceaccount:regrade:server1" cannot do that')
BUSY = status(429, "too many requests, please try again later")
CONFLICT = status(409, "the object has been modified; please apply your changes to the latest version")
EXPIRED = status(401, "Unauthorized")
DROPPED = Reply(drop=True)
SECONDS = 20.0  # of real time, for all that the product waits in it: each unanswered call has one second


@pytest.fixture(autouse=True)
def short_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_api, "PEER_TIMEOUT_SECONDS", 0.5)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[StubCluster]:
    made = StubCluster(tmp_path)
    yield made
    made.close()


def at_control_plane(wire: StubCluster) -> None:
    step_to(wire.process(S), "down")
    wire.memory.api.writes.clear()


def told(wire: StubCluster, where: str) -> str:
    """The one line a step ends with, in bounded time on both clocks."""
    begun, clock = time.monotonic(), wire.memory.time.seconds
    with pytest.raises(RegradeError) as caught:
        step_to(wire.process(S), where)
    assert time.monotonic() - begun < SECONDS
    assert wire.memory.time.seconds - clock < 900
    assert "t0ken" not in str(caught.value)
    return one_line(caught.value)


def assert_whole(cluster: Cluster) -> None:
    """Nothing is open, and record, marks and running level are the same."""
    host, node = cluster.hosts[S], cluster.node(S)
    assert host.running == host.record
    assert marks.agrees(node, host.running)
    assert marks.INTENT not in node.annotations
    assert "journal" not in host.disk
    assert cluster.api.lease is None or cluster.api.lease.holder == ""
    assert host.running != "full" or not node.unschedulable


FAILURES = [
    # what is asked, what comes, what a person is told
    ("GET", LEASE, FORBIDDEN, "no permission to get leases in namespace kube-system"),
    ("PUT", LEASE, FORBIDDEN, "no permission to update leases in namespace kube-system"),
    ("GET", NODES, FORBIDDEN, "no permission to list nodes"),
    ("GET", NODE, FORBIDDEN, "no permission to get nodes"),
    ("PATCH", NODE, FORBIDDEN, "no permission to patch nodes"),
    ("GET", NODE_LEASES, FORBIDDEN, "no permission to list leases in namespace kube-node-lease"),
    ("GET", LEASE, status(404, "leases k3s-regrade not found"), "does not exist"),
    ("GET", NODE, status(404, 'nodes "server1" not found'), "get nodes server1: not found"),
    ("GET", NODES, BUSY, "429 too many requests"),
    ("PATCH", NODE, BUSY, "429"),
    ("GET", "", TIMED_OUT, "etcdserver: request timed out"),
    ("GET", NODE_LEASES, TIMED_OUT, "fresh: "),
    ("PATCH", NODE, TIMED_OUT, "etcdserver: request timed out"),
    ("PATCH", NODE, NO_SPACE, "database space exceeded"),
    ("", "", EXPIRED, "is not valid any more"),
    ("", "", status(503, "apiserver disabled"), "503 apiserver disabled"),
    ("", "", DROPPED, "connection closed without an answer"),
    ("PATCH", NODE, DROPPED, "connection closed without an answer"),
    ("PATCH", NODE, Reply(200, "<html>"), "no JSON object"),
    ("PATCH", NODE, Reply(200, {}, short=True), "its answer broke off"),
    ("GET", NODES, Reply(200, {"items": None}), "no Node"),
    ("PATCH", NODE, status(422, "Invalid value"), "a bug of ours"),
]
CONFLICTS = [
    ("PATCH", NODE, CONFLICT, "somebody else wrote first")
]  # after a restart retried for two minutes
TAKINGS = [("PUT", LEASE, CONFLICT, "written by others")]
RELEASES = [  # just before the restart the Lease is held: what fails is that it is let go
    ("PUT", LEASE, BUSY, "429"),
    ("PUT", LEASE, TIMED_OUT, "etcdserver: request timed out"),
    ("PUT", LEASE, NO_SPACE, "database space exceeded"),
    ("PUT", LEASE, DROPPED, "connection closed without an answer"),
]


def name_of(value: object) -> str:
    """Of a parameter, for the names of tests."""
    if isinstance(value, Reply):
        return "dropped" if value.drop else "garbled" if value.status == 200 else str(value.status)
    return str(value).strip("/?")[:40]


@pytest.mark.parametrize(
    ("method", "part", "reply", "words"), FAILURES + CONFLICTS + TAKINGS + RELEASES, ids=name_of
)
def test_a_failure_from_the_beginning_refuses_the_step(
    wire: StubCluster, method: str, part: str, reply: Reply, words: str
) -> None:
    wire.faults.append(on(method, part, reply))
    said = told(wire, "down")
    assert words in said
    assert wire.memory.hosts[S].restarts == []
    wire.faults.clear()
    settle(wire.process(S))
    assert_whole(wire.memory)
    assert wire.memory.hosts[S].running == "full"


@pytest.mark.parametrize(("method", "part", "reply", "words"), FAILURES + RELEASES, ids=name_of)
def test_a_failure_just_before_the_restart_stops_it(
    wire: StubCluster, method: str, part: str, reply: Reply, words: str
) -> None:
    """What is asked there again refuses; what is not comes to light at the last write, and the step stays open."""
    at_control_plane(wire)
    host = wire.memory.hosts[S]
    fault = on(method, part, reply)
    host.fail.append(lambda _level: None if fault in wire.faults else wire.faults.append(fault))
    said = ""
    try:
        step_to(wire.process(S), "down")
    except RegradeError as error:
        said = one_line(error)
        if host.restarts:
            assert isinstance(error, StepFailed) and error.left_open
            assert wire.memory.api.lease and wire.memory.api.lease.holder.startswith(S)
    if (part == NODE_LEASES and reply is TIMED_OUT) or method == "PUT":
        assert said == "", "what was seen of the node leases is fresh yet, and the Lease is only let go"
    else:
        assert words in said
    wire.faults.clear()
    host.fail.clear()
    settle(wire.process(S))
    assert_whole(wire.memory)
    assert host.running == ("etcd-only" if host.restarts else "control-plane")


@pytest.mark.parametrize(
    "reply", [TIMED_OUT, DROPPED, Reply(200, "x"), Reply(late=1.2)], ids=["500", "dropped", "garbled", "late"]
)
@pytest.mark.parametrize("nth", range(4))
def test_a_write_that_was_applied_though_its_answer_was_lost_is_read_back(
    wire: StubCluster, reply: Reply, nth: int
) -> None:
    """Intent, mark, the last write and the Lease in turn; none is done twice."""
    method, part = ("PUT", LEASE) if nth == 3 else ("PATCH", NODE)
    seen = [0]
    lost = applied_then(wire, method, part, reply)

    def fault(request: Request) -> Optional[Reply]:
        if request.method == method and part in request.path:
            seen[0] += 1
            if seen[0] == (1 if nth == 3 else nth + 1):
                return lost(request)
        return None

    wire.faults.append(fault)
    step_to(wire.process(S), "down")
    assert_whole(wire.memory)
    assert wire.memory.hosts[S].running == "control-plane"
    assert wire.memory.api.writes.count(f"node {S}") == 3
    assert seen[0] >= (1 if nth == 3 else 3)


@pytest.mark.parametrize("reply", [CONFLICT, TIMED_OUT, BUSY, DROPPED], ids=["409", "500", "429", "dropped"])
@pytest.mark.parametrize(
    ("method", "part"), [("PATCH", NODE), ("PUT", LEASE), ("GET", NODE_LEASES), ("POST", EVENTS)]
)
def test_what_fails_now_and_then_is_tried_again_and_the_step_is_made(
    wire: StubCluster, reply: Reply, method: str, part: str
) -> None:
    if (method, part) == ("PUT", LEASE) and reply is not CONFLICT:
        wire.faults.append(on(method, part, reply, times=1, skip=1))  # at the release
    else:
        wire.faults.append(on(method, part, reply, times=2))
    step_to(wire.process(S), "down")
    assert_whole(wire.memory)
    assert wire.memory.hosts[S].running == "control-plane"


def test_g61_an_api_that_answers_small_requests_and_hangs_on_large_ones(wire: StubCluster) -> None:
    """An MTU black hole: the answer's first bytes come, the rest never does. First all Nodes alone, so that the
    undo of our own comes through."""
    largest = 1000

    def black_hole(request: Request) -> Optional[Reply]:
        reply = wire.serve(request) if request.method == "GET" else Reply()
        return Reply(200, reply.body, hang=True) if len(str(reply.body)) > largest else None

    wire.faults.append(black_hole)
    said = told(wire, "down")
    assert "list nodes" in said and "no answer within 1 s" in said
    assert wire.memory.api.writes == []
    wire.faults.clear()
    at_control_plane(wire)
    largest = 2000
    host = wire.memory.hosts[S]
    host.fail.append(lambda _level: wire.faults.append(black_hole) if not wire.faults else None)
    said = told(wire, "down")
    assert "was undone" in said and "no answer within 1 s" in said
    assert host.restarts == []
    assert_whole(wire.memory)


CERTIFICATES: List[tuple[str, Callable[[StubCluster], Path], str]] = [
    (
        "expired",
        lambda wire: wire.authority.server(wire.folder, end=NOW - DAY / 2),
        "its certificate has expired",
    ),
    (
        "for another address",
        lambda wire: wire.authority.server(wire.folder, address="10.9.9.9"),
        "not for this address",
    ),
    (
        "of another authority",
        lambda _wire: Authority().server(_wire.folder),
        "not signed by the kubeconfig's CA",
    ),
]


@pytest.mark.parametrize(("what", "made", "words"), CERTIFICATES, ids=[entry[0] for entry in CERTIFICATES])
@pytest.mark.parametrize("when", ["first", "before the restart"])
def test_g59_a_certificate_that_is_not_good_stops_the_step(
    wire: StubCluster, what: str, made: Callable[[StubCluster], Path], words: str, when: str
) -> None:
    """A peer that came back with another certificate, on the same port."""
    host = wire.memory.hosts[S]
    spoiled: List[StubApi] = []

    def spoil(_level: str = "") -> None:
        if not spoiled:
            port = wire.stub.port
            wire.stub.close()
            spoiled.append(StubApi(made(wire), wire.serve, port))

    if when == "first":
        spoil()
    else:
        at_control_plane(wire)
        host.fail.append(spoil)
    try:
        said = told(wire, "down")
        assert words in said
        assert host.restarts == []
    finally:
        for stub in spoiled:
            stub.close()
    if when == "first":
        assert wire.memory.api.writes == []
        return
    wire.stub = StubApi(wire.authority.server(wire.folder), wire.serve, spoiled[0].port)
    host.fail.clear()
    settle(wire.process(S))
    assert_whole(wire.memory)


@pytest.mark.parametrize("damage", ["gone", "no token", "empty"])
@pytest.mark.parametrize("when", ["first", "before the restart"])
def test_g60_a_kubeconfig_that_cannot_be_used_stops_the_step_and_is_named(
    wire: StubCluster, damage: str, when: str
) -> None:
    host = wire.memory.hosts[S]
    whole = wire.kubeconfig.read_text()

    def spoil(_level: str = "") -> None:
        if damage == "gone":
            wire.kubeconfig.unlink(missing_ok=True)
        else:
            wire.kubeconfig.write_text(whole.replace("t0ken-of-ours", "") if damage == "no token" else "")

    server = wire.process(S)
    if when == "first":
        spoil()
    else:
        at_control_plane(wire)
        server = wire.process(S)
        host.fail.append(spoil)
    with pytest.raises(RegradeError) as caught:
        step_to(server, "down")
    said = one_line(caught.value)
    assert f"kubeconfig {wire.kubeconfig}" in said and "run the role" in said and "8080" not in said
    assert host.restarts == []
    wire.kubeconfig.write_text(whole)
    host.fail.clear()
    settle(wire.process(S))
    assert_whole(wire.memory)


def test_g59_a_token_that_is_replaced_while_a_step_is_under_way_is_used(wire: StubCluster) -> None:
    """The role ran: the old token is worth nothing from then on."""
    at_control_plane(wire)
    host = wire.memory.hosts[S]
    valid = ["t0ken-of-ours"]

    def guard(request: Request) -> Optional[Reply]:
        return None if request.headers["Authorization"] == f"Bearer {valid[0]}" else EXPIRED

    def renew(_level: str) -> None:
        valid[0] = "t0ken-anew"
        wire.authority.kubeconfig(wire.kubeconfig, token=valid[0])

    wire.faults.append(guard)
    host.fail.append(renew)
    step_to(wire.process(S), "down")
    assert_whole(wire.memory)
    assert host.running == "etcd-only"


REFUSALS: List[tuple[str, Fault, str]] = [
    (
        "a budget",
        on("", "web-1/eviction", status(429, "budget", details={"causes": [{"message": "web-pdb needs 1"}]})),
        "web-pdb needs 1",
    ),
    (
        "a webhook",
        on("", "web-1/eviction", status(500, 'failed calling webhook "guard"')),
        "failed calling webhook",
    ),
    ("etcd", on("", "web-1/eviction", TIMED_OUT), "etcdserver: request timed out"),
]


@pytest.mark.parametrize(("what", "fault", "words"), REFUSALS, ids=[entry[0] for entry in REFUSALS])
def test_d30_one_pod_that_is_refused_keeps_no_other_here(
    wire: StubCluster, what: str, fault: Fault, words: str
) -> None:
    wire.memory.api.pods_by_node[S] = [pod("web-1"), pod("web-2"), pod("web-3")]
    wire.faults.append(fault)
    report = step_to(wire.process(S), "down")
    assert [left.name for left in wire.memory.api.pods_by_node[S]] == ["web-1"]
    (remaining,) = report["steps"][0]["remaining"]
    assert "default/web-1" in remaining and words in remaining
    assert_whole(wire.memory)


@pytest.mark.parametrize("reply", [TIMED_OUT, FORBIDDEN, DROPPED], ids=["500", "403", "dropped"])
def test_an_event_that_cannot_be_written_is_only_logged(wire: StubCluster, reply: Reply) -> None:
    wire.faults.append(on("POST", EVENTS, reply))
    step_to(wire.process(S), "down")
    assert_whole(wire.memory)
    assert any("Event" in line for line in wire.memory.hosts[S].logged)
