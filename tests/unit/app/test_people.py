# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands for people on a cluster in memory: dead servers, the last one standing, maintenance."""

from __future__ import annotations

import contextlib
from typing import Callable, Dict, List, Optional, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.driver import Hooks, World
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import (
    Server,
    abandon_step,
    forget,
    recover,
    settle,
    step_to,
    with_lease,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    Conflict,
    Forbidden,
    LevelUnknown,
    RegradeError,
    StepFailed,
    StepRefused,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import direction
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Lease,
    PeerAnswer,
    Taint,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.step import step
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import (
    Cluster,
    CountingDriver,
    Crash,
    SteadyRenewal,
    apply_failed,
    fails,
    unreachable,
)

HERE, DEAD = "server1", "server2"
MOVES = [
    ("full", "control-plane"),
    ("control-plane", "etcd-only"),
    ("etcd-only", "control-plane"),
    ("control-plane", "full"),
]


BELOW = {"full": ["control-plane"], "control-plane": ["etcd-only"], "etcd-only": []}


class Person:
    """Who is asked, and what they were told."""

    def __init__(self, agrees: bool = True) -> None:
        self.agrees = agrees
        self.asked: List[str] = []
        self.told: List[str] = []

    def confirm(self, text: str) -> None:
        self.asked.append(text)
        if not self.agrees:
            raise StepRefused("not confirmed, nothing was changed")

    def at(self, server: Server) -> Server:
        return server._replace(world=server.world._replace(confirm=self.confirm, say=self.told.append))


def by_hand(cluster: Cluster, name: str = HERE, kill_at: int = 0, after: bool = False) -> Server:
    return Person().at(cluster.process(name, kill_at, after))


def count_of(make: Callable[[], Tuple[Server, Callable[[Server], object]]]) -> int:
    """How many requests a command makes, counted on a run that is not cut off."""
    server, command = make()
    counted: List[CountingDriver] = []

    def driver(world: World, hooks: Hooks) -> CountingDriver:
        counted.append(CountingDriver(world, hooks))
        return counted[-1]

    command(server._replace(driver=driver))
    return counted[-1].count


def killed(server: Server, command: Callable[[Server], object]) -> bool:
    try:
        command(server)
    except Crash:
        return True
    return False


def dies(cluster: Cluster, name: str = DEAD) -> None:
    """Its host is gone: no kubelet, no API."""
    address = cluster.node(name).addresses[0]
    cluster.api.silent[name] = 0.0
    cluster.api.answers[address] = PeerAnswer("connection refused", "connection refused")
    cluster.api.set_node(name, ready=None)


def revives(cluster: Cluster, name: str = DEAD) -> None:
    del cluster.api.silent[name]
    del cluster.api.answers[cluster.node(name).addresses[0]]
    cluster.api.set_node(name, ready=True)


def dead_in_a_step(start: str = "control-plane", target: str = "etcd-only", at: int = 0) -> Cluster:
    """A cluster whose server2 died in a step, at the request `at` of it (0: where level and marks differ)."""
    cluster = Cluster(DRAIN_TIMEOUT_SECONDS="4")
    if start != "full":
        step_to(cluster.process(DEAD), start, hold=False)
    server = cluster.process(DEAD, kill_at=at)
    host = cluster.hosts[DEAD]

    def crash(call: str) -> None:
        marked = call == "pods" if start == "full" else host.record == target
        if not at and (marked if target in BELOW[start] else host.running == target):
            raise Crash

    cluster.api.faults.append(crash)
    killed(server, lambda made: made.run(step(made.plan(), direction(start, target), start)))
    cluster.api.faults.remove(crash)
    dies(cluster)
    return cluster


def assert_free(cluster: Cluster) -> None:
    assert cluster.api.lease is not None
    assert cluster.api.lease.holder == ""


def assert_settled(cluster: Cluster, name: str, level: str) -> None:
    host = cluster.hosts[name]
    assert (host.running, host.record) == (level, level)
    assert marks.agrees(cluster.node(name), level)
    assert marks.INTENT not in cluster.node(name).annotations
    assert "journal" not in host.disk
    if level == "full":
        assert not cluster.node(name).unschedulable
        assert "identity" not in host.disk


# ---- abandon-step


def test_a_dead_servers_step_is_closed_and_its_marks_stay() -> None:
    cluster = dead_in_a_step()
    before = cluster.node(DEAD)
    assert cluster.api.lease is not None and cluster.api.lease.holder.startswith(DEAD)
    person = Person()
    report = abandon_step(person.at(cluster.process(HERE)), DEAD)
    assert report["changed"]
    assert "from control-plane to etcd-only" in person.asked[0]
    after = cluster.node(DEAD)
    assert marks.INTENT not in after.annotations
    assert (after.labels, after.taints, after.unschedulable) == (before.labels, before.taints, True)
    assert after.annotations[marks.OURS] == before.annotations[marks.OURS]
    assert_free(cluster)
    assert [event[:3] for event in cluster.api.events][-1] == (DEAD, "Warning", "RegradeAbandoned")
    assert len(cluster.etcd) == 3


@pytest.mark.parametrize("reboots", [False, True])
@pytest.mark.parametrize(("start", "target"), MOVES)
def test_what_comes_back_after_its_step_was_abandoned_converges_and_never_goes_on(
    start: str, target: str, reboots: bool
) -> None:
    """At whichever request it died: it adopts what it runs at, and says so."""
    abandoned = 0
    for at in range(1, 200):
        cluster = dead_in_a_step(start, target, at)
        host = cluster.hosts[DEAD]
        if "journal" not in host.disk and marks.INTENT not in cluster.node(DEAD).annotations and abandoned:
            break
        if marks.INTENT not in cluster.node(DEAD).annotations:
            continue
        abandoned += 1
        abandon_step(by_hand(cluster), DEAD)
        assert_free(cluster)
        revives(cluster)
        if reboots:
            host.running = host.record
        restarts = list(host.restarts)
        events = len(cluster.api.events)
        done = settle(cluster.process(DEAD), automatic=True)
        assert host.restarts == restarts, at
        assert done["level"] == host.running
        if done["action"] in ("closed", "adopted"):
            assert "abandon-step" in done["message"]
            assert f"k3s runs at {done['level']}" in done["message"]
        if done["action"] == "adopted":
            assert (DEAD, "Warning", "RegradeAdopted") in [event[:3] for event in cluster.api.events[events:]]
        if reboots or host.record == host.running:
            assert_settled(cluster, DEAD, host.running)
        settle(cluster.process(DEAD), automatic=True)
        assert_settled(cluster, DEAD, host.running)
        assert_free(cluster)
        assert step_to(cluster.process("server3"), "full")["changed"] is False
    assert abandoned > 8


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("start", "target"), MOVES)
def test_the_adopting_server_is_killed_at_any_request_and_the_next_one_ends_it(
    start: str, target: str, after: bool
) -> None:
    def back() -> Cluster:
        cluster = dead_in_a_step(start, target)
        abandon_step(by_hand(cluster), DEAD)
        revives(cluster)
        return cluster

    count = count_of(lambda: (back().process(DEAD), settle))
    assert count > 10
    for at in range(1, count + 1):
        cluster = back()
        killed(cluster.process(DEAD, at, after), settle)
        for _again in range(2):
            settle(cluster.process(DEAD), automatic=True)
        assert_settled(cluster, DEAD, cluster.hosts[DEAD].running)
        assert_free(cluster)


@pytest.mark.parametrize("sign", ["kubelet", "renewal"])
def test_a_server_that_shows_a_sign_of_life_is_not_abandoned(sign: str) -> None:
    cluster = dead_in_a_step()
    if sign == "kubelet":
        del cluster.api.silent[DEAD]
    else:
        original = cluster.time.sleep

        def renews(seconds: float) -> None:
            original(seconds)
            if cluster.api.lease:
                cluster.api.lease = cluster.api.lease._replace(resource_version=f"r{cluster.time.seconds}")

        cluster.time.sleep = renews  # type: ignore[method-assign]
    before, lease = cluster.node(DEAD), cluster.api.lease
    with pytest.raises(StepRefused, match="shows signs of life"):
        abandon_step(by_hand(cluster), DEAD)
    assert cluster.node(DEAD) == before
    assert cluster.api.lease and lease and cluster.api.lease.holder == lease.holder


@pytest.mark.parametrize("command", [abandon_step, forget])
def test_who_was_stopped_while_looking_looks_again(command: Callable[[Server, str], object]) -> None:
    """Stopped for a minute with the second answer in its hands: what it saw is two seconds long."""
    cluster = dead_in_a_step() if command is abandon_step else gone()
    read, looks = cluster.api.node_lease_renewals, []

    def stopped() -> Dict[str, str]:
        looks.append(read())
        if len(looks) == 2:
            revives(cluster)
            cluster.time.sleep(60)
        return looks[-1]

    cluster.api.node_lease_renewals = stopped  # type: ignore[method-assign]
    before = cluster.node(DEAD)
    with pytest.raises(StepRefused, match="renews its node lease"):
        command(by_hand(cluster), DEAD)
    assert len(looks) == 3
    after = cluster.node(DEAD)
    assert (after.labels, after.annotations, after.taints) == (before.labels, before.annotations, before.taints)


@pytest.mark.parametrize(
    "answer",
    [
        PeerAnswer("", ""),
        PeerAnswer("", "timed out after 3 s"),
        PeerAnswer("https://10.0.0.2:6443: connection refused; port 16443: apiserver disabled", "the same"),
    ],
)
def test_a_server_whose_k3s_answers_is_alive_at_once(answer: PeerAnswer) -> None:
    cluster = dead_in_a_step()
    cluster.api.answers["10.0.0.2"] = answer
    begun, person = cluster.time.seconds, Person()
    with pytest.raises(StepRefused, match=r"is alive: .*`regrade settle` on that server"):
        abandon_step(person.at(cluster.process(HERE)), DEAD)
    assert cluster.time.seconds == begun
    assert person.asked == []


def test_it_is_looked_at_for_as_long_as_its_lease_lasts_and_40_seconds_at_least() -> None:
    for duration, expected in ((60, 60.0), (300, 300.0), (10, 40.0)):
        cluster = dead_in_a_step()
        assert cluster.api.lease is not None
        cluster.api.lease = cluster.api.lease._replace(duration_seconds=duration)
        begun = cluster.time.seconds
        abandon_step(by_hand(cluster), DEAD)
        assert expected <= cluster.time.seconds - begun < expected + 10


def test_abandoning_is_refused_where_there_is_nothing_or_something_else() -> None:
    cluster = dead_in_a_step()
    with pytest.raises(StepRefused, match=r"expected ab12"):
        abandon_step(by_hand(cluster), DEAD, "ab12")
    with pytest.raises(StepRefused, match="server3 shows no open step"):
        abandon_step(by_hand(cluster), "server3")
    with pytest.raises(StepRefused, match="there is no Node server9"):
        abandon_step(by_hand(cluster), "server9")
    with pytest.raises(StepRefused, match="is this server itself"):
        abandon_step(by_hand(cluster), HERE)
    intent = marks.intent_of(cluster.node(DEAD))
    assert intent is not None
    assert abandon_step(by_hand(cluster), DEAD, intent.id)["changed"]


@pytest.mark.parametrize("agrees", [True, False])
def test_a_step_that_cannot_be_read_is_abandoned_too_once_confirmed(agrees: bool) -> None:
    cluster = dead_in_a_step()
    node = cluster.node(DEAD)
    cluster.api.set_node(DEAD, annotations={**node.annotations, marks.INTENT: "{"})
    writes = list(cluster.api.writes)
    server = Person(agrees).at(cluster.process(HERE))
    if agrees:
        assert abandon_step(server, DEAD)["changed"]
        assert marks.INTENT not in cluster.node(DEAD).annotations
    else:
        with pytest.raises(StepRefused, match="not confirmed"):
            abandon_step(server, DEAD)
        assert cluster.api.writes == writes


def test_nobody_to_ask_refuses() -> None:
    cluster = dead_in_a_step()
    with pytest.raises(StepRefused, match="nobody to ask"):
        abandon_step(cluster.process(HERE), DEAD)


def test_a_server_that_comes_back_and_steps_anew_meanwhile_keeps_its_step() -> None:
    cluster = dead_in_a_step()
    other = marks.intent_text(marks.Intent("new", "control-plane", "etcd-only", f"{DEAD}/9", ""))

    def back(call: str) -> None:
        if call == "after write_lease":
            cluster.api.faults.remove(back)
            cluster.api.set_node(DEAD, annotations={**cluster.node(DEAD).annotations, marks.INTENT: other})

    cluster.api.faults.append(back)
    with pytest.raises(StepRefused, match="another step by now"):
        abandon_step(by_hand(cluster), DEAD)
    assert cluster.node(DEAD).annotations[marks.INTENT] == other


def test_a_server_that_comes_back_and_goes_on_meanwhile_keeps_its_step() -> None:
    cluster = dead_in_a_step()
    shown = cluster.node(DEAD).annotations[marks.INTENT]

    def back(call: str) -> None:
        if call == "after write_lease" and cluster.api.lease:
            cluster.api.faults.remove(back)
            cluster.api.lease = cluster.api.lease._replace(holder=f"{DEAD}/back", resource_version="800")

    cluster.api.faults.append(back)
    with pytest.raises(StepRefused, match="has just taken the Lease"):
        abandon_step(by_hand(cluster), DEAD)
    assert cluster.node(DEAD).annotations[marks.INTENT] == shown


def test_a_lease_that_is_renewed_at_the_last_moment_stays() -> None:
    cluster = dead_in_a_step()

    def renewed(call: str) -> None:
        if call == "write_lease" and cluster.api.lease:
            cluster.api.faults.remove(renewed)
            cluster.api.lease = cluster.api.lease._replace(resource_version="777")

    cluster.api.faults.append(renewed)
    with pytest.raises(StepRefused, match="it is alive"):
        abandon_step(by_hand(cluster), DEAD)
    assert cluster.api.lease and cluster.api.lease.holder.startswith(DEAD)
    assert marks.INTENT in cluster.node(DEAD).annotations


def test_anothers_lease_is_not_let_go() -> None:
    cluster = dead_in_a_step()
    cluster.api.lease = Lease("server3/beef", 60, "", "", 3, "50")
    assert abandon_step(by_hand(cluster), DEAD)["changed"]
    assert cluster.api.lease.holder == "server3/beef"


def test_unknown_answers_and_conflicts_of_abandoning_are_read_back() -> None:
    cluster = dead_in_a_step()
    cluster.api.faults += [
        fails("after write_lease", unreachable()),
        fails("after change_node", unreachable()),
        fails("change_node", Conflict("changed"), 2),
        fails("node_lease_renewals", unreachable(), 3),
    ]
    assert abandon_step(by_hand(cluster), DEAD)["changed"]
    assert marks.INTENT not in cluster.node(DEAD).annotations
    assert_free(cluster)


def test_rights_that_do_not_suffice_are_said_and_the_same_is_run_again() -> None:
    cluster = dead_in_a_step()
    cluster.api.faults.append(fails("change_node", Forbidden("may not patch nodes (server2)")))
    with pytest.raises(StepFailed, match="may not patch nodes") as caught:
        abandon_step(by_hand(cluster), DEAD)
    assert not caught.value.left_open
    assert abandon_step(by_hand(cluster), DEAD)["changed"]
    assert_free(cluster)


@pytest.mark.parametrize("after", [False, True])
def test_abandoning_is_killed_at_any_request_and_run_again(after: bool) -> None:
    count = count_of(lambda: (by_hand(dead_in_a_step()), lambda server: abandon_step(server, DEAD)))
    assert count > 20
    for at in range(1, count + 1):
        cluster = dead_in_a_step()
        assert killed(by_hand(cluster, HERE, at, after), lambda server: abandon_step(server, DEAD))
        with contextlib.suppress(StepRefused):  # where it had come through all the same
            abandon_step(by_hand(cluster), DEAD)
        assert marks.INTENT not in cluster.node(DEAD).annotations, at
        assert_free(cluster)


def test_once_it_is_abandoned_the_others_step_up_without_it() -> None:
    cluster = dead_in_a_step()
    cluster.api.lease = cluster.api.lease and cluster.api.lease._replace(duration_seconds=60)
    cluster.time.sleep(1)
    for _look in range(2):  # seen unchanged for its own duration
        with pytest.raises(StepRefused) as caught:
            step_to(cluster.process("server3"), "down")
        cluster.time.sleep(61)
    assert "full: server2" in str(caught.value) or "abandon-step server2" in str(caught.value)


# ---- forget


def gone(level: str = "etcd-only") -> Cluster:
    cluster = Cluster()
    step_to(cluster.process(DEAD), level)
    dies(cluster)
    return cluster


def test_a_server_that_is_gone_is_forgotten_and_neither_node_nor_member_removed() -> None:
    cluster = gone()
    person = Person()
    assert forget(person.at(cluster.process(HERE)), DEAD)["changed"]
    assert "only where it is gone for good" in person.asked[0]
    node = cluster.node(DEAD)
    assert marks.agrees(node, "full")
    assert marks.HOLD not in node.annotations
    assert not node.unschedulable
    assert_free(cluster)
    assert len(cluster.etcd) == 3
    assert cluster.api.events[-1][:3] == (DEAD, "Warning", "RegradeForgotten")
    assert forget(by_hand(cluster), DEAD)["changed"] is False


def test_a_server_that_runs_full_unwatched_is_forgotten_at_once() -> None:
    cluster = gone()
    revives(cluster)
    person = Person()
    begun = cluster.time.seconds
    assert forget(person.at(cluster.process(HERE)), DEAD)["changed"]
    assert "so its k3s runs all there is" in person.asked[0]
    assert cluster.time.seconds - begun < 5
    assert step_to(cluster.process(HERE), "down")["changed"]


def test_a_persons_cordon_survives_being_forgotten() -> None:
    cluster = gone()
    cluster.api.set_node(DEAD, cordoned_by=("kubectl",))
    forget(by_hand(cluster), DEAD)
    assert cluster.node(DEAD).unschedulable


def test_forgetting_is_refused_for_what_is_not_gone() -> None:
    cluster = gone()
    with pytest.raises(StepRefused, match="is this server itself"):
        forget(by_hand(cluster), HERE)
    cluster.api.answers["10.0.0.2"] = PeerAnswer("answered 503 (apiserver disabled)", "")
    with pytest.raises(StepRefused, match=r"runs at etcd-only \(answered 503.*: its marks protect its vote"):
        forget(by_hand(cluster), DEAD)
    dies(cluster)
    del cluster.api.silent[DEAD]
    with pytest.raises(StepRefused, match="neither runs full nor is gone"):
        forget(by_hand(cluster), DEAD)
    with pytest.raises(StepRefused, match="abandon-step server2"):
        forget(by_hand(dead_in_a_step()), DEAD)
    assert marks.level_of(cluster.node(DEAD)) == "etcd-only"
    assert_free(cluster)


def test_a_step_that_begins_meanwhile_is_not_forgotten() -> None:
    cluster = gone()

    def begins(call: str) -> None:
        if call == "change_node":
            cluster.api.faults.remove(begins)
            text = marks.intent_text(marks.Intent("9", "etcd-only", "control-plane", f"{DEAD}/1", ""))
            cluster.api.set_node(DEAD, annotations={**cluster.node(DEAD).annotations, marks.INTENT: text})

    cluster.api.faults.append(begins)
    with pytest.raises(StepRefused, match="shows an open step"):
        forget(by_hand(cluster), DEAD)
    assert marks.level_of(cluster.node(DEAD)) == "etcd-only"
    assert_free(cluster)


def test_forgetting_takes_the_lease_and_leaves_an_open_steps_alone() -> None:
    cluster = gone()
    cluster.api.lease = Lease("server3/beef", 60, "", "", 3, "50")
    with pytest.raises(StepRefused, match="held by server3/beef"):
        forget(by_hand(cluster), DEAD)
    cluster.api.lease = Lease(f"{HERE}/1", 60, "", "", 3, "51")
    cluster.hosts[HERE].disk["journal"] = {"id": "x"}
    with pytest.raises(StepRefused, match="still open"):
        forget(by_hand(cluster), DEAD)
    assert cluster.api.lease.holder == f"{HERE}/1"


def test_unknown_answers_and_conflicts_of_forgetting_are_read_back() -> None:
    cluster = gone()
    cluster.api.faults += [
        fails("after change_node", unreachable()),
        fails("change_node", Conflict("changed"), 2),
        fails("after write_lease", unreachable()),
    ]
    assert forget(by_hand(cluster), DEAD)["changed"]
    assert marks.agrees(cluster.node(DEAD), "full")
    assert_free(cluster)


@pytest.mark.parametrize("after", [False, True])
def test_forgetting_is_killed_at_any_request_and_run_again(after: bool) -> None:
    count = count_of(lambda: (by_hand(gone()), lambda server: forget(server, DEAD)))
    for at in range(1, count + 1):
        cluster = gone()
        assert killed(by_hand(cluster, HERE, at, after), lambda server: forget(server, DEAD))
        forget(by_hand(cluster), DEAD)
        assert marks.agrees(cluster.node(DEAD), "full"), at
        settle(cluster.process(HERE))
        assert_free(cluster)


# ---- step up --despite


def below_with_a_dead_peer(level: str, count: int = 3) -> Cluster:
    cluster = Cluster(count)
    step_to(cluster.process(HERE), level)
    dies(cluster)
    return cluster


def test_where_nothing_restarts_a_dead_peer_is_left_out_without_a_question() -> None:
    cluster = below_with_a_dead_peer("control-plane")
    with pytest.raises(StepRefused, match="ready: server2 is not Ready"):
        step_to(cluster.process(HERE), "up")
    assert step_to(cluster.process(HERE), "up", despite=(DEAD,))["level"] == "full"
    assert_settled(cluster, HERE, "full")
    assert_free(cluster)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (
            3,
            "of 3 voters server2 is left out and this one restarts, so 1 stays meanwhile; a quorum is 2: unless",
        ),
        (
            5,
            "so 3 stay meanwhile; a quorum is 3: the cluster goes on, also if this restart does not come back",
        ),
    ],
)
def test_where_etcd_restarts_it_is_asked_with_the_risk_in_numbers(count: int, words: str) -> None:
    cluster = below_with_a_dead_peer("etcd-only", count)
    refuses = Person(agrees=False)
    with pytest.raises(StepRefused, match="not confirmed"):
        step_to(refuses.at(cluster.process(HERE)), "up", despite=(DEAD,))
    assert words in refuses.asked[0]
    assert cluster.hosts[HERE].restarts == ["etcd-only"]
    assert_settled(cluster, HERE, "etcd-only")
    agrees = Person()
    assert step_to(agrees.at(cluster.process(HERE)), "full", despite=(DEAD,))["level"] == "full"
    assert len(agrees.asked) == 1
    assert_settled(cluster, HERE, "full")
    assert_free(cluster)


def test_what_would_be_done_is_told_without_a_question() -> None:
    cluster = below_with_a_dead_peer("etcd-only")
    person = Person(agrees=False)
    assert (
        step_to(person.at(cluster.process(HERE)), "up", check=True, despite=(DEAD,))["to"] == "control-plane"
    )
    assert person.asked == []


def test_two_below_full_are_parted_by_it() -> None:
    cluster = Cluster()
    for name in (HERE, DEAD):
        cluster.hosts[name].running = cluster.hosts[name].record = "etcd-only"
        cluster.api.set_node(name, labels={**cluster.node(name).labels, marks.LEVEL: "etcd-only"},
                             annotations={**cluster.node(name).annotations, marks.OURS: "taint"},
                             taints=(Taint(marks.LEVEL, "etcd-only", "NoSchedule"),))  # fmt: skip
    with pytest.raises(StepRefused, match="full: server2 is at etcd-only"):
        step_to(cluster.process(HERE), "up")
    step_to(by_hand(cluster), "full", despite=(DEAD,))
    assert_settled(cluster, HERE, "full")
    step_to(cluster.process(DEAD), "full")
    assert_settled(cluster, DEAD, "full")


def test_a_node_that_lost_its_member_is_left_out() -> None:
    cluster = below_with_a_dead_peer("control-plane", 5)
    cluster.etcd[:] = [member for member in cluster.etcd if member.id != "1002"]
    with pytest.raises(StepRefused, match="server2 has the etcd role but no etcd member"):
        step_to(cluster.process(HERE), "up")
    assert step_to(cluster.process(HERE), "up", despite=(DEAD,))["level"] == "full"


def test_a_peer_that_is_not_left_out_still_refuses() -> None:
    cluster = below_with_a_dead_peer("control-plane", 5)
    dies(cluster, "server4")
    with pytest.raises(StepRefused, match="server4 is not Ready"):
        step_to(cluster.process(HERE), "up", despite=(DEAD,))
    assert step_to(cluster.process(HERE), "up", despite=(DEAD, "server4"))["level"] == "full"


@pytest.mark.parametrize("name", ["server9", HERE])
def test_a_name_that_is_no_other_server_is_refused(name: str) -> None:
    cluster = below_with_a_dead_peer("control-plane")
    with pytest.raises(StepRefused, match=f"--despite {name} names no other server.*server2, server3"):
        step_to(cluster.process(HERE), "up", despite=(name,))
    assert_settled(cluster, HERE, "control-plane")


def test_it_is_never_automatic_and_never_a_step_down() -> None:
    cluster = Cluster()
    step_to(cluster.process(HERE), "control-plane", hold=False)
    dies(cluster)
    writes = list(cluster.api.writes)
    for where, automatic in (("down", False), ("up", True)):
        server = cluster.process(HERE)
        plan = server.plan(automatic)._replace(despite=(DEAD,), confirmed=True)
        with pytest.raises(StepRefused, match="a step up by hand, and of no other"):
            server.run(step(plan, where, "control-plane"))
    assert cluster.api.writes == writes


def test_a_restart_is_never_taken_unconfirmed() -> None:
    cluster = below_with_a_dead_peer("etcd-only")
    server = cluster.process(HERE)
    with pytest.raises(StepRefused, match="was not confirmed"):
        server.run(step(server.plan()._replace(despite=(DEAD,)), "up", "etcd-only"))
    assert cluster.hosts[HERE].restarts == ["etcd-only"]


def test_the_lease_is_never_left_out_and_the_refusal_names_the_way() -> None:
    cluster = below_with_a_dead_peer("control-plane")
    text = marks.intent_text(marks.Intent("7", "full", "control-plane", f"{DEAD}/1", ""))
    cluster.api.set_node(DEAD, annotations={**cluster.node(DEAD).annotations, marks.INTENT: text})
    cluster.api.lease = Lease(f"{DEAD}/1", 60, "", "", 3, "50")
    with pytest.raises(StepRefused, match="held by server2/1"):
        step_to(by_hand(cluster), "up", despite=(DEAD,))
    cluster.time.sleep(61)
    with pytest.raises(StepRefused, match="regrade abandon-step server2"):
        step_to(by_hand(cluster), "up", despite=(DEAD,))
    abandon_step(by_hand(cluster), DEAD)
    assert step_to(by_hand(cluster), "up", despite=(DEAD,))["level"] == "full"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("start", "target"), MOVES[2:])
def test_a_step_despite_a_dead_peer_is_killed_at_any_request_and_the_watcher_ends_it(
    start: str, target: str, after: bool
) -> None:
    """The dead peer stays dead: what was confirmed stands in the journal."""

    def go(server: Server) -> object:
        return step_to(server, target, despite=(DEAD,))

    count = count_of(lambda: (by_hand(below_with_a_dead_peer(start)), go))
    resumed = 0
    for at in range(1, count + 1):
        cluster = below_with_a_dead_peer(start)
        killed(by_hand(cluster, HERE, at, after), go)
        done = settle(cluster.process(HERE), automatic=True)
        resumed += done["action"] == "resumed"
        assert_settled(cluster, HERE, cluster.hosts[HERE].running)
        go(by_hand(cluster))
        assert_settled(cluster, HERE, target)
        assert_free(cluster)
    assert resumed > 5


# ---- recover --offline


class Silence:
    """No API server answers until it is lifted."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.api.faults.append(self.fault)

    def fault(self, call: str) -> None:
        raise unreachable()

    def ends(self) -> None:
        self.cluster.api.faults.remove(self.fault)


CUTS = ["", "before", "after"]  # a step to etcd-only that was cut off before or after its restart


def alone(
    level: str = "etcd-only", hold: bool = True, at: int = 0, cut: str = ""
) -> Tuple[Cluster, Silence]:
    """The last server standing; its step to etcd-only was killed at a request, or cut off at its restart."""
    cluster = Cluster(DRAIN_TIMEOUT_SECONDS="4")
    host = cluster.hosts[HERE]
    if not (at or cut):
        step_to(cluster.process(HERE), level, hold=hold)
        return cluster, Silence(cluster)
    step_to(cluster.process(HERE), "control-plane", hold=hold)
    server = cluster.process(HERE, kill_at=at)

    def crash(call: str) -> None:
        if cut and (host.running if cut == "after" else host.record) == "etcd-only":
            raise Crash

    cluster.api.faults.append(crash)
    assert killed(server, lambda made: made.run(step(made.plan(), "down", "control-plane"))) or not cut
    cluster.api.faults.remove(crash)
    return cluster, Silence(cluster)


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("level", ["etcd-only", "control-plane"])
def test_the_last_server_runs_full_again_and_its_marks_follow_once_an_api_is_back(
    level: str, hold: bool
) -> None:
    cluster, silence = alone(level, hold)
    host = cluster.hosts[HERE]
    person = Person()
    report = recover(person.at(cluster.process(HERE)))
    assert report["changed"]
    assert f"the record of {level} will be removed" in person.asked[0]
    assert person.asked[0].startswith("no API server of KUBE_SERVER answered")
    assert (host.running, host.record) == ("full", "full")
    assert host.noted["outcome"] == "recovered"
    assert (host.noted["level"], host.noted["direction"], host.noted["by"]) == ("full", "up", "hand")
    assert host.locked == ""
    for _look in range(2):  # the watcher's, with nobody to ask
        with pytest.raises(RegradeError):
            settle(cluster.process(HERE), automatic=True)
    assert "journal" in host.disk
    restarts = list(host.restarts)
    silence.ends()
    assert settle(cluster.process(HERE), automatic=True)["action"] == "recovered"
    assert_settled(cluster, HERE, "full")
    assert marks.HOLD not in cluster.node(HERE).annotations
    assert_free(cluster)
    assert host.restarts == restarts
    assert cluster.api.events[-1][:3] == (HERE, "Normal", "RegradeRecovered")
    assert settle(cluster.process(HERE), automatic=True)["action"] == "nothing"


def test_a_step_that_was_open_is_ended_by_the_recovery_and_not_gone_on_with() -> None:
    recovered = 0
    for at in range(1, 70):
        cluster, silence = alone(at=at)
        host = cluster.hosts[HERE]
        opened = "journal" in host.disk
        with contextlib.suppress(StepRefused):
            recover(by_hand(cluster))
            recovered += opened
        silence.ends()
        restarts = list(host.restarts)
        settle(cluster.process(HERE), automatic=True)
        assert host.restarts == restarts, at
        assert_settled(cluster, HERE, "full")
        assert_free(cluster)
        step_to(cluster.process("server3"), "down")
    assert recovered > 12


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_recovering_is_killed_at_any_request(after: bool, cut: str) -> None:
    count = count_of(lambda: (by_hand(alone(cut=cut)[0]), recover))
    assert count > 10
    for at in range(1, count + 1):
        cluster, silence = alone(cut=cut)
        killed(by_hand(cluster, HERE, at, after), recover)
        silence.ends()
        for _again in range(2):
            settle(cluster.process(HERE), automatic=True)
        assert_settled(cluster, HERE, cluster.hosts[HERE].running)
        assert_free(cluster)
        cluster, silence = alone(cut=cut)
        killed(by_hand(cluster, HERE, at, after), recover)
        with contextlib.suppress(StepRefused):  # it runs full already
            recover(by_hand(cluster))
        silence.ends()
        settle(cluster.process(HERE), automatic=True)
        assert_settled(cluster, HERE, "full")


def test_recovering_is_refused_where_an_api_answers_or_nothing_is_to_recover() -> None:
    cluster, silence = alone()
    silence.ends()
    with pytest.raises(StepRefused, match=r"answers: `regrade step up`.*--despite"):
        recover(by_hand(cluster))
    cluster.api.faults.append(fails("nodes", Forbidden("may not list nodes"), 9))
    with pytest.raises(StepRefused, match="may not list nodes"):
        recover(by_hand(cluster))
    cluster = Cluster()
    Silence(cluster)
    with pytest.raises(StepRefused, match="runs full, and its record says so"):
        recover(by_hand(cluster))
    assert cluster.hosts[HERE].restarts == []


def test_an_api_that_answers_again_after_the_question_stops_the_recovery() -> None:
    cluster, silence = alone()
    server = cluster.process(HERE)
    world = server.world._replace(confirm=lambda text: silence.ends())
    with pytest.raises(StepRefused, match="answers"):
        recover(server._replace(world=world))
    assert_settled(cluster, HERE, "etcd-only")


def test_one_look_that_fails_is_no_silence() -> None:
    cluster, silence = alone()
    silence.ends()
    cluster.api.faults.append(fails("nodes", unreachable(), 2))
    with pytest.raises(StepRefused, match="answers"):
        recover(by_hand(cluster))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_a_recovery_that_could_not_begin_leaves_all_as_it_was(cut: str, again: bool) -> None:
    cluster, silence = alone(cut=cut)
    host = cluster.hosts[HERE]
    before = dict(host.disk)
    assert ("journal" in before) is bool(cut)
    if again:  # one that was cut off before it began, and is run again
        host.fail.append(crashes)
        assert killed(by_hand(cluster), recover)
        assert host.disk["journal"]["phase"] == "recovered"
        host.fail.clear()
    host.fail.append(apply_failed(began=False))
    with pytest.raises(StepFailed, match="nothing was changed") as caught:
        recover(by_hand(cluster))
    assert not caught.value.left_open
    assert host.disk == before
    silence.ends()
    settle(cluster.process(HERE), automatic=True)
    assert_settled(cluster, HERE, "etcd-only")


def crashes(_level: str) -> None:
    raise Crash


def test_a_recovery_that_was_cut_off_before_it_began_gives_way_to_the_step_that_was_open() -> None:
    cluster, silence = alone(cut="after")
    host = cluster.hosts[HERE]
    host.fail.append(crashes)
    assert killed(by_hand(cluster), recover)
    host.fail.clear()
    silence.ends()
    assert settle(cluster.process(HERE), automatic=True)["action"] == "resumed"
    assert_settled(cluster, HERE, "etcd-only")
    assert_free(cluster)


def test_a_recovery_that_may_have_begun_stays_open() -> None:
    cluster, silence = alone()
    host = cluster.hosts[HERE]
    host.fail.append(apply_failed(began=True))
    with pytest.raises(StepFailed, match="stays open") as caught:
        recover(by_hand(cluster))
    assert caught.value.left_open
    host.running = host.record = "full"  # it came through later
    silence.ends()
    assert settle(cluster.process(HERE), automatic=True)["action"] == "recovered"
    assert_settled(cluster, HERE, "full")


def test_a_server_without_a_quorum_is_told_that_it_is_not_seen_full_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, _silence = alone()
    host = cluster.hosts[HERE]
    original = host.current_level

    def no_quorum() -> str:
        if host.running == "full":
            raise LevelUnknown("etcd in container k3s is not healthy: RAFT NO LEADER")
        return original()

    monkeypatch.setattr(host, "current_level", no_quorum)
    report = recover(by_hand(cluster))
    assert "not seen running full yet" in report["message"]
    assert "RAFT NO LEADER" in report["message"]
    assert report["changed"]


def test_a_record_of_below_full_beside_an_unknown_level_is_recovered() -> None:
    cluster, _silence = alone()
    host = cluster.hosts[HERE]
    host.stopped = True
    person = Person()
    recover(person.at(cluster.process(HERE)))
    assert "the record of etcd-only" in person.asked[0]
    assert (host.running, host.record, host.stopped) == ("full", "full", False)


# ---- with-lease


class Command:
    """Runs for so many looks, and does `during` at each."""

    def __init__(self, looks: int = 3, code: int = 0, during: Callable[[], None] = lambda: None) -> None:
        self.left, self.code, self.during = looks, code, during
        self.words: Tuple[str, ...] = ()

    def start(self, words: Tuple[str, ...]) -> None:
        self.words = words

    def ended(self, seconds: float) -> Optional[int]:
        self.left -= 1
        self.during()
        return self.code if self.left <= 0 else None


def running(cluster: Cluster, command: Command, person: Optional[Person] = None, kill_at: int = 0) -> Server:
    server = (person or Person()).at(cluster.process(HERE, kill_at))
    return server._replace(world=server.world._replace(maintenance=command))


def test_a_command_runs_under_lock_and_lease_and_its_exit_code_comes_back() -> None:
    cluster = Cluster()
    seen: List[Tuple[str, str]] = []

    def look() -> None:
        holder = cluster.api.lease.holder if cluster.api.lease else ""
        seen.append((holder.split("/")[0], cluster.hosts[HERE].locked))
        with pytest.raises(StepRefused, match="held by server1"):
            step_to(cluster.process("server3"), "down")

    command = Command(code=7, during=look)
    report = with_lease(running(cluster, command), ("apt", "upgrade"))
    assert (report["code"], report["lease_lost"], command.words) == (7, "", ("apt", "upgrade"))
    assert seen == [(HERE, "maintenance: apt")] * 3
    assert_free(cluster)
    assert cluster.hosts[HERE].locked == ""
    assert [event[2] for event in cluster.api.events] == ["RegradeMaintenance", "RegradeMaintenanceEnded"]


def test_a_lost_lease_is_said_at_once_and_at_the_end_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    person = Person()
    told: List[int] = []

    def lose() -> None:
        monkeypatch.setattr(SteadyRenewal, "why", "the Lease is held by server3/feed")
        cluster.api.lease = Lease("server3/feed", 60, "", "", 9, "900")
        told.append(len(person.told))

    command = Command(looks=4, during=lose)
    report = with_lease(running(cluster, command, person), ("apt",))
    assert told == [0, 1, 1, 1]
    assert "others may step while apt runs" in person.told[0]
    assert (report["code"], report["lease_lost"]) == (0, "the Lease is held by server3/feed")
    assert "lost meanwhile" in report["message"]
    assert cluster.api.events[-1][1:3] == ("Warning", "RegradeLeaseLost")
    assert cluster.api.lease and cluster.api.lease.holder == "server3/feed"


def test_no_command_runs_while_a_step_is_open_or_the_lease_is_held() -> None:
    cluster = Cluster()
    command = Command()
    cluster.hosts[HERE].disk["journal"] = {"id": "x"}
    with pytest.raises(StepRefused, match="a step of this server is open"):
        with_lease(running(cluster, command), ("apt",))
    cluster.hosts[HERE].disk.clear()
    cluster.api.lease = Lease("server3/feed", 60, "", "", 9, "900")
    with pytest.raises(StepRefused, match="held by server3/feed"):
        with_lease(running(cluster, command), ("apt",))
    begun = cluster.time.seconds
    with pytest.raises(StepRefused, match="held by server3/feed"):
        with_lease(running(cluster, command), ("apt",), wait=20)
    assert cluster.time.seconds - begun >= 20
    cluster.api.lease = Lease("", 60, "", "", 9, "901")
    text = marks.intent_text(marks.Intent("7", "full", "control-plane", f"{DEAD}/1", ""))
    cluster.api.set_node(DEAD, annotations={**cluster.node(DEAD).annotations, marks.INTENT: text})
    with pytest.raises(StepRefused, match="server2 shows an open step"):
        with_lease(running(cluster, command), ("apt",))
    assert command.words == ()
    assert_free(cluster)


def test_a_command_that_cannot_be_started_lets_go_of_the_lease() -> None:
    cluster = Cluster()

    class Absent(Command):
        def start(self, words: Tuple[str, ...]) -> None:
            raise RegradeError(f"{words[0]} cannot be run: No such file or directory")

    with pytest.raises(RegradeError, match="No such file"):
        with_lease(running(cluster, Absent()), ("aptt",))
    assert_free(cluster)
    assert cluster.hosts[HERE].locked == ""


def test_a_killed_process_leaves_a_lease_that_the_next_one_lets_go() -> None:
    cluster = Cluster()
    server = running(cluster, Command())
    count = count_of(lambda: (server, lambda made: with_lease(made, ("apt",))))
    for at in range(1, count + 1):
        cluster = Cluster()
        doomed = running(cluster, Command(), kill_at=at)
        assert killed(doomed, lambda made: with_lease(made, ("apt",)))
        settle(cluster.process(HERE))
        assert_free(cluster)
        assert step_to(cluster.process(HERE), "down")["changed"]
