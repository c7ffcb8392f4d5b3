# SPDX-License-Identifier: GPL-3.0-or-later
"""Every named point is one that a step comes by, in that order, and each row can be done."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import driver
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import settle, step_to
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster, Crash

TESTS = Path(__file__).resolve().parents[2]
for folder in (TESTS / "integration" / "lib", TESTS / "integration" / "writes", TESTS / "faults"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import faults  # noqa: E402
import faults_done  # noqa: E402
import held_step  # noqa: E402
import rows  # noqa: E402
from rows import ROWS, SHORT  # noqa: E402

DIES = [row for row in ROWS if row.fault.startswith("kill_")]


@pytest.mark.parametrize("row", DIES, ids=lambda row: row.name)
def test_a_process_that_dies_at_the_point_of_a_row_leaves_what_ends_at_its_level(
    row: rows.Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    step_to(cluster.process("server1"), row.start)

    def wait() -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(driver.Driver, "__init__", driver.Driver.__init__)
        held_step.hold(driver.Driver, row.at, wait)
        with pytest.raises(Crash):
            step_to(cluster.process("server1"), row.to)
    settle(cluster.process("server1"))
    assert cluster.hosts["server1"].running == row.level


@pytest.mark.parametrize("row", [row for row in ROWS if row not in DIES], ids=lambda row: row.name)
def test_a_step_of_a_row_comes_by_its_point(row: rows.Row, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    step_to(cluster.process("server1"), row.start)
    seen: list[str] = []
    monkeypatch.setattr(driver.Driver, "__init__", driver.Driver.__init__)
    held_step.hold(driver.Driver, row.at, lambda: seen.append(row.at))
    step_to(cluster.process("server1"), row.to)
    assert seen


def test_the_points_are_told_in_the_order_in_which_a_step_comes_by_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    step_to(cluster.process("server1"), "control-plane")
    seen: list[str] = []
    monkeypatch.setattr(driver.Driver, "__init__", driver.Driver.__init__)
    for name, *_ in held_step.POINTS:
        held_step.hold(driver.Driver, name, lambda name=name: seen.append(name))
    step_to(cluster.process("server1"), "etcd-only")
    assert list(dict.fromkeys(seen)) == [name for name, *_ in held_step.POINTS]


def test_a_clock_is_off_by_what_its_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        def now_text(self) -> str:
            return "2026-11-30T01:00:00.000000Z"

    monkeypatch.setattr(held_step, "FOLDER", str(tmp_path))
    held_step.shift_clock(Clock)
    assert Clock().now_text() == "2026-11-30T01:00:00.000000Z"
    (tmp_path / "clock").write_text("-18000\n", encoding="ascii")
    assert Clock().now_text() == "2026-11-29T20:00:00.000000Z"


def test_no_two_rows_have_one_name_and_each_can_be_done() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert callable(getattr(faults_done, row.fault)), row.name
    assert set(SHORT) <= {row.name for row in ROWS}
    for name, *_ in held_step.POINTS:
        assert f"killed-down-{name}" in {row.name for row in ROWS}


def test_rows_are_chosen_by_name() -> None:
    assert faults.chosen("") == list(ROWS)
    one, other = ROWS[3], ROWS[0]
    assert faults.chosen(f"{one.name}, {other.name}") == [one, other]
    with pytest.raises(ValueError, match="ROW names no-such: the rows are killed-down-lease-taken, "):
        faults.chosen(f"{one.name},no-such")


def test_the_table_shows_what_went_wrong() -> None:
    good = {
        "what": "this",
        "level": "full",
        "problem": "",
        "seconds": 4.4,
        "lost": 0,
        "writes": 70,
        "stall": 0.61,
    }
    bad = {"what": "that", "level": "full", "problem": "lost: k0: a"}
    assert faults.table([good, bad]).splitlines()[2:] == [
        "| this | full | 4 s | 0 of 70 | 0.6 s |",
        "| that | **lost: k0: a** | | | |",
    ]


class _Kept:
    """A server of a bed that is there; what it answers to a step up."""

    def __init__(self, code: int) -> None:
        self.code, self.ran = code, ""

    def sh(self, script: str, **_named: object) -> SimpleNamespace:
        self.ran = script
        return SimpleNamespace(returncode=self.code)


@pytest.mark.parametrize("codes, goes", [((0, 0, 0), False), ((0, 1, 0), True)], ids=["at full", "stuck"])
def test_a_bed_that_was_kept_is_brought_to_full_before_it_is_waited_for(codes: tuple[int, ...], goes: bool) -> None:
    did: list[str] = []
    stage = object.__new__(faults.Stage)
    stage.bed = SimpleNamespace(servers=[_Kept(code) for code in codes], down=lambda: did.append("down"))
    stage._begin_with_what_is_there()
    assert did == (["down"] if goes else [])
    assert all("regrade step to full" in server.ran for server in stage.bed.servers[: 2 if goes else 3])


def test_marks_that_are_left_are_told() -> None:
    meta: dict[str, Any] = {
        "name": "server1",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {held_step.STEP: "{}"},
        "labels": {faults.recorded.LEVEL: "control-plane"},
    }
    node = {"metadata": meta, "spec": {"unschedulable": True}}
    assert faults._marks(node, "control-plane") == [
        "taint is None, not control-plane",
        "step is {}, not None",
    ]
    assert len(faults._marks(node, "full")) == 3
    assert faults._marks({"metadata": {**meta, "annotations": {}, "labels": {}}}, "full") == []


def test_the_points_stand_on_the_page_in_the_same_words() -> None:
    page = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|$", page, re.M)
    assert told == [(name, words) for name, words, *_ in held_step.POINTS]


def test_each_row_stands_on_the_page_as_measured_or_as_not_run() -> None:
    page = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
    part = page.partition("\n## What was measured\n")[2]
    measured = re.findall(r"^\| ([^|]+) \| ([\w-]+) \| \d+ s \|", part, re.M)
    not_run = re.findall(r"^- `([\w-]+)`", part, re.M)
    for row in ROWS:
        told = [level for words, level in measured if words == row.what or words.startswith(f"{row.what} (")]
        assert told == ([] if row.name in not_run else [row.level]), row.name
    assert len(measured) + len(not_run) == len(ROWS)
