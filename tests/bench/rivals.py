# SPDX-License-Identifier: GPL-3.0-or-later
"""What else watches memory: a shell loop over the same two files, earlyoom and systemd-oomd.

The two daemons are fetched as Debian packages and unpacked, never installed: their services would begin to kill. They
run with --dryrun. What cannot be had or does not run here is told, and is no failure.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple, Optional

import cache

SHELL_LOOP = r"""
before=0
while :; do
  while read -r key rest; do case $key in some) total=${rest##*total=};; esac; done <"$1"
  while read -r key value unit; do case $key in MemAvailable:) available=$value;; esac; done <"$2"
  stall=$(( (total - before) / 10000 / $3 )) before=$total
  [ "$stall" -ge 20 ] && [ "$available" -lt 1 ] && echo over
  sleep "$3"
done
"""


class Rival(NamedTuple):
    """A process to compare with, or why there is none."""

    name: str
    process: Optional[subprocess.Popen[bytes]]
    why_not: str = ""


def start(folder: Path, pressure: str, meminfo: str, period: float) -> list[Rival]:
    """All of them, each running or told why not."""
    return [
        shell_loop(pressure, meminfo, period),
        _run("shell loop (busybox)", [*_program("busybox", "bin/busybox"), "sh"], pressure, meminfo, period),
        _daemon("earlyoom", folder, [*_program("earlyoom", "usr/bin/earlyoom"), "--dryrun", "-r", "3600"]),
        _daemon("systemd-oomd", folder, [*_program("systemd-oomd", "lib/systemd/systemd-oomd"), "--dry-run"]),
    ]


def shell_loop(pressure: str, meminfo: str, period: float) -> Rival:
    """Debian's own /bin/sh."""
    return _run("shell loop (dash)", [shutil.which("dash") or "dash"], pressure, meminfo, period)


def _run(name: str, shell: list[str], pressure: str, meminfo: str, period: float) -> Rival:
    command = [*shell, "-c", SHELL_LOOP, "loop", pressure, meminfo, f"{period:g}"]
    return _started(name, command, subprocess.DEVNULL)


def _daemon(name: str, folder: Path, command: list[str]) -> Rival:
    out = folder / f"{name}.log"
    with out.open("wb") as log:
        rival = _started(name, command, log)
    if rival.process is None:
        return rival
    time.sleep(2)  # one that cannot run here ends at once
    if rival.process.poll() is None:
        return rival
    return Rival(name, None, f"it ended here: {last_words(out.read_text(errors='replace'))}")


def last_words(log: str) -> str:
    """The last line of a log that says anything, without terminal colours."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")


def _started(name: str, command: list[str], out: Any) -> Rival:
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    except OSError as error:
        return Rival(name, None, f"not to be had here: {error.strerror}")
    return Rival(name, process)


def _program(package: str, path: str) -> list[str]:
    """The program of a Debian package: where it is installed, else unpacked into the cache."""
    installed = Path("/", path)
    if installed.exists():
        return [str(installed)]
    folder = cache.folder("bench", package)
    if not (folder / path).exists() and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        _quietly(folder, "apt-get", "-q", "download", package)
        for archive in folder.glob("*.deb"):
            _quietly(folder, "dpkg-deb", "-x", archive.name, ".")
            archive.unlink()
    return [str(folder / path)]


def _quietly(folder: Path, *command: str) -> None:
    """What fails here is told by the program that is not there after it."""
    subprocess.run(command, cwd=folder, capture_output=True, timeout=120)
