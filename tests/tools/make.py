#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the Makefile: what each target is made of, and in which order.

Standard library only: it runs before there is a virtual environment. Settings, from the environment:

    SCENARIO=NAME        make molecule: only that scenario
    SEEDS=N, SEED=N      make simulate: how many histories, or the one to tell
    ROW=NAME[,NAME...]   make faults: only these rows
    PRESSURE_LOAD=NAME[,NAME...]            make pressure: only these loads
    KEEP=1               (anything but empty or 0) leave what was brought up
    REGRADE_K3S_IMAGE    another k3s image
    REGRADE_BED_NAME, REGRADE_BED_SUBNET    another bed beside one that runs
    REGRADE_BED_SHAPE=systemd               make bed-up: machines on which k3s is a unit
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "tests" / name) for name in ("bed", "integration/lib", "faults")]

import checks  # noqa: E402
import dotvenv  # noqa: E402
import engine  # noqa: E402
import lanes  # noqa: E402
import parts  # noqa: E402
import rows  # noqa: E402
from background import Background  # noqa: E402
from bed import Bed  # noqa: E402
from layout import BadSetting, Settings  # noqa: E402
from parts import Failed, Part, last_time, say  # noqa: E402
from report import Outcome, Report  # noqa: E402

SCENARIOS = ROOT / "extensions" / "molecule"
SCENARIO_SECONDS = 5400
TAKING_DOWN_SECONDS = 60.0
REMOVAL_RACED = "removal-raced"
REMOVAL_RACES = "50"


def keep() -> bool:
    """Whether what was brought up is to be left: the one rule for KEEP."""
    return os.environ.get("KEEP", "") not in ("", "0")


def timed(name: str, action: Callable[[], object]) -> Outcome:
    """A part that passes when it returns and fails when it raises Failed."""
    began = time.monotonic()
    try:
        action()
    except Failed as error:
        return Outcome(name, 0, 1, time.monotonic() - began, [str(error)])
    return Outcome(name, 1, 0, time.monotonic() - began)


def prepare() -> None:
    """The environment and every image, side by side: they hardly compete, one fetches while the other compiles."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        images = pool.submit(Bed().prepare)
        environment = pool.submit(dotvenv.ensure)
        environment.result()
        images.result()


# -- the targets


def check(report: Report) -> None:
    dotvenv.ensure()
    checks.link_types()
    for outcome in checks.run_all():
        report.add(outcome)


def build(report: Report) -> None:
    dotvenv.ensure()
    report.add(checks.build_archive())


def bed_up(report: Report) -> None:
    report.add(timed("bed up", Bed().up))


def bed_down(report: Report) -> None:
    why_not = engine.answers()
    if why_not is not None:
        say(f"no Docker engine answers ({why_not}): nothing of a bed can be there")
    for settings in [*lanes.beds(Bed().settings), *second_shapes(lanes.beds(Bed().settings))]:
        report.add(timed(f"bed down ({settings.name})", Bed(settings).down if why_not is None else lambda: None))


def molecule(report: Report) -> None:
    chosen = os.environ.get("SCENARIO")
    if chosen and chosen not in scenario_names():
        raise Failed(f"SCENARIO is {chosen!r}: the scenarios are {', '.join(scenario_names())}")
    # Run plain, `default` goes through `cycle`; run by name, each has the servers brought up by `default`.
    names = [chosen] if chosen else [name for name in scenario_names() if name != "default"]
    prepare()
    checks.link_types()  # some of their tests import the core and the plugins
    run_scenarios(report, names)


def test(report: Report) -> None:
    prepare()
    before = there()
    checks.link_types()
    try:
        side_by_side(report, stand_in, adapters, without_servers)
    finally:
        end(report)
    run_scenarios(report, tested_scenarios())
    if not keep():
        report.add(timed("nothing is left", lambda: nothing_left(before)))


def demo(report: Report) -> None:
    on_servers(report, "demo")


def faults(report: Report) -> None:
    """The rows, on two beds where all are done; and what one scenario does once otherwise, as often as it takes."""
    chosen = [name.strip() for name in os.environ.get("ROW", "").split(",") if name.strip()]
    known = [*(row.name for row in rows.ROWS), REMOVAL_RACED]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise Failed(f"ROW names {', '.join(unknown)}: the rows are {', '.join(known)}")
    prepare()
    checks.link_types()
    report.add(checks.build_archive())
    if not report.ok:
        return
    beds = lanes.beds(Bed().settings, 1 if chosen else 2)
    if chosen:
        works = [chosen]
    else:
        shutil.rmtree(ROOT / "build" / "faults", ignore_errors=True)
        works = [[row.name for row in rows.ROWS if row.name not in rows.BESIDE], [*rows.BESIDE, REMOVAL_RACED]]
    try:
        side_by_side(report, *(partial(fault_rows, report, *work) for work in zip(works, beds)))
    finally:
        for settings in beds:
            end(report, Bed(settings))


def fault_rows(report: Report, names: Sequence[str], settings: Settings) -> Iterator[Outcome]:
    """These rows on that bed; their results stand beside those of other beds."""
    others = [name for name in names if name != REMOVAL_RACED]
    if others:
        yield figured(report, "faults", env={"ROW": ",".join(others), **lanes.environment(settings)})
    if REMOVAL_RACED in names:
        yield scenario("removal", settings, False, {"REGRADE_REMOVAL_RACES": REMOVAL_RACES})


def bench(report: Report) -> None:
    dotvenv.ensure()
    checks.link_types()
    try:
        engine.packages("strace")
    except Failed as error:  # who may install nothing still gets every other figure
        say(f"system calls will not be counted: {error}")
    report.add(figured(report, "bench"))


def pressure(report: Report) -> None:
    """Real loads in a small machine; its Debian packages are fetched, and only QEMU is installed."""
    dotvenv.ensure()
    checks.link_types()
    report.add(figured(report, "pressure", str(ROOT / "tests" / "pressure" / "measure.py")))


def simulate(report: Report) -> None:
    """SEEDS histories from seed 0, or the one of SEED, told as it goes."""
    dotvenv.ensure()
    checks.link_types()
    seed, seeds = os.environ.get("SEED", ""), os.environ.get("SEEDS", "2000")
    for name, value in (("SEED", seed or "0"), ("SEEDS", seeds)):
        if not (value.isascii() and value.isdigit()):
            raise Failed(f"{name} is {value!r}, expected a whole number: make simulate SEEDS=2000")
    words = ("--seed", seed) if seed else ("--seeds", seeds)
    report.add(figured(report, "simulate", *checks.SIMULATION, *words))


def simulate_mutants(report: Report) -> None:
    dotvenv.ensure()
    checks.link_types()
    report.add(figured(report, "simulate-mutants", *checks.MUTANTS))


def clean(report: Report) -> None:
    """Back to a fresh checkout. The cache outside it stays: it serves other checkouts too."""
    for name in (
        "build",
        ".venv",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
        ".import_linter_cache",
    ):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    report.add(Outcome("clean", 1, 0, 0.0))


TARGETS = {
    "demo": (demo, "the main job end to end on three servers, with timeline and plot"),
    "test": (test, "all that CI checks"),
    "check": (check, "what needs no cluster"),
    "molecule": (molecule, "the scenarios on the bed, or SCENARIO=name"),
    "bed-up": (bed_up, "the three servers alone"),
    "bed-down": (bed_down, "remove them, also after a crash"),
    "simulate": (simulate, "the core in SEEDS simulated histories, or in the one of SEED"),
    "simulate-mutants": (simulate_mutants, "deliberate faults in copies of the core, each caught by the simulation"),
    "bench": (bench, "what the watcher weighs beside a shell loop and others, and what a step takes"),
    "pressure": (pressure, "the watcher beside real loads in a small virtual machine, or PRESSURE_LOAD=name"),
    "faults": (faults, "what befalls a step on three servers, row by row, or the ones of ROW"),
    "build": (build, "the collection's archive at build/*.tar.gz"),
    "clean": (clean, "remove what these commands made in the checkout"),
}


# -- what targets share


def side_by_side(report: Report, *works: Callable[[], Iterator[Outcome]]) -> None:
    """All of them at once, since some mostly wait and others compute; what each does is done one after the other."""
    lock = threading.Lock()
    stopping = threading.Event()

    def do(work: Callable[[], Iterator[Outcome]]) -> None:
        for outcome in work():
            with lock:
                report.add(outcome)
            if stopping.is_set():
                return

    with concurrent.futures.ThreadPoolExecutor(max_workers=len(works)) as pool:
        try:
            for ended in concurrent.futures.as_completed([pool.submit(do, work) for work in works]):
                ended.result()
        except BaseException:
            stopping.set()
            parts.end_commands()  # else they would be waited for
            raise


def without_servers() -> Iterator[Outcome]:
    yield from checks.run_all()
    yield checks.simulate()


def stand_in() -> Iterator[Outcome]:
    """The stand-in for k3s, on servers of its own."""
    yield checks.pytest("bed's real tests", Path("tests", "bed", "tests", "real"), timeout=2400, echo=False)


def adapters() -> Iterator[Outcome]:
    """The bed is down at the end, so that the scenarios begin on servers that nothing was tried on."""
    yield timed("bed up", Bed().up)
    yield checks.pytest("adapters on real servers", Path("tests", "integration"), timeout=1800, echo=False)
    yield timed("bed down", Bed().down)


def on_servers(report: Report, name: str) -> None:
    """A program of tests/NAME on the bed, with the collection installed from its archive."""
    prepare()
    checks.link_types()
    report.add(checks.build_archive())
    if not report.ok:
        return
    try:
        report.add(figured(report, name))
    finally:
        end(report)


def figured(report: Report, name: str, *words: str, env: Optional[Mapping[str, str]] = None) -> Outcome:
    """A program that says what it does and leaves ``build/NAME/figures.json`` for the summary; without `words`
    it is ``tests/NAME/NAME.py``. `env` is given to it besides."""
    words = words or (str(ROOT / "tests" / name / f"{name}.py"),)
    figures = ROOT / "build" / name / "figures.json"
    figures.parent.mkdir(parents=True, exist_ok=True)
    figures.unlink(missing_ok=True)
    began = time.monotonic()
    whole = dotvenv.environment(PYTHONPATH=str(checks.TYPES), **(env or {}))
    with subprocess.Popen([str(dotvenv.program("python")), *words], cwd=ROOT, env=whole) as child:
        try:
            code = child.wait()
        except BaseException:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)  # it was told by the terminal too
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(TAKING_DOWN_SECONDS)  # of what it brought up
            child.kill()
            raise
    if figures.is_file():
        report.figures.update(json.loads(figures.read_text(encoding="utf-8")))
    ok = code == 0
    why = str(report.figures.pop("problem", None) or f"{' '.join(words[:2])} gave exit code {code}")
    return Outcome(name, int(ok), int(not ok), time.monotonic() - began, [] if ok else [why])


def second_shapes(beds: Sequence[Settings]) -> list[Settings]:
    """What a scenario with machines of its own brings up beside these."""
    found = []
    for settings in beds:
        with contextlib.suppress(BadSetting):  # then there can be none
            found.append(settings.second())
    return found


def has_own_bed(name: str) -> bool:
    """Whether the scenario brings up its own servers, and so takes them down itself."""
    return name in scenario_names() and "shared_state: false" in (SCENARIOS / name / "molecule.yml").read_text(
        encoding="utf-8"
    )


def scenario_names() -> list[str]:
    return sorted(file.parent.name for file in SCENARIOS.glob("*/molecule.yml"))


def tested_scenarios() -> list[str]:
    """Those of `make test`: all of them, `cycle` as people run it first, by plain `molecule test`."""
    return [name for name in scenario_names() if name != "cycle"]


def in_order(names: Sequence[str]) -> list[str]:
    """Plain `molecule test` first, on servers that nothing was done to, as people have it; then the longest."""
    others = [name for name in names if name != "default"]
    longest = lanes.longest_first(others, lambda name: last_time(f"molecule {name}"))
    return [*(name for name in names if name == "default"), *longest]


def run_scenarios(report: Report, names: Sequence[str]) -> None:
    """All of them, on two beds at once where there is more than one; the beds go at the end."""
    beds = lanes.beds(Bed().settings, min(lanes.COUNT, len(names)))
    alone = len(beds) == 1

    def renew(settings: Settings) -> Optional[Outcome]:
        if keep() and alone:
            return None  # for whoever looks at what failed
        outcome = timed(f"bed down ({settings.name})", Bed(settings).down)
        return outcome if outcome.failed else None

    try:
        lanes.run(
            in_order(names),
            beds,
            lambda name, settings: scenario(name, settings, alone),
            report.add,
            renew,
        )
    finally:
        own = any(has_own_bed(name) for name in names)  # one that was cut off has left its servers
        for settings in [*beds, *(second_shapes(beds) if own else [])]:
            end(report, Bed(settings))


def scenario(name: str, settings: Settings, echo: bool, more: Optional[Mapping[str, str]] = None) -> Outcome:
    """``molecule test`` as people run it, on that bed, with `more` in its environment; its log is shown as it comes, or
    its end where it failed."""

    def run() -> None:
        with Part(f"molecule {name}") as part:
            program = str(dotvenv.program("molecule"))
            env = dotvenv.environment(
                PY_COLORS="0",
                ANSIBLE_NOCOLOR="1",
                PYTHONUNBUFFERED="1",
                # Its own notes of what it made, apart from those of a run beside it.
                MOLECULE_EPHEMERAL_DIRECTORY=str(ROOT / "build" / "molecule" / settings.name),
                **lanes.environment(settings),
                **(more or {}),
            )
            chosen = [] if name == "default" else ["--scenario-name", name]
            # Servers that went away with a crash left molecule's own notes of them.
            part.run([program, "reset", *chosen], cwd=ROOT, env=env)
            stays = [] if has_own_bed(name) and not keep() else ["--destroy=never"]
            part.run(
                [program, "test", *chosen, *stays],
                cwd=ROOT,
                env=env,
                timeout=SCENARIO_SECONDS,
                echo=echo,
                describe=checks.molecule_progress(),
                shown=400,
            )

    return timed(f"molecule {name}", run)


def end(report: Report, bed: Optional[Bed] = None) -> None:
    """Whatever became of the target, its bed goes and what writes down what befalls it, unless it is to be kept."""
    bed = bed or Bed()
    if keep():
        say(f"KEEP is set: {bed.settings.name} stays; `make bed-down` removes it")
        return
    for notes in sorted((ROOT / "build").rglob("*.pid")):
        Background(notes.with_suffix(".jsonl")).stop()
    outcome = timed("bed down", bed.down)
    if outcome.failed:
        report.add(outcome)


def there() -> set[str]:
    """Every container, network and volume of the engine, by kind and name, and each recorder of these checks."""
    found = {f"process {words}" for words in recorders()}
    for kind, command in (
        ("container", ["ps", "--all", "--format={{.Names}}"]),
        ("network", ["network", "ls", "--format={{.Name}}"]),
        ("volume", ["volume", "ls", "--format={{.Name}}"]),
    ):
        listed = subprocess.run(["docker", *command], capture_output=True, text=True)
        if listed.returncode:
            raise Failed(f"docker {command[0]} failed: {listed.stderr.strip()}")
        found |= {f"{kind} {name}" for name in listed.stdout.split()}
    return found


def recorders() -> set[str]:
    """The command lines of programs of tests/integration that run; the scenarios begin them beside what they do."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = file.read_bytes().decode(errors="replace").split("\0")
            if any(word.startswith(str(ROOT / "tests" / "integration")) for word in words[1:2]):
                found.add(" ".join(words).strip())
    return found


def nothing_left(before: set[str]) -> None:
    """Raises Failed where the engine has something that it did not have before."""
    left = sorted(there() - before)
    if left:
        raise Failed(
            f"made during this run and still there: {', '.join(left)}; "
            "where others use this engine too, they may be theirs"
        )


def _ended(number: int, frame: object) -> None:
    # Once: the second would cut off the taking down that the first began.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Run one target. 0 is success, 1 a failure, 2 a wrong command line."""
    targets = "\n".join(f"  {name:<16} {what}" for name, (_, what) in TARGETS.items())
    parser = argparse.ArgumentParser(
        prog="make",
        usage="make TARGET",
        epilog=f"targets:\n{targets}\n\nsettings:\n{(__doc__ or '').partition('environment:')[2].strip(chr(10))}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", choices=TARGETS, metavar="TARGET")
    target = parser.parse_args(arguments).target
    # A CI that ends us by SIGTERM still gets its bed taken down.
    signal.signal(signal.SIGTERM, _ended)
    report = Report(f"make {target}")
    try:
        TARGETS[target][0](report)
    except (Failed, BadSetting) as error:
        report.add(Outcome("set-up", 0, 1, 0.0, [str(error)]))
    except KeyboardInterrupt:
        report.add(
            Outcome("interrupted", 0, 1, 0.0, ["interrupted; `make bed-down` removes what may be left"])
        )
    if target != "clean":
        report.write(ROOT / "build" / target)
    for problem in report.problems:
        say(f"FAILED  {problem}")
    say(report.line())
    if target in ("test", "check", "molecule"):
        say(f"{report.passed} passed, {report.failed} failed")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
