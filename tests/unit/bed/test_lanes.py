# SPDX-License-Identifier: GPL-3.0-or-later
"""Scenarios on several beds at once: the beds do not meet, all are tried, and what a failure left is made anew."""

from __future__ import annotations

import ipaddress
import sys
import threading
import time
from pathlib import Path
from typing import Optional

import pytest

import lanes
import make
import parts
import rows
from layout import Settings
from report import Outcome, Report

FIRST = Settings("regrade-bed", "172.31.66.0/24")


def test_the_beds_of_the_lanes_have_names_and_subnets_of_their_own() -> None:
    found = lanes.beds(FIRST, 3)
    assert found[0] == FIRST
    assert len({settings.name for settings in found}) == 3
    networks = [ipaddress.IPv4Network(settings.subnet) for settings in found]
    assert not any(one.overlaps(other) for one in networks for other in networks if one is not other)
    assert (
        Settings.read({"REGRADE_BED_NAME": found[1].name, "REGRADE_BED_SUBNET": found[1].subnet}) == found[1]
    )


def test_the_longest_comes_first_and_what_never_ran_before_it() -> None:
    known: dict[str, Optional[float]] = {"short": 10.0, "long": 900.0, "new": None}
    assert lanes.longest_first(["short", "new", "long"], known.get) == ["new", "long", "short"]


def test_each_runs_once_side_by_side_and_a_failed_one_gets_its_bed_renewed() -> None:
    both = threading.Barrier(2, timeout=20)  # passed only where two run at the same time
    ran: list[tuple[str, str]] = []
    outcomes: list[Outcome] = []
    renewed: list[str] = []

    def scenario(name: str, settings: Settings) -> Outcome:
        ran.append((name, settings.name))
        if name in ("a", "b"):
            both.wait()
        failed = int(name == "b")
        return Outcome(name, 1 - failed, failed, 0.0)

    def renew(settings: Settings) -> Optional[Outcome]:
        renewed.append(settings.name)
        return Outcome(f"bed down ({settings.name})", 0, 1, 0.0)

    lanes.run(["a", "b", "c", "d"], lanes.beds(FIRST, 2), scenario, outcomes.append, renew)
    assert sorted(name for name, _ in ran) == ["a", "b", "c", "d"]
    (failed_on,) = [bed for name, bed in ran if name == "b"]
    assert renewed == [failed_on]
    assert sorted(outcome.name for outcome in outcomes) == sorted(
        ["a", "b", "c", "d", f"bed down ({failed_on})"]
    )


def test_an_interruption_ends_what_runs_and_begins_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun: list[str] = []

    def scenario(name: str, settings: Settings) -> Outcome:
        begun.append(name)
        if name == "breaks":
            while "waits" not in begun or not parts._commands:
                time.sleep(0.01)
            raise KeyboardInterrupt
        try:
            with parts.Part(name) as part:
                part.run([sys.executable, "-c", "import time; time.sleep(60)"])
        except parts.Failed as error:
            return Outcome(name, 0, 1, 0.0, [str(error)])
        return Outcome(name, 1, 0, 0.0)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        lanes.run(["breaks", "waits", "never"], lanes.beds(FIRST, 2), scenario, lambda _: None, lambda _: None)
    assert time.monotonic() - began < 30
    assert sorted(begun) == ["breaks", "waits"]
    assert not parts._commands


def test_a_scenario_with_servers_of_its_own_takes_them_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [name for name in make.scenario_names() if make.has_own_bed(name)] == ["systemd"]
    molecule = tmp_path / "molecule"
    molecule.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/called\n')
    molecule.chmod(0o755)
    down: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("REGRADE_BED_NAME", "one")
    monkeypatch.delenv("KEEP", raising=False)
    monkeypatch.setattr(make.dotvenv, "program", lambda _name: molecule)
    monkeypatch.setattr(make.Bed, "down", lambda bed: down.append(bed.settings.name))
    make.run_scenarios(Report("make molecule"), ["systemd"])
    assert (tmp_path / "called").read_text().splitlines()[-1] == "test --scenario-name systemd"
    assert down == ["one", "one-systemd"]


def test_molecule_is_run_on_each_lanes_own_bed_and_what_failed_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through make.py, with a molecule that only writes down how it was called."""
    molecule = tmp_path / "molecule"
    molecule.write_text(
        "#!/bin/sh\n"
        f'echo "$REGRADE_BED_NAME $REGRADE_BED_SUBNET $MOLECULE_EPHEMERAL_DIRECTORY $*" >>{tmp_path}/called\n'
        'case "$*" in "test --scenario-name bad"*) echo "E  what broke"; exit 1;; esac\n'
        "sleep 0.3\n"
    )
    molecule.chmod(0o755)
    down: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("REGRADE_BED_NAME", "REGRADE_BED_SUBNET", "KEEP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(make.dotvenv, "program", lambda _name: molecule)
    monkeypatch.setattr(make.Bed, "down", lambda bed: down.append(bed.settings.name))
    monkeypatch.setattr(lanes, "COUNT", 2)
    report = Report("make molecule")
    make.run_scenarios(report, ["bad", "default", "good"])

    called = [line.split(" ", 3) for line in (tmp_path / "called").read_text().splitlines()]
    assert sorted(words for _bed, _subnet, _notes, words in called) == [
        "reset",
        "reset --scenario-name bad",
        "reset --scenario-name good",
        "test --destroy=never",
        "test --scenario-name bad --destroy=never",
        "test --scenario-name good --destroy=never",
    ]
    assert len({(bed, subnet, notes) for bed, subnet, notes, _words in called}) == 2
    outcomes = {outcome.name: (outcome.passed, outcome.failed) for outcome in report.outcomes}
    assert outcomes == {"molecule bad": (0, 1), "molecule default": (1, 0), "molecule good": (1, 0)}
    assert "E  what broke" in capsys.readouterr().out
    # The bed of the failed one at once, and all at the end.
    assert sorted(down[1:]) == sorted({bed for bed, _subnet, _notes, _words in called})
    assert down[0] == next(
        bed for bed, _subnet, _notes, words in called if words.startswith("test --scenario-name bad")
    )


@pytest.mark.parametrize(
    ("row", "done"),
    [
        ("soak, removal-raced", {"one": ["soak", "removal x50"]}),
        ("flips", {"one": ["flips"]}),
        (
            "",
            {
                "one": [row.name for row in rows.ROWS if row.name not in rows.BESIDE],
                "one-2": [*rows.BESIDE, "removal x50"],
            },
        ),
    ],
)
def test_all_rows_are_done_once_on_two_beds_and_chosen_ones_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, done: dict[str, list[str]]
) -> None:
    did: dict[str, list[str]] = {}
    down: list[str] = []

    def figured(_report: Report, name: str, env: dict[str, str]) -> Outcome:
        did.setdefault(env["REGRADE_BED_NAME"], []).extend(env["ROW"].split(","))
        return Outcome(name, 1, 0, 0.0)

    def scenario(name: str, settings: Settings, _echo: bool, more: dict[str, str]) -> Outcome:
        did.setdefault(settings.name, []).append(f"{name} x{more['REGRADE_REMOVAL_RACES']}")
        return Outcome(name, 1, 0, 0.0)

    for name, value in {
        "prepare": lambda: None, "figured": figured, "scenario": scenario, "ROOT": tmp_path,
    }.items():  # fmt: skip
        monkeypatch.setattr(make, name, value)
    monkeypatch.setattr(make.checks, "link_types", lambda: None)
    monkeypatch.setattr(make.checks, "build_archive", lambda: Outcome("archive", 1, 0, 0.0))
    monkeypatch.setattr(make.Bed, "down", lambda bed: down.append(bed.settings.name))
    monkeypatch.setenv("REGRADE_BED_NAME", "one")
    monkeypatch.setenv("ROW", row)
    monkeypatch.delenv("KEEP", raising=False)
    report = Report("make faults")
    make.faults(report)
    assert report.ok
    assert did == done
    assert down == list(done)


def test_a_row_that_there_is_not_is_told_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "prepare", lambda: pytest.fail("something was made"))
    monkeypatch.setenv("ROW", "flips,no-such")
    with pytest.raises(parts.Failed, match=r"ROW names no-such: the rows are killed-down-lease-taken, .*removal-raced"):
        make.faults(Report("make faults"))


def test_a_scenario_by_its_name_finds_what_its_tests_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a clean clone, where nothing else has linked it."""
    did: list[str] = []
    monkeypatch.setattr(make, "prepare", lambda: did.append("prepared"))
    monkeypatch.setattr(make.checks, "link_types", lambda: did.append("linked"))
    monkeypatch.setattr(make, "run_scenarios", lambda _report, names: did.extend(names))
    monkeypatch.setenv("SCENARIO", "systemd")
    make.molecule(Report("make molecule"))
    assert did == ["prepared", "linked", "systemd"]
