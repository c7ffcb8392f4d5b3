# SPDX-License-Identifier: GPL-3.0-or-later
"""Says what a long part is doing, how far it is, and how long it took last time; runs its commands into a log.

Standard library only. Plain lines, so that a terminal and a CI log read the same. What the parts are does not
belong here.
"""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Optional

import cache

EVERY_SECONDS = 15.0
"""A part that is silent for this long is spoken for."""

_commands: set[subprocess.Popen[str]] = set()
"""Those that run now, of every thread."""

_say_lock = threading.Lock()
_times_lock = threading.Lock()


class Failed(RuntimeError):
    """A part failed; the message is one line that says what was found, what was expected and what to do."""


def say(line: str) -> None:
    """One whole line to standard output, also when several parts run side by side."""
    with _say_lock:
        print(line, flush=True)


def end_commands() -> None:
    """Ends what other threads run, so that they fail and end."""
    for child in list(_commands):
        child.terminate()


def span(seconds: float) -> str:
    """``7 s``, ``2 min 10 s``."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def last_time(name: str) -> Optional[float]:
    """Seconds the part took when it last succeeded on this machine, if it ever did."""
    value = _read_times().get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _read_times() -> dict[str, object]:
    try:
        times = json.loads((cache.folder() / "times.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return times if isinstance(times, dict) else {}


def _remember(name: str, seconds: float) -> None:
    with _times_lock, cache.lock("times"):
        times = _read_times()
        times[name] = round(seconds, 1)
        path = cache.folder() / "times.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(times, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(path)


class Part:
    """One long part, as a context manager: ``with Part("host image") as part: part.run([...])``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = 0.0
        self._doing = ""
        self._began = 0.0
        self._done = threading.Event()
        self._log = cache.folder("logs") / (re.sub(r"[^a-z0-9]+", "-", name.lower()) + ".log")

    def __enter__(self) -> Part:
        self._began = time.monotonic()
        self._log.unlink(missing_ok=True)
        last = last_time(self.name)
        say(
            f"[{self.name}] begins"
            + (f"; last time {span(last)}" if last is not None else "; first time here")
        )
        threading.Thread(target=self._speak, daemon=True).start()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: object, trace: object) -> None:
        self._done.set()
        self.seconds = time.monotonic() - self._began
        if kind is None:
            _remember(self.name, self.seconds)
            say(f"[{self.name}] done in {span(self.seconds)}")
        else:
            say(f"[{self.name}] FAILED after {span(self.seconds)}")

    def now(self, doing: str) -> None:
        """What the part does from now on; said with the next sign of life."""
        self._doing = doing

    def _speak(self) -> None:
        last = last_time(self.name)
        while not self._done.wait(EVERY_SECONDS):
            spent = time.monotonic() - self._began
            line = f"[{self.name}] {span(spent)}"
            if last is not None:
                line += f" of about {span(last)}"
            say(line + (f": {self._doing}" if self._doing else ""))

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: Optional[Path] = None,
        env: Optional[Mapping[str, str]] = None,
        timeout: float = 3600,
        echo: bool = False,
        describe: Callable[[str], str] = lambda line: line,
        shown: int = 25,
    ) -> None:
        """Run a command; its output goes to a log in the cache, its last line into the signs of life.

        ``echo`` prints the output as well, for commands whose output is what the user asked for.
        ``describe`` turns an output line into what is said ("" keeps what was said before).
        Raises Failed, with so many last lines of the log printed before as are to be ``shown``.
        """
        tail: collections.deque[str] = collections.deque(maxlen=shown)
        with self._log.open("a", encoding="utf-8") as out:
            out.write(f"\n$ {' '.join(command)}\n")
            out.flush()
            try:
                child = subprocess.Popen(
                    list(command),
                    cwd=cwd,
                    env={**os.environ, **env} if env is not None else None,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                )
            except OSError as error:
                raise Failed(f"{self.name}: {command[0]} could not be started: {error.strerror}") from error
            _commands.add(child)
            killer = threading.Timer(timeout, child.kill)
            killer.start()
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    out.write(line)
                    text = line.rstrip()
                    if echo:
                        say(text)
                    if text:
                        tail.append(text)
                        self._doing = describe(text)[:120] or self._doing
                code = child.wait()
            except BaseException:
                child.terminate()
                child.wait()
                raise
            finally:
                _commands.discard(child)
                timed_out = not killer.is_alive()
                killer.cancel()
        if code:
            if not echo:
                for text in tail:
                    say(f"[{self.name}]   {text}")
            why = f"ended by its limit of {span(timeout)}" if timed_out else f"exit code {code}"
            raise Failed(
                f"{self.name}: `{' '.join(command[:4])}{' ...' if len(command) > 4 else ''}` {why}; log: {self._log}"
            )
