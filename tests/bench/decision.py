# SPDX-License-Identifier: GPL-3.0-or-later
"""What one decision costs, beside reading the two files it is taken on: time and allocations, in this process."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import psi
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import policy, watch
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Sample
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import Settings

ROUNDS = 20000


class _Ahead:
    """Samples one period apart, calm, and the state after each."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._at = 1000.0
        self.state = policy.State(level="full")
        self.watch = watch.Watch(state=self.state, settle_at=float("inf"))
        self.decision = self.observe()

    def _next(self) -> Sample:
        self._at += self._settings.sample_seconds
        return Sample(self._at, self._at, "boot", int(self._at * 1000), 3 << 30, 4 << 30)

    def observe(self) -> policy.Decision:
        self.state, decision = policy.observe(self.state, self._next(), self._settings)
        return decision

    def on_sample(self) -> policy.Decision:
        self.watch, decision, _commands = watch.on_sample(self.watch, self._next(), self._settings)
        return decision


def measure(settings: Settings) -> dict[str, Any]:
    """Microseconds and bytes of each part of one sample; the ratios are to reading the two files."""
    ahead = _Ahead(settings)

    def read() -> object:
        return psi.sample(settings.pressure_file, settings.meminfo_file, "boot")

    parts: dict[str, Callable[[], object]] = {
        "reading two files": read,
        "policy.observe": ahead.observe,
        "watch.on_sample": ahead.on_sample,
    }
    found = {}
    for name, part in parts.items():
        for _ in range(100):  # the window is full, and all is warm
            part()
        found[name] = {"microseconds": round(_seconds(part) * 1e6, 2), **_allocations(part)}
    base = found["reading two files"]["microseconds"]
    return {
        "parts": found,
        "ratio_of_a_decision_to_reading": round(found["watch.on_sample"]["microseconds"] / base, 3),
    }


def _seconds(part: Callable[[], object]) -> float:
    """Of CPU, for one call: of many, so that others on this machine matter less."""
    began = time.process_time()
    for _ in range(ROUNDS):
        part()
    return (time.process_time() - began) / ROUNDS


def _allocations(part: Callable[[], object]) -> dict[str, int]:
    """The most one call holds at a time, and what many leave behind."""
    before = sys.getallocatedblocks()
    for _ in range(1000):
        part()
    left = sys.getallocatedblocks() - before
    tracemalloc.start()
    try:
        part()
        tracemalloc.reset_peak()
        base = tracemalloc.get_traced_memory()[0]
        part()
        most = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    return {"most_bytes_at_a_time": most, "blocks_left_by_1000": left}
