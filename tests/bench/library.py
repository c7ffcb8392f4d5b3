# SPDX-License-Identifier: GPL-3.0-or-later
"""The real command as the role lays it out: the core alone, compiled, found by PYTHONPATH; and started watchers."""

from __future__ import annotations

import compileall
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import watcher_notes
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import Settings, load


def unpacked(folder: Path) -> Path:
    """The folder to name in PYTHONPATH. Without bytecode the watcher would take 3 MiB more."""
    shutil.copytree(
        Path(cli.__file__).parent, folder / "lib" / "regrade", ignore=shutil.ignore_patterns("__pycache__")
    )
    if not compileall.compile_dir(folder / "lib", quiet=1):
        raise RuntimeError("the core does not compile")
    return folder / "lib"


def environment(library: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Nothing of this process's own but PATH."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(library), **settings}


@contextlib.contextmanager
def watcher(
    environ: Mapping[str, str], log: Path, *command: str, descriptors: tuple[int, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A watcher in a process of its own (`command` may stand for the service's), ended as a service is."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-S", *(command or ("-m", "regrade.cli", "watch"))],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def settings_of(environ: Mapping[str, str]) -> Settings:
    return load("", dict(environ))


def notes(environ: Mapping[str, str]) -> dict[str, str]:
    """What the watcher told last."""
    return watcher_notes.read(settings_of(environ))


def until(holds: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    """Waits until it holds. Raises RuntimeError, with the end of the log, where it does not or the process ended."""
    end = time.monotonic() + seconds
    while not holds():
        if process.poll() is not None or time.monotonic() > end:
            said = log.read_text(errors="replace").strip().splitlines()[-3:]
            raise RuntimeError(f"the watcher is not as expected after {seconds:g} s: {' | '.join(said)}")
        time.sleep(0.02)
