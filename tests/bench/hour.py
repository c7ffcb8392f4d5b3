# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts a watcher whose time passes faster (hour_child.py), and hears how far it is."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from ansible_collections.exadev.k3s_regrade.tests.bench import library

CHILD = Path(__file__).with_name("hour_child.py")


@contextlib.contextmanager
def watcher(
    environ: Mapping[str, str], log: Path, speed: float, samples: int
) -> Iterator[tuple[subprocess.Popen[bytes], TextIO]]:
    """The process, and the lines it writes: one after each `samples`. They end when it does."""
    reader, writer = os.pipe()
    words = (str(CHILD), f"{speed:g}", str(samples), str(writer))
    with (
        open(reader, encoding="ascii") as told,
        library.watcher(environ, log, *words, descriptors=(writer,)) as process,
    ):
        os.close(writer)
        yield process, told
