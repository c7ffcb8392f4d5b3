# SPDX-License-Identifier: GPL-3.0-or-later
"""State on disk: whole or not at all, and the host's lock between real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import pair_files, psi
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.clock import SystemClock
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.state_files import (
    FileLock,
    StateFiles,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import (
    HostBusy,
    RegradeError,
    StateLost,
    StepRefused,
)


def test_documents_go_round_and_away(tmp_path: Path) -> None:
    store = StateFiles(str(tmp_path / "made"))
    assert store.read("journal") is None
    store.write("journal", {"id": "a", "facts": {"x": "y"}})
    assert StateFiles(str(tmp_path / "made")).read("journal") == {"id": "a", "facts": {"x": "y"}}
    store.remove("journal")
    store.remove("journal")
    assert store.read("journal") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\x00"])
def test_a_broken_document_is_an_error_never_absent(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.json").write_text(text)
    with pytest.raises(RegradeError, match=r"journal\.json"):
        StateFiles(str(tmp_path)).read("journal")


def test_a_write_that_fails_keeps_the_old_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case B20: ENOSPC."""
    store = StateFiles(str(tmp_path))
    store.write("journal", {"id": "old"})

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RegradeError, match="No space left on device"):
        store.write("journal", {"id": "new"})
    monkeypatch.undo()
    assert store.read("journal") == {"id": "old"}


def test_a_removal_that_fails_is_told_whatever_part_of_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateFiles(str(tmp_path))

    def failing(*_given: object) -> None:
        raise OSError(5, "Input/output error")

    for part in ("unlink", "fsync"):
        store.write("journal", {"id": "1"})
        with monkeypatch.context() as patch:
            patch.setattr(os, part, failing)
            with pytest.raises(StateLost, match="Input/output error"):
                store.remove("journal")


def test_the_lock_excludes_another_process_and_names_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = FileLock(path)
    held.acquire("a step down of server1")
    with pytest.raises(HostBusy, match=r"busy with a step down of server1, process \d+"):
        FileLock(path).acquire("another")
    held.release()
    FileLock(path).acquire("another")


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)"
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=30)
    FileLock(path).acquire("mine")


def test_a_full_disk_does_not_keep_the_lock_from_being_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    held = FileLock(str(tmp_path / "lock"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        held.acquire("mine")
    with pytest.raises(HostBusy, match="another process"):
        FileLock(str(tmp_path / "lock")).acquire("another")
    held.release()
    FileLock(str(tmp_path / "lock")).acquire("another")


def test_a_lock_that_cannot_be_opened_refuses(tmp_path: Path) -> None:
    with pytest.raises(StepRefused, match="LOCK_FILE="):
        FileLock(str(tmp_path / "none" / "lock")).acquire("mine")


def test_pairs_on_disk(tmp_path: Path) -> None:
    path = str(tmp_path / "last-step")
    assert pair_files.read(path) == {}
    pair_files.write(path, {"level": "full", "message": "two\nlines"})
    assert pair_files.read(path) == {"level": "full", "message": "two lines"}
    Path(path).write_text("not pairs")
    assert pair_files.read(path) == {}


def test_clock() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    assert clock.boottime() >= before > 0
    assert len(clock.boot_id()) == 36
    assert len(clock.now_text()) == len("2026-01-01T00:00:00.000000Z")


def test_pressure_that_is_missing_names_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "psi=1" in psi.missing_pressure(str(tmp_path / "none"))
    empty = tmp_path / "empty"
    empty.write_text("")
    assert "psi=1" in psi.missing_pressure(str(empty))
    wrong = tmp_path / "wrong"
    wrong.write_text("full total=3\n")
    assert "some" in psi.missing_pressure(str(wrong))
    assert "EISDIR" in psi.missing_pressure(str(tmp_path)) or "directory" in psi.missing_pressure(
        str(tmp_path)
    )
    right = tmp_path / "right"
    right.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=3\n")
    assert psi.missing_pressure(str(right)) == ""

    def unsupported(_path: str) -> str:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(psi, "read_text", unsupported)
    assert "EOPNOTSUPP" in psi.missing_pressure(str(right))
    assert psi.sample(str(right), str(right), "b").stall is None


def test_a_process_that_is_not_run_between_two_clocks_is_no_host_that_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays = iter((3.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    now = [1000.0]

    def clock(_which: int) -> float:
        at = now[0]
        now[0] += next(delays, 0.0)
        return at

    monkeypatch.setattr(psi.time, "clock_gettime", clock)
    sample = psi.sample("/nonexistent", "/nonexistent", "b1")
    assert sample.boottime == sample.monotonic == 1003.0


def test_a_sample_of_this_host() -> None:
    taken = psi.sample("/proc/pressure/memory", "/proc/meminfo", psi.boot_id())
    assert taken.available
    assert taken.total
    assert taken.available <= taken.total
