# SPDX-License-Identifier: GPL-3.0-or-later
"""What no course of readings may bring about, and that every decision is the one the rules give."""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import policy
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import (
    DOWN,
    LEVELS,
    UP,
    above,
    below,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.policy import (
    ALERT,
    Decision,
    LastStep,
    State,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Sample
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import Settings
from ansible_collections.exadev.k3s_regrade.tests.unit.properties.histories import (
    HISTORIES,
    SHORT,
    Event,
    Naive,
    samples,
    settings,
)
from hypothesis import example, given
from hypothesis import strategies as st

OUTCOMES = st.lists(st.sampled_from(["done", "done", "done", "refused", "failed"]), min_size=1, max_size=5)
LEVEL = st.sampled_from(LEVELS)
OVER, CALM = Event(available=100), Event()
CYCLE = [OVER] * 30 + [CALM] * 60  # a history that makes a whole cycle of steps


class Moment(NamedTuple):
    """One sample, and what was decided at which level."""

    sample: Sample
    level: str
    decision: Decision
    naive: tuple[str, float, float]
    last: Optional[LastStep]  # before it
    retry_at: float


def play(
    events: List[Event],
    level: str = "full",
    outcomes: Optional[List[str]] = None,
    given_settings: Settings = SHORT,
    monotonic: float = 5000.0,
    boottime: float = 9000.0,
    last: Optional[LastStep] = None,
) -> Iterator[Moment]:
    """Every step that is decided is taken at once, and ends as `outcomes` say in turn."""
    state, naive, turn = State(level=level, last_step=last), Naive(), 0
    for sample in samples(events, monotonic, boottime):
        before = state
        state, decision = policy.observe(state, sample, given_settings)
        yield Moment(
            sample, before.level, decision, naive.see(sample, before.level), before.last_step, before.retry_at
        )
        if decision.action not in (DOWN, UP):
            continue
        outcome = (outcomes or ["done"])[turn % len(outcomes or ["done"])]
        turn += 1
        if outcome == "refused":
            state = policy.after_refusal(state, sample.monotonic, "held")
            continue
        step = LastStep(sample.boottime, sample.boot_id, decision.action)
        reached = (
            (below if decision.action == DOWN else above)(state.level) if outcome == "done" else state.level
        )
        state = policy.after_step(state, reached, step, given_settings)
        naive.stepped()


def actions(moments: Iterator[Moment]) -> List[str]:
    return [moment.decision.action for moment in moments if moment.decision.action]


@given(HISTORIES, LEVEL, OUTCOMES)
@example(CYCLE, "full", ["done"])
@example([Event(stall=None, available=100)], "full", ["done"])
@example([OVER] * 5 + [Event(available=100, boots=True, slept=1)], "full", ["refused"])
def test_every_verdict_and_streak_is_the_one_that_looking_back_at_all_samples_gives(
    events: List[Event], level: str, outcomes: List[str]
) -> None:
    for moment in play(events, level, outcomes):
        found = moment.decision
        assert (found.verdict, found.over_for, found.calm_for) == moment.naive, moment


def test_the_histories_make_steps() -> None:
    """Or the properties here would hold of nothing."""
    assert actions(play(CYCLE)) == [DOWN, DOWN, ALERT, UP, UP]
    assert actions(play([Event(stall=90, available=1000)] * 40)) == [DOWN, DOWN, ALERT]


@given(HISTORIES, LEVEL, OUTCOMES)
@example(CYCLE, "full", ["done"])
@example([OVER] * 30, "full", ["refused"])
def test_a_step_is_one_level_on_what_was_sustained_and_cooled_down(
    events: List[Event], level: str, outcomes: List[str]
) -> None:
    for moment in play(events, level, outcomes):
        action, (verdict, over_for, calm_for) = moment.decision.action, moment.naive
        if action == DOWN:
            assert verdict == "over" and over_for >= SHORT.sustain_down_seconds and below(moment.level)
        elif action == UP:
            assert verdict == "calm" and calm_for >= SHORT.sustain_up_seconds and above(moment.level)
        if action in (DOWN, UP):
            assert moment.sample.monotonic >= moment.retry_at


@given(HISTORIES, LEVEL, OUTCOMES)
@example(CYCLE, "full", ["done"])
@example([OVER] * 30, "full", ["failed"])
def test_no_sequence_of_readings_makes_two_steps_within_the_cooldown(
    events: List[Event], level: str, outcomes: List[str]
) -> None:
    for moment in play(events, level, outcomes):
        action, last, now = moment.decision.action, moment.last, moment.sample
        if action not in (DOWN, UP) or last is None:
            continue
        length = SHORT.cooldown_down_seconds if action == DOWN else SHORT.cooldown_up_seconds
        if last.boot_id == now.boot_id:
            assert now.boottime - last.boottime >= length
        elif action == UP:
            assert now.boottime >= length, "it begins anew with the boot"


@given(HISTORIES, LEVEL, OUTCOMES)
def test_after_a_reboot_the_cooldown_is_served_downwards_and_begins_anew_upwards(
    events: List[Event], level: str, outcomes: List[str]
) -> None:
    last = LastStep(8990.0, "boot 0", DOWN)
    for moment in play(events, level, outcomes, last=last):
        if moment.last == last:
            assert moment.decision.cooldown_down == 0
            assert moment.decision.cooldown_up == max(0.0, SHORT.cooldown_up_seconds - moment.sample.boottime)


@given(HISTORIES, LEVEL, OUTCOMES, st.sampled_from(["stall", "available"]))
@example(CYCLE, "full", ["done"], "stall")
def test_unknown_never_moves_it_and_ends_both_streaks(
    events: List[Event], level: str, outcomes: List[str], which: str
) -> None:
    for moment in play([event._replace(**{which: None}) for event in events], level, outcomes):
        assert moment.decision.action == ""
        assert (moment.decision.over_for, moment.decision.calm_for) == (0, 0)


@given(HISTORIES, LEVEL, st.data())
@example(CYCLE, "full", None)
def test_no_reading_that_is_lost_makes_a_step_come_sooner(
    events: List[Event], level: str, data: Optional[st.DataObject]
) -> None:
    """Up to the first step: unknown is never taken for calm, nor for over."""
    lost = list(events)
    for at in range(len(events)):
        if data is None or data.draw(st.integers(0, 9)) == 0:
            lost[at] = events[at]._replace(stall=None, available=None)
    whole = [moment.sample.monotonic for moment in play(events, level) if moment.decision.action]
    holed = [moment.sample.monotonic for moment in play(lost, level) if moment.decision.action]
    boots = any(
        event.boots or event.falls for event in events
    )  # clocks and totals that begin anew prove nothing
    assert boots or not holed or (bool(whole) and holed[0] >= whole[0])


@given(HISTORIES, LEVEL, OUTCOMES)
@example([CALM] * 5 + [Event(awake=240)] * 3, "etcd-only", ["done"])
@example([OVER] * 5 + [Event(available=100, awake=240)] * 3, "full", ["refused"])
def test_a_hole_while_awake_may_continue_an_over_streak_and_never_a_calm_one(
    events: List[Event], level: str, outcomes: List[str]
) -> None:
    before: Optional[Moment] = None
    for moment in play(events, level, outcomes):
        awake = moment.sample.monotonic - before.sample.monotonic if before else 0.0
        if awake > 15:
            assert moment.decision.calm_for == 0
        if before and before.decision.over_for and moment.decision.over_for and not before.decision.action:
            assert moment.decision.over_for in (before.decision.over_for + awake, 0)
        before = moment


@given(
    HISTORIES,
    LEVEL,
    st.sampled_from(["sleep", "boot", "an old boot", "fall"]),
    st.sampled_from([OVER, CALM, Event(stall=90, available=1000)]),
)
@example([CALM] * 9, "etcd-only", "sleep", CALM)
@example([OVER] * 2, "full", "sleep", OVER)
@example([OVER] * 2, "full", "boot", OVER)
@example([OVER] * 2, "full", "an old boot", OVER)
@example([Event(stall=90, available=1000)] * 9, "full", "fall", Event(stall=90, available=1000))
def test_sleep_a_reboot_and_a_total_that_falls_end_both_streaks(
    events: List[Event], level: str, what: str, then: Event
) -> None:
    ended = then._replace(
        slept=3600 * (what in ("sleep", "an old boot")), boots=what.endswith("boot"), falls=what == "fall"
    )
    moment = list(play([*events, ended], level))[-1]
    assert (moment.decision.over_for, moment.decision.calm_for) == (0, 0)
    assert moment.decision.action == ""
    assert moment.decision.reading.pressure is None, "a total of before says nothing of after"
    assert moment.decision.verdict in ("unknown", "over")  # over by its memory alone, and from now on


@given(HISTORIES, LEVEL, st.sampled_from([0, 10]))
@example([CALM] * 9, "etcd-only", 0)
@example([OVER] * 9, "etcd-only", 0)
def test_what_lies_between_ends_both_streaks(events: List[Event], level: str, stall: int) -> None:
    quiet = [Event(stall=stall, available=3500)] * 5  # a window without pressure, so that only memory decides
    between = Event(stall=stall, available=330)  # at the floor, below floor and headroom
    moment = list(play([*events, *quiet, between], level, ["refused"]))[-1]
    if moment.level != "full":
        assert moment.decision.verdict == "between"
        assert (moment.decision.over_for, moment.decision.calm_for) == (0, 0)


@given(HISTORIES, LEVEL, OUTCOMES, st.integers(0, 10**6), st.integers(0, 10**6))
@example(CYCLE, "full", ["done"], 77, 99)
def test_no_clock_matters_but_by_how_far_it_moved(
    events: List[Event], level: str, outcomes: List[str], by: int, more: int
) -> None:
    """Wall clocks least of all: a sample does not carry one."""
    events = [event._replace(boots=False) for event in events]
    one = play(events, level, outcomes)
    two = play(events, level, outcomes, monotonic=5000.0 + by, boottime=9000.0 + by + more)
    for here, there in zip(one, two):
        assert here.decision == there.decision


def test_a_sample_carries_no_wall_clock() -> None:
    assert Sample._fields == ("monotonic", "boottime", "boot_id", "stall", "available", "total")


@given(HISTORIES, LEVEL, OUTCOMES)
@example(CYCLE, "full", ["done"])
def test_manual_never_goes_up_by_itself_and_goes_down_all_the_same(
    events: List[Event], level: str, outcomes: List[str]
) -> None:
    manual = settings(STEP_UP="manual")
    taken = actions(play(events, level, outcomes, manual))
    assert UP not in taken
    first = [action for action in actions(play(events, level, outcomes)) if action == DOWN][:1]
    assert UP in actions(play(events, level, outcomes)) or [act for act in taken if act == DOWN][:1] == first


@given(HISTORIES, OUTCOMES)
@example(CYCLE, ["done"])
def test_an_unknown_level_never_moves(events: List[Event], outcomes: List[str]) -> None:
    assert actions(play(events, "", outcomes)) == []


@given(HISTORIES)
@example([Event(stall=90, available=3500)] * 30)
def test_stall_counts_only_where_memory_is_short(events: List[Event]) -> None:
    """A container that thrashes at its own limit stalls the host's PSI with plenty of memory left."""
    plenty = [event._replace(available=3500) for event in events]
    assert DOWN not in actions(play(plenty, "full"))


@given(st.integers(0, 40), st.floats(0, 1e6))
def test_each_refusal_doubles_the_wait_to_five_minutes(refusals: int, now: float) -> None:
    state, waits = State(level="full"), []
    for _refusal in range(refusals):
        state = policy.after_refusal(state, now, "held")
        waits.append(state.retry_at - now)
    assert waits == [pytest.approx(min(300.0, 30.0 * 2**at)) for at in range(refusals)]


@given(HISTORIES, LEVEL)
def test_what_is_remembered_has_an_end(events: List[Event], level: str) -> None:
    state = State(level=level)
    for sample in samples([event._replace(awake=1) for event in events] * 3):
        state, _decision = policy.observe(state, sample, SHORT)
        assert len(state.samples) <= SHORT.pressure_window_seconds + 2
