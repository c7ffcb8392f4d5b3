# SPDX-License-Identifier: GPL-3.0-or-later
"""What the watcher does with samples and its children's answers, on plain values."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import watch
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Sample
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import load
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.watch import (
    Say,
    Spawn,
    Stop,
    Watch,
)

SETTINGS = load("", {"NODE_NAME": "server1", "STEP_UP": "automatic"})
MIB = 1 << 20


class Run:
    """A watcher whose host sits at one memory figure, and whose children answer when told."""

    def __init__(
        self,
        memory: Optional[Dict[str, str]] = None,
        noted: Optional[Dict[str, str]] = None,
        missing: str = "",
    ) -> None:
        self.watch = watch.begin(memory or {}, noted or {}, missing)
        self.now = 1000.0
        self.available = 3000
        self.log: List[str] = []
        self.stopped = ""
        self.journal = False  # whether a step of this server is open

    def _sample(self) -> Sample:
        stall = None if self.watch.missing else 0
        return Sample(self.now, self.now, "b1", stall, self.available * MIB, 4000 * MIB)

    def go(self, seconds: float) -> List[Tuple[float, str]]:
        """Samples for so long; every (time, verb) that was spawned. A child that runs blocks others."""
        spawned = []
        for _sample in range(int(seconds / 5)):
            self.now += 5
            self.watch = watch.on_journal(self.watch, self.journal, self.now)
            self.watch, decision, commands = watch.on_sample(self.watch, self._sample(), SETTINGS)
            self.told = watch.notes(self.watch, decision, self._sample())
            spawned += [(self.now, verb) for verb in self._do(commands)]
        return spawned

    def _do(self, commands: watch.Commands) -> List[str]:
        self.log += [command.text for command in commands if isinstance(command, Say)]
        for command in commands:
            if isinstance(command, Stop):
                self.stopped = command.text
        return [command.verb for command in commands if isinstance(command, Spawn)]

    def answer(self, **answer: str) -> None:
        self.watch, commands = watch.on_answer(self.watch, answer, self._sample(), SETTINGS)
        self._do(commands)

    def note(self, level: str, direction: str) -> None:
        noted = {"level": level, "direction": direction, "boottime": str(self.now), "boot_id": "b1"}
        self.watch = watch.on_note(self.watch, noted, SETTINGS)

    def at(self, level: str) -> Run:
        self.go(5)
        self.answer(result="done", action="nothing", level=level, message="well")
        return self


def test_it_settles_first_and_at_full_asks_nothing_again() -> None:
    run = Run()
    assert run.go(5) == [(1005.0, "settle")]
    run.answer(result="done", action="nothing", level="full", message="well")
    assert run.go(100000) == []


def test_settling_is_tried_until_it_is_answered() -> None:
    run = Run()
    times = []
    for _try in range(6):
        spawned = run.go(400)
        assert [verb for _at, verb in spawned] == ["settle"]
        times.append(spawned[0][0])
        run.now = spawned[0][0]
        run.answer(result="unknown", message="the container is restarting")
    waits = [later - earlier for earlier, later in zip(times, times[1:])]
    assert waits == [30, 60, 120, 240, 300]
    assert [line for line in run.log if "restarting" in line] == [
        "settle: unknown: the container is restarting"
    ]


def test_after_a_recovery_by_hand_it_settles_until_an_api_has_its_marks_and_steps_nowhere() -> None:
    """No API answers while the server is put back to full; its journal stays until the marks follow."""
    run = Run().at("etcd-only")
    run.note("full", "up")
    run.journal = True
    run.available = 10  # as short of memory as it may be
    for _try in range(5):
        spawned = run.go(400)
        assert [verb for _at, verb in spawned] == ["settle"]
        run.now = spawned[0][0]
        run.answer(result="unknown", message="no API server of KUBE_SERVER served it")
    assert [verb for _at, verb in run.go(400)] == ["settle"]
    run.journal, run.available = False, 3000
    run.answer(result="done", action="recovered", level="full", message="its marks follow")
    assert run.go(100000) == []


def test_an_open_step_at_full_is_settled_soon_and_then_once_a_minute() -> None:
    """A step by hand that died: nobody else ends it."""
    run = Run().at("full")
    run.go(3600)
    run.journal = True
    times = []
    for _try in range(5):
        spawned = run.go(400)
        assert [verb for _at, verb in spawned] == ["settle"]
        times.append(spawned[0][0])
        run.now = spawned[0][0]
        run.answer(result="failed", message="the step stays open")
    assert times[0] == 4605 + 5 + 30
    assert [later - earlier for earlier, later in zip(times, times[1:])] == [30, 60, 60, 60]
    run.go(400)
    run.journal = False
    run.answer(result="done", action="resumed", level="full", message="ended")
    assert run.go(100000) == []


def test_an_open_step_by_hand_that_goes_on_is_no_trouble() -> None:
    run = Run().at("full")
    run.journal = True
    assert [verb for _at, verb in run.go(60)] == ["settle"]
    run.answer(result="refused", message="this host is busy with a step down of server1, process 12")
    run.go(5)
    assert run.told["unhealthy"] == ""
    run.journal = False
    run.note("full", "up")
    assert run.go(100000) == []


def test_a_step_by_hand_that_was_taken_back_is_looked_at_once_more() -> None:
    """A write of its intent may land after it was taken back."""
    run = Run().at("full")
    run.journal = True
    run.go(10)
    run.journal = False
    ended = run.now + 5
    assert run.go(1000) == [(ended + 120, "settle")]
    run.answer(result="done", action="nothing", level="full", message="well")
    assert run.go(100000) == []


def test_an_open_step_below_full_is_settled_before_its_time() -> None:
    run = Run().at("etcd-only")
    run.available = 500
    run.journal = True
    assert run.go(40) == [(1005.0 + 35, "settle")]


def test_below_full_it_settles_regularly_without_end() -> None:
    run = Run().at("etcd-only")
    run.available = 500  # neither over nor calm
    for _round in range(50):
        spawned = run.go(60)
        assert [verb for _at, verb in spawned] == ["settle"]
        run.answer(result="unknown", message="no API") if _round % 2 else run.answer(
            result="done", action="nothing", level="etcd-only", message="well"
        )


def test_a_server_that_was_below_full_is_never_left_alone_for_long() -> None:
    run = Run(memory={"level": "etcd-only"})
    times = []
    for _try in range(8):
        spawned = run.go(400)
        times.append(spawned[0][0])
        run.now = spawned[0][0]
        run.answer(result="unknown", message="docker does not answer")
    assert max(later - earlier for earlier, later in zip(times, times[1:])) <= SETTINGS.settle_seconds


def test_pressure_steps_down_once_and_the_cooldown_follows_the_note() -> None:
    run = Run().at("full")
    run.available = 100
    begun = run.now
    assert run.go(70) == [(begun + 65, "down")]
    assert run.go(60) == [], "one child at a time"
    run.note("control-plane", "down")
    run.answer(result="done", level="control-plane", message="stepped")
    stepped = run.now
    while True:
        verbs = [verb for _at, verb in run.go(5)]
        if "down" in verbs:
            break
        if verbs:
            run.answer(result="done", action="nothing", level="control-plane", message="well")
    assert run.now - stepped == 120


def test_a_step_by_hand_starts_the_cooldown_and_tells_the_level() -> None:
    run = Run().at("full")
    run.note("control-plane", "down")
    assert run.watch.state.level == "control-plane"
    assert run.go(5) == [(run.now, "settle")]
    assert run.told["cooldown_up"] == "595"


def refused(run: Run, reason: str, **answer: str) -> None:
    run.answer(result="refused", reason=reason, cure="wait", message=f"refused for {reason}", **answer)


def blocked(reason: str) -> Run:
    """At full and over; its first step was just refused for that."""
    run = Run().at("full")
    run.available = 100
    assert run.go(70)[0][1] == "down"
    refused(run, reason)
    return run


def test_a_refusal_is_blocked_with_its_reason_and_cure_and_starts_no_cooldown() -> None:
    run = blocked("lease")
    assert [verb for _at, verb in run.go(25)] == ["blocked"]
    run.answer(result="done", message="told")
    assert [verb for _at, verb in run.go(10)] == ["down"]
    told = {key: run.told[key] for key in ("cooldown_down", "blocked", "blocked_reason", "blocked_cure")}
    assert told == {
        "cooldown_down": "0", "blocked": "refused for lease", "blocked_reason": "lease", "blocked_cure": "wait",
    }  # fmt: skip
    assert run.told["blocked_move"] == "down"
    assert "down: refused: refused for lease (blocked by lease; cure: wait)" in run.log


def tries(run: Run, reason: str, count: int) -> List[str]:
    """What is spawned over so many more refusals; an Event comes about at once."""
    verbs = []
    begun = run.now
    while verbs.count("down") < count:
        assert run.now - begun < 300 * count + 300, verbs
        for _at, verb in run.go(5):
            verbs.append(verb)
            if verb == "down":
                refused(run, reason)
            else:
                run.answer(result="done", message="told")
    return verbs


def test_each_reason_is_told_by_one_event_while_it_is_blocked() -> None:
    run = blocked("lease")
    assert tries(run, "lease", 5) == ["blocked"] + ["down"] * 5
    assert tries(run, "ready", 4) == ["down", "blocked", "down", "down", "down"]
    assert tries(run, "lease", 2) == ["down"] * 2, "it was told of that already"
    run.available = 3000
    run.go(70)
    assert run.told["blocked"] == run.told["retry_in"] == ""
    run.available = 100
    assert [verb for _at, verb in run.go(130)] == ["down"]
    refused(run, "lease")
    assert [verb for _at, verb in run.go(5)] == ["blocked"], "another period"


def test_an_event_that_did_not_come_about_is_tried_with_the_next_refusal() -> None:
    run = blocked("cluster")
    run.go(5)
    run.answer(result="unknown", message="no API")
    assert [verb for _at, verb in run.go(30)] == ["down"]
    refused(run, "cluster")
    assert [verb for _at, verb in run.go(5)] == ["blocked"]
    assert "blocked: unknown: no API" in run.log


@pytest.mark.parametrize("reason", ["hold", "pause", "dry-run"])
def test_a_persons_switch_is_no_event_and_does_not_make_the_watcher_hammer(reason: str) -> None:
    run = blocked(reason)
    begun = run.now
    assert tries(run, reason, 12) == ["down"] * 12
    assert run.now - begun >= 30 + 60 + 120 + 240 + 7 * 300
    assert run.told["blocked_reason"] == reason


def test_a_step_that_is_done_ends_what_was_blocked() -> None:
    run = blocked("lease")
    run.note("control-plane", "down")
    run.go(5)
    assert run.told["blocked"] == run.told["blocked_reason"] == run.told["blocked_move"] == ""
    assert run.watch.tell == ""


def test_a_step_taken_back_before_its_effect_is_looked_at_once_more_after_its_calls_have_ended() -> None:
    run = Run().at("full")
    run.available = 100
    run.go(70)
    refused(run, "lease-lost", undone="true")
    run.available = 3000
    ended = run.now
    assert [(at - ended, verb) for at, verb in run.go(5000) if verb == "settle"] == [(120, "settle")]
    run.answer(result="done", action="nothing", level="full", message="well")
    assert run.go(100000) == []


def test_a_step_whose_process_was_killed_is_looked_at_at_once_and_once_more_after_its_calls_have_ended() -> None:
    run = Run().at("full")
    run.available = 100
    run.go(70)
    run.answer()
    run.available = 3000
    ended = run.now
    assert [verb for _at, verb in run.go(10)] == ["settle"]
    run.answer(result="done", action="nothing", level="full", message="well")
    assert [(at - ended, verb) for at, verb in run.go(5000) if verb == "settle"] == [(120, "settle")]


def test_an_undo_found_at_the_start_is_looked_at_once_more() -> None:
    run = Run()
    run.go(5)
    run.answer(result="done", action="undone", level="full", message="taken back")
    ended = run.now
    assert run.go(5000) == [(ended + 120, "settle")]


@pytest.mark.parametrize("looks_open", [False, True])
def test_what_a_switch_left_is_settled_again_less_and_less_often(looks_open: bool) -> None:
    """Nobody tells the watcher at full that a hold is over. What it left looks open all the while."""
    run = Run()
    run.go(5)
    run.journal = looks_open
    times = [run.now]
    for _try in range(6):
        run.answer(result="done", action="left", level="full", message="held: the marks stay")
        spawned = run.go(400)
        assert [verb for _at, verb in spawned] == ["settle"]
        times.append(spawned[0][0])
        run.now = spawned[0][0]
    assert [later - earlier for earlier, later in zip(times, times[1:])] == [30, 60, 120, 240, 300, 300]
    assert run.log.count("settle: done: held: the marks stay") == 1
    assert run.told["settled"] == "held: the marks stay"
    assert run.told["unhealthy"] == ""
    run.journal = False
    run.answer(result="done", action="repaired", level="full", message="repaired")
    assert run.go(100000) == []


def test_a_recreated_container_is_stepped_down_again_without_pressure() -> None:
    run = Run(memory={"level": "etcd-only"})
    run.go(5)
    run.answer(result="done", action="returning", level="control-plane", back="etcd-only", message="came back")
    assert [verb for _at, verb in run.go(5)] == ["down"]
    run.note("etcd-only", "down")
    run.answer(result="done", level="etcd-only", message="stepped")
    assert run.told["back"] == "etcd-only"
    run.go(5)
    assert run.told["back"] == ""


def test_a_recreated_container_keeps_the_cooldown_and_starts_none() -> None:
    noted = {"level": "etcd-only", "direction": "down", "boottime": "995", "boot_id": "b1"}
    run = Run(noted=noted)
    run.go(5)
    run.answer(result="done", action="returning", level="control-plane", back="etcd-only", message="came back")
    while run.watch.busy != "down":
        assert run.now < 2000
        for _at, verb in run.go(5):
            if verb == "settle":
                run.answer(
                    result="done", action="nothing", level="control-plane", back="etcd-only", message="well"
                )
        assert run.told["cooldown_up"] == str(int(995 + 600 - run.now))
    assert run.now == 995 + 120


@pytest.mark.parametrize("reason", ["pause", "dry-run", "ready"])
def test_a_return_that_is_refused_backs_off(reason: str) -> None:
    run = Run(memory={"level": "etcd-only"})
    run.go(5)
    run.answer(result="done", action="returning", level="control-plane", back="etcd-only", message="came back")
    times: List[float] = []
    while len(times) < 6:
        assert run.now < 3000, times
        for at, verb in run.go(5):
            if verb == "down":
                times.append(at)
                refused(run, reason)
            elif verb == "settle":
                run.answer(
                    result="done", action="nothing", level="control-plane", back="etcd-only", message="well"
                )
            else:
                run.answer(result="done", message="told")
    assert [later - earlier for earlier, later in zip(times, times[1:])] == [30, 60, 120, 240, 300]


def test_a_step_up_by_hand_ends_the_return() -> None:
    run = Run(memory={"level": "etcd-only"})
    run.go(5)
    run.answer(result="done", action="returning", level="control-plane", back="etcd-only", message="came back")
    run.note("full", "up")
    assert run.go(10000) == []


def test_an_uncured_trap_leaves_the_level_known() -> None:
    run = Run()
    run.go(5)
    run.answer(result="done", action="uncured", level="etcd-only", message="a restart did not cure it")
    run.go(5)
    assert run.told["level"] == "etcd-only"
    assert run.told["unhealthy"] == "a restart did not cure it"
    verbs = []
    for _round in range(130):
        for _at, verb in run.go(5):
            verbs.append(verb)
            run.answer(result="done", action="uncured", level="etcd-only", message="a restart did not cure it")
    assert verbs[-1] == "up", "a step up restarts it anyway"


@pytest.mark.parametrize("result", ["refused", "failed"])
def test_a_settling_that_went_wrong_may_tell_the_level_all_the_same(result: str) -> None:
    run = Run()
    run.go(5)
    run.answer(result=result, level="etcd-only", message="server2 is not Ready")
    run.go(5)
    assert run.told["level"] == "etcd-only"
    assert run.told["unhealthy"] == "server2 is not Ready"
    assert [verb for _at, verb in run.go(30)] == ["settle"]


def test_an_alert_that_could_not_be_given_is_tried_again_less_and_less_often() -> None:
    run = Run().at("etcd-only")
    run.available = 100
    times: List[float] = []
    while len(times) < 4:
        assert run.now < 3000, times
        for at, verb in run.go(5):
            if verb == "alert":
                times.append(at)
                run.answer(result="unknown", message="no API")
            else:
                run.answer(result="done", action="nothing", level="etcd-only", message="well")
    assert [later - earlier for earlier, later in zip(times, times[1:])] == [30, 60, 120]
    assert run.told["blocked"] == "", "no step is due"
    assert run.told["exhausted"] == "yes"


def test_an_alert_is_not_lost_to_a_settling_that_is_due_at_the_same_sample() -> None:
    run = Run().at("etcd-only")
    run.available = 100
    verbs = []
    for _round in range(40):
        run.watch = run.watch._replace(settle_at=0.0 if run.watch.state.over_since == run.now - 55 else 1e9)
        for _at, verb in run.go(5):
            verbs.append(verb)
            run.answer(result="done", action="nothing", level="etcd-only", message="well")
    assert verbs.count("alert") == 1
    assert verbs.index("settle") < verbs.index("alert")
    assert run.told["exhausted"] == "yes"


def test_a_failed_step_whose_note_came_early_starts_the_cooldown_once() -> None:
    """After the note the Lease is let go of, which takes long where the API is gone."""
    run = Run().at("full")
    run.available = 100
    run.go(70)
    run.note("full", "down")
    noted = run.now
    run.go(60)
    run.answer(result="failed", message="undone", left_open="false")
    run.go(5)
    assert run.told["cooldown_down"] == str(int(120 - (run.now - noted)))


def test_a_step_decided_at_a_level_that_is_no_more_tells_the_level() -> None:
    run = Run().at("full")
    run.available = 100
    run.go(70)
    run.answer(result="refused", level="control-plane", message="server1 is at control-plane, expected full")
    assert run.watch.state.level == "control-plane"
    assert [verb for _at, verb in run.go(5)] == ["settle"]
    assert run.told["cooldown_down"] == "0"


def test_a_step_up_that_must_not_come_yet_has_it_settle_at_once() -> None:
    """The settling tells it where this server is to go back to."""
    run = Run().at("control-plane")
    verbs: List[str] = []
    while "up" not in verbs and run.now < 3600:
        verbs = [verb for _at, verb in run.go(5)]
        if verbs == ["settle"]:
            run.answer(result="refused", message="the Lease was asked for, but not given")
    assert verbs == ["up"]
    run.answer(result="refused", reason="level", level="control-plane", message="is to be stepped down first")
    assert [verb for _at, verb in run.go(5)] == ["settle"]
    run.answer(result="done", action="nothing", level="control-plane", back="etcd-only", message="well")
    assert "down" in [verb for _at, verb in run.go(60)]


def test_a_step_whose_note_did_not_come_starts_the_cooldown() -> None:
    run = Run().at("full")
    run.available = 100
    run.go(70)
    run.answer(result="done", level="control-plane", message="stepped", **{"from": "full"})
    run.go(5)
    assert run.told["cooldown_down"] == "115"


def test_a_level_that_was_there_already_starts_no_cooldown() -> None:
    run = Run().at("full")
    run.available = 100
    run.go(70)
    run.answer(result="done", level="etcd-only", message="is there", **{"from": "etcd-only"})
    run.go(5)
    assert run.told["cooldown_down"] == "0"


def test_a_failed_step_starts_the_cooldown_and_is_settled() -> None:
    run = Run().at("full")
    run.available = 100
    run.go(70)
    run.answer(result="failed", message="it stays open", left_open="true")
    assert [verb for _at, verb in run.go(5)] == ["settle"]
    assert run.told["unhealthy"] == "it stays open"
    run.answer(result="done", action="undone", level="full", message="undone")
    assert run.told["cooldown_down"] != "0"
    assert run.go(100) == []


def test_a_child_that_gave_no_answer_is_a_failed_one() -> None:
    run = Run().at("full")
    run.available = 100
    run.go(70)
    run.answer()
    assert [verb for _at, verb in run.go(5)] == ["settle"]
    assert any("without an answer" in line for line in run.log)


def test_while_a_step_is_open_none_is_decided() -> None:
    run = Run().at("control-plane")
    run.available = 100
    run.go(60)
    while not run.watch.busy:
        run.go(5)
    run.answer(result="failed", message="alarm")
    assert run.watch.state.level == ""
    for _round in range(10):
        assert {verb for _at, verb in run.go(60)} <= {"settle"}
        if run.watch.busy:
            run.answer(result="failed", message="alarm")


def test_calm_steps_up() -> None:
    run = Run().at("control-plane")
    verbs = []
    for _round in range(100):
        for _at, verb in run.go(5):
            verbs.append(verb)
            if verb == "settle":
                run.answer(result="done", action="nothing", level="control-plane", message="well")
    assert verbs[-1] == "up"


def test_at_the_lowest_level_one_alert() -> None:
    run = Run().at("etcd-only")
    run.available = 100
    verbs = []
    for _round in range(200):
        for _at, verb in run.go(5):
            verbs.append(verb)
            run.answer(result="done", action="nothing", level="etcd-only", message="well")
    assert verbs.count("alert") == 1
    assert "down" not in verbs


def test_without_pressure_it_stops_at_full_and_stays_below() -> None:
    run = Run(missing="/proc/pressure/memory does not exist: psi=1").at("full")
    run.go(5)
    assert "psi=1" in run.stopped
    run = Run(missing="/proc/pressure/memory does not exist: psi=1").at("etcd-only")
    run.go(600)
    assert run.stopped == ""
    assert "no step up by itself" in run.told["unhealthy"]


def test_without_pressure_it_stays_while_something_is_left_or_open() -> None:
    run = Run(missing="no PSI")
    run.go(5)
    run.answer(result="done", action="left", level="full", message="held: the marks stay")
    assert [verb for _at, verb in run.go(60)] == ["settle"]
    run.journal = True
    run.answer(result="done", action="nothing", level="full", message="well")
    run.go(20)
    assert run.stopped == ""
    run.journal = False
    run.go(10)
    assert run.stopped == "no PSI"


def test_a_watcher_restarted_in_the_middle_begins_its_streak_anew_and_keeps_cooldown_and_relapses() -> None:
    run = Run().at("control-plane")
    run.note("control-plane", "up")
    run.watch = run.watch._replace(state=run.watch.state._replace(relapses=2))
    run.available = 100
    run.go(55)
    noted = {"level": "control-plane", "direction": "up", "boottime": str(run.now - 55), "boot_id": "b1"}
    again = Run(memory=watch.memory_of(run.watch), noted=noted).at("control-plane")
    again.now, again.available = run.now, 100
    again.go(5)
    assert again.told["over_for"] == "0"
    assert (again.told["relapses"], again.told["cooldown_down"]) == ("2", "60")
    assert not {verb for _at, verb in again.go(55)} & {"down"}
    assert again.told["calm_asked"] == "1200"


def test_without_pressure_an_unknown_level_is_not_taken_for_full() -> None:
    run = Run(missing="no PSI")
    run.go(5)
    run.answer(result="unknown", message="booting")
    run.go(600)
    assert run.stopped == ""


def test_one_line_for_each_change_not_for_each_sample() -> None:
    run = Run().at("full")
    run.go(5000)
    assert len(run.log) <= 4
    run.available = 100
    run.go(70)
    assert any(
        line.startswith("down at full: over for 60 s; over, pressure 0.0% (threshold 20%), available 100MiB of 4000MiB "
                        "(floor 320MiB), over 60s") for line in run.log
    )  # fmt: skip


@pytest.mark.parametrize("memory", [{}, {"relapses": "x"}, {"relapses": "-1"}])
def test_what_is_remembered_badly_is_forgotten(memory: Dict[str, str]) -> None:
    assert (
        watch.begin(memory, {"boottime": "soon", "boot_id": "b", "direction": "up"}, "").state.relapses == 0
    )


def test_below_full_is_remembered_also_while_the_level_is_not_known() -> None:
    """Else two restarts in a row would leave a server at etcd-only alone for minutes."""
    run = Run(memory={"level": "etcd-only"})
    run.go(5)
    run.answer(result="unknown", message="docker does not answer")
    again: Watch = watch.begin(watch.memory_of(run.watch), {}, "")
    assert again.was_below
    assert watch.begin({"level": "etcd-only"}, {"level": "full"}, "").was_below, "lowered by another hand since"
    assert not watch.begin({"level": "full"}, {"level": "full"}, "").was_below


def test_a_wait_for_the_next_cure_is_one_line() -> None:
    run = Run()
    for _round in range(5):
        run.go(60)
        run.answer(result="done", action="uncured", level="etcd-only", message="a restart did not cure it")
    assert len([line for line in run.log if "did not cure" in line]) == 1


def test_memory_goes_round() -> None:
    run = Run().at("etcd-only")
    run.watch = run.watch._replace(state=run.watch.state._replace(relapses=3))
    again: Watch = watch.begin(watch.memory_of(run.watch), {}, "")
    assert again.was_below
    assert again.state.relapses == 3
    assert again.state.level == "", "the level is asked for, not remembered"


def test_samples_further_apart_than_settlings_do_not_keep_it_from_stepping_down() -> None:
    """A thrashing host starves the watcher: then a settling is due at every sample."""
    run = Run().at("control-plane")
    run.available = 100
    spawned = []
    for _sample in range(5):
        run.now += SETTINGS.settle_seconds + 1
        spawned += [verb for _at, verb in run.go(5)]
        run.answer(result="done", action="nothing", level="control-plane", message="well")
    assert "down" in spawned


@pytest.mark.parametrize(("available", "verb"), [(100, "down"), (3500, "up")])
def test_a_settling_that_fails_now_and_then_does_not_end_a_streak(available: int, verb: str) -> None:
    """Docker or an API that is slow on a thrashing host: it would never step down, nor ever come back."""
    run = Run().at("control-plane")
    run.available = available
    spawned: List[str] = []
    for turn in range(2 * int(SETTINGS.cooldown_up_seconds / SETTINGS.settle_seconds)):
        for _at, what in run.go(SETTINGS.settle_seconds):
            spawned.append(what)
            if what != "settle":
                continue
            if turn % 2:
                run.answer(result="unknown", reason="cluster", message="no API server answered")
            else:
                run.answer(result="done", action="nothing", level="control-plane", message="well")
        if verb in spawned:
            return
    raise AssertionError(f"no step {verb}: {spawned}")


def test_while_the_level_is_not_known_calm_is_judged_by_the_one_that_was() -> None:
    run = Run().at("etcd-only")
    run.go(SETTINGS.settle_seconds)
    run.answer(result="unknown", reason="cluster", message="no API server answered")
    run.available = 400  # above the floor of 320, and below what a step up from etcd-only asks
    run.go(60)
    assert run.watch.state.level == ""
    assert run.watch.state.calm_since is None
