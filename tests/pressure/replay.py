# SPDX-License-Identifier: GPL-3.0-or-later
"""What other settings would have decided on the same curves, by the core's own policy. Pure: samples in, times out.

A run that ended once its step was decided on tells nothing of what comes later: then the answer is when it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import policy, settings
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import DOWN, FULL
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Sample

import curve

# Each with what is not the default in it.
VARIANTS: tuple[dict[str, str], ...] = (
    {},
    {"PRESSURE_THRESHOLD": "10%"},
    {"PRESSURE_THRESHOLD": "30%"},
    {"PRESSURE_THRESHOLD": "40%"},
    {"PRESSURE_CEILING": "20%"},
    {"PRESSURE_CEILING": "30%"},
    {"PRESSURE_CEILING": "100%"},
    {"MEMAVAILABLE_FLOOR": "6%"},
    {"MEMAVAILABLE_FLOOR": "12%"},
    {"PRESSURE_WINDOW_SECONDS": "30"},
    {"SUSTAIN_DOWN_SECONDS": "30"},
)


class Answer(NamedTuple):
    """Seconds since the load began. `decided` None: no step until `ended`."""

    decided: Optional[float]
    ended: float


def replay(told: curve.Told, given: dict[str, str]) -> Answer:
    """At the default period, on the samples from the boot to the end of the load, or the first step that was done."""
    chosen = settings.load("", {"NODE_NAME": "any", **given})
    began = curve.event(told, "load begins") or 0.0
    ends = [at for at in (curve.event(told, "ends"), curve.logged(told.log, "down: done: ")) if at is not None]
    end = min(ends, default=told.samples[-1].at if told.samples else began)
    state, due = policy.State(level=FULL), 0.0
    for one in curve.until(told.samples, end):
        if one.at < due:
            continue
        due = one.at + chosen.sample_seconds - 0.5  # they come a little more than a second apart
        sample = Sample(one.at, one.at, "boot", one.some, one.available * 1024, one.total * 1024)
        state, decision = policy.observe(state, sample, chosen)
        if decision.action == DOWN:
            return Answer(round(one.at - began, 1), round(end - began, 1))
    return Answer(None, round(end - began, 1))


def table(runs: dict[str, curve.Told]) -> list[dict[str, object]]:
    """One row for each variant: its settings, and each load's answer."""
    return [
        {"settings": given, **{name: replay(told, given)._asdict() for name, told in runs.items()}}
        for given in VARIANTS
    ]


def lines(rows: Sequence[dict[str, object]]) -> list[str]:
    found = []
    for row in rows:
        given = row["settings"]
        words = ", ".join(f"{key}={value}" for key, value in given.items()) if isinstance(given, dict) else ""
        cells = [f"{name} {_cell(value)}" for name, value in row.items() if name != "settings"]
        found.append(f"{words or 'defaults'}: {', '.join(cells)}")
    return found


def _cell(value: object) -> str:
    if not isinstance(value, dict):
        return ""
    return f"none in {value['ended']:.0f} s" if value["decided"] is None else f"{value['decided']:.0f} s"
