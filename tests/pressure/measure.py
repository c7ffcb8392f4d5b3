# SPDX-License-Identifier: GPL-3.0-or-later
"""Real memory pressure (`make pressure`): the real watcher beside real loads, most of them in a small virtual machine.

Prints a table, and leaves in build/pressure/ each run's curve (`NAME.told`), `curves.svg`, `loads.json`, what other
settings would have done on the same curves (`replayed.json`), and for the summary figures.json. Fails where a step is
decided on for a load that must not cause one, or none for a load that must, or where a kernel without PSI is not told
at once. What is run stands in loads.py, what is judged in curve.py.

    PRESSURE_LOAD=NAME[,NAME...]   only these loads
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import platform
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "build" / "types"), str(ROOT / "tests" / "bed")]

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings  # noqa: E402

import chart  # noqa: E402
import container  # noqa: E402
import curve  # noqa: E402
import parts  # noqa: E402
import replay  # noqa: E402
from loads import LOADS, NO_STEP, SEEN, STEP, TOLD  # noqa: E402
from machine import BYTES, MEMORY_MIB, READS_AND_WRITES, Machine  # noqa: E402
from parts import Failed, Part, say  # noqa: E402

FOLDER = ROOT / "build" / "pressure"
AT_ONCE = 3
NOT_DRAWN = (container.HERE, "reading", "edge")  # more lines than can be told apart
ENDERS = (signal.SIGTERM, signal.SIGINT)
HERE = container.HERE
TITLES = {HERE: "container at its limit, on this machine", **{name: load.title for name, load in LOADS.items()}}
EXPECTED = {HERE: NO_STEP, **{name: load.expected for name, load in LOADS.items()}}


def chosen() -> list[str]:
    """The loads to run, longest first. Raises Failed."""
    names = [name.strip() for name in os.environ.get("PRESSURE_LOAD", "").split(",") if name.strip()]
    unknown = [name for name in names if name not in EXPECTED]
    if unknown:
        raise Failed(f"PRESSURE_LOAD names {', '.join(unknown)}: the loads are {', '.join(EXPECTED)}")
    seconds = {HERE: container.SECONDS, **{name: load.seconds for name, load in LOADS.items()}}
    return sorted(names or EXPECTED, key=lambda name: -seconds[name])


def run_all(names: list[str], machine: Machine) -> list[str]:
    """Three at a time: they mostly wait. What went wrong, a line each."""
    found: list[str] = []

    def one(name: str) -> None:
        with Part(f"pressure {name}") as part:
            if name == HERE:
                container.run(machine.root(), FOLDER / f"{name}.told", part)
            else:
                machine.boot(name, LOADS[name], part)

    with concurrent.futures.ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        waiting = {pool.submit(one, name): name for name in names}
        try:
            for done in concurrent.futures.as_completed(waiting):
                try:
                    done.result()
                except Failed as error:
                    found.append(f"{waiting[done]}: {error}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            container.STOP.set()
            parts.end_commands()  # else they would be waited for
            raise
    return found


def line(name: str, seen: curve.Figures) -> str:
    def text(value: object, unit: str = "") -> str:
        return "-" if value is None or value == "" else f"{value}{unit}"

    return (
        f"{name:<13} peak {text(seen.peak_some, ' %'):>7}  least available {text(seen.least_available, ' %'):>7}  "
        f"over at {text(seen.first_over, ' s'):>8}  decided at {text(seen.decided, ' s'):>8}  "
        f"by {text(seen.decided_on)}  killed at {text(seen.killed, ' s')}  etcd-only at {text(seen.etcd_only, ' s')}"
    )


def curve_of(name: str, told: curve.Told) -> chart.Curve:
    """One point every five seconds, from just before the load."""
    began = curve.event(told, "load begins") or 0.0
    end = curve.event(told, "ends") or float("inf")
    some = [(at - began, share) for at, share in curve.pressure(told.samples, curve.WINDOW_SECONDS) if at <= end]
    memory = [(one.at - began, 100 * one.available / one.total) for one in told.samples if one.at <= end]
    return chart.Curve(
        TITLES[name],
        [point for point in some if point[0] >= -10][::5],
        [point for point in memory if point[0] >= -10][::5],
        curve.figures(told).decided,
        EXPECTED[name] in (STEP, SEEN),
    )


def measure() -> tuple[list[str], list[str], str]:
    """(what went wrong, the loads that were run, the machine's kernel)."""
    for old in (*FOLDER.glob("*.told"), *FOLDER.glob("*.console"), *FOLDER.glob("*.json")):
        old.unlink()
    problems: list[str] = []
    names: list[str] = []
    machine = Machine(FOLDER)
    why_not = container.why_not()
    try:
        names = chosen()
        if HERE in names and why_not is not None:
            say(f"{TITLES[HERE]}: left out, as {why_not}")
            names.remove(HERE)
        machine.prepare()
        problems += run_all(names, machine)
    except Failed as error:
        problems.append(str(error))
    finally:
        machine.clean()
    return problems, names, machine.kernel


def judge(names: list[str], kernel: str) -> tuple[list[str], dict[str, dict[str, object]]]:
    """(what is not as it has to be, the figures of each load); draws the curves, prints the tables."""
    problems: list[str] = []
    defaults = settings.load("", {"NODE_NAME": "any"})
    loads: dict[str, dict[str, object]] = {}
    curves, runs = [], {}
    for name in [name for name in EXPECTED if name in names]:
        path = FOLDER / f"{name}.told"
        told = curve.parse(path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "")
        problems += curve.problems(name, told, EXPECTED[name])
        if EXPECTED[name] == TOLD:
            loads[name] = {"results": told.results}
            continue
        seen = curve.figures(told)
        loads[name] = {"title": TITLES[name], "expected": EXPECTED[name], **seen._asdict()}
        if name not in NOT_DRAWN:
            curves.append(curve_of(name, told))
        runs[name] = told
        say(line(name, seen))
    source = (
        f"QEMU in software, {MEMORY_MIB} MiB, Linux {kernel}; one card of {READS_AND_WRITES} reads or writes a second, "
        f"{BYTES >> 20} MiB/s"
    )
    floor = defaults.memavailable_floor.share or 0.0
    drawn = chart.draw(curves, source, 100 * defaults.pressure_threshold, 100 * floor)
    (FOLDER / "curves.svg").write_text(drawn, encoding="utf-8")
    others = replay.table(runs)
    say("When other settings would have decided on the same curves, in seconds since the load began:")
    for text in replay.lines(others):
        say(f"  {text}")
    for name, found in (("replayed", others), ("loads", loads)):
        (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return problems, loads


def _ended(number: int, frame: object) -> None:
    for one in ENDERS:  # once: the second would cut off the taking down that the first began
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    for one in ENDERS:
        signal.signal(one, _ended)
    FOLDER.mkdir(parents=True, exist_ok=True)
    problems, names, kernel = measure()
    more, loads = judge(names, kernel)
    problems += more
    short = {
        "kernel": kernel,
        "host_kernel": platform.release(),
        "on_this_machine": "run" if HERE in names else container.why_not() or "not run",
        "decided_after": {name: load.get("over_to_decision") for name, load in loads.items() if "results" not in load},
        "problem": "; ".join(problems),
    }
    (FOLDER / "figures.json").write_text(json.dumps(short, indent=2) + "\n", encoding="utf-8")
    for problem in problems:
        say(f"not as expected: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        say("interrupted: what was brought up is taken down")
        code = 130
    raise SystemExit(code)
