"""Child processes of PID 1: starting, reaping, ending them.

As PID 1 the launcher inherits every orphan of the container, so all children are reaped in one place and
subprocess's own waiting is never used. What to start is the callers' business.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

ENVIRONMENT = {"PATH": "/bed/lib:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


class Process:
    """A started child. `code` is its exit code once it has ended, as subprocess gives it."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.pid = popen.pid
        self.stdin: IO[bytes] | None = popen.stdin
        self.stdout: IO[bytes] | None = popen.stdout
        self.code: int | None = None
        self._popen = popen
        self._ended = threading.Event()

    def mark(self, code: int) -> None:
        self.code = code
        self._popen.returncode = code  # keeps Popen from waiting itself
        self._ended.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended within so many seconds."""
        return self._ended.wait(timeout)

    def send(self, number: signal.Signals) -> None:
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Processes:
    """All children of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[Process, Callable[[Process], None] | None]] = {}
        threading.Thread(target=self._reap, name="reaper", daemon=True).start()

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        ended: Callable[[Process], None] | None = None,
        environment: Mapping[str, str] | None = None,
        pipe_in: bool = False,
        pipe_out: bool = False,
    ) -> Process:
        """Start a child; its output goes to the launcher's own unless `pipe_out`. `ended` is called once."""
        with self._lock:
            popen = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE if pipe_in else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe_out else 1,
                stderr=1,
                env={**ENVIRONMENT, **(environment or {})},
                start_new_session=True,
            )
            process = Process(name, popen)
            self._known[process.pid] = (process, ended)
        return process

    def run(self, name: str, command: Sequence[str | Path], timeout: float = 60) -> int:
        """Run a child to its end and give its code; one that takes longer is killed."""
        process = self.start(name, command)
        if not process.wait(timeout):
            process.send(signal.SIGKILL)
            process.wait()
        return process.code if process.code is not None else -1

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                time.sleep(0.2)
                continue
            with self._lock:
                process, ended = self._known.pop(pid, (None, None))
            if process is not None:
                process.mark(os.waitstatus_to_exitcode(status))
                if ended is not None:
                    ended(process)
