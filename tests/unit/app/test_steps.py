# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole steps through operations and driver on a cluster in memory: the order, every undo, every crash."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.driver import Hooks, World
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import (
    Server,
    release,
    settle,
    status,
    step_to,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks, walk
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    ApplyFailed,
    ClusterError,
    Conflict,
    Forbidden,
    LevelUnknown,
    RegradeError,
    StateLost,
    StepFailed,
    StepRefused,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import direction
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Eviction,
    Lease,
    PeerAnswer,
    Pod,
    Taint,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.step import (
    HELD,
    IDENTITY,
    JOURNAL,
    LATE,
    SEEN,
    step,
    take_lease,
)
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import (
    NODE_LEASE_SECONDS,
    Cluster,
    CountingDriver,
    Crash,
    SteadyRenewal,
    apply_failed,
    fails,
    pod,
    unreachable,
)

S = "server1"


def assert_untouched(cluster: Cluster, name: str = S) -> None:
    node = cluster.node(name)
    assert marks.agrees(node, "full")
    assert marks.INTENT not in node.annotations
    assert not node.unschedulable
    assert "journal" not in cluster.hosts[name].disk
    assert "identity" not in cluster.hosts[name].disk


def assert_free(cluster: Cluster) -> None:
    assert cluster.api.lease is not None
    assert cluster.api.lease.holder == ""


def assert_at(cluster: Cluster, level: str, name: str = S) -> None:
    host = cluster.hosts[name]
    assert (host.running, host.record) == (level, level)
    assert marks.agrees(cluster.node(name), level)
    assert marks.INTENT not in cluster.node(name).annotations
    assert "journal" not in host.disk


def test_a_whole_cycle_moves_by_one_level_and_leaves_nothing_behind() -> None:
    cluster = Cluster()
    before = cluster.node(S)
    host = cluster.hosts[S]
    down = step_to(cluster.process(S), "etcd-only")
    assert down["changed"]
    assert [(entry["from"], entry["to"]) for entry in down["steps"]] == [
        ("full", "control-plane"),
        ("control-plane", "etcd-only"),
    ]
    assert_at(cluster, "etcd-only")
    assert host.restarts == ["etcd-only"]
    up = step_to(cluster.process(S), "full")
    assert [(entry["from"], entry["to"]) for entry in up["steps"]] == [
        ("etcd-only", "control-plane"),
        ("control-plane", "full"),
    ]
    assert_at(cluster, "full")
    assert_untouched(cluster)
    assert_free(cluster)
    assert host.restarts == ["etcd-only", "control-plane"]
    after = cluster.node(S)
    assert after._replace(resource_version="", cordoned_by=()) == before._replace(
        resource_version="", cordoned_by=()
    )


def test_below_full_the_node_tells_since_when_over_every_step() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    since = marks.below_full_since(cluster.node(S))
    assert since.startswith("2026-01-01T")
    cluster.time.sleep(3600)
    step_to(cluster.process(S), "etcd-only")
    assert marks.below_full_since(cluster.node(S)) == since
    step_to(cluster.process(S), "full")
    assert marks.below_full_since(cluster.node(S)) == ""


def test_back_at_full_taints_of_others_that_keep_pods_away_are_named() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only")
    out = Taint("node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute")
    cluster.api.set_node(S, taints=(*cluster.node(S).taints, out))
    named = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    assert named not in step_to(cluster.process(S), "control-plane")["message"]
    assert named in step_to(cluster.process(S), "full")["message"]
    (_name, kind, reason, message) = cluster.api.events[-1]
    assert (kind, reason) == ("Normal", "Regraded") and named in message
    assert cluster.node(S).taints == (out,), "they are somebody else's to take off"


def test_the_lease_is_held_at_the_restart_and_free_after() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only")
    assert [holder.split("/")[0] for holder in cluster.hosts[S].lease_at_restart] == [S]
    assert_free(cluster)


def test_there_already_changes_and_writes_nothing() -> None:
    cluster = Cluster()
    report = step_to(cluster.process(S), "full")
    assert report["changed"] is False
    assert report["steps"] == []
    assert cluster.api.writes == []
    assert step_to(cluster.process(S), "up")["changed"] is False


def test_check_says_what_would_be_done_and_writes_nothing() -> None:
    cluster = Cluster()
    report = step_to(cluster.process(S), "etcd-only", check=True)
    assert report["changed"] is True
    assert report["to"] == "etcd-only"
    assert report["level"] == "full"
    assert cluster.api.writes == []
    assert cluster.hosts[S].disk == {}


def test_a_held_lease_refuses_and_names_holder_and_age() -> None:
    cluster = Cluster()
    cluster.api.lease = Lease("server2/beef", 60, "", "", 3, "50")
    with pytest.raises(StepRefused, match=r"held by server2/beef, seen unchanged for 0 s .*60 s"):
        step_to(cluster.process(S), "down")
    cluster.time.sleep(20)
    with pytest.raises(StepRefused, match=r"seen unchanged for 20 s"):
        step_to(cluster.process(S), "down")
    assert_untouched(cluster)
    assert cluster.api.writes == []


def test_a_silent_holders_lease_is_taken_over_only_after_its_own_duration() -> None:
    cluster = Cluster()
    cluster.api.lease = Lease("server2/beef", 900, "", "2020-01-01T00:00:00.000000Z", 3, "50")
    with pytest.raises(StepRefused):
        step_to(cluster.process(S), "down")
    cluster.time.sleep(899)
    with pytest.raises(StepRefused):
        step_to(cluster.process(S), "down")
    cluster.time.sleep(1)
    assert step_to(cluster.process(S), "down")["changed"]


def test_a_silent_holder_with_an_open_step_is_not_taken_over() -> None:
    cluster = Cluster()
    cluster.api.lease = Lease("server2/beef", 60, "", "", 3, "50")
    intent = marks.Intent("77", "full", "control-plane", "server2/beef", "cordon")
    with pytest.raises(StepRefused):
        step_to(cluster.process(S), "down")
    cluster.time.sleep(1000)
    node = cluster.node("server2")
    cluster.api.set_node("server2", annotations={**node.annotations, marks.INTENT: marks.intent_text(intent)})
    with pytest.raises(StepRefused, match="server2"):
        step_to(cluster.process(S), "down")
    assert_untouched(cluster)


def test_an_earlier_process_of_this_server_is_re_entered_at_once() -> None:
    cluster = Cluster()
    cluster.api.lease = Lease(f"{S}/dead", 900, "", "", 3, "50")
    assert step_to(cluster.process(S), "down")["changed"]


def test_waiting_for_a_held_lease_is_bounded() -> None:
    cluster = Cluster()
    cluster.api.lease = Lease("server2/beef", 600, "", "", 3, "50")
    begun = cluster.time.seconds
    with pytest.raises(StepRefused, match="server2/beef"):
        step_to(cluster.process(S), "down", wait=30)
    assert 30 <= cluster.time.seconds - begun < 40


def test_a_missing_lease_says_to_run_the_role() -> None:
    cluster = Cluster()
    cluster.api.lease = None
    with pytest.raises(StepRefused, match="run it"):
        step_to(cluster.process(S), "down")


@pytest.mark.parametrize("call", ["read_lease", "write_lease"])
def test_no_permission_on_the_lease_is_not_held_by_another(call: str) -> None:
    cluster = Cluster()
    cluster.api.faults.append(fails(call, Forbidden("may not update leases in kube-system"), 99))
    with pytest.raises(StepRefused, match="may not update leases in kube-system") as caught:
        step_to(cluster.process(S), "down")
    assert "held" not in str(caught.value)


def test_a_peer_that_is_not_whole_refuses_at_once_and_nothing_is_written() -> None:
    for change in (
        {"ready": None},
        {"ready": False},
        {"etcd_is_voter": False},
        {"labels": {marks.LEVEL: "control-plane"}},
        {"unschedulable": True},
        {"annotations": {"weave.works/kured-reboot-in-progress": "now"}},
    ):
        cluster = Cluster()
        node = cluster.node("server3")
        merged = {
            key: {**getattr(node, key), **value} if isinstance(value, dict) else value
            for key, value in change.items()
        }
        cluster.api.set_node("server3", **merged)
        begun = cluster.time.seconds
        with pytest.raises(StepRefused, match="server3"):
            step_to(cluster.process(S), "down")
        assert cluster.time.seconds == begun, change
        assert cluster.api.writes == []


def test_a_node_lease_is_no_fresher_than_when_it_was_asked_for() -> None:
    """The process is stopped for long with the first answer in its hands; the peer died soon after it was given."""
    cluster = Cluster()
    read = cluster.api.node_lease_renewals

    def stopped() -> Dict[str, str]:
        found = read()
        if "server2" not in cluster.api.silent:
            cluster.api.silent["server2"] = cluster.time.seconds + NODE_LEASE_SECONDS
            cluster.time.sleep(100)
        return found

    cluster.api.node_lease_renewals = stopped  # type: ignore[method-assign]
    with pytest.raises(StepRefused, match=r"fresh: .*server2"):
        step_to(cluster.process(S), "down")
    assert_untouched(cluster)
    assert_free(cluster)


def test_a_peer_whose_node_lease_stays_the_same_refuses_within_its_40_seconds() -> None:
    cluster = Cluster()
    cluster.api.silent["server2"] = 0.0
    begun = cluster.time.seconds
    with pytest.raises(StepRefused, match=r"fresh: .*server2"):
        step_to(cluster.process(S), "down")
    assert 40 <= cluster.time.seconds - begun <= 50
    assert_untouched(cluster)
    assert_free(cluster)


def test_a_peer_whose_own_api_is_silent_refuses() -> None:
    cluster = Cluster()
    cluster.api.answers["10.0.0.3"] = PeerAnswer("", "timed out after 5 s")
    with pytest.raises(StepRefused, match="server3: read of the Lease: timed out"):
        step_to(cluster.process(S), "down")
    assert_untouched(cluster)
    assert_free(cluster)


def test_two_voters_never_step() -> None:
    with pytest.raises(StepRefused, match="quorum: 1 of 2 voters"):
        step_to(Cluster(2).process(S), "down")


def test_a_second_server_does_not_step_while_one_is_below_full() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    with pytest.raises(StepRefused, match="full: server1 is at control-plane"):
        step_to(cluster.process("server2"), "down")


def test_a_peer_that_falls_after_the_drain_stops_the_restart_and_the_step_is_undone() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    host = cluster.hosts[S]

    def falls(_level: str) -> None:
        cluster.api.set_node("server2", ready=None)

    host.fail.append(falls)
    with pytest.raises(StepFailed, match="ready: server2 is not Ready") as caught:
        step_to(cluster.process(S), "down")
    assert not caught.value.left_open
    assert host.restarts == []
    assert_at(cluster, "control-plane")
    assert_free(cluster)


@pytest.mark.parametrize("move", ["down", "up"])
def test_a_step_that_had_not_begun_takes_its_intent_back_and_sets_no_cordon_again(move: str) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    cluster.api.set_node(S, unschedulable=False, cordoned_by=())  # a person

    def falls(name: str) -> None:
        if name == "after change_node":  # the intent is written
            cluster.api.set_node("server2", ready=None)

    cluster.api.faults.append(falls)
    with pytest.raises(StepRefused, match="ready: server2 is not Ready"):
        step_to(cluster.process(S), move)
    assert_at(cluster, "control-plane")
    assert not cluster.node(S).unschedulable
    assert_free(cluster)


def test_a_lost_renewal_before_the_restart_stops_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    monkeypatch.setattr(SteadyRenewal, "why", "not renewed for 60 s")
    with pytest.raises(StepRefused, match="renewal was lost"):
        step_to(cluster.process(S), "down")
    assert cluster.hosts[S].restarts == []
    assert_at(cluster, "control-plane")


def test_a_renewal_lost_after_the_restart_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    host = cluster.hosts[S]
    original = host.api.time.sleep

    def lose(seconds: float) -> None:
        if host.restarts:
            monkeypatch.setattr(SteadyRenewal, "why", "409")
        original(seconds)

    monkeypatch.setattr(host.api.time, "sleep", lose)
    step_to(cluster.process(S), "down")
    assert_at(cluster, "etcd-only")


def test_a_lease_taken_away_between_intent_and_effect_stops_the_step() -> None:
    cluster = Cluster()

    def stolen(call: str) -> None:
        if call == "after change_node" and cluster.api.lease and cluster.api.lease.holder.startswith(S):
            cluster.api.lease = Lease("server3/feed", 60, "", "", 9, "900")

    cluster.api.faults.append(stolen)
    with pytest.raises(StepRefused, match="lost to server3/feed"):
        step_to(cluster.process(S), "down")
    assert_untouched(cluster)
    assert cluster.api.lease is not None
    assert cluster.api.lease.holder == "server3/feed"


def test_a_rival_intent_seen_at_the_second_gate_stops_the_step() -> None:
    cluster = Cluster()

    def rival(call: str) -> None:
        node = cluster.node("server2")
        if call == "after change_node" and marks.INTENT not in node.annotations:
            intent = marks.Intent("9", "full", "control-plane", "server2/1", "cordon")
            cluster.api.set_node(
                "server2", annotations={**node.annotations, marks.INTENT: marks.intent_text(intent)}
            )

    cluster.api.faults.append(rival)
    with pytest.raises(StepRefused, match="intent: server2 is in a step"):
        step_to(cluster.process(S), "down")
    assert_untouched(cluster)
    assert_free(cluster)


def test_writes_whose_answer_is_lost_are_read_back() -> None:
    cluster = Cluster()
    cluster.api.faults += [
        fails("after change_node", unreachable(), 2),
        fails("after write_lease", unreachable(), 1),
        fails("change_node", Conflict("changed"), 2),
    ]
    step_to(cluster.process(S), "down")
    assert_at(cluster, "control-plane")
    assert_free(cluster)


def test_drain_leaves_what_stays_and_names_what_blocks() -> None:
    cluster = Cluster(DRAIN_TIMEOUT_SECONDS="10")
    cluster.api.pods_by_node[S] = [
        pod("web"),
        pod("db"),
        pod("agent", "DaemonSet"),
        pod("static", "Node", mirror=True),
        pod("job", "Job", finished=True),
        pod("bare", ""),
    ]
    cluster.api.stuck["db"] = "Cannot evict pod as it would violate the pod's disruption budget db-pdb"
    report = step_to(cluster.process(S), "down")
    assert [other.name for other in cluster.api.pods_by_node[S]] == ["db", "agent", "static", "job", "bare"]
    remaining = report["steps"][0]["remaining"]
    assert any("db-pdb" in text for text in remaining)
    assert any("default/bare: has no owner" in text for text in remaining)
    assert len(remaining) == 2
    assert_at(cluster, "control-plane")


def test_pods_without_an_owner_refuse_the_restart_unless_told() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    cluster.api.pods_by_node[S] = [pod("bare", "")]
    with pytest.raises(StepRefused, match="default/bare"):
        step_to(cluster.process(S), "down")
    assert_at(cluster, "control-plane")
    cluster.settings["DRAIN_PODS_WITHOUT_OWNER"] = "end"
    step_to(cluster.process(S), "down")
    assert_at(cluster, "etcd-only")


def test_what_remains_is_ended_by_the_restart_or_forbids_it() -> None:
    cluster = Cluster(DRAIN_TIMEOUT_SECONDS="4", DRAIN_REMAINING="refuse")
    cluster.api.pods_by_node[S] = [pod("db")]
    cluster.api.stuck["db"] = "budget"
    step_to(cluster.process(S), "down")
    with pytest.raises(StepFailed, match="DRAIN_REMAINING=refuse") as caught:
        step_to(cluster.process(S), "down")
    assert not caught.value.left_open
    assert_at(cluster, "control-plane")
    cluster.settings["DRAIN_REMAINING"] = "end"
    report = step_to(cluster.process(S), "down")
    assert "default/db" in report["steps"][0]["remaining"][0]
    assert_at(cluster, "etcd-only")


@pytest.mark.parametrize(
    "text", ["", marks.intent_text(marks.Intent("other", "full", "control-plane", "x", ""))]
)
@pytest.mark.parametrize(("level", "target"), [("control-plane", "etcd-only"), ("control-plane", "full")])
def test_an_intent_that_is_not_ours_any_more_is_left_alone(text: str, level: str, target: str) -> None:
    """Abandoned, or another step's: nothing of an older step may be written over it."""
    cluster = at_level(level)
    host = cluster.hosts[S]

    def replaced(_level: str) -> None:
        host.fail.clear()
        annotations = {**cluster.node(S).annotations, marks.INTENT: text}
        if not text:
            del annotations[marks.INTENT]
        cluster.api.set_node(S, annotations=annotations)

    host.fail.append(replaced)
    with pytest.raises(StepFailed) as caught:
        step_to(cluster.process(S), target)
    assert caught.value.left_open
    assert cluster.node(S).annotations.get(marks.INTENT, "") == text
    assert "journal" in host.disk


def test_a_persons_cordon_survives_the_whole_cycle() -> None:
    cluster = Cluster()
    cluster.api.set_node(S, unschedulable=True, cordoned_by=("kubectl",))
    step_to(cluster.process(S), "control-plane")
    assert marks.ours_of(cluster.node(S)) == ("taint",)
    step_to(cluster.process(S), "full")
    assert cluster.node(S).unschedulable
    assert marks.LEVEL not in cluster.node(S).labels


def test_a_cordon_set_by_a_person_during_the_step_survives() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    cluster.api.set_node(S, cordoned_by=("kubectl",))  # uncordoned and cordoned again by hand
    step_to(cluster.process(S), "full")
    assert cluster.node(S).unschedulable


def test_an_actuator_that_did_not_begin_is_undone() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    cluster.hosts[S].fail.append(apply_failed(began=False))
    with pytest.raises(StepFailed, match="docker did not answer") as caught:
        step_to(cluster.process(S), "down")
    assert not caught.value.left_open
    assert cluster.hosts[S].noted["outcome"] == "undone"
    assert_at(cluster, "control-plane")
    assert_free(cluster)


def test_a_crash_loop_whose_old_record_is_back_is_undone_not_tried_again() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    tried = []

    def loops(level: str) -> None:
        if level == "etcd-only":
            tried.append(level)
            raise ApplyFailed(
                "k3s ended 3 times; the old record was put back and k3s runs again", True, back=True
            )

    cluster.hosts[S].fail.append(loops)
    with pytest.raises(StepFailed, match="k3s ended 3 times") as caught:
        step_to(cluster.process(S), "down")
    assert not caught.value.left_open
    assert tried == ["etcd-only"]
    assert_at(cluster, "control-plane")
    assert_free(cluster)


def test_a_restart_that_failed_for_good_stays_open_with_its_lease_and_is_resumed() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    host = cluster.hosts[S]
    host.fail.append(apply_failed(began=True, times=99))
    with pytest.raises(StepFailed, match="stays open") as caught:
        step_to(cluster.process(S), "down")
    assert caught.value.left_open
    assert cluster.api.lease is not None
    assert cluster.api.lease.holder.startswith(S)
    assert marks.INTENT in cluster.node(S).annotations
    assert cluster.api.events[-1][2] == "RegradeStepOpen"
    with pytest.raises(StepRefused, match="server1"):
        step_to(cluster.process("server2"), "down")
    host.fail.clear()
    assert settle(cluster.process(S))["action"] == "resumed"
    assert_at(cluster, "etcd-only")
    assert_free(cluster)


def test_a_full_disk_at_the_restart_is_undone() -> None:
    """Field case B20: fail closed before the restart."""
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    host = cluster.hosts[S]

    def full(level: str) -> None:
        host.fail.clear()
        raise RegradeError("STATE_DIR is full")

    host.fail.append(full)
    with pytest.raises(StepFailed, match="STATE_DIR is full"):
        step_to(cluster.process(S), "down")
    assert host.restarts == []
    assert_at(cluster, "control-plane")
    assert_free(cluster)


def test_a_bug_in_the_middle_of_a_step_keeps_lease_and_intent_for_settle() -> None:
    cluster = Cluster()
    host = cluster.hosts[S]

    def bug(_level: str) -> None:
        raise KeyError("surprise")

    host.fail.append(bug)
    with pytest.raises(KeyError):
        step_to(cluster.process(S), "down")
    assert marks.INTENT in cluster.node(S).annotations
    assert cluster.api.lease is not None
    assert cluster.api.lease.holder.startswith(S)
    host.fail.clear()
    assert settle(cluster.process(S))["level"] == "control-plane"
    assert_free(cluster)


def test_automatic_refusals_look_before_they_cost_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A held Lease or a switch is seen before etcd's members, Docker or the peers are asked."""
    cluster = Cluster()
    host = cluster.hosts[S]
    asked: List[str] = []
    monkeypatch.setattr(host, "members", lambda: asked.append("members"))
    monkeypatch.setattr(host, "preflight", lambda: asked.append("docker"))
    cluster.api.lease = Lease("server2/beef", 60, "", "", 3, "50")
    with pytest.raises(StepRefused, match="server2/beef"):
        step_to(cluster.process(S), "down", automatic=True)
    assert asked == []


def test_the_actuator_of_a_resumed_step_is_told_what_was_noted_before() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    host = cluster.hosts[S]
    server = cluster.process(S)
    assert server.hooks.known() == {}, "outside a step"
    known: List[dict[str, str]] = []

    def look(_level: str) -> None:
        known.append(dict(host.hooks.known() if host.hooks else {}))

    host.fail.append(look)

    def killed_later(call: str) -> None:
        if host.restarts:
            raise Crash

    cluster.api.faults.append(killed_later)
    assert kill(server, "control-plane", "etcd-only")
    cluster.api.faults.clear()
    settle(cluster.process(S))
    assert known == [{}, {"container": "c1", "started_at": "0", "restart": "asked"}]


def test_a_restart_that_began_is_asked_again_rather_than_undone() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    cluster.hosts[S].fail.append(apply_failed(began=True))
    step_to(cluster.process(S), "down")
    assert_at(cluster, "etcd-only")


def test_a_changed_member_list_leaves_the_step_open() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")

    def replaced(_level: str) -> None:
        cluster.hosts[S].fail.clear()
        cluster.time.sleep = swap  # type: ignore[method-assign]  # to act while it sleeps

    def swap(seconds: float) -> None:
        cluster.time.seconds += seconds
        cluster.etcd[0] = cluster.etcd[0]._replace(id="4242")

    cluster.hosts[S].fail.append(replaced)
    with pytest.raises(StepFailed, match="4242") as caught:
        step_to(cluster.process(S), "down")
    assert caught.value.left_open
    assert "journal" in cluster.hosts[S].disk
    assert marks.INTENT in cluster.node(S).annotations
    with pytest.raises(StepFailed, match="not the one that stepped down"):
        settle(cluster.process(S))


def test_a_peers_member_that_changed_during_the_step_is_told_and_does_not_hold_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    host = cluster.hosts[S]

    def replaced(seconds: float) -> None:
        cluster.time.seconds += seconds
        if host.restarts:
            cluster.etcd[2] = cluster.etcd[2]._replace(id="777")

    monkeypatch.setattr(cluster.time, "sleep", replaced)
    step_to(cluster.process(S), "down")
    assert_at(cluster, "etcd-only")
    told = [event for event in cluster.api.events if event[2] == "RegradeMembersChanged"]
    assert len(told) == 1
    assert "1001, 1002, 777" in told[0][3]


def test_a_server_that_another_process_stepped_meanwhile_is_not_stepped_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the settling and the step the host's lock is free."""
    cluster = Cluster()
    server = cluster.process(S)
    original = walk.step

    def raced(*arguments: object) -> object:
        monkeypatch.setattr(walk, "step", original)
        step_to(cluster.process(S), "down", hold=False)
        return original(*arguments)

    monkeypatch.setattr(walk, "step", raced)
    with pytest.raises(StepRefused, match="at control-plane, expected full"):
        step_to(server, "control-plane")
    assert_at(cluster, "control-plane")


def test_a_step_decided_before_others_is_not_taken_after_them_though_the_level_is_the_same_again() -> None:
    """The watcher's child may be slow to start: the cooldown of what came between would be skipped."""
    cluster = Cluster()
    step_to(cluster.process(S), "down", hold=False)
    seen = cluster.hosts[S].noted["id"]
    step_to(cluster.process(S), "down", hold=False)
    step_to(cluster.process(S), "up", hold=False)
    writes = len(cluster.api.writes)
    with pytest.raises(StepRefused, match="stepped meanwhile, and is at control-plane again") as caught:
        step_to(cluster.process(S), "down", automatic=True, expected="control-plane", after=seen)
    assert (caught.value.reason, caught.value.level) == ("level", "control-plane")
    assert len(cluster.api.writes) == writes
    latest = cluster.hosts[S].noted["id"]
    assert step_to(cluster.process(S), "down", automatic=True, expected="control-plane", after=latest)["changed"]


def test_a_step_that_was_decided_at_another_level_refuses() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down", hold=False)
    writes = len(cluster.api.writes)
    with pytest.raises(StepRefused, match="at control-plane, expected full"):
        step_to(cluster.process(S), "down", automatic=True, expected="full")
    assert len(cluster.api.writes) == writes
    assert step_to(cluster.process(S), "down", expected="control-plane")["level"] == "etcd-only"


def test_a_journal_that_cannot_be_written_before_the_first_effect_takes_the_intent_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    host = cluster.hosts[S]
    write = host.write

    def full_disk(name: str, document: dict[str, object]) -> None:
        if name == "journal" and document["phase"] == "effects":
            raise RegradeError("journal.json cannot be written: No space left on device")
        write(name, document)

    monkeypatch.setattr(host, "write", full_disk)
    with pytest.raises(StepRefused, match="No space left"):
        step_to(cluster.process(S), "down")
    assert_untouched(cluster)
    assert_free(cluster)


def test_no_step_begins_while_another_is_open() -> None:
    cluster = at_level("control-plane")
    cluster.hosts[S].disk["journal"] = journal("control-plane", "etcd-only", "effects")
    server = cluster.process(S)
    with pytest.raises(StepRefused, match="still open"):
        server.run(step(server.plan(), "down", "control-plane"))
    assert cluster.hosts[S].restarts == []


def test_the_lease_alone_is_not_taken_from_a_holder_whose_node_shows_a_step() -> None:
    """Without the gate: taking the Lease is refused by itself, and the next look at the intent is the gate's."""
    cluster = Cluster()
    cluster.api.lease = Lease("server2/beef", 60, "", "", 3, "50")
    server = cluster.process(S)
    with pytest.raises(StepRefused, match="seen unchanged"):
        server.run(take_lease(server.plan()))
    cluster.time.sleep(1000)
    intent = marks.intent_text(marks.Intent("7", "full", "control-plane", "server2/beef", ""))
    cluster.api.set_node("server2", annotations={marks.INTENT: intent})
    with pytest.raises(StepRefused, match="its Node shows an open step"):
        server.run(take_lease(server.plan()))
    cluster.api.set_node("server2", annotations={})
    server.run(take_lease(server.plan()))
    assert cluster.api.lease.holder == server.holder


@pytest.mark.parametrize("key", [marks.HOLD, marks.PAUSE, marks.DRY_RUN])
def test_switches_stop_automatic_steps_and_write_nothing(key: str) -> None:
    cluster = Cluster()
    cluster.api.set_node(S, annotations={**cluster.node(S).annotations, key: "true"})
    with pytest.raises(StepRefused, match=key) as caught:
        step_to(cluster.process(S), "down", automatic=True)
    assert (caught.value.reason, caught.value.level) == (key.rpartition("regrade-")[2], "full")
    assert ("it would step down to control-plane now" in str(caught.value)) is (key == marks.DRY_RUN)
    assert cluster.api.writes == []
    assert step_to(cluster.process(S), "down")["changed"], "a step by hand is not held up"


def test_a_step_by_hand_sets_a_hold_and_a_step_to_full_ends_it() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    assert marks.switch(cluster.node(S), marks.HOLD)
    step_to(cluster.process(S), "full")
    assert marks.HOLD not in cluster.node(S).annotations
    step_to(cluster.process(S), "control-plane", hold=False)
    assert marks.HOLD not in cluster.node(S).annotations
    step_to(cluster.process(S), "full", automatic=True)
    assert_untouched(cluster)


@pytest.mark.parametrize("where", ["full", "up"])
def test_a_step_by_hand_that_finds_full_already_ends_the_hold(where: str) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    step_to(cluster.process(S), "full", hold=False)
    assert marks.switch(cluster.node(S), marks.HOLD)
    told = step_to(cluster.process(S), where, automatic=True)
    assert (told["changed"], marks.switch(cluster.node(S), marks.HOLD)) == (False, True)
    assert step_to(cluster.process(S), where, hold=False)["changed"] is False
    writes = list(cluster.api.writes)
    told = step_to(cluster.process(S), where, check=True)
    assert (told["changed"], "would be ended" in told["message"]) == (True, True)
    assert cluster.api.writes == writes
    told = step_to(cluster.process(S), where)
    assert (told["changed"], told["from"], told["to"], told["steps"]) == (True, "full", "full", [])
    assert "its hold is ended" in told["message"]
    assert marks.HOLD not in cluster.node(S).annotations
    assert step_to(cluster.process(S), where)["changed"] is False


@pytest.mark.parametrize("hold", [True, False])
def test_a_step_by_hand_to_where_a_recreated_container_is_leaves_it_there(hold: bool) -> None:
    cluster = recreated()
    told = step_to(cluster.process(S), "control-plane", hold=hold)
    assert told["changed"] is True
    assert "not stepped down to etcd-only again" in told["message"]
    assert_at(cluster, "control-plane")
    assert marks.switch(cluster.node(S), marks.HOLD) is hold
    assert settle(cluster.process(S), automatic=True)["back"] == ""
    assert step_to(cluster.process(S), "control-plane")["changed"] is False


def test_release_ends_a_hold_and_says_where_there_is_none() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    assert release(cluster.process(S))["changed"] is True
    assert marks.HOLD not in cluster.node(S).annotations
    assert release(cluster.process(S))["changed"] is False


def test_a_second_process_of_this_host_changes_nothing() -> None:
    cluster = Cluster()
    server = cluster.process(S)
    cluster.hosts[S].locked = "a step down of server1, process 12"
    with pytest.raises(StepRefused, match="process 12"):
        step_to(server, "down")
    assert cluster.api.writes == []


def test_a_persons_step_waits_while_the_watcher_looks_after_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    server, host = cluster.process(S), cluster.hosts[S]
    host.locked = "settling server1, process 12"
    sleep = cluster.time.sleep

    def until_free(seconds: float) -> None:
        sleep(seconds)
        if cluster.time.seconds > began + 20 and host.locked.startswith("settling"):
            host.release()

    began = cluster.time.seconds
    monkeypatch.setattr(cluster.time, "sleep", until_free)
    assert step_to(server, "down")["level"] == "control-plane"
    assert cluster.time.seconds > began + 20


def test_an_automatic_step_does_not_wait_for_the_lock() -> None:
    cluster = Cluster()
    server = cluster.process(S)
    cluster.hosts[S].locked = "settling server1, process 12"
    began = cluster.time.seconds
    with pytest.raises(StepRefused, match="process 12"):
        step_to(server, "down", automatic=True)
    assert cluster.time.seconds == began


def test_a_dead_cluster_refuses() -> None:
    cluster = Cluster()
    for call in ("nodes", "node", "read_lease"):
        cluster.api.faults.append(fails(call, unreachable(), 99))
    with pytest.raises(StepRefused, match="no API server"):
        step_to(cluster.process(S), "down")


def test_an_unknown_level_is_no_level() -> None:
    cluster = Cluster()
    cluster.hosts[S].running = ""
    with pytest.raises(LevelUnknown):
        step_to(cluster.process(S), "down")
    with pytest.raises(LevelUnknown):
        settle(cluster.process(S))


def test_a_step_is_noted_for_the_watcher() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down", automatic=True)
    noted = cluster.hosts[S].noted
    assert (noted["direction"], noted["level"], noted["by"], noted["outcome"]) == (
        "down",
        "control-plane",
        "watcher",
        "done",
    )


def test_events_tell_of_the_step() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    assert cluster.api.events == [
        (S, "Normal", "Regraded", "server1 stepped down from full to control-plane"),
    ]


# ---- crashes


def requests_of(level: str, target: str) -> int:
    """How many requests the step makes, counted on a run that is not cut off."""
    cluster = at_level(level)
    server = cluster.process(S)
    counted: List[CountingDriver] = []

    def driver(world: World, hooks: Hooks) -> CountingDriver:
        counted.append(CountingDriver(world, hooks))
        return counted[-1]

    kill(server._replace(driver=driver), level, target)
    return counted[-1].count


def at_level(level: str) -> Cluster:
    cluster = Cluster(DRAIN_TIMEOUT_SECONDS="4")
    if level != "full":
        step_to(cluster.process(S), level, hold=False)
    cluster.api.pods_by_node[S] = [pod("web")]
    return cluster


def kill(server: Server, level: str, target: str) -> bool:
    """One step, cut off where the server's process is to be killed."""
    try:
        server.run(step(server.plan(), direction(level, target), level))
    except Crash:
        return True
    return False


MOVES = [
    ("full", "control-plane"),
    ("control-plane", "etcd-only"),
    ("etcd-only", "control-plane"),
    ("control-plane", "full"),
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("level", "target"), MOVES)
def test_a_process_killed_at_any_request_is_ended_by_the_next(level: str, target: str, after: bool) -> None:
    count = requests_of(level, target)
    assert count > 20
    killed = 0
    for at in range(1, count + 1):
        cluster = at_level(level)
        server = cluster.process(S, kill_at=at, after=after)
        killed += kill(server, level, target)
        members = [member.id for member in cluster.etcd]
        host, held, node = cluster.hosts[S], cluster.api.lease, cluster.node(S)
        assert held is not None
        traces = {JOURNAL, HELD} if level != "full" else {JOURNAL, HELD, IDENTITY}
        seen = bool(traces & set(host.disk)) or host.noted.get("to") == target  # by a watcher that asks nobody
        assert seen or not (held.holder or marks.intent_of(node) or marks.level_of(node) != level), at
        done = settle(cluster.process(S))
        assert done["level"] in (level, target), at
        assert_at(cluster, done["level"])
        assert_free(cluster)
        assert done["level"] == level or host.noted["to"] == target, at
        assert [member.id for member in cluster.etcd] == members
        assert len(host.restarts) <= 3
        step_to(cluster.process(S), target)
        assert_at(cluster, target)
        assert_free(cluster)
    assert killed == count


@pytest.mark.parametrize(("level", "target"), MOVES)
def test_killed_and_another_peer_falls_it_still_ends_without_a_restart_below_quorum(
    level: str, target: str
) -> None:
    for at in range(1, requests_of(level, target) + 1):
        cluster = at_level(level)
        kill(cluster.process(S, kill_at=at), level, target)
        host = cluster.hosts[S]
        before = list(host.restarts)
        cluster.api.set_node("server2", ready=None)
        with contextlib.suppress(RegradeError):
            settle(cluster.process(S))
        assert host.restarts == before, at
        cluster.api.set_node("server2", ready=True)
        settle(cluster.process(S))
        assert_at(cluster, host.running)


def test_a_stopped_k3s_of_an_open_step_is_started_without_api_or_lease() -> None:
    for at in range(1, requests_of("control-plane", "etcd-only") + 1):
        cluster = at_level("control-plane")
        kill(cluster.process(S, kill_at=at), "control-plane", "etcd-only")
        host = cluster.hosts[S]
        host.stopped = True
        for call in ("nodes", "node", "read_lease", "pods"):
            cluster.api.faults.append(fails(call, unreachable(), 999))
        with pytest.raises(RegradeError):
            settle(cluster.process(S))
        assert host.stopped is ("journal" not in host.disk), "started only where a step of ours is open"


def test_what_was_seen_of_the_lease_is_no_reason_to_refuse_where_it_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.api.lease = Lease("server2/beef", 60, "", "", 3, "50")
    host = cluster.hosts[S]

    def full_disk(name: str, document: dict[str, object]) -> None:
        raise StateLost(f"{name}.json cannot be written: No space left on device")

    def unreadable(name: str) -> None:
        if name == SEEN:
            raise StateLost(f"{name}.json cannot be read")

    monkeypatch.setattr(host, "write", full_disk)
    monkeypatch.setattr(host, "read", unreadable)
    with pytest.raises(StepRefused, match="the Lease is held by server2/beef") as caught:
        step_to(cluster.process(S), "down")
    assert caught.value.reason == "lease"


def test_killed_between_the_record_and_the_restart_the_step_goes_on() -> None:
    """k3s still runs the full process while the record says etcd-only: the level reads as full."""
    cluster = at_level("control-plane")
    host = cluster.hosts[S]
    server = cluster.process(S)

    def killed(call: str) -> None:
        if host.record == "etcd-only":
            raise Crash

    cluster.api.faults.append(killed)
    assert kill(server, "control-plane", "etcd-only")
    cluster.api.faults.clear()
    assert (host.running, host.record, host.restarts) == ("control-plane", "etcd-only", [])
    assert host.current_level() == "full"
    assert settle(cluster.process(S), automatic=True)["action"] == "resumed"
    assert_at(cluster, "etcd-only")
    assert_free(cluster)


def test_a_container_made_anew_while_its_open_step_is_settled_is_drained_before_it_is_restarted() -> None:
    """Settled at etcd-only a step has nothing to drain, and k3s runs above it again by the time of its restart."""
    cluster = at_level("control-plane")
    host, pods = cluster.hosts[S], cluster.api.pods_by_node[S]
    server = cluster.process(S)

    def killed(call: str) -> None:
        if host.restarts:
            raise Crash

    cluster.api.faults.append(killed)
    assert kill(server, "control-plane", "etcd-only")
    assert host.current_level() == "etcd-only"
    settling = cluster.process(S)

    def made_anew(call: str) -> None:
        if cluster.api.lease.holder == settling.plan().holder and not pods:
            host.running = "full"
            pods.append(pod("db"))

    cluster.api.faults[:] = [made_anew]
    with pytest.raises(StepFailed, match="k3s runs at full again, and its pods are not drained") as caught:
        settle(settling, automatic=True)
    assert caught.value.left_open
    assert (host.restarts, [each.name for each in pods]) == (["etcd-only"], ["db"])
    cluster.api.faults.clear()
    assert settle(cluster.process(S), automatic=True)["action"] == "resumed"
    assert (host.restarts, pods) == (["etcd-only"] * 2, []), "evicted, not ended by the restart"
    assert_at(cluster, "etcd-only")
    assert_free(cluster)


def test_a_step_abandoned_between_the_record_and_the_restart_gets_its_old_record_back() -> None:
    cluster = at_level("control-plane")
    host = cluster.hosts[S]
    host.disk["journal"] = journal("control-plane", "etcd-only", "restart")
    host.record = "etcd-only"
    assert settle(cluster.process(S), automatic=True)["level"] == "control-plane"
    assert host.restarts == []
    assert_at(cluster, "control-plane")


# ---- what fails after the last write


@pytest.mark.parametrize(("level", "target"), [("full", "control-plane"), ("control-plane", "full")])
def test_a_note_that_fails_after_the_last_write_undoes_nothing(level: str, target: str) -> None:
    cluster = Cluster()
    if level != "full":
        step_to(cluster.process(S), level)
    server = cluster.process(S)

    def full_disk(_pairs: object) -> None:
        raise RegradeError("last-step cannot be written: No space left on device")

    step_to(server._replace(world=server.world._replace(note_step=full_disk)), target)
    assert_at(cluster, target)
    assert_free(cluster)
    assert any("No space left" in line for line in cluster.hosts[S].logged)


def test_a_journal_that_cannot_be_removed_after_the_last_write_is_closed_by_settle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    host = cluster.hosts[S]
    step_to(cluster.process(S), "control-plane")

    def read_only(name: str) -> None:
        raise RegradeError(f"{name}.json cannot be removed: Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(host, "remove", read_only)
        step_to(cluster.process(S), "full")
    assert (host.running, host.record) == ("full", "full")
    assert_free(cluster)
    assert settle(cluster.process(S))["action"] == "closed"
    assert_untouched(cluster)


def test_a_note_that_fails_after_an_undo_leaves_nothing_open() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    cluster.hosts[S].fail.append(apply_failed(began=False))
    server = cluster.process(S)

    def full_disk(_pairs: object) -> None:
        raise RegradeError("last-step cannot be written: No space left on device")

    with pytest.raises(StepFailed, match="was undone") as caught:
        step_to(server._replace(world=server.world._replace(note_step=full_disk)), "down")
    assert not caught.value.left_open
    assert_at(cluster, "control-plane")
    assert_free(cluster)


# ---- settling what others left


def test_an_intent_gone_while_the_journal_is_open_is_never_resumed() -> None:
    cluster = at_level("control-plane")
    host = cluster.hosts[S]
    host.disk["journal"] = journal("control-plane", "etcd-only", "effects")
    settle(cluster.process(S))
    assert "journal" not in host.disk
    assert host.restarts == []
    assert_at(cluster, "control-plane")


def test_a_step_ended_by_another_hand_leaves_the_level_that_runs() -> None:
    cluster = at_level("control-plane")
    host = cluster.hosts[S]
    host.disk["journal"] = journal("control-plane", "etcd-only", "restart")
    cluster.api.set_node(S, labels={**cluster.node(S).labels, marks.LEVEL: "etcd-only"})
    done = settle(cluster.process(S), automatic=True)
    assert done["action"] == "adopted"
    assert "`abandon-step`" in done["message"]
    assert host.restarts == []
    assert_at(cluster, "control-plane")
    assert_free(cluster)


def journal(start: str, target: str, phase: str) -> dict[str, object]:
    return {"id": "ab", "from": start, "to": target, "holder": f"{S}/1", "uid": f"uid-{S}", "member": "1001",
            "members": ["1001", "1002", "1003"], "boot_id": "boot-1", "phase": phase, "facts": {}}  # fmt: skip


def test_an_intent_without_a_journal_is_cleared_and_the_marks_made_right() -> None:
    cluster = Cluster()
    intent = marks.Intent("lost", "full", "control-plane", f"{S}/1", "cordon")
    cluster.api.set_node(
        S, annotations={**cluster.node(S).annotations, marks.INTENT: marks.intent_text(intent)}
    )
    assert settle(cluster.process(S))["action"] == "repaired"
    assert_untouched(cluster)
    assert_free(cluster)


def test_under_a_hold_an_intent_without_a_journal_is_cleared_and_nothing_else() -> None:
    """It would hold every other server up."""
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    host = cluster.hosts[S]
    host.running = host.record = "full"
    annotations = {**cluster.node(S).annotations, marks.INTENT: "{"}
    cluster.api.set_node(S, annotations=annotations)
    before = cluster.node(S)
    assert settle(cluster.process(S), automatic=True)["action"] == "cleared"
    kept = {key: value for key, value in annotations.items() if key != marks.INTENT}
    assert cluster.node(S) == before._replace(
        annotations=kept, resource_version=cluster.node(S).resource_version
    )
    assert_free(cluster)


def test_an_unreadable_intent_is_cleared_too() -> None:
    cluster = Cluster()
    cluster.api.set_node(S, annotations={**cluster.node(S).annotations, marks.INTENT: "{"})
    settle(cluster.process(S))
    assert_untouched(cluster)


def test_a_level_set_by_another_hand_is_adopted() -> None:
    cluster = Cluster()
    host = cluster.hosts[S]
    host.running = host.record = "etcd-only"
    assert settle(cluster.process(S))["level"] == "etcd-only"
    assert_at(cluster, "etcd-only")
    assert host.restarts == []
    step_to(cluster.process(S), "full")
    assert_untouched(cluster)


def recreated(hold: bool = False) -> Cluster:
    """A server at etcd-only whose container was made anew: only the data volume came back, and k3s does not
    read the record any more."""
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only", hold=hold)
    host = cluster.hosts[S]
    host.running = "full"
    host.noted.clear()
    assert host.current_level() == "full"
    return cluster


def test_field_case_e47_a_recreated_container_is_brought_back_to_its_level_by_a_step() -> None:
    cluster = recreated()
    host = cluster.hosts[S]
    told = settle(cluster.process(S), automatic=True)
    assert (told["action"], told["level"], told["back"]) == ("returning", "control-plane", "etcd-only")
    assert_at(cluster, "control-plane")
    assert host.noted == {}, "not counted as a step: no cooldown"
    assert_free(cluster)
    again = settle(cluster.process(S), automatic=True)  # another watcher, or the same one later
    assert (again["action"], again["back"]) == ("nothing", "etcd-only")
    step_to(cluster.process(S), "down", automatic=True)
    assert_at(cluster, "etcd-only")
    assert settle(cluster.process(S), automatic=True)["back"] == ""
    assert "bring-back" not in host.disk
    assert host.restarts == ["etcd-only"] * 2


def test_a_recreated_container_killed_at_any_request_of_its_return_is_brought_back_all_the_same() -> None:
    at, killed = 0, True
    while killed:
        at, killed = at + 1, False
        for after in (False, True):
            cluster = recreated()
            try:
                settle(cluster.process(S, kill_at=at, after=after), automatic=True)
            except Crash:
                killed = True
            told = settle(cluster.process(S), automatic=True)
            assert (told["level"], told["back"]) == ("control-plane", "etcd-only"), at
            assert_at(cluster, "control-plane")
            assert_free(cluster)
    assert at > 20


def test_the_watcher_takes_no_step_up_before_the_return() -> None:
    """It decided so while each settling failed, and did not know of it."""
    cluster = recreated()
    settle(cluster.process(S), automatic=True)
    with pytest.raises(StepRefused, match="is to be stepped down to etcd-only again first") as refused:
        step_to(cluster.process(S), "up", automatic=True)
    assert (refused.value.reason, refused.value.level) == ("level", "control-plane")
    assert settle(cluster.process(S), automatic=True)["back"] == "etcd-only"
    assert_at(cluster, "control-plane")


@pytest.mark.parametrize("where", ["up", "full"])
def test_a_step_up_by_hand_ends_the_return(where: str) -> None:
    cluster = recreated()
    settle(cluster.process(S), automatic=True)
    step_to(cluster.process(S), where)
    assert_untouched(cluster)
    assert "bring-back" not in cluster.hosts[S].disk
    step_to(cluster.process(S), "down", hold=False)
    assert settle(cluster.process(S), automatic=True)["back"] == ""


@pytest.mark.parametrize("key", [marks.HOLD, marks.PAUSE, marks.DRY_RUN])
def test_a_recreated_container_under_a_switch_stays_until_that_is_off(key: str) -> None:
    cluster = recreated()
    cluster.api.set_node(S, annotations={**cluster.node(S).annotations, key: "true"})
    disk, writes = dict(cluster.hosts[S].disk), list(cluster.api.writes)
    told = settle(cluster.process(S), automatic=True)
    assert (told["action"], told["level"], told["changed"], told["back"]) == ("left", "full", False, "")
    assert "without that" in told["message"]
    with pytest.raises(StepRefused, match=key):
        step_to(cluster.process(S), "down", automatic=True)
    assert (cluster.hosts[S].disk, cluster.api.writes) == (disk, writes)
    annotations = {word: value for word, value in cluster.node(S).annotations.items() if word != key}
    cluster.api.set_node(S, annotations=annotations)
    assert settle(cluster.process(S), automatic=True)["back"] == "etcd-only"


def test_a_record_removed_by_another_hand_is_adopted() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only", hold=False)
    host = cluster.hosts[S]
    host.record = "full"
    assert settle(cluster.process(S), automatic=True)["action"] == "repaired"
    assert_at(cluster, "etcd-only")
    host.running = host.record = "full"
    assert settle(cluster.process(S), automatic=True)["back"] == ""
    assert_untouched(cluster)


def test_a_server_on_its_way_back_that_another_hand_raised_stays_there() -> None:
    cluster = recreated()
    settle(cluster.process(S), automatic=True)
    host = cluster.hosts[S]
    host.running = host.record = "full"
    assert settle(cluster.process(S), automatic=True)["back"] == ""
    assert_untouched(cluster)
    assert "bring-back" not in host.disk


def test_a_switch_set_in_the_middle_of_a_return_leaves_its_note() -> None:
    cluster = recreated()
    host = cluster.hosts[S]
    host.disk["bring-back"] = {"level": "etcd-only"}  # noted, and then killed
    cluster.api.set_node(S, annotations={**cluster.node(S).annotations, marks.PAUSE: "yes"})
    disk = dict(host.disk)
    told = settle(cluster.process(S), automatic=True)
    assert (told["action"], told["back"]) == ("left", "")
    assert host.disk == disk


def test_a_return_that_cannot_be_noted_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = recreated()

    def full(name: str, document: dict[str, object]) -> None:
        raise RegradeError("no space left")

    monkeypatch.setattr(cluster.hosts[S], "write", full)
    with pytest.raises(StepRefused, match="no space left") as caught:
        settle(cluster.process(S), automatic=True)
    assert (caught.value.reason, caught.value.level) == ("storage", "full")
    assert cluster.hosts[S].record == "etcd-only"


def test_a_step_brings_a_recreated_container_that_is_held_back_to_its_level() -> None:
    cluster = recreated(hold=True)
    host = cluster.hosts[S]
    assert settle(cluster.process(S), automatic=True)["action"] == "left", "held"
    report = step_to(cluster.process(S), "etcd-only")
    assert report["changed"] is True
    assert_at(cluster, "etcd-only")
    assert host.restarts == ["etcd-only"] * 2


@pytest.mark.parametrize("level", ["full", "etcd-only"])
def test_a_step_to_the_level_it_is_at_lays_the_record_anew(level: str) -> None:
    cluster = Cluster()
    if level != "full":
        step_to(cluster.process(S), level)
    host = cluster.hosts[S]
    restarts = list(host.restarts)
    host.record = "etcd-only" if level == "full" else "control-plane"
    assert step_to(cluster.process(S), level)["level"] == level
    assert_at(cluster, level)
    assert_free(cluster)
    assert host.restarts == restarts
    assert "repaired" not in settle(cluster.process(S))["action"]


def test_a_record_that_cannot_be_laid_leaves_no_step_open() -> None:
    cluster = Cluster()
    host = cluster.hosts[S]
    host.record = "etcd-only"
    host.fail.append(apply_failed(began=False))
    with pytest.raises(StepRefused, match="docker did not answer"):
        settle(cluster.process(S))
    assert_untouched(cluster)
    assert_free(cluster)


def test_left_over_marks_at_full_are_cleared_unless_held() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    host = cluster.hosts[S]
    host.running = host.record = "full"
    assert settle(cluster.process(S), automatic=True)["action"] == "left", "held by the step by hand"
    release(cluster.process(S))
    assert settle(cluster.process(S), automatic=True)["action"] == "repaired"
    assert_untouched(cluster)


def test_a_person_is_not_held_up_by_a_hold() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    host = cluster.hosts[S]
    host.running = host.record = "full"
    assert settle(cluster.process(S))["action"] == "repaired"
    assert marks.agrees(cluster.node(S), "full")


def test_an_uncordon_by_a_person_below_full_is_not_fought() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    cluster.api.set_node(S, unschedulable=False, cordoned_by=("kubectl",))
    writes = len(cluster.api.writes)
    assert settle(cluster.process(S), automatic=True)["action"] == "nothing"
    assert len(cluster.api.writes) == writes
    step_to(cluster.process(S), "full")
    assert_untouched(cluster)


def test_a_cluster_that_answers_slowly_is_not_restarted_on_old_answers() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "down")

    def slow(call: str) -> None:
        if call == "nodes" and cluster.hosts[S].record == "etcd-only":
            cluster.time.sleep(6)

    cluster.api.faults.append(slow)
    with pytest.raises(StepFailed, match="answers too slowly"):
        step_to(cluster.process(S), "down")
    assert cluster.hosts[S].restarts == []
    assert_at(cluster, "control-plane")


def test_a_card_that_writes_slowly_is_not_restarted_on_old_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's last answers are no older than the limit when the restart is asked for."""
    cluster = Cluster()
    step_to(cluster.process(S), "down")
    host = cluster.hosts[S]
    write, ask = host.write, cluster.api.ask_peer
    asked: List[float] = []
    slow = [30.0]

    def writes(name: str, document: dict[str, object]) -> None:
        if name == "journal" and document["phase"] == "restart":
            cluster.time.sleep(slow[0])
        write(name, document)

    def asks(address: str) -> PeerAnswer:
        asked.append(cluster.time.seconds)
        return ask(address)

    monkeypatch.setattr(host, "write", writes)
    monkeypatch.setattr(cluster.api, "ask_peer", asks)
    sleep = cluster.time.sleep
    since: List[float] = []

    def restarts(seconds: float) -> None:
        if host.restarts and not since:
            since.append(cluster.time.seconds - asked[-1])
        sleep(seconds)

    monkeypatch.setattr(cluster.time, "sleep", restarts)
    step_to(cluster.process(S), "down")
    assert_at(cluster, "etcd-only")
    assert since[0] <= 5


def test_a_repair_keeps_the_member_id_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only")
    host = cluster.hosts[S]
    kept = host.disk["identity"]
    labels = {key: value for key, value in cluster.node(S).labels.items() if key != marks.LEVEL}
    cluster.api.set_node(S, labels=labels)

    def no_quorum() -> None:
        raise LevelUnknown("no quorum")

    with monkeypatch.context() as patch:
        patch.setattr(host, "members", no_quorum)
        assert settle(cluster.process(S))["action"] == "repaired"
    assert host.disk["identity"] == kept
    cluster.etcd[0] = cluster.etcd[0]._replace(id="9999")
    with pytest.raises(StepFailed, match="not the one that stepped down"):
        settle(cluster.process(S))


@pytest.mark.parametrize("call", ["after change_node", "record_event"])
def test_a_release_whose_answer_is_lost_tells_that_it_is_done(call: str) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    cluster.api.faults.append(fails(call, unreachable()))
    assert release(cluster.process(S))["changed"] is True
    assert marks.HOLD not in cluster.node(S).annotations


def test_a_trap_found_later_is_cured_by_a_step_of_its_own() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only")
    host = cluster.hosts[S]
    host.is_trapped = True
    assert settle(cluster.process(S), automatic=True)["action"] == "cured"
    assert host.restarts == ["etcd-only", "etcd-only"]
    assert host.lease_at_restart[-1].startswith(S)
    assert_at(cluster, "etcd-only")
    assert_free(cluster)


def test_a_cure_that_is_refused_is_not_looked_for_again_while_it_is_undone() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only", hold=False)
    host = cluster.hosts[S]
    host.is_trapped = True

    def falls(_level: str) -> None:
        cluster.api.set_node("server2", ready=None)

    host.fail.append(falls)
    with pytest.raises(StepFailed, match="undone: k3s is trapped: ready: server2 is not Ready") as caught:
        settle(cluster.process(S), automatic=True)
    assert not caught.value.left_open
    assert host.restarts == ["etcd-only"]
    assert_at(cluster, "etcd-only")
    assert_free(cluster)


def test_a_cure_that_does_not_help_ends_failed_and_is_not_tried_again_soon() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only", hold=False)
    host = cluster.hosts[S]
    host.is_trapped = host.incurable = True
    with pytest.raises(StepFailed, match="still locked behind its own address") as caught:
        settle(cluster.process(S), automatic=True)
    assert not caught.value.left_open
    assert host.restarts == ["etcd-only"] * 2
    assert_at(cluster, "etcd-only")
    assert_free(cluster)
    for _round in range(3):
        told = settle(cluster.process(S), automatic=True)
        assert (told["action"], told["level"], told["changed"]) == ("uncured", "etcd-only", False)
        assert "a restart did not cure it" in told["message"]
    assert host.restarts == ["etcd-only"] * 2
    cluster.time.sleep(4000)
    with pytest.raises(StepFailed):
        settle(cluster.process(S), automatic=True)
    assert host.restarts == ["etcd-only"] * 3
    host.incurable = False
    assert settle(cluster.process(S))["action"] == "cured", "a person does not wait"
    assert_at(cluster, "etcd-only")


def test_a_step_into_a_trap_that_no_restart_cures_ends_at_its_level_and_says_so() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane", hold=False)
    host = cluster.hosts[S]
    host.incurable = True
    with pytest.raises(StepFailed, match="still locked behind its own address") as caught:
        step_to(cluster.process(S), "down", automatic=True)
    assert not caught.value.left_open
    assert host.restarts == ["etcd-only"] * 2
    assert (host.noted["level"], host.noted["outcome"]) == ("etcd-only", "done")
    assert_at(cluster, "etcd-only")
    assert_free(cluster)
    step_to(cluster.process(S), "up")
    assert_at(cluster, "control-plane")


def test_a_step_into_a_trap_whose_cure_is_refused_ends_at_its_level_and_lets_go() -> None:
    """Left open it would hold the whole cluster up, the server that could make the gate pass among them."""
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane", hold=False)
    host = cluster.hosts[S]
    host.incurable = True

    def peer_goes_away(call: str) -> None:
        if host.restarts:
            cluster.api.faults.remove(peer_goes_away)
            cluster.api.set_node("server3", ready=None)

    cluster.api.faults.append(peer_goes_away)
    with pytest.raises(StepFailed, match="trapped: ready: server3 is not Ready") as caught:
        step_to(cluster.process(S), "down", automatic=True)
    assert not caught.value.left_open
    assert host.restarts == ["etcd-only"]
    assert_at(cluster, "etcd-only")
    assert_free(cluster)
    cluster.api.set_node("server3", ready=True)
    host.incurable = False
    assert settle(cluster.process(S), automatic=True)["action"] == "cured"
    assert host.restarts == ["etcd-only"] * 2
    assert_free(cluster)


@pytest.mark.parametrize(("level", "target"), MOVES[1:3])
def test_a_restart_that_was_asked_for_and_certainly_did_not_begin_is_taken_back_where_the_gate_refuses(
    level: str, target: str
) -> None:
    cluster = at_level(level)
    host = cluster.hosts[S]

    original = host.write

    def write(name: str, document: dict[str, object]) -> None:
        original(name, document)
        if name == JOURNAL and document["phase"] == "restart":
            host.write = original  # type: ignore[method-assign]
            raise Crash

    host.write = write  # type: ignore[method-assign]
    assert kill(cluster.process(S), level, target)
    restarts = len(host.restarts)
    cluster.api.set_node("server3", ready=None)
    with pytest.raises(StepFailed) as caught:
        settle(cluster.process(S), automatic=True)
    assert caught.value.left_open, "the call may still be under way"
    cluster.time.sleep(91)
    with pytest.raises(StepFailed, match="undone") as caught:
        settle(cluster.process(S), automatic=True)
    assert not caught.value.left_open
    assert len(host.restarts) == restarts
    assert_at(cluster, level)
    assert_free(cluster)


@pytest.mark.parametrize(
    ("level", "target", "other"),
    [
        ("full", "control-plane", "etcd-only"),
        ("etcd-only", "control-plane", "full"),
        ("control-plane", "full", "etcd-only"),
    ],
)
def test_a_level_changed_by_hand_during_an_open_step_is_adopted(level: str, target: str, other: str) -> None:
    for at in range(1, requests_of(level, target) + 1):
        cluster = at_level(level)
        host = cluster.hosts[S]
        kill(cluster.process(S, kill_at=at), level, target)
        host.running = host.record = other
        settle(cluster.process(S))
        settle(cluster.process(S))  # a step that had not begun is taken back first
        assert_at(cluster, other)
        assert_free(cluster)
        assert JOURNAL not in host.disk


def test_a_step_up_of_a_trapped_server_restarts_it_once() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only")
    cluster.hosts[S].is_trapped = True
    step_to(cluster.process(S), "up")
    assert cluster.hosts[S].restarts == ["etcd-only", "control-plane"]
    assert_at(cluster, "control-plane")


def test_a_node_made_anew_while_below_full_stops_everything() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only")
    cluster.api.set_node(S, uid="uid-new")
    for act in (lambda: settle(cluster.process(S)), lambda: step_to(cluster.process(S), "up")):
        with pytest.raises(StepFailed, match="uid-new"):
            act()
    assert cluster.hosts[S].restarts == ["etcd-only"]
    assert cluster.api.events[-1][2] == "RegradeAlarm"


def test_settling_a_server_that_is_well_writes_nothing() -> None:
    cluster = Cluster()
    assert settle(cluster.process(S)) == {
        "changed": False,
        "action": "nothing",
        "level": "full",
        "back": "",
        "message": "level and marks agree, no step is open",
    }
    assert cluster.api.writes == []


# ---- status


def test_status_tells_each_check_and_what_stands_in_the_way(tmp_path: object) -> None:
    cluster = Cluster(LOCK_FILE=f"{tmp_path}/lock")
    cluster.api.set_node("server3", ready=None)
    report = status(cluster.process(S))
    assert report["level"] == report["recorded"] == report["label"] == "full"
    assert {item["check"]: item["ok"] for item in report["gate"]} == {
        "members": True, "quorum": True, "ready": False, "voter": True, "full": True, "intent": True,
        "serviced": True, "fresh": None, "api": True,
    }  # fmt: skip
    assert "server3 is not Ready" in report["next"]
    assert (report["lease"]["holder"], report["lease"]["free"], report["lease"]["error"]) == ("", True, "")
    assert cluster.api.writes == []


def test_a_pod_that_the_api_fails_or_forbids_keeps_no_other_on_the_node() -> None:
    for error in (unreachable(), Forbidden("admission webhook denied the request")):
        cluster = Cluster(DRAIN_TIMEOUT_SECONDS="4")
        cluster.api.pods_by_node[S] = [pod("first"), pod("second"), pod("third")]
        evict = cluster.api.evict

        def fails_the_first(found: Pod, evict: Any = evict, error: Exception = error) -> Eviction:
            if found.name == "first":
                raise error
            return evict(found)  # type: ignore[no-any-return]

        cluster.api.evict = fails_the_first  # type: ignore[method-assign]
        done = step_to(cluster.process(S), "down")
        assert done["steps"][0]["remaining"] == [f"default/first: {error}"]
        assert [found.name for found in cluster.api.pods_by_node[S]] == ["first"]


def test_pods_that_could_never_be_listed_are_not_taken_for_drained() -> None:
    cluster = Cluster(DRAIN_TIMEOUT_SECONDS="4")
    cluster.api.pods_by_node[S] = [pod("web")]
    cluster.api.faults.append(fails("pods", unreachable(), 99))
    done = step_to(cluster.process(S), "down")
    assert "the pods could not be listed" in done["message"]


def test_evictions_that_take_their_time_do_not_outlast_the_drains() -> None:
    cluster = Cluster(DRAIN_TIMEOUT_SECONDS="20")
    cluster.api.pods_by_node[S] = [pod(f"web-{number}") for number in range(60)]
    evict = cluster.api.evict

    def slow(found: Pod) -> Eviction:
        cluster.time.sleep(5)
        return evict(found)

    cluster.api.evict = slow  # type: ignore[method-assign]
    done = step_to(cluster.process(S), "down")
    assert done["steps"][0]["seconds"] < 60
    assert sum(text.endswith(": not evicted") for text in done["steps"][0]["remaining"]) == 56


def test_a_repair_starts_no_k3s_that_somebody_stops_meanwhile() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only", hold=False)
    host = cluster.hosts[S]
    host.record = "control-plane"  # by another hand

    def stops(_level: str) -> None:
        host.stopped = True

    host.fail.append(stops)
    with pytest.raises(RegradeError):
        settle(cluster.process(S))
    host.fail.clear()
    assert host.stopped


@pytest.mark.parametrize("error", [Forbidden("may not update leases"), Conflict("changed")])
def test_the_note_of_a_lease_that_a_dead_process_of_this_server_holds_stays(error: ClusterError) -> None:
    cluster = Cluster()
    cluster.api.lease = Lease(f"{S}/dead", 60, "", "", 3, "50")
    cluster.hosts[S].disk[HELD] = {"boottime": 1.0, "boot_id": "boot-1"}
    cluster.api.faults.append(fails("write_lease", error, 99))
    with pytest.raises(StepRefused):
        step_to(cluster.process(S), "down")
    assert HELD in cluster.hosts[S].disk, "the watcher at full looks because of it alone"
    cluster.api.faults.clear()
    settle(cluster.process(S), automatic=True)
    assert_free(cluster)


def test_an_intent_that_lands_after_its_step_was_taken_back_is_looked_for_until_it_cannot() -> None:
    cluster = Cluster()
    host, change = cluster.hosts[S], cluster.api.change_node
    late: List[Any] = []

    def lost(name: str, wanted: Any, version: str) -> Any:
        late.append((name, wanted, version))
        raise unreachable()

    cluster.api.change_node = lost  # type: ignore[method-assign]
    with pytest.raises(StepRefused):
        step_to(cluster.process(S), "down")
    cluster.api.change_node = change  # type: ignore[method-assign]
    assert JOURNAL not in host.disk
    assert LATE in host.disk
    cluster.time.sleep(60)
    assert settle(cluster.process(S), automatic=True)["action"] == "nothing"
    assert LATE in host.disk
    change(*late[0])
    assert settle(cluster.process(S), automatic=True)["action"] == "repaired"
    assert_untouched(cluster)
    cluster.time.sleep(61)
    settle(cluster.process(S), automatic=True)
    assert LATE not in host.disk


def test_a_late_intent_is_looked_for_also_after_the_host_has_booted_anew() -> None:
    cluster = Cluster()
    host = cluster.hosts[S]
    host.disk[LATE] = {"boottime": 5000.0, "boot_id": "boot-0"}
    cluster.time.seconds = 30.0
    settle(cluster.process(S), automatic=True)
    assert LATE in host.disk
    cluster.time.seconds = 121.0
    settle(cluster.process(S), automatic=True)
    assert LATE not in host.disk


@pytest.mark.parametrize("name", [LATE, HELD])
def test_what_may_land_is_judged_before_it_is_looked_for(name: str) -> None:
    # A process that is stopped right after it looked must not take what landed meanwhile for never coming.
    cluster = Cluster()
    host = cluster.hosts[S]
    host.disk[name] = {"boottime": cluster.time.seconds, "boot_id": cluster.time.boot_id()}
    looks = {LATE: "node", HELD: "read_lease"}
    look = getattr(cluster.api, looks[name])

    def then_stopped(*about: Any) -> Any:
        found = look(*about)
        cluster.time.sleep(300)
        return found

    setattr(cluster.api, looks[name], then_stopped)
    settle(cluster.process(S), automatic=True)
    assert name in host.disk
    setattr(cluster.api, looks[name], look)
    settle(cluster.process(S), automatic=True)
    assert name not in host.disk


@pytest.mark.parametrize("level", ["control-plane", "etcd-only"])
def test_marks_that_another_changed_before_we_had_the_lease_refuse_the_step(level: str) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), level)
    swap = cluster.api.write_lease

    def just_before(record: Lease) -> Lease:  # as `forget` from another server, which held the Lease till now
        if record.holder:
            change = marks.at_level(cluster.node(S), "full", None)
            cluster.api.change_node(S, change, cluster.node(S).resource_version)
        return swap(record)

    cluster.api.write_lease = just_before  # type: ignore[method-assign]
    with pytest.raises(StepRefused, match="the Node's marks say full; `regrade settle` makes them agree"):
        step_to(cluster.process(S), "up")
    assert JOURNAL not in cluster.hosts[S].disk
    assert marks.INTENT not in cluster.node(S).annotations
    assert_free(cluster)


def test_a_label_taken_off_while_a_restart_is_under_way_is_set_again() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane")
    host, apply = cluster.hosts[S], cluster.hosts[S].apply_level

    def taken_off(level: str) -> None:
        apply(level)
        cluster.api.set_node(S, labels={})

    host.apply_level = taken_off  # type: ignore[method-assign]
    step_to(cluster.process(S), "etcd-only")
    assert_at(cluster, "etcd-only")
    assert_free(cluster)
