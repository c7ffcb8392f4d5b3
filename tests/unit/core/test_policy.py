# SPDX-License-Identifier: GPL-3.0-or-later
"""The decision: over and calm, streaks, cooldowns, holes, boots; and what no input may bring about."""

from __future__ import annotations

from typing import Iterable, List, Optional, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import policy
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.policy import (
    ALERT,
    BETWEEN,
    CALM,
    NOT_KNOWN,
    OVER,
    Decision,
    LastStep,
    State,
    judge,
    observe,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Reading, Sample
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import Settings, load
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

MIB = 1 << 20
TOTAL = 4000 * MIB
FLOOR = 320 * MIB  # 8 %


def settings(**changes: str) -> Settings:
    return load("", {"NODE_NAME": "server1", "STEP_UP": "automatic", **changes})


DEFAULT = settings()


class Feed:
    """A host whose samples come every five seconds."""

    def __init__(self, level: str, configured: Settings = DEFAULT, last: Optional[LastStep] = None) -> None:
        self.settings = configured
        self.state = State(level=level, last_step=last)
        self.monotonic = self.boottime = 5000.0
        self.boot = "b1"
        self.stall = 0
        self.decision: Optional[Decision] = None

    def go(self, seconds: float, pressure: float = 0.0, available: int = 3000 * MIB) -> List[str]:
        """Samples for so long; returns the actions."""
        actions = []
        for _sample in range(int(seconds / 5)):
            actions.append(self.one(pressure, available))
        return [action for action in actions if action]

    def one(
        self,
        pressure: Optional[float] = 0.0,
        available: Optional[int] = 3000 * MIB,
        gap: float = 5.0,
        slept: float = 0.0,
    ) -> str:
        self.monotonic += gap
        self.boottime += gap + slept
        if pressure is not None:
            self.stall += int(pressure * gap * 1e6)
        sample = Sample(
            self.monotonic, self.boottime, self.boot, None if pressure is None else self.stall, available,
            None if available is None else TOTAL,
        )  # fmt: skip
        self.state, self.decision = observe(self.state, sample, self.settings)
        return self.decision.action

    def step(self, level: str, direction: str) -> None:
        self.state = policy.after_step(
            self.state, level, LastStep(self.boottime, self.boot, direction), self.settings
        )


@pytest.mark.parametrize(
    ("pressure", "available", "verdict"),
    [
        (0.0, 3000, CALM),
        (0.199, 1999, CALM),
        (0.2, 1999, OVER),
        (0.2, 2000, CALM),  # at the ceiling stall does not count: a container thrashes at its own limit
        (1.0, 3600, CALM),
        (0.0, 319, OVER),  # field case A3: the floor alone
        (0.0, 320, BETWEEN),
        (0.1, 619, BETWEEN),
        (0.1, 620, CALM),  # floor + 300 MiB
        (None, 3000, NOT_KNOWN),
        (None, 319, OVER),
        (0.5, None, NOT_KNOWN),
    ],
)
def test_over_calm_and_between_at_etcd_only(
    pressure: Optional[float], available: Optional[int], verdict: str
) -> None:
    reading = Reading(
        pressure, None if available is None else available * MIB, None if available is None else TOTAL
    )
    assert judge(reading, "etcd-only", DEFAULT) == verdict


def test_calm_asks_for_the_headroom_of_the_level_above() -> None:
    reading = Reading(0.0, FLOOR + 64 * MIB, TOTAL)
    assert judge(reading, "control-plane", DEFAULT) == CALM
    assert judge(reading, "etcd-only", DEFAULT) == BETWEEN
    assert judge(reading, "full", DEFAULT) == CALM


def test_field_case_a3_memory_runs_out_while_pressure_stays_zero() -> None:
    total = 2000 * MIB
    verdicts = [
        judge(Reading(pressure / 100, available * MIB, total), "full", DEFAULT)
        for pressure, available in [
            (0, 235), (0, 165), (0, 101), (0, 49), (0, 17), (0, 1), (0, 0), (1.99, 0), (1.99, 7), (10.32, 39),
        ]
    ]  # fmt: skip
    assert verdicts == [CALM, CALM] + [OVER] * 8


def test_sustained_pressure_steps_down_and_not_before() -> None:
    feed = Feed("full")
    assert feed.go(65, 0.0) == []
    assert feed.go(60, 0.5, 1000 * MIB) == []  # the window is not over at once, and a streak takes its time
    assert feed.go(60, 0.5, 1000 * MIB)[0] == "down"


def test_the_floor_needs_no_full_window() -> None:
    feed = Feed("full")
    assert feed.go(60, 0.0, 100 * MIB) == []
    assert feed.one(0.0, 100 * MIB) == "down"


def test_a_reading_between_ends_both_streaks() -> None:
    feed = Feed("etcd-only")
    feed.go(200)
    assert feed.state.calm_since is not None
    feed.one(0.0, 400 * MIB)
    assert feed.state.calm_since is None
    assert feed.state.over_since is None


@pytest.mark.parametrize(("pressure", "available"), [(None, 100), (0.0, None), (None, None)])
def test_unknown_ends_both_streaks_and_is_neither(
    pressure: Optional[float], available: Optional[int]
) -> None:
    for level, feeding in (("full", 100), ("etcd-only", 3000)):
        feed = Feed(level)
        feed.go(90, 0.0, feeding * MIB)
        assert feed.one(pressure, available * MIB if available else None) == ""
        assert feed.state.over_since is None
        assert feed.state.calm_since is None
        assert feed.decision is not None
        assert feed.decision.verdict == NOT_KNOWN


def test_stall_is_worked_out_from_the_difference_of_total() -> None:
    feed = Feed("full")
    feed.stall = 10**12  # a long history means nothing
    feed.go(70, 0.25, 1000 * MIB)
    assert feed.decision is not None
    assert feed.decision.reading.pressure == pytest.approx(0.25)


def test_a_total_that_goes_back_is_unknown_and_cuts_the_window() -> None:
    feed = Feed("full")
    feed.go(120, 0.5, 1000 * MIB)
    feed.stall = 5
    feed.one(0.5, 1000 * MIB)
    assert feed.state.over_since is None
    assert feed.decision is not None
    assert feed.decision.reading.pressure is None


def test_field_case_a10_a_starved_hole_continues_an_over_streak() -> None:
    feed = Feed("full")
    feed.go(100, 0.5, 1000 * MIB)
    since = feed.state.over_since
    assert since is not None
    assert feed.one(0.5, 1000 * MIB, gap=240) == "down"
    assert feed.state.over_since == since


def test_a_starved_hole_never_continues_a_calm_streak() -> None:
    feed = Feed("etcd-only")
    feed.go(290)
    assert feed.one(0.0, gap=240) == ""
    assert feed.decision is not None
    assert feed.decision.calm_for == 0


def test_a_hole_is_one_long_reading() -> None:
    feed = Feed("full")
    feed.go(70, 0.0, 1000 * MIB)
    feed.one(0.1, 1000 * MIB, gap=240)
    assert feed.decision is not None
    assert feed.decision.reading.pressure == pytest.approx(0.1, abs=0.01)
    assert feed.decision.verdict == BETWEEN


def test_a_stall_since_a_hole_is_not_thinned_to_calm_by_it() -> None:
    feed = Feed("control-plane")
    feed.go(70, 0.0, 1000 * MIB)
    feed.one(0.0, 1000 * MIB, gap=240)
    for _sample in range(11):
        feed.one(0.5, 1000 * MIB)
        assert feed.state.calm_since is None


@pytest.mark.parametrize("what", ["sleep", "boot"])
def test_sleep_and_a_new_boot_end_both_streaks(what: str) -> None:
    feed = Feed("full")
    feed.go(100, 0.5, 100 * MIB)
    feed.state = feed.state._replace(retry_at=1e9)
    if what == "sleep":
        feed.one(0.5, 100 * MIB, slept=3600)
    else:
        feed.boot, feed.monotonic, feed.boottime, feed.stall = "b2", 10.0, 10.0, 0
        feed.one(0.5, 100 * MIB)
    assert feed.decision is not None
    assert feed.decision.over_for == 0


def test_the_cooldown_is_kept_in_both_directions() -> None:
    for level, direction, length, feeding in (
        ("control-plane", "up", 120, 100),
        ("control-plane", "down", 600, 3000),
    ):
        feed = Feed(level)
        feed.go(65)
        feed.step(level, direction)
        begun = feed.boottime
        while not feed.one(0.0, feeding * MIB):
            assert feed.boottime - begun < 1000
        assert feed.boottime - begun >= length


def test_after_a_new_boot_the_cooldown_is_served_downwards_and_begins_anew_upwards() -> None:
    last = LastStep(4000.0, "b0", "down")
    assert policy.cooldown_left(last, "down", 5.0, "b1", DEFAULT) == 0
    assert policy.cooldown_left(last, "up", 5.0, "b1", DEFAULT) == 595
    assert policy.cooldown_left(last, "up", 600.0, "b1", DEFAULT) == 0


def test_a_step_noted_ahead_of_now_holds_nothing_up_for_longer_than_a_boot_does() -> None:
    """A machine that was restored from a snapshot: the same boot id, and a clock that went back."""
    last = LastStep(9e6, "b1", "down")
    assert policy.cooldown_left(last, "down", 5000.0, "b1", DEFAULT) == 0
    assert policy.cooldown_left(last, "up", 100.0, "b1", DEFAULT) == 500
    assert policy.cooldown_left(last, "up", 5000.0, "b1", DEFAULT) == 0
    assert policy.cooldown_left(last._replace(boottime=5000.5), "down", 5000.0, "b1", DEFAULT) == 120


def test_a_refusal_starts_no_cooldown_and_is_retried_later_and_later() -> None:
    feed = Feed("full")
    tries = []
    while feed.boottime < 5000 + 2000:
        if feed.one(0.0, 100 * MIB) == "down":
            tries.append(feed.boottime)
            feed.state = policy.after_refusal(feed.state, feed.monotonic, "held")
    waits = [later - earlier for earlier, later in zip(tries, tries[1:])]
    assert waits[:5] == [30, 60, 120, 240, 300]
    assert set(waits[5:]) == {300}


def test_a_streak_that_ends_forgets_the_refusal() -> None:
    feed = Feed("full")
    feed.go(70, 0.0, 100 * MIB)
    feed.state = policy.after_refusal(feed.state, feed.monotonic, "held")
    feed.one(0.0, 330 * MIB)
    feed.one(None, None)
    assert feed.state.blocked == ""
    assert feed.state.retry_seconds == 0


def test_the_next_streak_begins_its_tries_anew_but_has_to_last_first() -> None:
    """So what swings about the threshold is not tried more often than a streak lasts."""
    feed = Feed("full")
    tries = []
    for _round in range(20):
        for _sample in range(14):
            if feed.one(0.0, 100 * MIB) == "down":
                tries.append(feed.boottime)
                feed.state = policy.after_refusal(feed.state, feed.monotonic, "held", "hold", "release it")
        feed.one(0.0, 3000 * MIB)
        assert (feed.state.blocked, feed.state.blocked_reason, feed.state.retry_seconds) == ("", "", 0)
    assert min(later - earlier for earlier, later in zip(tries, tries[1:])) >= 60


def test_what_blocked_a_step_up_does_not_hold_a_step_down_up() -> None:
    feed = Feed("control-plane")
    assert "up" in [feed.one() for _sample in range(73)]
    feed.state = policy.after_refusal(feed.state, feed.monotonic, "held", move="up")
    feed.one(0.0, 100 * MIB)
    assert feed.state.blocked == ""
    assert feed.go(60, 0.0, 100 * MIB) == ["down"]


@pytest.mark.parametrize("what", ["sleep", "boot"])
def test_sleep_and_a_new_boot_end_what_was_blocked(what: str) -> None:
    feed = Feed("full")
    feed.go(70, 0.0, 100 * MIB)
    feed.state = policy.after_refusal(feed.state, feed.monotonic, "held", "lease")
    if what == "boot":
        feed.boot, feed.monotonic, feed.boottime, feed.stall = "b2", 10.0, 10.0, 0
    feed.one(0.0, 3000 * MIB, slept=3600 if what == "sleep" else 0)
    assert (feed.state.blocked, feed.state.retry_at) == ("", 0)


def test_brought_back_whatever_is_read_with_the_cooldown_kept() -> None:
    for pressure, available in ((0.0, 3000 * MIB), (None, None), (0.0, 400 * MIB), (0.0, 100 * MIB)):
        feed = Feed("control-plane", last=LastStep(4990.0, "b1", "down"))
        feed.state = feed.state._replace(back="etcd-only")
        while not feed.one(pressure, available):
            assert feed.boottime < 6000
        assert feed.boottime == 4990 + 120
        assert feed.decision is not None
        assert feed.decision.action == "down"
        feed.step("etcd-only", "down")
        assert feed.state.back == ""
        assert feed.state.relapses == 0


def test_a_refusal_to_be_brought_back_is_kept_without_a_streak() -> None:
    feed = Feed("control-plane")
    feed.state = feed.state._replace(back="etcd-only")
    assert feed.one(None, None) == "down"
    feed.state = policy.after_refusal(feed.state, feed.monotonic, "held", "lease", move="down")
    assert feed.go(25, 0.0, 400 * MIB) == []
    assert feed.state.blocked_reason == "lease"
    assert feed.decision is not None
    assert feed.decision.retry_in == 5
    assert "tried again in 5 s" in feed.decision.reason
    assert feed.go(5, 0.0, 400 * MIB) == ["down"]


def test_a_relapse_that_was_refused_for_long_counts() -> None:
    """What counts is when it was over again, not when it could step."""
    feed = Feed("full")
    feed.step("full", "up")
    feed.go(2000, 0.0, 100 * MIB)
    feed.step("control-plane", "down")
    assert feed.state.relapses == 1


def test_a_board_that_fell_over_after_its_step_up_relapsed() -> None:
    feed = Feed("full")
    feed.step("full", "up")
    feed.boot, feed.monotonic, feed.boottime, feed.stall = "b2", 10.0, 10.0, 0
    assert "down" in feed.go(100, 0.0, 100 * MIB)
    feed.step("control-plane", "down")
    assert policy.calm_asked(feed.state.relapses, DEFAULT) == 600


def test_over_late_after_a_step_up_is_no_relapse() -> None:
    feed = Feed("control-plane")
    feed.step("control-plane", "up")
    feed.go(700, 0.0, 3000 * MIB)
    assert "down" in feed.go(100, 0.0, 100 * MIB)
    feed.step("etcd-only", "down")
    assert feed.state.relapses == 0


def test_a_relapse_doubles_the_calm_asked_to_an_hour_at_most() -> None:
    feed = Feed("full")
    asked = []
    for _round in range(6):
        feed.step("full", "up")
        feed.boottime += 200
        feed.step("control-plane", "down")
        asked.append(policy.calm_asked(feed.state.relapses, DEFAULT))
    assert asked == [600, 1200, 2400, 3600, 3600, 3600]


def test_a_step_up_that_lasts_ends_the_doubling() -> None:
    feed = Feed("full")
    feed.step("full", "up")
    feed.state = feed.state._replace(relapses=3)
    feed.go(700)
    assert feed.state.relapses == 0


def test_no_relapse_where_the_next_step_down_comes_late() -> None:
    feed = Feed("full")
    feed.step("full", "up")
    feed.boottime += 700
    feed.step("control-plane", "down")
    assert feed.state.relapses == 0


def test_at_the_lowest_level_one_alert_a_streak() -> None:
    feed = Feed("etcd-only")
    assert feed.go(600, 0.0, 100 * MIB) == [ALERT]
    feed.one(0.0, 3000 * MIB)
    assert feed.go(600, 0.0, 100 * MIB) == [ALERT]


def test_manual_never_goes_up_by_itself() -> None:
    feed = Feed("etcd-only", settings(STEP_UP="manual"))
    assert feed.go(4000) == []
    assert feed.decision is not None
    assert "manual" in feed.decision.reason


def test_an_unknown_level_decides_nothing() -> None:
    feed = Feed("")
    assert feed.go(1000, 0.0, 50 * MIB) == []
    assert feed.go(1000) == []


def test_at_full_calm_does_nothing() -> None:
    assert Feed("full").go(2000) == []


SAMPLES = st.lists(
    st.tuples(
        st.sampled_from([None, 0.0, 0.1, 0.3, 0.9]),
        st.sampled_from([None, 50, 330, 500, 1500, 3500]),
        st.sampled_from([1.0, 5.0, 5.0, 5.0, 5.0, 60.0, 300.0]),
        st.sampled_from([0.0, 0.0, 0.0, 0.0, 500.0]),
        st.sampled_from(["done", "done", "refused", "failed"]),
        st.booleans(),
    ),
    max_size=150,
)
QUICK = settings(
    SAMPLE_SECONDS="1", PRESSURE_WINDOW_SECONDS="10", SUSTAIN_DOWN_SECONDS="5", SUSTAIN_UP_SECONDS="10",
    COOLDOWN_DOWN_SECONDS="20", COOLDOWN_UP_SECONDS="40",
)  # fmt: skip


def play(
    samples: Iterable[Tuple[Optional[float], Optional[int], float, float, str, bool]],
) -> List[Tuple[str, float, str]]:
    """(action, CLOCK_BOOTTIME, boot) of every step that was taken, over such samples."""
    feed = Feed("full", QUICK)
    order = ["full", "control-plane", "etcd-only"]
    taken = []
    for pressure, available, gap, slept, outcome, boots in samples:
        if boots and slept:
            feed.boot += "x"
            feed.boottime = feed.monotonic = 10.0
            feed.stall = 0
        action = feed.one(pressure, None if available is None else available * MIB, gap, slept)
        assert feed.decision is not None
        if pressure is None or available is None:
            assert action == "", "unknown never moves it"
        if action in ("down", "up"):
            if outcome == "refused":
                feed.state = policy.after_refusal(feed.state, feed.monotonic, "no")
                continue
            moved = 1 if action == "down" else -1
            level = order[order.index(feed.state.level) + (moved if outcome == "done" else 0)]
            taken.append((action, feed.boottime, feed.boot))
            feed.step(level, action)
    return taken


@limits(max_examples=100, deadline=None)
@given(SAMPLES)
def test_no_input_makes_two_steps_within_the_cooldown(
    samples: List[Tuple[Optional[float], Optional[int], float, float, str, bool]],
) -> None:
    taken = play(samples)
    for (_action, earlier, boot), (action, later, boot_later) in zip(taken, taken[1:]):
        length = QUICK.cooldown_down_seconds if action == "down" else QUICK.cooldown_up_seconds
        if boot == boot_later:
            assert later - earlier >= length
        elif action == "up":
            assert later >= length


def test_the_property_above_sees_steps() -> None:
    samples = [(0.0, 50, 5.0, 0.0, "done", False)] * 20 + [(0.0, 3500, 5.0, 0.0, "done", False)] * 60
    assert [action for action, _at, _boot in play(samples)] == ["down", "down", "up", "up"]


def test_memory_of_samples_does_not_grow() -> None:
    feed = Feed("full")
    feed.go(100000)
    assert len(feed.state.samples) <= 60 / 5 + 2
