# SPDX-License-Identifier: GPL-3.0-or-later
"""A recorder as a process of its own, so that it lives through the steps of a scenario and the test that began it.

What it records is not known here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional


class Background:
    """A Python program that writes ``path``, begun and ended by whoever knows the path. Its notes lie beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path.with_suffix(".log")
        self._pid = path.with_suffix(".pid")

    def start(self, command: Sequence[str], begun: Callable[[], bool], seconds: float = 60) -> None:
        """End one that runs, begin with an empty file, and wait until it has begun. ``command`` is what Python is
        given; the file is among it. Raises RuntimeError."""
        self.stop()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        with self.log.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._pid.write_text(str(process.pid), encoding="ascii")
        until = time.monotonic() + seconds
        while not begun():
            if time.monotonic() > until or process.poll() is not None:
                self.stop()
                raise RuntimeError(f"{Path(command[0]).name} does not begin: see {self.log}")
            time.sleep(0.2)

    def running(self) -> bool:
        return self._process() is not None

    def stop(
        self, seconds: float = 10, numbers: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL)
    ) -> None:
        """End it in order, or, when it does not end in that time, at once."""
        for number in numbers:
            pid = self._process()
            if pid is None:
                break
            os.kill(pid, number)
            until = time.monotonic() + seconds
            while self._process() is not None and time.monotonic() < until:
                time.sleep(0.1)
        self._pid.unlink(missing_ok=True)

    def _process(self) -> Optional[int]:
        """The process id, if that process still is our recorder."""
        try:
            pid = int(self._pid.read_text(encoding="ascii"))
            # Of a process that has ended and was not waited for it is empty.
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self.path).encode() in command else None
