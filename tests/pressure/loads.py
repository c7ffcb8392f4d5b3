# SPDX-License-Identifier: GPL-3.0-or-later
"""The loads of `make pressure`: what runs in the small machine, for how long, and what has to come of it.

A table and nothing else. A load's processes are the verbs of guest/load.py.
"""

from __future__ import annotations

from typing import NamedTuple

# What has to come of a load.
NO_STEP, STEP, TOLD, SEEN = "no step", "a step", "R8", "seen"
DISK = "/dev/vdc"


class Load(NamedTuple):
    """`k3s`: what its stand-in holds and how much of it is in use, in MiB. `limit`: MiB of the loads' own cgroup, 0 for
    none. `until`: what ends it before its `seconds`. `expected`: what is judged (curve.py)."""

    title: str
    processes: tuple[tuple[str, ...], ...]
    seconds: int
    expected: str
    until: str = "time"
    swap: str = "none"
    limit: int = 0
    k3s: tuple[int, int] = (380, 120)
    command_line: str = ""


def _thrash(file: int, held: int) -> tuple[tuple[str, ...], ...]:
    """Pods of which one holds memory and two use more of a file than is left."""
    return (("hold", str(held), "60"), ("pages", DISK, str(file)), ("pages", DISK, str(file)))


LIMITED = (("pages", DISK, "400"),) * 4
LOADS = {
    "idle": Load("idle", (), 150, NO_STEP),
    "healthy": Load(
        "busy and healthy", (("once", DISK, "1500"), ("waves", "80"), ("hold", "40", "40")), 150, NO_STEP
    ),
    "reading": Load(
        "busy, reading without end", (("read", DISK, "1500"), ("waves", "80"), ("hold", "40", "40")), 150, SEEN
    ),
    "edge": Load(
        "busy, at the floor now and then", (("read", DISK, "1500"), ("waves", "150"), ("hold", "60", "60")), 150, SEEN
    ),
    "limited": Load(
        "container at its limit, host with plenty", LIMITED, 150, NO_STEP, limit=48, k3s=(60, 20)
    ),
    "limited-third": Load(
        "container at its limit, a third available", LIMITED, 150, SEEN, until="decision", limit=48
    ),
    "thrash": Load("thrashing host, no swap", _thrash(300, 280), 540, STEP, until="etcd-only"),
    "thrash-cache": Load(
        "thrashing host, files alone", (("hold", "60", "60"), *(("pages", DISK, "700"),) * 2), 240, STEP,
        until="decision",
    ),
    "thrash-half": Load(
        "files alone, more than half available", (("pages", DISK, "1400"),) * 2, 150, SEEN, until="decision",
        k3s=(150, 100),
    ),
    "thrash-swap": Load(
        "thrashing host, swap on the card", (("hold", "280", "60"), ("memory", "330")), 240, STEP,
        until="decision", swap="disk",
    ),
    "thrash-zram": Load(
        "thrashing host, zram", (("hold", "280", "60"), ("memory", "250")), 240, STEP, until="decision", swap="zram"
    ),
    "leak-slow": Load("leak of 0.5 MiB/s", (("leak", "0.5", "110"),), 330, STEP, until="killed"),
    "leak-fast": Load("leak of 4 MiB/s", (("leak", "4", "250"),), 200, SEEN, until="killed"),
    "no-psi": Load("kernel with psi=0", (), 0, TOLD, until="told", command_line="psi=0"),
}  # fmt: skip
