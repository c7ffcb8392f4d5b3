# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of `make pressure` told is read as it was written, and judged; garbled ends are left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).resolve().parents[2]
if str(TESTS / "pressure") not in sys.path:
    sys.path.insert(0, str(TESTS / "pressure"))

import chart  # noqa: E402
import curve  # noqa: E402
import replay  # noqa: E402
from loads import LOADS, NO_STEP, SEEN, STEP, TOLD  # noqa: E402

TOTAL = 1_000_000
OVER = "stay at full: over for 0 of 60 s; over, pressure 25.0% (threshold 20%), available 90MiB of 976MiB (floor 78MiB)"
DOWN = "down at full: over for 60 s; over, pressure 41.0% (threshold 20%), available 70MiB of 976MiB (floor 78MiB)"
CALM = "stay at full: calm at full; calm, pressure 0.0% (threshold 20%), available 500MiB of 976MiB (floor 78MiB)"


def told(*lines: str, seconds: int = 200, stall: float = 0.0, ends: bool = True, killed_at: int = 10**6) -> curve.Told:
    """Samples a second apart; the load begins at 20 s and memory falls by 2 MiB a second from then on."""
    samples = [
        f"S {at}.00 {int(max(0, at - 20) * stall * 1e6)} 0 {TOTAL // 2 - max(0, at - 20) * 2048} {TOTAL} 1 0 "
        f"{int(at >= killed_at)}"
        for at in range(seconds)
    ]
    end = [f"E {seconds}.00 ends"] if ends else []
    return curve.parse("\n".join((*samples, "E 20.00 load begins", *lines, *end)))


def test_lines_are_read_as_they_were_written_and_garbled_ones_left_out() -> None:
    found = curve.parse(
        "S 1.50 10 5 400 1000 100 0 0\nS 2.50 - - 400 1000 100 7 1\nS 3.5 12 6 40\nS x\n\x00\x00L 9\n"
        f'L 4.00 {CALM}\nE 5.00 ends\nR 6.00 {{"verb": "watch"}}\nR 7.00 {{"verb'
    )
    assert found.samples == (
        curve.Sample(1.5, 10, 5, 400, 1000, 100, 0, 0),
        curve.Sample(2.5, None, None, 400, 1000, 100, 7, 1),
    )
    assert found.log == ((4.0, CALM),)
    assert found.events == ((5.0, "ends"),)
    assert found.results == ({"verb": "watch"},)


def test_pressure_is_the_share_of_full_windows_alone() -> None:
    found = curve.pressure(told(stall=0.5).samples, 60.0)
    assert found[0] == (60.0, pytest.approx(100 * 20 / 60, abs=1))
    assert found[-1] == (199.0, pytest.approx(50.0))


def test_the_streak_that_was_decided_on_is_the_one_that_counts() -> None:
    found = curve.figures(told(f"L 40.00 {OVER}", f"L 45.00 {CALM}", f"L 70.00 {OVER}", f"L 130.00 {DOWN}"))
    assert (found.first_over, found.decided, found.over_to_decision) == (50.0, 110.0, 60.0)
    assert found.decided_on == "pressure and floor"
    assert found.falling == 2.0


def test_without_a_decision_the_first_over_reading_counts() -> None:
    found = curve.figures(told(f"L 40.00 {OVER}", f"L 45.00 {CALM}"))
    assert (found.first_over, found.decided, found.over_to_decision, found.decided_on) == (20.0, None, None, "")


@pytest.mark.parametrize(
    ("words", "by"),
    [
        (DOWN.replace("41.0%", "3.0%"), "floor"),
        (DOWN.replace("41.0%", "unknown"), "floor"),
        (DOWN.replace("70MiB", "90MiB"), "pressure"),
    ],
)
def test_what_a_reading_was_over_by(words: str, by: str) -> None:
    assert curve.decided_on(((1.0, CALM), (2.0, words))) == by


def test_a_load_that_must_not_cause_a_step() -> None:
    assert curve.problems("idle", told(f"L 30.00 {CALM}"), NO_STEP) == []
    over = curve.problems("idle", told(f"L 30.00 {CALM}", f"L 40.00 {OVER}"), NO_STEP)
    assert len(over) == 1 and "a reading was over" in over[0]
    stepped = curve.problems("idle", told(f"L 40.00 {OVER}", f"L 100.00 {DOWN}"), NO_STEP)
    assert len(stepped) == 1 and "a step was decided on" in stepped[0]


def test_a_load_that_must_cause_a_step_before_the_kernel_kills() -> None:
    lines = (f"L 40.00 {OVER}", f"L 100.00 {DOWN}")
    assert curve.problems("thrash", told(*lines), STEP) == []
    assert curve.problems("thrash", told(*lines, killed_at=120), STEP) == []
    late = curve.problems("thrash", told(*lines, killed_at=90), STEP)
    assert len(late) == 1 and "killed for memory after 70 s, before the decision at 80 s" in late[0]
    none = curve.problems("thrash", told(f"L 40.00 {OVER}"), STEP)
    assert len(none) == 1 and "no step was decided on" in none[0]


def test_a_run_that_broke_off_or_failed_is_a_problem_whatever_was_expected() -> None:
    lines = (f"L 40.00 {OVER}", f"L 100.00 {DOWN}")
    for expected in (STEP, SEEN):
        assert "ended before its load did" in curve.problems("x", told(*lines, ends=False), expected)[0]
        assert curve.problems("x", told("E 9.00 failed: no disk", *lines), expected) == ["x: failed: no disk"]
    assert "said nothing" in curve.problems("x", told(), NO_STEP)[-1]


def result(verb: str, code: int = curve.R8_CODE, said: str = f"stopped: {curve.R8_WORDS}") -> str:
    return f"R 1.00 {json.dumps({'verb': verb, 'code': code, 'said': said})}"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((result("watch"), result("status")), ""),
        ((result("watch"),), "`status` was not run"),
        ((result("watch", -1), result("status")), "`watch` ended with -1, expected 2"),
        ((result("watch", said="watching"), result("status")), "`watch` does not say what is missing"),
    ],
)
def test_a_kernel_without_psi_has_to_be_told_by_both_verbs(lines: tuple[str, ...], problem: str) -> None:
    found = curve.problems("no-psi", curve.parse("\n".join((*lines, "E 2.00 ends"))), TOLD)
    assert len(found) == bool(problem)
    assert not problem or problem in found[0]


def test_each_load_that_has_to_come_to_something_lasts_long_enough_for_it() -> None:
    """The window and the sustain of the defaults, and some."""
    for name, load in LOADS.items():
        if load.expected in (NO_STEP, STEP):
            assert load.seconds >= 140, name


def test_the_curves_are_drawn_as_xml_with_a_dot_where_a_step_was_decided_on() -> None:
    points = [(float(at), float(at)) for at in range(0, 100, 5)]
    drawn = chart.draw(
        [
            chart.Curve("calm <one>", points, points, None, False),
            chart.Curve("over", points, points, 50.0, True),
            chart.Curve("no window", [], points, None, True),
        ],
        "a source",
        20.0,
        8.0,
    )
    shapes = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawn).iter()]
    assert shapes.count("circle") == 2
    assert "calm &lt;one&gt;" in drawn


def test_other_settings_are_tried_on_the_same_samples() -> None:
    """Memory falls by 2 MiB a second from 488 of 976 MiB at 20 s: under the floor of 8 % after 205 s."""
    falling = told(seconds=400)
    assert replay.replay(falling, {}) == replay.Answer(270.0, 380.0)
    assert replay.replay(falling, {"SUSTAIN_DOWN_SECONDS": "30"}).decided == 240.0
    assert replay.replay(told(seconds=230), {}) == replay.Answer(None, 210.0)
    stalled = told(seconds=400, stall=0.25)
    assert replay.replay(stalled, {}).decided == 110.0  # 20 % of a window after 48 s, and 60 s of it
    assert replay.replay(stalled, {"PRESSURE_THRESHOLD": "30%"}).decided == 270.0
    assert replay.replay(told("L 60.00 down: done: pi1 stepped", seconds=400), {}) == replay.Answer(None, 40.0)


def test_every_variant_can_be_set() -> None:
    rows = replay.table({"falling": told(seconds=400)})
    assert [row["settings"] for row in rows] == list(replay.VARIANTS)
    assert replay.lines(rows)[0] == "defaults: falling 270 s"
