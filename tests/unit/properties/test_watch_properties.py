# SPDX-License-Identifier: GPL-3.0-or-later
"""What no course of samples, answers of children, notes and restarts of the watcher may bring about."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import watch
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import (
    DOWN,
    FULL,
    LEVELS,
    UP,
    above,
    below,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.policy import ALERT
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Sample
from ansible_collections.exadev.k3s_regrade.tests.unit.properties.histories import (
    HISTORIES,
    SHORT,
    Event,
    samples,
)
from hypothesis import example, given
from hypothesis import strategies as st


class Turn(NamedTuple):
    """How one child ends: after so many samples, with what."""

    after: int
    result: str  # done, refused, failed, mute (no answer at all), unnoted (done, but its note was lost)


TURNS = st.lists(
    st.builds(
        Turn,
        st.integers(0, 4),
        st.sampled_from(["done", "done", "done", "refused", "failed", "mute", "unnoted"]),
    ),
    min_size=1,
    max_size=6,
)
RESTARTS = st.sets(st.integers(0, 80), max_size=2)  # before which samples the watcher is started anew


class Told(NamedTuple):
    sample: Sample
    verb: str  # of the child that is started here
    level: str  # the server's own
    verdict: str
    stepped: Optional[Tuple[float, str]]  # CLOCK_BOOTTIME and boot of the last step before it


class Host:
    """A server whose level the children move, and the files between them and the watcher."""

    def __init__(self, level: str, turns: List[Turn]) -> None:
        self.level, self.turns, self.turn = level, turns, 0
        self.note: Dict[str, str] = {}
        self.memory: Dict[str, str] = {}
        self.watch = watch.begin({}, {}, "")
        self.running: Optional[Tuple[str, int, str]] = None  # verb, samples left, result
        self.stepped: Optional[Tuple[float, str]] = None
        self.told: List[Told] = []

    def see(self, sample: Sample, restart: bool) -> None:
        if restart:
            self.watch, self.running = watch.begin(self.memory, self.note, ""), None
        if self.running:
            verb, left, result = self.running
            self.running = (verb, left - 1, result) if left else None
            if not left:
                self._end(verb, result, sample)
        self.watch = watch.on_note(self.watch, self.note, SHORT)
        self.watch, decision, commands = watch.on_sample(self.watch, sample, SHORT)
        started = [command for command in commands if isinstance(command, watch.Spawn)]
        assert len(started) <= 1
        for command in started:
            assert self.running is None, "one child at a time"
            turn = self.turns[self.turn % len(self.turns)]
            self.turn += 1
            result = (
                "done" if command.verb in (watch.SETTLE, ALERT) and turn.result == "unnoted" else turn.result
            )
            self.running = (command.verb, turn.after, result)
            self.told.append(Told(sample, command.verb, self.level, decision.verdict, self.stepped))
        self.memory = watch.memory_of(self.watch)
        watch.notes(self.watch, decision, sample)

    def _end(self, verb: str, result: str, sample: Sample) -> None:
        answer = {"result": "done" if result == "unnoted" else result, "message": "m", "level": self.level}
        if result == "mute":
            answer = {}
        elif result == "refused":
            answer = {"result": "refused", "message": "held"}
        if verb in (DOWN, UP) and result != "refused":
            before = self.level
            if result in ("done", "unnoted"):
                self.level = (below if verb == DOWN else above)(before)
            self.stepped = (sample.boottime, sample.boot_id)
            if result in ("done", "failed"):
                self.note = {
                    "boottime": f"{sample.boottime:.3f}",
                    "boot_id": sample.boot_id,
                    "direction": verb,
                    "level": self.level,
                }
            if answer:
                answer.update({"level": self.level, "from": before})
        elif verb == watch.SETTLE and result in ("failed", "mute"):
            answer.pop("level", None)
        self.watch = watch.on_note(self.watch, self.note, SHORT)
        self.watch, _commands = watch.on_answer(self.watch, answer, sample, SHORT)


def play(events: List[Event], level: str, turns: List[Turn], restarts: frozenset[int] = frozenset()) -> Host:
    host = Host(level, turns)
    for at, sample in enumerate(samples(events)):
        host.see(sample, at in restarts or events[at].boots)  # no watcher outlives a boot
    return host


DONE = [Turn(0, "done")]
OVER, CALM = Event(available=100), Event()
CYCLE = [CALM] * 3 + [OVER] * 40 + [CALM] * 80


def test_the_histories_make_a_whole_cycle() -> None:
    verbs = [told.verb for told in play(CYCLE, FULL, DONE).told if told.verb != watch.SETTLE]
    assert verbs == [DOWN, DOWN, ALERT, UP, UP]


@given(HISTORIES, st.sampled_from(LEVELS), TURNS, RESTARTS)
@example(CYCLE, FULL, DONE, set())
@example([OVER] * 60, FULL, [Turn(0, "done"), Turn(0, "mute")], set())
@example([OVER] * 60, FULL, [Turn(0, "done"), Turn(2, "unnoted")], set())
@example([OVER] * 60, FULL, DONE, {8, 9, 10, 11, 12})
def test_no_steps_within_the_cooldown_whatever_children_answer_and_whenever_the_watcher_restarts(
    events: List[Event], level: str, turns: List[Turn], restarts: set[int]
) -> None:
    if restarts:  # what was neither noted nor answered to this watcher, none can know
        turns = [turn for turn in turns if turn.result not in ("mute", "unnoted")] or DONE
    for told in play(events, level, turns, frozenset(restarts)).told:
        if told.verb not in (DOWN, UP) or not told.stepped:
            continue
        at, boot = told.stepped
        length = SHORT.cooldown_down_seconds if told.verb == DOWN else SHORT.cooldown_up_seconds
        if boot == told.sample.boot_id:
            assert told.sample.boottime - at >= length
        elif told.verb == UP:
            assert told.sample.boottime >= length


@given(HISTORIES, st.sampled_from(LEVELS), TURNS, RESTARTS)
@example(CYCLE, FULL, DONE, set())
def test_a_step_is_started_only_on_its_own_verdict_and_from_a_level_that_has_a_next(
    events: List[Event], level: str, turns: List[Turn], restarts: set[int]
) -> None:
    for told in play(events, level, turns, frozenset(restarts)).told:
        if told.verb == UP:
            assert told.verdict == "calm" and told.level != FULL
        elif told.verb == DOWN:
            assert told.verdict == "over" and below(told.level)
        elif told.verb == ALERT:
            assert told.verdict == "over" and not below(told.level)


@given(st.integers(1, 200))
def test_at_full_and_calm_nothing_is_started_after_the_first_settling(length: int) -> None:
    assert [told.verb for told in play([CALM] * length, FULL, DONE).told] == [watch.SETTLE]


@given(
    st.sampled_from(["control-plane", "etcd-only"]),
    TURNS,
    st.sampled_from([Event(available=330), Event(stall=None)]),
)
@example("etcd-only", [Turn(0, "refused")], Event(stall=None))
@example("etcd-only", [Turn(0, "mute")], Event(stall=None))
def test_below_full_the_server_is_looked_after_without_end(level: str, turns: List[Turn], odd: Event) -> None:
    """R29: whatever the last look ended in, and also where nothing can be read."""
    looked = [
        told.sample.monotonic for told in play([odd] * 300, level, turns).told if told.verb == watch.SETTLE
    ]
    assert len(looked) > 5
    assert all(later - earlier <= 300 + 30 for earlier, later in zip(looked, looked[1:]))
