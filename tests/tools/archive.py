# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's archive: byte-equal each time it is built from the same files, holding what is needed and no more.

Run by itself it builds and installs the archive with the programs of the Python that runs it, for the scenarios.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(1, str(ROOT / "tests" / "bed"))

import dotvenv  # noqa: E402
import shipped  # noqa: E402
from parts import Failed, Part  # noqa: E402

TREE = ROOT / "build" / "tree"
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
    "docs",
    "examples",
)
# 1980-01-01: the earliest that every archive format can hold.
FIXED_TIME = 315532800


def build(part: Part, target: Path, programs: Path = dotvenv.FOLDER / "bin") -> Path:
    """Build the archive from the checkout and from a copy of it, compare the two, look whether it is whole, and leave
    one in ``target``.

    Raises Failed where they differ, or where a file is missing or too many.
    """
    with tempfile.TemporaryDirectory(prefix="regrade-archive-") as scratch:
        part.now("building the archive")
        first = _build_once(part, ROOT, Path(scratch, "first"), programs)
        # Other times, another order of creation: whatever depends on them shows.
        part.now("building it again from a copy")
        copy = Path(scratch, "copy")
        for name in reversed(SOURCES):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name, copy_function=shutil.copy)
            elif (ROOT / name).is_file():
                copy.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
        second = _build_once(part, copy, Path(scratch, "second"), programs)
        if first.read_bytes() != second.read_bytes():
            raise Failed(
                f"two builds of {first.name} differ: {', '.join(_differences(first, second)) or 'the gzip header'}"
            )
        return _kept(first, target)


def _kept(built: Path, target: Path, whole: bool = True) -> Path:
    """In ``target``, where it holds what it has to. Raises Failed."""
    problems = shipped.problems(built) if whole else []
    if problems:
        raise Failed(f"{built.name} does not hold what it has to: {'; '.join(problems)}")
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("exadev-k3s_regrade-*.tar.gz"):
        old.unlink()
    return Path(shutil.copy(built, target / built.name))


def install(part: Part, archive: Path, tree: Path, programs: Path = dotvenv.FOLDER / "bin") -> None:
    """Install the archive into an empty ``tree``, as a person would from Galaxy, and run its core. One that is there
    already stays: a scenario on another bed may be running from it."""
    part.now("installing the archive")
    tree.mkdir(parents=True, exist_ok=True)
    with (tree / ".lock").open("w", encoding="ascii") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not _is_there(archive, tree):
            shutil.rmtree(tree / "ansible_collections", ignore_errors=True)
            part.run(
                [str(programs / "ansible-galaxy"), "collection", "install", "--force", "--no-deps", "--offline",
                 "-p", str(tree), str(archive)],
                env=dotvenv.environment(ANSIBLE_COLLECTIONS_PATH=str(tree)),
            )  # fmt: skip
    core = tree.joinpath("ansible_collections", "exadev", "k3s_regrade", "plugins", "module_utils")
    levels = [sys.executable, "-S", "-B", "-m", "regrade.cli", "levels"]
    part.run(levels, env={**os.environ, "PYTHONPATH": str(core)})


def _is_there(archive: Path, tree: Path) -> bool:
    listed = tree / "ansible_collections" / "exadev" / "k3s_regrade" / "FILES.json"
    return listed.is_file() and listed.read_bytes() == _content(archive)["FILES.json"][1]


def _build_once(part: Part, source: Path, target: Path, programs: Path) -> Path:
    raw = target / "raw"
    part.run(
        [str(programs / "ansible-galaxy"), "collection", "build", "--output-path", str(raw), str(source)],
        env=dotvenv.environment(),
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


def main(source: Path = ROOT, target: Path = ROOT / "build" / "archive", tree: Path = TREE) -> None:
    """Built once: that two builds are the same is for `make build`."""
    programs = Path(sys.executable).parent
    with Part("archive") as part, tempfile.TemporaryDirectory(prefix="regrade-archive-") as scratch:
        part.now("building the archive")
        built = _build_once(part, source, Path(scratch), programs)
        # An earlier release ships what it shipped.
        install(part, _kept(built, target, whole=source == ROOT), tree, programs)


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except Failed as error:
        sys.exit(f"archive: {error}")
