"""Progress of long parts of the build: what runs, how far it is, how long it took last time."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

EVERY_SECONDS = 10.0


class Progress:
    """Writes to standard error; remembers durations in a file of the cache folder."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._lock = threading.Lock()

    def _durations(self) -> dict[str, float]:
        try:
            loaded = json.loads(self._memory.read_text())
        except (OSError, ValueError):
            return {}
        return loaded if isinstance(loaded, dict) else {}

    def say(self, text: str) -> None:
        with self._lock:
            print(f"bed image: {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def part(self, name: str, how_far: Callable[[], str] = str) -> Iterator[None]:
        """Show one part while the body runs; `how_far` may add what it knows."""
        last = self._durations().get(name)
        before = f", last time {last:.0f} s" if last else ""
        self.say(f"{name} ...{before}")
        start = time.monotonic()
        done = threading.Event()

        def tick() -> None:
            while not done.wait(EVERY_SECONDS):
                passed = time.monotonic() - start
                far = how_far()
                self.say(f"{name}: {passed:.0f} s{before}{f', {far}' if far else ''}")

        threading.Thread(target=tick, daemon=True).start()
        try:
            yield
        finally:
            done.set()
        took = time.monotonic() - start
        self.say(f"{name}: done in {took:.0f} s")
        with self._lock:
            self._memory.write_text(json.dumps({**self._durations(), name: round(took, 1)}, indent=2))
