# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The watcher's notes for others: what it saw last, beside the host's lock (on tmpfs), and whether it lives.

Written by the watcher at every sample, read by `status` and `health`. Light: the idle loop imports it.
"""

from __future__ import annotations

import os
import time

from ..adapters import pair_files
from ..core import pairs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from ..core.settings import Settings

NOTES = "regrade.watcher"
SIZE = 4096  # one write of a fixed size, so that a reader never meets half of one


def path(settings: Settings) -> str:
    return os.path.join(os.path.dirname(settings.lock_file) or ".", NOTES)


class Notes:
    """The open file; one write a sample, no rename, nothing on a card's flash."""

    def __init__(self, settings: Settings) -> None:
        self._descriptor = os.open(path(settings), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._descriptor, SIZE)

    def write(self, values: dict[str, str]) -> None:
        """A disk that is full must not end what keeps a vote: `health` then tells that it is silent."""
        text = pairs.dump(values).encode()
        if len(text) >= SIZE:
            text = text[: text.rindex(b"\n", 0, SIZE) + 1]  # the longest values stand last; half a line is none
        try:
            os.pwrite(self._descriptor, text.ljust(SIZE, b"\n"), 0)
        except OSError:
            return


def read(settings: Settings) -> dict[str, str]:
    """{} where no watcher has written since the host booted."""
    try:
        return pair_files.read(path(settings))
    except OSError:
        return {}


def number(notes: dict[str, str], key: str) -> Optional[float]:
    try:
        return float(notes[key])
    except (KeyError, ValueError):
        return None


def unhealthy(settings: Settings) -> str:
    """Why the watcher is not well, "" where it is: it told nothing for long, or says so itself."""
    notes = read(settings)
    return silence(settings, notes, time.clock_gettime(time.CLOCK_BOOTTIME)) or notes.get("unhealthy", "")


def silence(settings: Settings, notes: dict[str, str], boottime: float) -> str:
    """Why notes tell nothing of now, "" where they do. `boottime` is CLOCK_BOOTTIME."""
    told = number(notes, "boottime")
    if told is None:
        return f"no watcher has written {path(settings)} since this host booted"
    silent = boottime - told
    allowed = max(60.0, 6 * settings.sample_seconds)
    if silent < -1 or silent > allowed:  # notes are rounded; more than that is another boot's
        return f"silent for {silent:.0f} s, expected a sample every {settings.sample_seconds:g} s"
    return ""
