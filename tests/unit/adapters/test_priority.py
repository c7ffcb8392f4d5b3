# SPDX-License-Identifier: GPL-3.0-or-later
"""What the watcher asks of the kernel for itself, and what a command gives up: granted and refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import priority

LIBRARY = str(Path(cli.__file__).parent.parent)
CAP_IPC_LOCK = 14


def locked_by(code: str) -> tuple[str, int]:
    """What `protect` says in a process of its own after `code`, and the KiB that are locked then."""
    code = (
        f"import os\nfrom regrade.adapters import priority\n{code}\nprint(priority.protect())\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmLck')).split()[1])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": LIBRARY}, capture_output=True, text=True, check=True
    )  # fmt: skip
    said, locked = done.stdout.splitlines()
    return said, int(locked)


def may_lock() -> bool:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(status["CapEff"], 16) >> CAP_IPC_LOCK & 1)


def test_memory_is_locked_where_that_is_allowed_and_it_is_said() -> None:
    said, locked = locked_by("")
    assert (locked > 0, "memory is locked" in said) == (may_lock(), may_lock())
    assert said.count("memory is") == 1


def test_where_it_is_refused_it_says_why_and_goes_on() -> None:
    said, locked = locked_by("priority.LOCK = 0")  # the kernel answers EINVAL
    assert said.startswith("memory is not locked (Invalid argument; CAP_IPC_LOCK allows it); ")
    assert locked == 0


def test_a_python_without_ctypes_goes_on() -> None:
    said, locked = locked_by("import sys; sys.modules['ctypes'] = None")
    assert said.startswith("memory is not locked (import of ctypes halted")
    assert locked == 0


@pytest.fixture
def score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "oom_score_adj"
    monkeypatch.setattr(priority, "OOM_FILE", str(path))
    monkeypatch.setattr(priority, "_lock", lambda: "")
    return path


@pytest.mark.parametrize(("before", "after"), [("0\n", "-900"), ("200\n", "-900"), ("-999\n", "-999\n")])
def test_the_watcher_goes_last(score: Path, before: str, after: str) -> None:
    score.write_text(before)
    assert priority.protect().endswith("among the last to be killed when memory runs out")
    assert score.read_text()[: len(after)] == after


def test_a_host_that_forbids_it_is_told(score: Path) -> None:
    score.mkdir()  # opened for writing it is refused, as without CAP_SYS_RESOURCE
    assert (
        "killed like any other when memory runs out (Is a directory; set oom_score_adj" in priority.protect()
    )


@pytest.mark.parametrize(("before", "after"), [("-900\n", "0"), ("0\n", "0\n"), ("300\n", "300\n")])
def test_every_command_but_the_watcher_is_ordinary(score: Path, before: str, after: str) -> None:
    score.write_text(before)
    assert cli.main(["levels"]) == 0
    assert score.read_text()[: len(after)] == after


def test_a_command_changes_the_kernels_own_score() -> None:
    """With the kernel's own file, the other way round: to be killed sooner is always allowed."""
    code = (
        "from regrade.adapters import priority\nfrom regrade import cli\npriority.ORDINARY = 500\n"
        "cli.main(['levels'])\nprint(open(priority.OOM_FILE).read())"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": LIBRARY}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.split()[-1] == "500"
