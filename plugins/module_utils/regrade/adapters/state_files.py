# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The state store on disk, and the host's lock. Small JSON documents, written whole or not at all.

No decision belongs here. The watcher's own notes are `pair_files`, which needs no json.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import Dict, Optional

from ..ports import HostBusy, StateLost, StepRefused
from . import pair_files


class StateFiles:
    """`ports.StateStore` in a folder (STATE_DIR), which is made where it is missing."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.json")

    def read(self, name: str) -> Optional[Dict[str, object]]:
        path = self._path(name)
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise StateLost(
                f"{path} cannot be read: {error}; expected a JSON object; look at it, and remove it "
                "only after comparing the Node's marks with the level k3s runs at"
            ) from None
        if not isinstance(found, dict):
            raise StateLost(f"{path} holds {type(found).__name__}, expected a JSON object")
        return found

    def write(self, name: str, document: Dict[str, object]) -> None:
        path = self._path(name)
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            pair_files.write_whole(path, json.dumps(document, sort_keys=True).encode() + b"\n")
        except OSError as error:
            raise StateLost(
                f"{path} cannot be written: {error.strerror}; STATE_DIR must be writable storage that "
                "outlives the container"
            ) from None

    def remove(self, name: str) -> None:
        try:
            os.unlink(self._path(name))
            folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateLost(f"{self._path(name)} cannot be removed: {error.strerror}") from None

    def read_note(self) -> Dict[str, str]:
        """The note of the last step, {} where there is none that can be read."""
        try:
            return pair_files.read(os.path.join(self._folder, pair_files.LAST_STEP))
        except OSError:
            return {}

    def note_step(self, values: Dict[str, str]) -> None:
        """The last step, where the watcher looks for it."""
        path = os.path.join(self._folder, pair_files.LAST_STEP)
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            pair_files.write(path, values)
        except OSError as error:
            raise StateLost(f"{path} cannot be written: {error.strerror}") from None


class FileLock:
    """`ports.HostLock`: an exclusive flock, the same file for every runtime on the host."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self, purpose: str) -> None:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StepRefused(
                f"LOCK_FILE={self._path} cannot be opened: {error.strerror}; it must lie on the host's "
                "/run/lock, shared by everything that may step"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 256).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise HostBusy(
                f"this host is busy with {holder or 'another process'} (lock {self._path}); "
                "try again when that has ended"
            ) from None
        self._descriptor = descriptor
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{' '.join(purpose.split())}, process {os.getpid()}\n".encode())
        except OSError:
            return  # who holds it is words for others: the lock holds without them

    def release(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # as above
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1
