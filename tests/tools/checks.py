# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks that need no cluster. Each is a command, what it must find to check, and how that is seen.

A check with nothing to check is an error, not a pass.
"""

from __future__ import annotations

import concurrent.futures
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import archive
import dotvenv
import engine
import report
from parts import Failed, Part, say, span
from report import Outcome

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
TREE = archive.TREE
TYPES = BUILD / "types"
NAME = ("ansible_collections", "exadev", "k3s_regrade")
PACKAGE = ".".join((*NAME, "plugins"))
LOCK = ROOT / "roles" / "github_runner_cluster" / "files" / "requirements.txt"  # of the service's image
SIMULATION = ("-m", ".".join((*NAME, "tests", "simulation", "simulate")))
MUTANTS = ("-m", ".".join((*NAME, "tests", "simulation", "mutants")))


@dataclass(frozen=True)
class Check:
    """A command of the environment; ``subjects`` are globs below the root that must each match a file."""

    name: str
    command: tuple[str, ...]
    subjects: tuple[str, ...]
    seen: Optional[str] = None
    """A pattern that its output must match: the tool's own word that it looked at something."""
    types_on_path: bool = False
    debian: Optional[str] = None
    """The Debian package it comes with, where it is no program of the environment."""
    unpacked: bool = False
    """Whether that package is not to be installed, as it would start a service."""
    given: bool = False
    """Whether it is told the files."""


CHECKS = (
    # Slowest first: two run at a time.
    Check(
        "ansible-lint",
        ("ansible-lint", "--offline", "--nocolor", "--strict"),
        ("roles/*/tasks/*.yml", "playbooks/*.yml", "extensions/molecule/*/*.yml"),
        r"[1-9]\d* files processed|on [1-9]\d* files",
    ),
    Check("mypy", ("mypy", "-p", PACKAGE), ("plugins/**/*.py",), r"no issues found in [1-9]\d* source files"),
    # What runs on servers alone is wrong late, and after long: a name that is gone shall show here.
    Check(
        "mypy of what needs servers",
        ("mypy", f"--cache-dir={BUILD / 'mypy-servers'}"),
        (
            "extensions/molecule/*/tests/*.py", "tests/integration/*.py", "tests/integration/lib/*.py",
            "tests/integration/writes/*.py", "tests/faults/*.py", "tests/demo/*.py", "tests/pressure/*.py",
        ),
        r"no issues found in [1-9]\d* source files",
        given=True,
    ),
    Check(
        "lint-imports", ("lint-imports", "--no-cache"), ("plugins/**/*.py",), r"Analyzed [1-9]\d* files", True
    ),
    Check("vermin", ("vermin", "-t=3.9-", "--no-tips", "--violations", "plugins"), ("plugins/**/*.py",)),
    Check("ruff", ("ruff", "check", "--no-cache", "."), ("plugins/**/*.py", "tests/**/*.py")),
    Check("yamllint", ("yamllint", "--strict", "."), ("*.yml", "roles/**/*.yml")),
    Check(
        "packages for arm64",
        (
            "python", "-m", "pip", "download", "--disable-pip-version-check", f"--dest={BUILD / 'arm64'}",
            "--platform=manylinux2014_aarch64", "--platform=manylinux_2_28_aarch64", "--implementation=cp",
            "--python-version=3.13", "--only-binary=:all:", "--require-hashes", f"--requirement={LOCK}",
        ),
        ("roles/*/files/requirements.txt",),
        r"Successfully downloaded .*\bkubernetes\b",
    ),
    Check("shellcheck", ("shellcheck",), ("examples/**/*.sh", ".ci/run"), debian="shellcheck", given=True),
    Check(
        "alert rules", ("promtool", "check", "rules"), ("examples/monitoring/alerts.yml",),
        r"SUCCESS: [1-9]\d* rules found", debian="prometheus", unpacked=True, given=True,
    ),
    Check(
        "tests of the alert rules", ("promtool", "test", "rules"), ("examples/monitoring/alerts_test.yml",),
        r"SUCCESS", debian="prometheus", unpacked=True, given=True,
    ),
    Check(
        "alertmanager", ("amtool", "check-config"), ("examples/monitoring/alertmanager.yml",),
        r"[1-9]\d* inhibit rules", debian="prometheus-alertmanager", unpacked=True, given=True,
    ),
    Check(
        "changelog",
        ("antsibull-changelog", "lint"),
        ("changelogs/config.yaml", "changelogs/fragments/*.y*ml"),
    ),
)


def link_types() -> None:
    """``build/types``: the checkout under the name it is imported by, for mypy, import-linter and pytest."""
    shutil.rmtree(TYPES, ignore_errors=True)
    folder = TYPES.joinpath(*NAME)
    folder.mkdir(parents=True)
    for name in ("plugins", "tests"):
        (folder / name).symlink_to(ROOT / name)


def run_all() -> Iterator[Outcome]:
    """Every check that needs no cluster, two at a time; `link_types` has to be done before."""
    for check in CHECKS:
        if check.debian and not shutil.which(check.command[0]):
            (engine.unpacked if check.unpacked else engine.packages)(check.debian)
    yield build_archive()
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        yield from pool.map(_run, CHECKS)
    # Some wait for threads and time-outs of theirs: more of them than cores can run at a time.
    yield pytest("unit tests", Path("tests", "unit"), "--numprocesses=4")
    yield pytest("bed's unit tests", Path("tests", "bed", "tests", "unit"))


def build_archive() -> Outcome:
    """The archive, twice and byte-equal, and installed where ansible-lint looks for the collection."""
    began = time.monotonic()
    try:
        with Part("archive") as part:
            made = archive.build(part, BUILD)
            archive.install(part, made, TREE)
    except Failed as error:
        return Outcome("archive", 0, 1, time.monotonic() - began, [str(error)])
    return Outcome("archive", 1, 0, time.monotonic() - began)


def _run(check: Check) -> Outcome:
    began = time.monotonic()
    problem, output = _problem(check)
    seconds = time.monotonic() - began
    if problem is None:
        say(f"ok      {check.name}, {span(seconds)}")
        return Outcome(check.name, 1, 0, seconds)
    say("\n".join([*(f"        {line}" for line in output.splitlines()), f"FAILED  {check.name}: {problem}"]))
    return Outcome(check.name, 0, 1, seconds, [f"{check.name}: {problem}"])


def _problem(check: Check) -> tuple[Optional[str], str]:
    for subject in check.subjects:
        if not any(ROOT.glob(subject)):
            return f"nothing to check: no file matches {subject}", ""
    env = dotvenv.environment(
        ANSIBLE_COLLECTIONS_PATH=str(TREE),
        NO_COLOR="1",
        **({"PYTHONPATH": str(TYPES)} if check.types_on_path else {}),
    )
    program = _program(check)
    files = sorted(str(file) for subject in check.subjects for file in ROOT.glob(subject)) if check.given else []
    command = [program, *check.command[1:], *files]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "did not end in 10 min", ""
    output = done.stdout + done.stderr
    if done.returncode:
        return f"exit code {done.returncode}: see above", output
    if check.seen is not None and not re.search(check.seen, output):
        return f"it does not say that it checked anything (expected {check.seen!r})", output
    return None, output


def _program(check: Check) -> str:
    name = check.command[0]
    if check.debian is None:
        return str(dotvenv.program(name))
    if check.unpacked and not shutil.which(name):
        return str(engine.unpacked(check.debian) / "usr" / "bin" / name)
    return name


def simulate() -> Outcome:
    """The core in histories that nobody has seen, and in those that once broke."""
    began = time.monotonic()
    problem = None
    try:
        with Part("simulation") as part:
            part.run(
                [str(dotvenv.program("python")), *SIMULATION, "--seeds=2000", "--fresh", "--kept"],
                cwd=ROOT,
                env=dotvenv.environment(PYTHONPATH=str(TYPES)),
                timeout=900,
                echo=True,
                describe=simulation_progress,
            )
    except Failed as error:
        problem = str(error)
    seconds = time.monotonic() - began
    return Outcome("simulation", int(not problem), int(bool(problem)), seconds, [problem] if problem else [])


def simulation_progress(line: str) -> str:
    """How far the simulation is, from its bar; "" where a line does not tell."""
    found = re.match(r"\[[#.]+\] (\d+ of \d+ histories)", line)
    return found.group(1) if found else ""


def pytest_progress(line: str) -> str:
    """How far pytest is, from the end of its lines of dots; "" where a line does not tell."""
    found = re.search(r"\[ *(\d+%)\]$", line)
    return f"{found.group(1)} of the tests" if found else ""


def molecule_progress() -> Callable[[str], str]:
    """How far molecule is: its action, the play's task, and pytest's share in `verify`."""
    action = ""

    def how_far(line: str) -> str:
        nonlocal action
        begun = re.search(r"\[[\w-]+ > (\w+)\] Executing", line)
        if begun:
            action = begun.group(1)
            return action
        task = re.match(r"TASK \[(?:[\w.]+ : )?(.+?)\]", line)
        told = task.group(1) if task else pytest_progress(line)
        return f"{action}: {told}" if told and action else told

    return how_far


def pytest(name: str, folder: Path, *options: str, timeout: float = 600, echo: bool = True) -> Outcome:
    """One folder of tests, in a run of its own; counted from its JUnit report. `echo` shows its output as it comes,
    else the end of it where it failed."""
    began = time.monotonic()
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    junit = BUILD / "junit" / f"{slug}.xml"
    junit.parent.mkdir(parents=True, exist_ok=True)
    junit.unlink(missing_ok=True)
    problem = None
    try:
        with Part(name) as part:
            command = [
                str(dotvenv.program("pytest")),
                "-q",
                "--durations=5",
                f"--junitxml={junit}",
                *options,
                str(folder),
            ]
            part.run(
                command,
                cwd=ROOT,
                env=dotvenv.environment(),
                timeout=timeout,
                echo=echo,
                describe=pytest_progress,
                shown=400,
            )
    except Failed as error:
        problem = str(error)
    seconds = time.monotonic() - began
    passed, failed, problems = report.counts(junit) if junit.is_file() else (0, 0, [])
    if problem is not None and not failed:
        failed, problems = 1, [problem]
    elif not passed and not failed:
        failed, problems = 1, [f"{name}: no test was found below {folder}"]
    return Outcome(name, passed, failed, seconds, problems)
