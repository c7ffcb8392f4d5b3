# SPDX-License-Identifier: GPL-3.0-or-later
"""The idle loop as a process: what it imports, its children, its notes, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import watcher_notes
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import load

LIBRARY = str(Path(cli.__file__).parent.parent)
HEAVY = (
    "typing", "dataclasses", "json", "logging", "subprocess", "argparse", "ssl", "http", "http.client", "inspect",
    "socket", "threading", "asyncio", "kubernetes", "docker", "urllib", "urllib.parse", "pathlib", "ctypes",
)  # fmt: skip


class Watcher:
    """A watcher in a process of its own, whose children are a shell script of the test's."""

    def __init__(self, folder: Path, child: str) -> None:
        self.folder = folder
        (folder / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n")
        (folder / "pressure").write_text("some avg10=0 avg60=0 avg300=0 total=0\n")
        script = folder / "child"
        script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{child}\n')
        script.chmod(0o755)
        self.environment = {
            "NODE_NAME": "a", "KUBE_SERVER": "https://b", "PRESSURE_FILE": str(folder / "pressure"),
            "MEMINFO_FILE": str(folder / "meminfo"), "STATE_DIR": str(folder / "state"),
            "LOCK_FILE": str(folder / "lock"), "SAMPLE_SECONDS": "1", "PRESSURE_WINDOW_SECONDS": "3",
            "SUSTAIN_DOWN_SECONDS": "2", "SUSTAIN_UP_SECONDS": "2", "COOLDOWN_DOWN_SECONDS": "4",
            "COOLDOWN_UP_SECONDS": "4", "SETTLE_SECONDS": "5",
        }  # fmt: skip
        code = (
            "import sys; from regrade import cli; from regrade.app import watcher; "
            f"watcher.COMMAND = (); sys.executable = {str(script)!r}; raise SystemExit(cli.main(['watch']))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], env={"PYTHONPATH": LIBRARY, "PATH": "/usr/bin:/bin", **self.environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def asked(self) -> List[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def notes(self) -> Dict[str, str]:
        return watcher_notes.read(load("", self.environment))

    def until(self, holds: Callable[[], bool], seconds: float = 15.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < end, (self.asked(), self.notes())
            time.sleep(0.05)

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=10)[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Watcher]]:
    started: List[Watcher] = []

    def begin(child: str) -> Watcher:
        started.append(Watcher(tmp_path, child))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


WELL = "echo result=done; echo action=nothing; echo level=full; echo message=well"


def test_the_idle_loop_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom regrade import cli\nfrom regrade.app import watcher\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": LIBRARY}, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_it_settles_at_the_start_then_only_samples_and_ends_at_once(start: Callable[[str], Watcher]) -> None:
    one = start(WELL)
    one.until(lambda: one.notes().get("level") == "full")
    time.sleep(1.5)
    assert one.asked() == ["settle --automatic"]
    begun = time.monotonic()
    log = one.stop()
    assert one.process.returncode == 0
    assert time.monotonic() - begun < 2
    assert "watching a every 1 s" in log
    assert watcher_notes.unhealthy(load("", one.environment)) == ""


def test_pressure_starts_a_step_and_a_stop_waits_for_it(
    start: Callable[[str], Watcher], tmp_path: Path
) -> None:
    step = f"case $1 in step) touch {tmp_path}/stepping; sleep 2; touch {tmp_path}/stepped;; esac; {WELL}"
    one = start(step)
    one.until(lambda: one.notes().get("level") == "full")
    (tmp_path / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 100000 kB\n")
    one.until((tmp_path / "stepping").exists)
    log = one.stop()
    assert (tmp_path / "stepped").exists()
    assert re.search(r"down at full: over for [23] s; over, pressure", log)
    assert "stopping: waiting" in log


def test_a_note_of_a_step_by_hand_is_seen(start: Callable[[str], Watcher], tmp_path: Path) -> None:
    one = start("echo result=done; echo action=nothing; echo level=control-plane; echo message=well")
    one.until(lambda: one.notes().get("level") == "control-plane")
    now, boot = one.notes()["boottime"], one.notes()["boot_id"]
    note = tmp_path / "state" / "last-step"
    note.with_suffix(".new").write_text(
        f"boottime={now}\nboot_id={boot}\ndirection=down\nlevel=control-plane\n"
    )
    os.rename(note.with_suffix(".new"), note)
    one.until(lambda: float(one.notes()["cooldown_up"]) > 0)


def test_memory_that_cannot_be_read_is_told_before_it_begins(
    start: Callable[[str], Watcher], tmp_path: Path
) -> None:
    one = Watcher(tmp_path, WELL)
    one.process.kill()
    one.process.communicate()
    (tmp_path / "meminfo").write_text("MemTotal: 1048576 kB\nMemFree: 834036 kB\n")
    done = subprocess.run(
        [sys.executable, "-m", "regrade.cli", "watch"], env={"PYTHONPATH": LIBRARY, **one.environment},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "MemAvailable" in done.stderr


def test_health_tells_a_watcher_that_is_gone(start: Callable[[str], Watcher]) -> None:
    one = start(WELL)
    one.until(lambda: one.notes().get("level") == "full")
    one.stop()
    settings = load("", {**one.environment, "LOCK_FILE": str(one.folder / "other" / "lock")})
    assert "no watcher has written" in watcher_notes.unhealthy(settings)
    path = one.folder / "regrade.watcher"
    path.write_text(path.read_text().replace("boottime=", "boottime=1\nwas="))
    assert "silent for" in watcher_notes.unhealthy(load("", one.environment))
