# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs beside a step in threads of its own: the Lease's renewal, and the measuring of absences."""

from __future__ import annotations

import time
from typing import Callable, List

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import meter
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.driver import (
    Driver,
    Hooks,
    Renewal,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    Conflict,
    LevelUnknown,
    StepRefused,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster, fails, unreachable


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def held(holder: str = "server1/1") -> Cluster:
    cluster = Cluster()
    cluster.api.lease = Lease(holder, 60, "", "2020-01-01T00:00:00.000000Z", 1, "50")
    return cluster


def renewal(cluster: Cluster) -> Renewal:
    server = cluster.process("server1")
    return Renewal(server.world, "server1/1", Driver(server.world, server.hooks).run, every=0.01)


def version(cluster: Cluster) -> int:
    assert cluster.api.lease is not None
    return int(cluster.api.lease.resource_version)


def test_it_renews_again_and_again_and_ends() -> None:
    cluster = held()
    running = renewal(cluster)
    until(lambda: version(cluster) > 105)
    assert running.lost() == ""
    running.end()
    at = version(cluster)
    time.sleep(0.05)
    assert version(cluster) == at


def test_a_lease_taken_away_is_lost_for_good() -> None:
    cluster = held()
    running = renewal(cluster)
    cluster.api.lease = Lease("server2/1", 60, "", "", 2, "900")
    until(lambda: running.lost() != "")
    cluster.api.lease = Lease("server1/1", 60, "", "", 2, "901")
    time.sleep(0.05)
    assert running.lost() == "the Lease is held by server2/1"
    running.end()


def test_field_case_c25_renewals_that_fail_for_the_whole_duration_are_lost() -> None:
    cluster = held()
    cluster.api.faults.append(fails("write_lease", unreachable(), 10**9))
    running = renewal(cluster)
    time.sleep(0.05)
    assert running.lost() == "", "one unanswered renewal is not a lost Lease"
    cluster.time.sleep(60)
    assert running.lost() == "not renewed for 60 s"
    running.end()


def test_a_conflict_is_looked_at_again() -> None:
    cluster = held()
    cluster.api.faults.append(fails("write_lease", Conflict("changed"), 3))
    running = renewal(cluster)
    until(lambda: version(cluster) > 102)
    assert running.lost() == ""
    running.end()


def test_a_bug_in_the_thread_is_a_lost_lease_not_silence() -> None:
    cluster = held()
    cluster.api.faults.append(fails("read_lease", KeyError("surprise"), 1))
    running = renewal(cluster)
    until(lambda: running.lost() != "")
    assert "KeyError" in running.lost()
    running.end()


def test_hooks_outside_a_step_refuse_a_restart() -> None:
    with pytest.raises(StepRefused, match="outside a step"):
        Hooks().before_restart()


class Server:
    """A server whose etcd and API come and go as told."""

    def __init__(self) -> None:
        self.etcd, self.level = True, "etcd-only"
        self.looks: List[str] = []

    def healthy(self) -> bool:
        self.looks.append("etcd")
        return self.etcd

    def current_level(self) -> str:
        self.looks.append("api")
        if not self.level:
            raise LevelUnknown("booting")
        return self.level


class RealTime:
    def monotonic(self) -> float:
        return time.monotonic()


def measured(server: Server, start: str, target: str) -> meter.Meter:
    # The meter asks its clock for this one time alone, so that is all the stand-in has.
    return meter.Meter(server, RealTime(), start, target)  # type: ignore[arg-type]


def test_absences_of_a_step_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "EVERY_SECONDS", 0.01)
    server = Server()
    one = measured(server, "etcd-only", "control-plane")
    until(lambda: len(server.looks) > 2)
    server.etcd, server.level = False, ""
    time.sleep(0.3)
    server.etcd = True
    time.sleep(0.3)
    server.level = "control-plane"
    until(lambda: one.api_away is not None)
    one.end()
    assert one.etcd_away is not None
    assert one.api_away is not None
    assert 0.2 <= one.etcd_away <= 0.6 <= one.api_away + 0.1


def test_nothing_is_measured_where_nothing_restarts() -> None:
    server = Server()
    one = measured(server, "full", "control-plane")
    one.end()
    assert (one.etcd_away, one.api_away, server.looks) == (None, None, [])


def test_on_the_way_down_the_api_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "EVERY_SECONDS", 0.01)
    server = Server()
    one = measured(server, "control-plane", "etcd-only")
    server.etcd = False
    time.sleep(0.3)
    until(lambda: len(server.looks) > 3)
    server.etcd = True
    time.sleep(0.05)
    one.end()
    assert one.etcd_away
    assert one.api_away is None
    assert "api" not in server.looks
