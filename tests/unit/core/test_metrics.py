# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics as Prometheus would read them: their form, and what is left out where it is not known."""

from __future__ import annotations

import re
from typing import Any, Dict, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import (
    cures,
    metrics,
    policy,
    watch,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import LEVELS
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Reading, Sample
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import load
from hypothesis import example, given
from hypothesis import strategies as st

GIB = 1 << 30
SAMPLE_LINE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (-?[\d.]+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\["\\n])*)"')

Found = Dict[Tuple[str, Tuple[Tuple[str, str], ...]], float]


def plain(escaped: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), escaped)


def parsed(text: str, server: str = "pi-a") -> Found:
    """(name without its prefix, labels but `server`) -> value; the form is checked on the way."""
    assert text.endswith("\n")
    found: Found = {}
    helped = typed = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            helped = line.split(" ")[2]
            assert helped not in {name for name, _labels in found}, "one group a metric"
        elif line.startswith("# TYPE "):
            typed, kind = line.split(" ")[2:]
            assert (typed, kind) == (helped, "gauge")
        else:
            matched = SAMPLE_LINE.fullmatch(line)
            assert matched, line
            assert matched[1] == typed and typed.startswith(metrics.PREFIX)
            (key, told), *labels = LABEL.findall(matched[2])
            assert (key, plain(told)) == ("server", server)
            place = (typed[len(metrics.PREFIX) :], tuple((one, plain(word)) for one, word in labels))
            assert place not in found, "one sample a series"
            found[place] = float(matched[3])
    return found


def noted(**changes: Any) -> Dict[str, str]:
    """What a watcher with these in its state would note."""
    state = policy.State(**{"level": "control-plane", "relapses": 2, **changes})
    reading = Reading(0.125, GIB, 4 * GIB)
    decision = policy.Decision("", policy.CALM, reading, 0.0, 90.0, 0.0, 250.0, "", 60.0, 300.0)
    return watch.notes(watch.Watch(state=state), decision, Sample(900.0, 1000.0, "boot", 5, GIB, 4 * GIB))


def told(notes: Dict[str, str], memory: Dict[str, str], **changes: Any) -> Found:
    facts = metrics.Facts(notes, memory, False, False, None)._replace(**changes)
    return parsed(metrics.text(facts, load("", {"NODE_NAME": "pi-a"})))


def test_each_metric_is_told_where_all_is_known_with_its_help() -> None:
    facts = metrics.Facts(noted(), {"level": "control-plane"}, True, False, 1.75e9)
    text = metrics.text(facts, load("", {"NODE_NAME": "pi-a"}))
    found = parsed(text)
    assert {name for name, _labels in found} == set(metrics.HELP)
    for name, words in metrics.HELP.items():
        assert f"# HELP {metrics.PREFIX}{name} {words}\n" in text
        assert "\\" not in words and "|" not in words


def test_the_figures_are_in_base_units() -> None:
    found = told(noted(), {"level": "control-plane"}, sampled_at=1.75e9, step_open=True, unhealthy=True)
    assert found["pressure_ratio", ()] == 0.125
    assert found["pressure_threshold_ratio", ()] == 0.2
    assert found["memory_total_bytes", ()] == 4 * GIB
    assert found["memory_available_bytes", ()] == GIB
    assert found["memory_floor_bytes", ()] == int(0.08 * 4 * GIB)
    assert found["memory_ceiling_bytes", ()] == 2 * GIB
    assert found["streak_seconds", (("verdict", "calm"),)] == 90
    assert found["streak_seconds", (("verdict", "over"),)] == 0
    assert found["streak_asked_seconds", (("verdict", "over"),)] == 60
    assert found["streak_asked_seconds", (("verdict", "calm"),)] == 300
    assert found["cooldown_seconds", (("move", "up"),)] == 250
    assert found["cooldown_seconds", (("move", "down"),)] == 0
    assert found["relapses", ()] == 2
    assert found["last_sample_timestamp_seconds", ()] == 1.75e9
    assert found["info", (("runtime", "docker"), ("step_up", "manual"))] == 1
    assert found["step_open", ()] == found["unhealthy", ()] == 1


@pytest.mark.parametrize("level", ["", *LEVELS])
def test_one_level_is_the_one_it_runs_at_or_none(level: str) -> None:
    found = told(noted(level=level), {"level": level or "below"})
    assert [one for one in LEVELS if found["level", (("level", one),)]] == ([level] if level else [])
    assert found["level_unknown", ()] == (not level)
    assert found["below_full", ()] == (level != "full")


def test_what_is_not_known_has_no_sample_and_is_never_0() -> None:
    found = told({}, {})
    assert {name for name, _labels in found} == {
        "info", "level", "level_unknown", "pressure_threshold_ratio", "verdict", "step_open", "unhealthy",
    }  # fmt: skip
    assert [labels for (name, labels), value in found.items() if name == "verdict" and value] == [
        (("verdict", "unknown"),)
    ]
    unread = {**noted(), "pressure": "", "mem_total": "", "mem_available": ""}
    assert not [name for name, _labels in told(unread, {}) if name.startswith("memory_") or name == "pressure_ratio"]


@pytest.mark.parametrize("reason", cures.CURES)
def test_a_blocked_step_is_told_with_its_reason_and_not_in_words(reason: str) -> None:
    found = told(noted(blocked="a message", blocked_reason=reason, blocked_move="down"), {})
    assert {labels: value for (name, labels), value in found.items() if name == "blocked"} == {
        (("move", "down"), ("reason", reason)): 1
    }
    assert told(noted(), {})["blocked", ()] == 0


def test_exhausted_is_what_the_watcher_notes() -> None:
    assert told({**noted(), "exhausted": "yes"}, {})["exhausted", ()] == 1
    assert told(noted(), {})["exhausted", ()] == 0


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1))
@example('a"b\\c\nd')
@example("\\n\r\u2028")
def test_any_name_of_a_server_comes_through(name: str) -> None:
    settings = load("", {"NODE_NAME": "x"})._replace(node_name=name)
    found = parsed(metrics.text(metrics.Facts({}, {}, False, False, None), settings), name)
    assert found["unhealthy", ()] == 0
