# SPDX-License-Identifier: GPL-3.0-or-later
"""System calls of a process, counted by strace, and a reader of what it writes."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple, Optional

CALL = re.compile(r"^(?:\d+\s+)?(\w+)\(")


class Calls(NamedTuple):
    """Of whole samples only: from one opening of the marker to the last."""

    samples: int
    a_sample: float
    kinds: dict[str, float]  # name -> calls a sample


def calls(text: str) -> list[tuple[str, str]]:
    """(name, line) of every system call of a trace; signals and the second halves of interrupted calls are none."""
    found = []
    for line in text.splitlines():
        match = CALL.match(line)
        if match:
            found.append((match.group(1), line))
    return found


def a_sample(text: str, marker: str) -> Optional[Calls]:
    """Calls between openings of `marker` (a path, opened once a sample); None where it was opened less than twice."""
    traced = calls(text)
    opened = [
        at for at, (name, line) in enumerate(traced) if name.startswith("open") and f'"{marker}"' in line
    ]
    if len(opened) < 2:
        return None
    samples = len(opened) - 1
    kinds = Counter(name for name, _line in traced[opened[0] : opened[-1]])
    return Calls(
        samples,
        (opened[-1] - opened[0]) / samples,
        {name: round(count / samples, 2) for name, count in kinds.most_common()},
    )


def run(pid: int, seconds: float, folder: Path) -> str:
    """The trace of a process and the children it starts meanwhile; "" where it cannot be traced."""
    if shutil.which("strace") is None:
        return ""
    out = folder / f"trace-{pid}"
    command = ["strace", "-f", "-qq", "-s", "256", "-o", str(out), "-p", str(pid)]
    tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + seconds
    while time.monotonic() < end and tracer.poll() is None:
        time.sleep(0.1)
    if tracer.poll() is None:
        tracer.send_signal(signal.SIGINT)  # lets go of the process, which goes on
    tracer.wait(timeout=10)
    return out.read_text(errors="replace") if out.exists() else ""
