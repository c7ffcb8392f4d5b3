# SPDX-License-Identifier: GPL-3.0-or-later
"""The archive's bytes depend on the sources alone: a second run must find the hosts unchanged."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path

from ansible_collections.exadev.k3s_regrade.plugins.lookup.core_archive import pack

CORE = Path(__file__).resolve().parents[3] / "plugins" / "module_utils" / "regrade"


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    copy = tmp_path / "regrade"
    shutil.copytree(CORE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "cli.cpython-311.pyc").write_bytes(b"of another machine")
    assert pack(copy) == pack(CORE)


def test_other_sources_give_other_bytes(tmp_path: Path) -> None:
    copy = tmp_path / "regrade"
    shutil.copytree(CORE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "cli.py").open("a", encoding="utf-8") as file:
        file.write("# one line more\n")
    assert pack(copy) != pack(CORE)


def test_the_command_line_is_in_it() -> None:
    with zipfile.ZipFile(io.BytesIO(pack(CORE))) as archive:
        assert "regrade/cli.py" in archive.namelist()
        assert "regrade/core/__init__.py" in archive.namelist()
