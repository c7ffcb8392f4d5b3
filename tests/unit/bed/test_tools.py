# SPDX-License-Identifier: GPL-3.0-or-later
"""How the commands count, and that a repacked archive depends on content alone."""

from __future__ import annotations

import io
import re
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

import archive
import cache
import checks
import dotvenv
import make
import parts
import report
from parts import Failed
from report import Outcome, Report

ROOT = Path(__file__).resolve().parents[3]


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


def test_figures_add_to_a_summary_and_never_replace_what_was_counted() -> None:
    made = Report("make x", figures={"writes": 7, "ok": True, "seconds": -1.0, "parts": {}, "failed": 0})
    made.add(Outcome("a", 0, 1, 1.0, ["a: first"]))
    summary = made.summary()
    assert (summary["writes"], summary["ok"], summary["failed"], list(summary["parts"])) == (7, False, 1, ["a"])
    assert summary["seconds"] >= 0


@pytest.mark.parametrize(("value", "kept"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_one_rule_says_whether_the_bed_is_kept(
    value: Optional[str], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEEP", raising=False)
    if value is not None:
        monkeypatch.setenv("KEEP", value)
    assert make.keep() is kept
    readers = [
        file.name for folder in ("demo", "tools") for file in (ROOT / "tests" / folder).glob("*.py")
        if '"KEEP"' in file.read_text(encoding="utf-8")
    ]  # fmt: skip
    assert readers == ["make.py"]


def test_an_environment_that_is_a_link_is_used_and_never_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "elsewhere"
    (there / "bin").mkdir(parents=True)
    (there / "bin" / "python").touch()
    (tmp_path / ".venv").symlink_to(there)
    monkeypatch.setattr(dotvenv, "FOLDER", tmp_path / ".venv")
    with pytest.raises(Failed, match=r"is a link to .*elsewhere, which is not made from this lock"):
        dotvenv.ensure()
    assert (there / "bin" / "python").exists()
    (there / ".made-from").write_text(cache.key(dotvenv.LOCK, sys.version, str(there.resolve())))
    dotvenv.ensure()


def test_pytest_says_how_far_it_is() -> None:
    assert checks.pytest_progress("...........F....                         [  7%]") == "7% of the tests"
    assert checks.pytest_progress("tests/test_1_role.py::test_x PASSED      [100%]") == "100% of the tests"
    assert checks.pytest_progress("E       assert [1] == [2]") == ""


def test_molecule_says_how_far_it_is() -> None:
    how_far = checks.molecule_progress()
    told = [
        how_far(line)
        for line in (
            "INFO     [cycle > discovery] scenario test matrix: create, converge",
            "INFO     [cycle > converge] Executing",
            "TASK [exadev.k3s_regrade.github_runner_cluster : Turn regrading on] *****",
            "ok: [server1]",
            "INFO     [cycle > verify] Executing",
            "test_1_role.py ......      [ 42%]",
        )
    ]
    assert told == ["", "converge", "converge: Turn regrading on", "", "verify", "verify: 42% of the tests"]


def test_every_test_that_a_requirement_names_is_in_the_tree_in_the_file_it_names() -> None:
    table = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    tests = {
        file: set(re.findall(r"^ *def (test_\w+)", file.read_text(encoding="utf-8"), re.M))
        for folder in ("tests", "extensions")
        for file in (ROOT / folder).rglob("test_*.py")
    }
    everywhere = set().union(*tests.values())
    rows = re.findall(r"^\| R(\d+) \|.*\| (.+) \|$", table, re.M)
    assert [number for number, _ in rows] == [str(number) for number in range(1, 30)]
    for number, shown_by in rows:
        assert "test_" in shown_by or "not yet" in shown_by or "scenarios" in shown_by, f"R{number}"
        for clause in shown_by.split("; "):
            files = re.findall(r"`([\w/]*test_\w+\.py)`", clause)
            matched = [file for file in tests if any(f"/{file}".endswith(f"/{name}") for name in files)]
            assert len(matched) >= len(files), f"R{number}: {files}"
            for name in re.findall(r"`(test_\w+)`", clause):
                held = set().union(*(tests[file] for file in matched)) if files else everywhere
                assert name in held, f"R{number}: {name} is not in {files or 'the tree'}"


def test_a_test_that_is_named_without_its_folder_is_where_the_page_says() -> None:
    table = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    assert "those without a folder in `cycle/tests`" in " ".join(table.split())
    named = set(re.findall(r"`(test_\w+\.py)`", table))
    there = {file.name for file in (make.SCENARIOS / "cycle" / "tests").iterdir()}
    assert len(named) >= 5 and named - there == set()


def test_what_galaxy_yml_includes_by_name_is_there() -> None:
    galaxy = (ROOT / "galaxy.yml").read_text(encoding="utf-8")
    names = [name for line in re.findall(r"- include (.+)", galaxy) for name in line.split()]
    assert {"README.md", "COPYING"} <= set(names)
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_every_target_of_the_readme_is_there_and_its_scenarios_too() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (made,) = re.findall(r"^(.+):\n\t@\$\(PYTHON\) tests/tools/make.py \$@$", makefile, re.M)
    assert made.split() == list(make.TARGETS)
    named = re.findall(r"\bmake ([a-z-]+)(?: SCENARIO=([a-z-]+))?(?=`|\n)", readme)
    assert {"demo", "test", "check", "molecule"} <= {target for target, _ in named} <= {"help", *make.TARGETS}
    scenarios = {file.parent.name for file in make.SCENARIOS.glob("*/molecule.yml")}
    asked = {scenario for _, scenario in named if scenario} | set(re.findall(r"molecule test -s ([a-z-]+)", readme))
    assert asked and asked <= scenarios


def test_make_test_runs_every_scenario() -> None:
    """Each folder that holds one, whoever made it; plain `molecule test` is `default`, and goes through `cycle`."""
    folders = {folder.name for folder in make.SCENARIOS.iterdir() if any(folder.glob("*.yml"))}
    assert set(make.tested_scenarios()) | {"cycle"} == folders
    assert make.in_order(make.tested_scenarios())[0] == "default"
    assert sorted(make.in_order(make.tested_scenarios())) == sorted(make.tested_scenarios())
    default = (make.SCENARIOS / "default" / "molecule.yml").read_text(encoding="utf-8")
    for part in ("converge.yml", "side_effect.yml", "tests"):
        assert f"../cycle/{part}" in default and (make.SCENARIOS / "cycle" / part).exists()


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.name)
def test_a_check_with_nothing_to_check_fails(
    check: checks.Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    problem, _ = checks._problem(check)
    assert problem is not None and "nothing to check" in problem


def test_what_a_run_of_pytest_is_given_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "BUILD", tmp_path / "build")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "chosen"
    folder.mkdir()
    (folder / "test_two.py").write_text("def test_one():\n    pass\n\n\ndef test_other():\n    pass\n")
    assert checks.pytest("chosen", folder, "-k", "one").passed == 1


def test_what_records_is_ended_with_its_bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no chapter of a scenario came to end it."""
    monkeypatch.setattr(make, "ROOT", tmp_path)
    monkeypatch.delenv("KEEP", raising=False)
    program = tmp_path / "tests" / "integration" / "record.py"
    program.parent.mkdir(parents=True)
    program.write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    recorder = make.Background(tmp_path / "build" / "molecule" / "history.jsonl")
    recorder.start([str(program), str(recorder.path)], begun=lambda: bool(make.recorders()))
    (running,) = make.recorders()
    assert str(program) in running

    class Gone:
        settings = make.Bed().settings

        def down(self) -> None:
            """It was never up."""

    report = make.Report("make test")
    try:
        make.end(report, Gone())
        assert make.recorders() == set()
        assert not recorder.running()
        assert report.outcomes == []
    finally:
        recorder.stop()


def test_what_runs_side_by_side_is_counted_as_it_comes() -> None:
    both = threading.Barrier(2, timeout=20)  # passed only where two run at the same time
    told = Report("make test")

    def work(name: str) -> Iterator[Outcome]:
        both.wait()
        yield Outcome(f"{name} first", 1, 0, 0.0)
        yield Outcome(f"{name} then", 0, 1, 0.0, [f"{name} failed"])

    make.side_by_side(told, lambda: work("a"), lambda: work("b"))
    assert not told.ok
    assert (told.passed, told.failed) == (2, 2)


def test_an_interruption_ends_what_runs_side_by_side_and_begins_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun: list[str] = []

    def sleeps() -> Iterator[Outcome]:
        for name in ("first", "second"):
            begun.append(name)
            try:
                with parts.Part(name) as part:
                    part.run([sys.executable, "-c", "import time; time.sleep(60)"])
            except Failed as error:
                yield Outcome(name, 0, 1, 0.0, [str(error)])

    def breaks() -> Iterator[Outcome]:
        while not parts._commands:
            time.sleep(0.01)
        raise KeyboardInterrupt
        yield

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        make.side_by_side(Report("make test"), sleeps, breaks)
    assert time.monotonic() - began < 30
    assert begun == ["first"]
