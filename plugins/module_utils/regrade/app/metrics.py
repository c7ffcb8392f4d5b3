# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Where the metrics come from and go to: the watcher's notes and STATE_DIR, the command's stdout and METRICS_FILE.

No API and no Docker is asked. What they say is `core.metrics`. Light: the idle loop imports it where METRICS_FILE
is set.
"""

from __future__ import annotations

import os
import time

from ..adapters import pair_files, psi
from ..core import metrics
from . import watcher_notes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.settings import Settings


def now(settings: Settings) -> str:
    """As whoever asks finds them: of a watcher that is silent only what is on disk, and since when it is."""
    notes, boottime = watcher_notes.read(settings), time.clock_gettime(time.CLOCK_BOOTTIME)
    silent = watcher_notes.silence(settings, notes, boottime)
    told = watcher_notes.number(notes, "boottime") if notes.get("boot_id") == psi.boot_id() else None
    try:
        memory = pair_files.read(os.path.join(settings.state_dir, pair_files.MEMORY))
    except OSError:
        memory = {}
    facts = metrics.Facts(
        {} if silent else notes,
        memory,
        _step_open(settings),
        bool(silent or notes.get("unhealthy")),
        None if told is None else time.time() - boottime + told,
    )
    return metrics.text(facts, settings)


def _step_open(settings: Settings) -> bool:
    return any(os.path.exists(os.path.join(settings.state_dir, name)) for name in pair_files.OPEN)


class Textfile:
    """METRICS_FILE, whole whenever node_exporter reads it. It is not flushed to storage: the next comes soon."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._path = settings.metrics_file
        self._failed = False

    def write(self, notes: dict[str, str], memory: dict[str, str]) -> str:
        """What went wrong, told once, else "": it must not end what keeps a vote."""
        facts = metrics.Facts(notes, memory, _step_open(self._settings), bool(notes["unhealthy"]), time.time())
        try:
            self._replace(metrics.text(facts, self._settings).encode("utf-8", "backslashreplace"))
        except OSError as error:
            failed, self._failed = self._failed, True
            if failed:
                return ""
            return (
                f"METRICS_FILE={self._path} cannot be written: {error.strerror}; its folder has to be there, and "
                "root's; tried again at each sample"
            )
        self._failed = False
        return ""

    def _replace(self, data: bytes) -> None:
        temporary = f"{self._path}.new"  # node_exporter reads what ends in .prom
        _unlink(temporary)  # left by one that was killed; a link there would lead elsewhere
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(descriptor, 0o644)  # the service's umask keeps others out, and node_exporter is not root
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        os.rename(temporary, self._path)

    def remove(self) -> None:
        """A watcher that was stopped on purpose is not silent."""
        _unlink(self._path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # where it matters, what comes next tells
