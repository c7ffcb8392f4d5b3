# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What one sample of pressure and memory says: parsing of PSI and meminfo, and nothing decided.

Rules
- Pressure is the `some` stall, worked out from the difference of `total` between two samples, never
  from `avg*`, which lag and cannot be told apart from a starved sampler. `full` is not used: Linux
  6.12 leaks its counts (kernel bug 219194).
- What is missing, unreadable or malformed is None, *unknown*; it is never taken for zero.
- No clock is read here; a sample carries the times it was taken at.

Light: the idle loop imports it (no typing, dataclasses, json).
"""

from __future__ import annotations

from .digits import whole
from .light import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple


class Sample(NamedTuple):
    """One look at the host. Times in seconds, memory in bytes; None is unknown."""

    monotonic: float  # CLOCK_MONOTONIC: stands still while the host sleeps
    boottime: float  # CLOCK_BOOTTIME: does not
    boot_id: str
    stall: Optional[int]  # PSI memory `some total`, microseconds since boot
    available: Optional[int]  # MemAvailable
    total: Optional[int]  # MemTotal


class Reading(NamedTuple):
    """What the samples of one window say together."""

    pressure: Optional[float]  # share of the window that some task stalled, 0 to 1
    available: Optional[int]
    total: Optional[int]


def parse_pressure(text: str) -> Optional[int]:
    """The `total` of the `some` line in microseconds, or None. Lines in any order, unknown ones ignored."""
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == "some":
            for word in words[1:]:
                if word.startswith("total="):
                    return whole(word[6:])
            return None
    return None


def parse_meminfo(text: str) -> Tuple[Optional[int], Optional[int]]:
    """(MemAvailable, MemTotal) in bytes; both None where either is missing, malformed or impossible."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        key, colon, rest = line.partition(":")
        if colon and key in ("MemAvailable", "MemTotal"):
            words = rest.split()
            number = whole(words[0]) if len(words) == 2 and words[1] == "kB" else None
            if number is None:
                return None, None
            found[key] = number * 1024
    available, total = found.get("MemAvailable"), found.get("MemTotal")
    if available is None or total is None or total <= 0 or available > total:
        return None, None
    return available, total


def stall_share(earlier: Sample, later: Sample) -> Optional[float]:
    """Share of the time between two samples that some task stalled, or None where it cannot be told."""
    span = later.monotonic - earlier.monotonic
    if earlier.stall is None or later.stall is None or span <= 0 or earlier.boot_id != later.boot_id:
        return None
    if later.stall < earlier.stall:
        return None
    return min(1.0, (later.stall - earlier.stall) / 1e6 / span)
