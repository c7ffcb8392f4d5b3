# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits the figures are held against, and nothing else: no time is among them, for machines differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RSS_KIB = 12 << 10
CPU_SHARE = 0.0005  # of one core, at the default period
GROWTH_KIB = 0
GROWTH_BLOCKS = 64  # of Python's allocator, over hours: texts of the log and of the notes differ in length


def broken(figures: Mapping[str, Any]) -> list[str]:
    """One line for each limit that is not kept."""
    idle, hour, peak = figures["idle"], figures["hour"], figures["peak"]
    watcher = idle["processes"]["watcher"]
    found = []
    if watcher["rss_kib"] > RSS_KIB:
        found.append(f"the idle watcher takes {watcher['rss_kib']} KiB of RSS, expected {RSS_KIB} at most")
    if watcher["cpu_share"] > CPU_SHARE:
        found.append(
            f"the idle watcher takes {watcher['cpu_share']:.4%} of one core, expected {CPU_SHARE:.2%} at most"
        )
    for name, part in (("idle", idle), ("hour", hour)):
        if part["verdict"] != "calm":
            found.append(
                f"{name}: the verdict was {part['verdict']}, expected calm: is memory short on this machine?"
            )
        for kind in ("api_calls", "docker_calls"):
            if part[kind]:
                found.append(f"{name}: {part[kind]} {kind.replace('_', ' ')} at full, expected none")
    found += grown(hour["looks"])
    if peak["bytes"] > peak["setting"]:
        found.append(
            f"{peak['verb']} took {peak['bytes'] >> 10} KiB at its peak, expected STEP_PEAK_BYTES "
            f"({peak['setting'] >> 10} KiB) at most: raise it in core/settings.py"
        )
    return found


def grown(looks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What grew from the end of the first hour to the end of the last."""
    first, last = looks[0], looks[-1]
    return [
        f"{what} grew from {first[key]} to {last[key]} in {last['samples'] - first['samples']} samples, "
        "expected no growth"
        for key, what, allowed in (
            ("descriptors", "open file descriptors", 0),
            ("anonymous_kib", "memory of its own (KiB)", GROWTH_KIB),
            ("blocks", "blocks held by Python", GROWTH_BLOCKS),
        )
        if last[key] - first[key] > allowed
    ]


def ratios(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """How many times the other's figure ours is, for each figure that both have and the other has any of."""
    return {key: round(one[key] / other[key], 3) for key in one if other.get(key)}
