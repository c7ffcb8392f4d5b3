# SPDX-License-Identifier: GPL-3.0-or-later
"""Idle at full the real watcher, with its real children, asks nothing of API and Docker: counted by the servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.exadev.k3s_regrade.tests.bench import hour, library, stub_cluster

SPEED = 1000.0  # the default period of 5 s becomes 5 ms
SAMPLES = 100
ROUNDS = 100  # of half a second, within which a settling ends on a busy machine too

Seen = tuple[str, tuple[int, int]]  # the level, and the requests to the API and to Docker so far


class Idle:
    """Three servers, and the environment of the first one's command."""

    def __init__(self, folder: Path, servers: stub_cluster.Servers) -> None:
        self.folder, self.servers = folder, servers
        self.environment = library.environment(
            library.unpacked(folder),
            {
                **servers.environment,
                "PRESSURE_FILE": str(folder / "pressure"),
                "MEMINFO_FILE": str(folder / "meminfo"),
            },
        )
        (folder / "pressure").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
        (folder / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n")

    def watch(self, rounds: int, enough: Callable[[Seen, Seen], bool] = lambda _first, _last: False) -> list[Seen]:
        """(level, requests so far) after the first settling and after each round of SAMPLES samples from then on; no
        more rounds than are enough."""
        found: list[Seen] = []
        with hour.watcher(self.environment, self.folder / "log", SPEED, SAMPLES) as (_process, told):
            for _line in told:
                level = library.notes(self.environment)["level"]
                if level:
                    found.append((level, self.servers.calls()))
                if len(found) > rounds or (found and enough(found[0], found[-1])):
                    break
        return found


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Idle]:
    with stub_cluster.servers(tmp_path) as servers:
        yield Idle(tmp_path, servers)


def test_at_full_none_is_made_over_many_samples(idle: Idle) -> None:
    first, *later = idle.watch(8)
    assert first[0] == "full"
    assert min(first[1]) > 0, "the first settling is counted, so the counting works"
    assert later == [first] * 8


def test_below_full_it_does_look_after_its_vote(idle: Idle) -> None:
    """The same counting, where there is something to count."""
    step = subprocess.run(
        [sys.executable, "-m", "regrade.cli", "step", "down", "--automatic"], env=idle.environment,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "level=control-plane" in step.stdout, step.stdout + step.stderr
    first, *later = idle.watch(ROUNDS, lambda first, last: all(now > then for now, then in zip(last[1], first[1])))
    assert first[0] == "control-plane"
    assert later[-1][1][0] > first[1][0]
    assert later[-1][1][1] > first[1][1]
