# SPDX-License-Identifier: GPL-3.0-or-later
"""Where outputs that are dear to make are kept between runs and checkouts, and the keys they are kept under.

Standard library only. What makes an output does not belong here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Union

Input = Union[str, bytes, Path]


def folder(*below: str) -> Path:
    """A folder of the cache, made if absent."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(root, "exadev-k3s-regrade", *below)
    path.mkdir(parents=True, exist_ok=True)
    return path


def key(*inputs: Input) -> str:
    """Twelve hex digits that change with any input; a path stands for its content, a folder for all its files.

    Names count, modes and times do not: a fresh clone gives the same key.
    """
    digest = hashlib.sha256()
    for item in inputs:
        if isinstance(item, Path):
            for file in _files(item):
                name = file.relative_to(item).as_posix() if item.is_dir() else file.name
                _feed(digest, name.encode())
                _feed(digest, file.read_bytes())
        else:
            _feed(digest, item.encode() if isinstance(item, str) else item)
    return digest.hexdigest()[:12]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    if not found:
        raise FileNotFoundError(
            f"{path} holds no file: a cache key needs its content; check the checkout is whole"
        )
    return found


def _feed(digest: hashlib._Hash, data: bytes) -> None:
    # With its length before it, so that ("ab", "c") and ("a", "bc") differ.
    digest.update(len(data).to_bytes(8, "big"))
    digest.update(data)


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Only one process makes the thing called ``name``; the others wait here, then find it made."""
    with open(folder("locks") / name, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
