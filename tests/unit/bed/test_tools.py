# SPDX-License-Identifier: GPL-3.0-or-later
"""How the commands count, and that a repacked archive depends on content alone."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

import archive
import checks
import report
from report import Outcome, Report


def tar(mtime: int, names: list[str], content: bytes = b"x") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as out:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = len(content), mtime, f"user{mtime}"
            out.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def test_time_order_and_owner_do_not_count() -> None:
    assert archive.repacked(tar(1, ["a", "b"])) == archive.repacked(tar(2, ["b", "a"]))


def test_content_counts() -> None:
    assert archive.repacked(tar(1, ["a"], b"x")) != archive.repacked(tar(1, ["a"], b"y"))


def test_a_repacked_archive_holds_the_same_files() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive.repacked(tar(1, ["a"], b"text")))) as out:
        (member,) = out.getmembers()
        held = out.extractfile(member)
        assert held is not None and held.read() == b"text"
        assert (member.mtime, member.uname) == (archive.FIXED_TIME, "")


def test_counts_come_from_junit_and_a_skipped_test_is_a_failed_one(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="m" name="good"><properties/></testcase>'
        '<testcase classname="m" name="bad"><failure/></testcase>'
        '<testcase classname="m" name="worse"><error/></testcase>'
        '<testcase classname="m" name="lazy"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    assert report.counts(file) == (1, 3, ["m::bad failure", "m::worse error", "m::lazy skipped"])


def test_a_report_sums_its_parts_and_is_ok_only_when_something_ran_and_nothing_failed() -> None:
    made = Report("make x")
    assert not made.ok and "nothing was run" in made.line()
    made.add(Outcome("a", 3, 0, 1.0))
    assert made.ok and made.line().startswith("make x: ok in")
    made.add(Outcome("b", 1, 2, 1.0, ["b: first", "b: second"]))
    summary = made.summary()
    assert (summary["ok"], summary["passed"], summary["failed"]) == (False, 4, 2)
    assert summary["parts"]["b"] == {"passed": 1, "failed": 2, "seconds": 1.0}
    assert "b: first (and 1 more)" in made.line()


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.name)
def test_a_check_with_nothing_to_check_fails(
    check: checks.Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    problem, _ = checks._problem(check)
    assert problem is not None and "nothing to check" in problem
