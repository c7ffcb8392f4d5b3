# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual environment `.venv` of the development commands, made from the lock with hashes.

Standard library only: it runs before there is one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import cache
import engine
from parts import Failed, Part, say

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv"
LOCK = ROOT / "requirements" / "dev.txt"
PYTHON = (3, 11)


def ensure() -> None:
    """Return when .venv holds exactly what the lock says; it is made anew only when the lock or the Python changed."""
    if sys.version_info[:2] != PYTHON:
        found = ".".join(map(str, sys.version_info[:2]))
        raise Failed(
            f"this is Python {found} and the lock is for 3.11: `make PYTHON=/path/to/python3.11 ...`"
        )
    made_from = cache.key(LOCK, sys.version, str(FOLDER.resolve()))
    mark = FOLDER / ".made-from"
    if mark.is_file() and mark.read_text(encoding="utf-8") == made_from and program("python").exists():
        return
    if FOLDER.is_symlink():
        # Making it anew would empty what it points to, which another checkout may be using.
        raise Failed(
            f"{FOLDER} is a link to {FOLDER.resolve()}, which is not made from this lock by this Python: "
            "make it there, or remove the link"
        )
    # Debian's Python comes without what `venv` needs.
    if importlib.util.find_spec("ensurepip") is None:
        engine.packages("python3.11-venv")
    with Part("virtual environment") as part:
        say(f"[virtual environment] making .venv from {LOCK.relative_to(ROOT)}")
        part.now("python -m venv")
        part.run([sys.executable, "-m", "venv", "--clear", str(FOLDER)])
        total = sum(
            "==" in line for line in LOCK.read_text(encoding="utf-8").splitlines() if line[:1].isalnum()
        )
        collected = 0

        def how_far(line: str) -> str:
            nonlocal collected
            collected += line.startswith("Collecting ")
            return (
                "pip: installing" if "Installing" in line else f"pip: {collected} of {total} packages fetched"
            )

        # Bytecode is made when a file is first used: most of the community package never is.
        command = [str(program("python")), "-m", "pip", "install", "--require-hashes", "--no-compile"]
        part.run([*command, "--disable-pip-version-check", "-r", str(LOCK)], describe=how_far, timeout=1800)
        mark.write_text(made_from, encoding="utf-8")


def program(name: str) -> Path:
    """A program of the environment."""
    return FOLDER / "bin" / name


def environment(**more: str) -> dict[str, str]:
    """This process's environment with .venv activated."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
    env.update(VIRTUAL_ENV=str(FOLDER), PATH=f"{FOLDER / 'bin'}{os.pathsep}{env.get('PATH', '')}", **more)
    return env
