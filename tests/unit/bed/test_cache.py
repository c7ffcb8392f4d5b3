# SPDX-License-Identifier: GPL-3.0-or-later
"""That a key changes with what is made from it, and with nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cache


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "below").mkdir(parents=True)
    (folder / "a").write_text("one")
    (folder / "below" / "b").write_text("two")
    return folder


def test_times_and_bytecode_do_not_count(source: Path) -> None:
    before = cache.key(source)
    os.utime(source / "a", (1, 1))
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert cache.key(source) == before


def test_content_and_names_count(source: Path) -> None:
    keys = {cache.key(source)}
    (source / "a").write_text("other")
    keys.add(cache.key(source))
    (source / "a").rename(source / "c")
    keys.add(cache.key(source))
    assert len(keys) == 3


def test_the_place_of_the_checkout_does_not_count(source: Path, tmp_path: Path) -> None:
    before = cache.key(source)
    assert cache.key(source.rename(tmp_path / "elsewhere")) == before


def test_inputs_do_not_run_into_one_another() -> None:
    assert cache.key("ab", "c") != cache.key("a", "bc")


def test_a_folder_without_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no file"):
        cache.key(tmp_path)


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder("x") == tmp_path / "exadev-k3s-regrade" / "x"
    assert cache.folder("x").is_dir()
