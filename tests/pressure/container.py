# SPDX-License-Identifier: GPL-3.0-or-later
"""A container that thrashes at its own small limit on this very machine, and the real watcher beside it.

The image is the small machine's root, so that none has to be pulled; image and container go at the end. Where no Docker
engine answers this is left out, and said.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "build" / "types"), str(ROOT / "tests" / "bed")]

from ansible_collections.exadev.k3s_regrade.tests.bench import library, stub_cluster  # noqa: E402

import engine  # noqa: E402
from machine import GUEST  # noqa: E402
from parts import Failed, Part  # noqa: E402

HERE = "this-machine"  # as a load
NAME = "exadev-k3s-regrade-pressure"
PSI = Path("/proc/pressure/memory")
LIMIT, FILE_MIB, READERS = "48m", 400, 3
SECONDS = 150
BASELINE_SECONDS = 15
LONGEST_SECONDS = 300  # the container ends by itself, also where what began it was killed
STOP = threading.Event()  # set: end at once

Tell = Callable[[str, float, str], None]


def why_not() -> Optional[str]:
    """Why it cannot be tried on this machine, None where it can."""
    if not PSI.exists():
        return f"{PSI} is not there"
    answer = engine.answers()
    return None if answer is None else f"no Docker engine answers ({answer})"


def run(root: Path, out: Path, part: Part) -> None:
    """Writes what the small machine would tell (curve.py reads it). Raises Failed."""
    with _image(root) as image, tempfile.TemporaryDirectory(prefix="regrade-") as name, out.open("w") as told:
        folder = Path(name)
        with stub_cluster.servers(folder) as servers:
            environment = library.environment(library.unpacked(folder), servers.environment)
            log = folder / "log"
            lock = threading.Lock()

            def tell(kind: str, at: float, text: str) -> None:
                with lock:
                    told.write(f"{kind} {at:.2f} {text}\n")

            with library.watcher(environment, log) as process:
                try:
                    library.until(lambda: " at full: " in log.read_text(), process, log, 60)
                except RuntimeError as error:
                    raise Failed(str(error)) from error
                done = threading.Event()
                read = threading.Thread(target=_follow, args=(log, done, tell))
                read.start()
                try:
                    _sampled(BASELINE_SECONDS, tell)
                    tell("E", time.monotonic(), "load begins")
                    part.now("a container thrashes at its limit")
                    with _container(image):
                        _sampled(SECONDS, tell)
                        if not _runs():
                            tell("E", time.monotonic(), "failed: the container ended before its time")
                    if process.poll() is not None:
                        tell("E", time.monotonic(), f"failed: the watcher ended with {process.returncode}")
                    tell("E", time.monotonic(), "ends")
                finally:
                    done.set()
                    read.join()


def _follow(log: Path, done: threading.Event, tell: Tell) -> None:
    seen = 0
    while True:
        ended = done.is_set()
        lines = log.read_text(errors="replace").splitlines()
        for line in lines[seen:]:
            tell("L", time.monotonic(), line)
        seen = len(lines)
        if ended:
            return
        time.sleep(0.5)


def _sampled(seconds: float, tell: Tell) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        some, full = (line.rpartition("=")[2] for line in PSI.read_text().splitlines())
        found = {
            words[0].rstrip(":"): words[1] for words in map(str.split, Path("/proc/meminfo").read_text().splitlines())
        }
        swapped = int(found["SwapTotal"]) - int(found["SwapFree"])
        tell(
            "S", time.monotonic(),
            f"{some} {full} {found['MemAvailable']} {found['MemTotal']} {found['MemFree']} {swapped} 0",
        )  # fmt: skip
        if STOP.wait(1):
            raise Failed("interrupted")


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=300)


@contextlib.contextmanager
def _image(root: Path) -> Iterator[str]:
    packed = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
    made = subprocess.run(["docker", "import", "-", NAME], stdin=packed.stdout, capture_output=True, text=True)
    if packed.wait() or made.returncode:
        raise Failed(f"docker import failed: {made.stderr.strip()}")
    try:
        yield NAME
    finally:
        _docker("image", "rm", "--force", NAME)


@contextlib.contextmanager
def _container(image: str) -> Iterator[None]:
    _docker("rm", "--force", NAME)  # of a run that was killed
    started = _docker(
        "run", "--detach", "--rm", f"--name={NAME}", f"--memory={LIMIT}", f"--memory-swap={LIMIT}", "--network=none",
        f"--volume={GUEST / 'load.py'}:/load.py:ro", image,
        "/bin/busybox", "timeout", str(LONGEST_SECONDS),
        "/usr/bin/python3", "-S", "/load.py", "limited", "/scratch", str(FILE_MIB), str(READERS),
    )  # fmt: skip
    try:
        if started.returncode:
            raise Failed(f"docker run failed: {started.stderr.strip()}")
        yield
    finally:
        _docker("rm", "--force", NAME)


def _runs() -> bool:
    return _docker("inspect", "--format={{.State.Running}}", NAME).stdout.strip() == "true"
