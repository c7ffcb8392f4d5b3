# SPDX-License-Identifier: GPL-3.0-or-later
"""Section C of the field cases, the Lease: who may take it is told by our own clock and the holder's duration."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import clock, kubernetes_api
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import step_to
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    RegradeError,
    StepFailed,
    StepRefused,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster, SteadyRenewal, pod
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Request, status
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_cluster import StubCluster, on

S = "server1"


def lease(**spec: Any) -> Lease:
    """L1 to L5 of the field cases, as the API gives them."""
    return kubernetes_api._lease(
        {"metadata": {"name": "k3s-regrade", "resourceVersion": "91", "uid": "11"}, "spec": spec}
    )


def held(found: Lease, **settings: str) -> Cluster:
    cluster = Cluster(**settings)
    cluster.api.lease = found
    return cluster


def refused(cluster: Cluster, name: str = S) -> str:
    with pytest.raises(StepRefused) as caught:
        step_to(cluster.process(name), "down")
    assert cluster.api.writes == []
    return str(caught.value)


# --- C21: expiry is never judged from renewTime, nor by our own duration ---

TIMES = [
    None,
    "2026-09-20T10:35:00.000000Z",
    "2026-09-20T11:40:00.000000Z",
    "1970-01-01T00:00:00.000000Z",
    "2262-01-01T00:00:00.000000Z",
]


@pytest.mark.parametrize("renewed", TIMES)
@pytest.mark.parametrize(("theirs", "ours"), [(900, "60"), (900, "3600"), (45, "60"), (1, "60")])
def test_c21_it_is_taken_over_only_after_the_holders_own_duration_unchanged_on_our_clock(
    renewed: Optional[str], theirs: int, ours: str
) -> None:
    found = lease(
        holderIdentity="server2", leaseDurationSeconds=theirs, renewTime=renewed, leaseTransitions=3
    )
    cluster = held(found, LEASE_SECONDS=ours)
    assert "held by server2" in refused(cluster)
    cluster.time.sleep(theirs - 1)
    if theirs > 1:
        assert "held by server2" in refused(cluster)
    cluster.time.sleep(1)
    assert step_to(cluster.process(S), "down")["changed"]


def test_c21_a_holder_that_renews_is_never_taken_over() -> None:
    cluster = held(lease(holderIdentity="server2", leaseDurationSeconds=60))
    for version in range(92, 100):
        assert "held by server2" in refused(cluster)
        cluster.time.sleep(59)
        cluster.api.lease = (
            cluster.api.lease._replace(resource_version=str(version)) if cluster.api.lease else None
        )
    assert "held by server2" in refused(cluster)


# --- C23: exactly six fractional digits ---


@pytest.mark.parametrize("microsecond", [0, 1, 10, 999999])
def test_c23_our_time_has_six_digits_at_every_microsecond(
    monkeypatch: pytest.MonkeyPatch, microsecond: int
) -> None:
    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz: Optional[datetime.tzinfo] = None) -> Frozen:
            return cls(2026, 1, 1, 0, 0, 0, microsecond, tz)

    monkeypatch.setattr(clock, "datetime", Frozen)
    text = clock.SystemClock().now_text()
    assert re.fullmatch(r"2026-01-01T00:00:00\.\d{6}Z", text)
    assert kubernetes_api.micro_time(text) == text


@pytest.mark.parametrize(
    "missing",
    [{}, {"renewTime": None, "acquireTime": None}, {"holderIdentity": ""}, {"holderIdentity": None}],
)
def test_c23_null_times_are_a_free_lease_and_no_crash(missing: Dict[str, Any]) -> None:
    assert step_to(held(lease(**missing)).process(S), "down")["changed"]


# --- C24: a holder that is gone ---


@pytest.mark.parametrize("duration", [None, 0, -5])
def test_c24_a_holder_without_a_duration_is_waited_for_as_long_as_ours_and_named(
    duration: Optional[int],
) -> None:
    cluster = held(
        lease(holderIdentity="gone-node", leaseDurationSeconds=duration, renewTime=None), LEASE_SECONDS="60"
    )
    assert "held by gone-node, seen unchanged for 0 s" in refused(cluster)
    cluster.time.sleep(59)
    assert "seen unchanged for 59 s" in refused(cluster)
    cluster.time.sleep(1)
    assert step_to(cluster.process(S), "down")["changed"]


def test_c24_after_the_expiry_exactly_one_takes_it() -> None:
    cluster = held(lease(holderIdentity="gone-node"))
    for name in cluster.hosts:
        refused(cluster, name)
    cluster.time.sleep(60)
    ended = []
    for name in cluster.hosts:
        try:
            ended.append(step_to(cluster.process(name), "down")["changed"])
        except StepRefused as error:
            assert "server1" in str(error)
    assert ended == [True]


@pytest.mark.parametrize("earlier", [S, f"{S}/dead", f"{S}/0002"])
@pytest.mark.parametrize("duration", [None, 900])
def test_c24_our_own_from_before_a_restart_is_entered_at_once(earlier: str, duration: Optional[int]) -> None:
    cluster = held(lease(holderIdentity=earlier, leaseDurationSeconds=duration))
    assert step_to(cluster.process(S), "down")["changed"]


def test_c24_a_name_that_only_begins_as_ours_is_another_server() -> None:
    assert "held by server10/1" in refused(held(lease(holderIdentity="server10/1", leaseDurationSeconds=60)))


# --- C25: a renewal that fails ---


@pytest.mark.parametrize("why", ["the Lease is held by server2/1", "not renewed for 60 s"])
@pytest.mark.parametrize("when", ["in the drain", "before the restart"])
def test_c25_a_lost_renewal_stops_the_step_before_its_restart(
    monkeypatch: pytest.MonkeyPatch, why: str, when: str
) -> None:
    cluster = Cluster(DRAIN_TIMEOUT_SECONDS="30")
    step_to(cluster.process(S), "down")
    host = cluster.hosts[S]

    def lose(_what: str) -> None:
        monkeypatch.setattr(SteadyRenewal, "why", why)

    if when == "in the drain":
        cluster.api.pods_by_node[S] = [pod("web")]
        cluster.api.stuck["web"] = "budget"
        cluster.api.faults.append(lambda call: lose(call) if call == "evict" else None)
    else:
        host.fail.append(lose)
    with pytest.raises(StepFailed, match=f"renewal was lost: {why}") as caught:
        step_to(cluster.process(S), "down")
    assert not caught.value.left_open
    assert (host.restarts, host.running) == ([], "control-plane")
    assert marks.agrees(cluster.node(S), "control-plane")


@pytest.mark.parametrize("holder", ["server3/feed", ""])
def test_c25_a_lease_that_is_another_ones_or_cleared_by_hand_stops_it_too(holder: str) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    host = cluster.hosts[S]

    def take(_level: str) -> None:
        if cluster.api.lease and cluster.api.lease.holder.startswith(S):
            cluster.api.lease = Lease(holder, 60, "", "", 9, "900")

    host.fail.append(take)
    with pytest.raises(StepFailed, match="lost to") as caught:
        step_to(cluster.process(S), "down")
    assert not caught.value.left_open
    assert host.restarts == []
    assert cluster.api.lease and cluster.api.lease.holder == holder


# --- C26: no permission, no Lease ---


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[StubCluster]:
    made = StubCluster(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(("method", "verb"), [("GET", "get"), ("PUT", "update")])
@pytest.mark.parametrize("code", [401, 403])
def test_c26_what_is_forbidden_is_told_with_verb_resource_and_namespace(
    wire: StubCluster, method: str, verb: str, code: int
) -> None:
    text = 'leases.coordination.k8s.io "k3s-regrade" is forbidden: User "x" cannot do that'
    wire.faults.append(on(method, "/leases/k3s-regrade", status(code, text)))
    with pytest.raises(RegradeError) as caught:
        step_to(wire.process(S), "down")
    said = str(caught.value)
    assert f"{verb} leases in namespace kube-system" in said and "run the role" in said
    assert "held by" not in said and "\n" not in said


def test_c26_a_missing_lease_says_to_run_the_role_and_is_not_made(wire: StubCluster) -> None:
    wire.memory.api.lease = None
    with pytest.raises(StepRefused, match=r"does not exist.*run it") as caught:
        step_to(wire.process(S), "down")
    assert "held by" not in str(caught.value)
    assert not any(_writes_lease(request) for request in wire.stub.requests)


def _writes_lease(request: Request) -> bool:
    return request.method != "GET" and "/leases" in request.path
