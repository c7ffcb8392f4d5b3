# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""KEY=VALUE files on disk, written whole or not at all: what the watcher and its children tell each other.

Light: the idle loop imports it (no json). The form is `core.pairs`.
"""

from __future__ import annotations

import os

from ..core import pairs

LAST_STEP = "last-step"  # in STATE_DIR, by whoever stepped
# in STATE_DIR, of `state_files`: there while a step is open, or something of one may be left in the cluster
OPEN = ("journal.json", "lease-held.json", "intent-late.json")
BELOW = "identity.json"  # the same, there while the server is below full
MEMORY = "watcher"  # in STATE_DIR, by the watcher: what it must remember over a restart


def read(path: str) -> dict[str, str]:
    """{} where the file is absent or not of the form (it is a note, not a decision). Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    try:
        text = os.read(descriptor, 65536).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
    try:
        return pairs.parse(text.rstrip("\0 \n"))
    except ValueError:
        return {}


def write_whole(path: str, data: bytes) -> None:
    """The file with this content, flushed to storage, or the old one. Raises OSError."""
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write(path: str, values: dict[str, str]) -> None:
    write_whole(path, pairs.dump(values).encode("utf-8", "backslashreplace"))
