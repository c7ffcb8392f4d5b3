# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's archive, byte-equal each time it is built from the same files."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import tempfile
from pathlib import Path

import dotvenv
from parts import Failed, Part

ROOT = Path(__file__).resolve().parents[2]
# What galaxy.yml may ship, for the second build from a copy. A missing one is for galaxy.yml's own check to refuse.
SOURCES = (
    "galaxy.yml",
    "README.md",
    "COPYING",
    "meta",
    "changelogs",
    "plugins",
    "roles",
    "playbooks",
)
# 1980-01-01: the earliest that every archive format can hold.
FIXED_TIME = 315532800


def build(part: Part, target: Path) -> Path:
    """Build the archive from the checkout and from a copy of it, compare the two, and leave one in ``target``.

    Raises Failed where they differ.
    """
    with tempfile.TemporaryDirectory(prefix="regrade-archive-") as scratch:
        part.now("building the archive")
        first = _build_once(part, ROOT, Path(scratch, "first"))
        # Other times, another order of creation: whatever depends on them shows.
        part.now("building it again from a copy")
        copy = Path(scratch, "copy")
        for name in reversed(SOURCES):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, copy_function=shutil.copy)
            elif (ROOT / name).is_file():
                copy.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
        second = _build_once(part, copy, Path(scratch, "second"))
        if first.read_bytes() != second.read_bytes():
            raise Failed(
                f"two builds of {first.name} differ: {', '.join(_differences(first, second)) or 'the gzip header'}"
            )
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob("exadev-k3s_regrade-*.tar.gz"):
            old.unlink()
        return Path(shutil.copy(first, target / first.name))


def install(part: Part, archive: Path, tree: Path) -> None:
    """Install the archive below ``tree``, as a person would from Galaxy."""
    part.now("installing the archive")
    galaxy = str(dotvenv.program("ansible-galaxy"))
    command = [
        galaxy,
        "collection",
        "install",
        "--force",
        "--no-deps",
        "--offline",
        "-p",
        str(tree),
        str(archive),
    ]
    part.run(command, env=dotvenv.environment(ANSIBLE_COLLECTIONS_PATH=str(tree)))


def _build_once(part: Part, source: Path, target: Path) -> Path:
    galaxy = str(dotvenv.program("ansible-galaxy"))
    raw = target / "raw"
    part.run(
        [galaxy, "collection", "build", "--output-path", str(raw), str(source)], env=dotvenv.environment()
    )
    (built,) = raw.glob("*.tar.gz")
    packed = target / built.name
    packed.write_bytes(repacked(built.read_bytes()))
    return packed


def repacked(archive: bytes) -> bytes:
    """The same files in the order of their names, with one fixed time in the gzip header and in every member."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as source, tarfile.open(fileobj=plain, mode="w") as target:
        for member in sorted(source.getmembers(), key=lambda each: each.name):
            member.mtime = FIXED_TIME
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=FIXED_TIME) as zipped:
        zipped.write(plain.getvalue())
    return packed.getvalue()


def _differences(first: Path, second: Path) -> list[str]:
    one, other = _content(first), _content(second)
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def _content(archive: Path) -> dict[str, tuple[int, bytes]]:
    held = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member)
            held[member.name] = (member.mode, file.read() if file is not None else b"")
    return held
