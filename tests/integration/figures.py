# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures taken on the way: memory of a server at a level, and how long etcd and its API were away in a step.

Printed in one line each and kept in build/integration/figures.json. What a figure must be is for the tests to say.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from bed import Server

FILE = Path(__file__).resolve().parents[2] / "build" / "integration" / "figures.json"
UNITS = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}

# Runs on the server's host, which shares its loopback with k3s, until its standard input is closed. Two threads, so
# that an API that hangs does not hide etcd. The certificate is the bed's own; who answers is told by the address.
_WATCH = """
import http.client, ssl, sys, threading, time
ended, lock = threading.Event(), threading.Lock()

def watch(what, connect, path, good):
    while not ended.is_set():
        connection = connect()
        begun = time.monotonic()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            well = good(answer.status, answer.read())
        except (OSError, http.client.HTTPException):
            well = False
        finally:
            connection.close()
        with lock:
            print(what, begun, int(well), flush=True)
        ended.wait(0.1)

unverified = ssl._create_unverified_context()
threads = [
    threading.Thread(target=watch, args=(
        "etcd", lambda: http.client.HTTPConnection("127.0.0.1", 2381, timeout=3), "/health",
        lambda status, body: status == 200 and b'"health":"true"' in body)),
    threading.Thread(target=watch, args=(
        "api", lambda: http.client.HTTPSConnection("127.0.0.1", 6443, timeout=3, context=unverified), "/readyz",
        lambda status, body: status in (200, 401))),
]
for thread in threads:
    thread.start()
sys.stdin.read()
ended.set()
"""


class Away:
    """Polls a server's etcd (2381) and API (6443) some times a second while a step is made: a context manager."""

    def __init__(self, server: Server, step: str) -> None:
        self.server, self.step = server, step
        self.seen: dict[str, list[tuple[float, bool]]] = {"etcd": [], "api": []}

    def __enter__(self) -> Away:
        command = ["docker", "exec", "-i", self.server.host_container, "python3", "-c", _WATCH]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdout is not None
        self._first = self._child.stdout.readline()  # it looks now, so nothing of the step is missed
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        rest, _ = self._child.communicate(timeout=30)
        for line in (self._first + rest).splitlines():
            what, at, well = line.split()
            self.seen[what].append((float(at), well == "1"))
        if kind is None:
            figures = {what: self.seconds(what) for what in self.seen}
            told = ", ".join(f"{what} {_told(found)}" for what, found in figures.items())
            print(f"{self.server.name}, {self.step}: away: {told}")
            keep("away_seconds", self.server.name, self.step, figures)

    def seconds(self, what: str) -> float | None:
        """The longest time without an answer, counted from the step's begin; None where there was none at its end."""
        seen = self.seen[what]
        assert seen, f"{self.server.name}: {what} was not looked at"
        if not seen[-1][1]:
            return None
        longest, since = 0.0, None
        for at, well in seen:
            if not well:
                since = at if since is None else since
            elif since is not None:
                longest, since = max(longest, at - since), None
        return round(longest, 1)


def _told(seconds: float | None) -> str:
    return "and not back in this step" if seconds is None else f"{seconds:.1f} s"


def memory(server: Server, level: str) -> float:
    """MiB of the k3s container, as its own engine shows it: the cgroup's usage less what is only cached."""
    shown = server.docker("stats", "--no-stream", "--format={{.MemUsage}}", "k3s").stdout
    found = re.match(r"([\d.]+)([KMG]iB) /", shown)
    assert found, f"{server.name}: docker stats shows {shown!r} for k3s's memory"
    used = float(found[1]) * UNITS[found[2]]
    print(f"{server.name} at {level}: {used:.0f} MiB")
    keep("memory_mib", server.name, level, round(used))
    return used


def keep(*path_and_value: Any) -> None:
    """Put one figure into the file, below its names; what other tests put there stays."""
    *path, last, value = path_and_value
    try:
        figures = json.loads(FILE.read_text(encoding="utf-8"))
    except FileNotFoundError:
        figures = {}
    below = figures
    for name in path:
        below = below.setdefault(name, {})
    below[last] = value
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")
