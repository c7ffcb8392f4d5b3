# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel tells of a process and its children, and readers of the texts it tells it in."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple, Optional

PROC = Path("/proc")


class Weight(NamedTuple):
    """One look at a process with its children: memory in KiB, CPU in seconds since it began."""

    rss: int
    pss: int
    anonymous: int
    locked: int
    cpu: float
    switches: int  # voluntary and forced
    descriptors: int


class Load(NamedTuple):
    """What happened between two looks."""

    seconds: float
    cpu_share: float  # of one core, 0 to 1
    switches_a_minute: float


def kib(text: str, key: str) -> int:
    """The value of a line such as `VmRSS:  10240 kB`; 0 where the kernel leaves it out. Of status and smaps_rollup."""
    found = re.search(rf"^{key}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def switches(text: str) -> int:
    """Of /proc/PID/status."""
    return sum(
        int(value) for value in re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)$", text, re.MULTILINE)
    )


def on_cpu(text: str) -> float:
    """Seconds a thread ran, of /proc/PID/task/TID/schedstat: exact, where `stat` counts ticks of 10 ms."""
    return int(text.split(maxsplit=1)[0]) / 1e9


def reaped(text: str) -> float:
    """Seconds the children ran that have ended and were waited for, of /proc/PID/stat, in ticks."""
    after_name = text.rpartition(")")[2].split()
    return (int(after_name[13]) + int(after_name[14])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The process and all below it that run now."""
    try:
        below = (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
    except OSError:
        below = []
    return [pid, *(one for child in below for one in children(int(child)))]


def look(pid: int) -> Weight:
    """The process with its children. Raises ProcessLookupError where it has ended."""
    found = [one for one in map(_one, children(pid)) if one is not None]
    if not found:
        raise ProcessLookupError(f"process {pid} has ended")
    return Weight(*(sum(values) for values in zip(*found)))


def _one(pid: int) -> Optional[Weight]:
    folder = PROC / str(pid)
    try:
        status = (folder / "status").read_text()
        rollup = (folder / "smaps_rollup").read_text()
        threads = [path.read_text() for path in folder.glob("task/*/schedstat")]
        return Weight(
            kib(rollup, "Rss"),
            kib(rollup, "Pss"),
            kib(rollup, "Anonymous"),
            kib(status, "VmLck"),
            sum(map(on_cpu, threads)) + reaped((folder / "stat").read_text()),
            switches(status),
            len(os.listdir(folder / "fd")),
        )
    except (FileNotFoundError, ProcessLookupError):  # one that ended meanwhile
        return None


def load(before: Weight, after: Weight, seconds: float) -> Load:
    """What happened in between. A child that ended unseen is in the CPU and not in the switches."""
    return Load(
        seconds,
        max(0.0, after.cpu - before.cpu) / seconds,
        max(0, after.switches - before.switches) * 60 / seconds,
    )
