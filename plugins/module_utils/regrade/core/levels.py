# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The ladder of levels, and words about it. Light: the idle loop imports it."""

from __future__ import annotations

FULL = "full"
CONTROL_PLANE = "control-plane"
ETCD_ONLY = "etcd-only"
LEVELS = (FULL, CONTROL_PLANE, ETCD_ONLY)  # highest first; a step moves by one

DOWN = "down"
UP = "up"
STAY = "stay"  # a step from a level to itself: curing the own-address trap


def below(level: str) -> str:
    """The next level down, "" at the lowest. Raises ValueError for a name that is no level."""
    at = LEVELS.index(level) + 1
    return LEVELS[at] if at < len(LEVELS) else ""


def above(level: str) -> str:
    """The next level up, "" at full. Raises ValueError for a name that is no level."""
    at = LEVELS.index(level) - 1
    return LEVELS[at] if at >= 0 else ""


def direction(start: str, target: str) -> str:
    """DOWN, UP or STAY. Raises ValueError for a name that is no level."""
    moved = LEVELS.index(target) - LEVELS.index(start)
    return DOWN if moved > 0 else UP if moved < 0 else STAY


def restarts(start: str, target: str) -> bool:
    """Whether the step restarts k3s: only between etcd-only and anything, itself included."""
    return ETCD_ONLY in (start, target)
