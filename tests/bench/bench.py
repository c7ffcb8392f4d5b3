# SPDX-License-Identifier: GPL-3.0-or-later
"""What the watcher weighs and what a step takes, measured in one run beside what else could do it (`make bench`).

Prints the figures as it goes, and leaves build/bench/idle.json, hour.json, decision.json, peak.json, and for the
summary figures.json. No time is held against a limit: machines differ. What is, stands in limits.py.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "build" / "types"), str(ROOT / "tests" / "bed")]

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings  # noqa: E402
from ansible_collections.exadev.k3s_regrade.tests.bench import (  # noqa: E402
    decision,
    hour,
    library,
    limits,
    process,
    rivals,
    stub_cluster,
    trace,
)

FOLDER = ROOT / "build" / "bench"
PRESSURE = Path("/proc/pressure/memory")
IDLE_SECONDS = 90.0
SPEED = 500.0  # the default period of 5 s becomes 10 ms
SAMPLES_AN_HOUR = 720
HOURS = 6
TRACE_SECONDS = 8.0
# In this order each finds the server as the one before left it.
VERBS = (
    "settle --automatic",
    "status",
    "step down --automatic --from full",
    "step down --automatic --from control-plane",
    "settle --automatic",
    "status",
    "step up --automatic",
    "step up --automatic",
    "health",
)

Figures = dict[str, Any]


def say(text: str) -> None:
    print(text, flush=True)


class Bench:
    """The parts, over one set of stub servers."""

    def __init__(self, folder: Path, servers: stub_cluster.Servers) -> None:
        self._folder, self._servers = folder, servers
        self._library = library.unpacked(folder)
        self._given = dict(servers.environment)
        if not PRESSURE.exists():
            # Reading costs less than the kernel's own file, which has to be made for each read.
            say(f"{PRESSURE} is not there: a file with the same text stands for it")
            fixture = folder / "pressure"
            fixture.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
            self._given["PRESSURE_FILE"] = str(fixture)
        self.environment = library.environment(self._library, self._given)
        self.settings = library.settings_of(self.environment)

    # --- the idle watcher and its rivals, at the default period ---

    def idle(self) -> Figures:
        log = self._folder / "idle.log"
        period = self.settings.sample_seconds
        with library.watcher(self.environment, log) as watcher:
            others = rivals.start(
                self._folder, self.settings.pressure_file, self.settings.meminfo_file, period
            )
            try:
                say("idle: waiting for the first full window of pressure")
                settled = self.settings.pressure_window_seconds + 60
                library.until(lambda: self._told("verdict") != "unknown", watcher, log, settled)
                return self._side_by_side(watcher, others, period)
            finally:
                for rival in others:
                    if rival.process is not None:
                        rival.process.kill()
                        rival.process.wait()

    def _side_by_side(
        self, watcher: subprocess.Popen[bytes], others: list[rivals.Rival], period: float
    ) -> Figures:
        pids = {"watcher": watcher.pid}
        pids.update((rival.name, rival.process.pid) for rival in others if rival.process is not None)
        calls = self._servers.calls()
        before, began = {name: process.look(pid) for name, pid in pids.items()}, time.monotonic()
        say(f"idle: {', '.join(pids)} for {IDLE_SECONDS:g} s at a period of {period:g} s")
        time.sleep(IDLE_SECONDS)
        after, took = {name: process.look(pid) for name, pid in pids.items()}, time.monotonic() - began
        api, docker = (now - then for now, then in zip(self._servers.calls(), calls))
        found: Figures = {}
        for name in pids:
            load = process.load(before[name], after[name], took)
            found[name] = {
                "rss_kib": after[name].rss,
                "pss_kib": after[name].pss,
                "anonymous_kib": after[name].anonymous,
                "locked_kib": after[name].locked,
                "cpu_share": round(load.cpu_share, 8),
                "switches_a_minute": round(load.switches_a_minute, 1),
                "descriptors": after[name].descriptors,
            }
        return {
            "period_seconds": period,
            "seconds": round(took, 1),
            "processes": found,
            "not_here": {rival.name: rival.why_not for rival in others if rival.process is None},
            "watcher_over": {
                name: limits.ratios(found["watcher"], figures)
                for name, figures in found.items()
                if name != "watcher"
            },
            "api_calls": api,
            "docker_calls": docker,
            "verdict": self._told("verdict"),
        }

    def _told(self, key: str) -> str:
        """By the watcher, "" before it has."""
        return library.notes(self.environment).get(key, "")

    # --- hours of samples, and the system calls of one ---

    def hour(self) -> Figures:
        log = self._folder / "hour.log"
        say(f"hour: {HOURS} times {SAMPLES_AN_HOUR} samples, each {self.settings.sample_seconds / SPEED:g} s")
        looks: list[Figures] = []
        calls, verdict = (0, 0), ""
        with hour.watcher(self.environment, log, SPEED, SAMPLES_AN_HOUR) as (watcher, told):
            for line in told:
                samples, blocks, verdict = line.split()
                seen = process.look(watcher.pid)
                looks.append(
                    {
                        "samples": int(samples),
                        "blocks": int(blocks),
                        "rss_kib": seen.rss,
                        "anonymous_kib": seen.anonymous,
                        "descriptors": seen.descriptors,
                        "cpu_seconds": round(seen.cpu, 4),
                    }
                )
                if len(looks) == 1:
                    calls = self._servers.calls()  # it has settled by then
                say(f"  {samples} samples: {seen.anonymous} KiB of its own, {seen.descriptors} descriptors")
                if len(looks) == HOURS:
                    break
            if len(looks) < HOURS:
                raise RuntimeError(f"the watcher ended: {log.read_text(errors='replace')[-500:]}")
            api, docker = (now - then for now, then in zip(self._servers.calls(), calls))
            text = trace.run(watcher.pid, TRACE_SECONDS / 2, self._folder)
        traced = trace.a_sample(text, self.settings.pressure_file)
        spent = looks[-1]["cpu_seconds"] - looks[0]["cpu_seconds"]
        return {
            "samples_an_hour": SAMPLES_AN_HOUR,
            "period_seconds": self.settings.sample_seconds / SPEED,
            "looks": looks,
            "cpu_microseconds_a_sample": round(spent / (looks[-1]["samples"] - looks[0]["samples"]) * 1e6, 1),
            "api_calls": api,
            "docker_calls": docker,
            "verdict": verdict,
            "system_calls": self._system_calls(traced),
        }

    def _system_calls(self, ours: trace.Calls | None) -> Figures:
        """Ours a sample, beside the shell loop's."""
        said = "strace is not there, or may not trace here" if ours is None else ""
        shell = rivals.shell_loop(self.settings.pressure_file, self.settings.meminfo_file, 1)
        theirs = None
        if shell.process is not None:
            theirs = trace.a_sample(
                trace.run(shell.process.pid, TRACE_SECONDS, self._folder), self.settings.pressure_file
            )
            shell.process.kill()
            shell.process.wait()
        return {
            "watcher": ours and ours._asdict(),
            shell.name: theirs and theirs._asdict(),
            "ratio": round(ours.a_sample / theirs.a_sample, 3) if ours and theirs else None,
            "counted_by": "strace -f",
            "why_not": said,
        }

    # --- the child of a step ---

    def peak(self) -> Figures:
        say("peak: each verb as the watcher starts it, against the stub servers")
        self._measured(VERBS[0])  # the first compiles what the environment's packages left uncompiled
        found = []
        for verb in VERBS:
            figures = self._measured(verb)
            found.append({"verb": verb, **figures})
            say(f"  {verb}: {figures['peak_kib']} KiB, {figures['cpu_seconds']:g} s of CPU")
        most = max(found, key=lambda one: one["peak_kib"])
        return {
            "verbs": found,
            "verb": most["verb"],
            "bytes": most["peak_kib"] << 10,
            "setting": settings.STEP_PEAK_BYTES,
            "pods": stub_cluster.PODS,
            "servers": len(stub_cluster.SERVERS),
        }

    def _measured(self, verb: str) -> Figures:
        launcher = str(ROOT / "tests" / "bench" / "peak.py")
        done = subprocess.run(
            [sys.executable, "-S", launcher, sys.executable, "-m", "regrade.cli", *verb.split()],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=180,
        )
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        if figures["exit_code"] not in (0, 1):  # 1 is what `health` says of a watcher that has ended
            said = (done.stdout + done.stderr).strip().splitlines()
            raise RuntimeError(
                f"regrade {verb} gave exit code {figures['exit_code']}: {' | '.join(said[-4:])}"
            )
        return figures


def table(figures: Figures) -> list[str]:
    """The processes side by side, for a person."""
    lines = [
        f"{'idle':<22}{'RSS KiB':>9}{'PSS KiB':>9}{'CPU of a core':>15}{'switches/min':>14}{'descriptors':>13}"
    ]
    for name, one in figures["idle"]["processes"].items():
        lines.append(
            f"{name:<22}{one['rss_kib']:>9}{one['pss_kib']:>9}{one['cpu_share']:>15.4%}"
            f"{one['switches_a_minute']:>14}{one['descriptors']:>13}"
        )
    lines += [f"{name:<22}  {why}" for name, why in figures["idle"]["not_here"].items()]
    traced = figures["hour"]["system_calls"]
    for name in ("watcher", "shell loop (dash)"):
        if traced.get(name):
            lines.append(f"system calls a sample, {name}: {traced[name]['a_sample']:.1f}")
    if traced["why_not"]:
        lines.append(f"system calls were not counted: {traced['why_not']}")
    decided = figures["decision"]["ratio_of_a_decision_to_reading"]
    lines.append(f"one decision takes {decided:.2f} times what reading the two files does")
    most = figures["peak"]
    lines.append(f"a step's child takes {most['bytes'] >> 10} KiB at its peak ({most['verb']})")
    return lines


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    figures: Figures = {"python": platform.python_version(), "kernel": platform.release()}
    with tempfile.TemporaryDirectory(prefix="regrade-") as name, stub_cluster.servers(Path(name)) as servers:
        bench = Bench(Path(name), servers)
        figures["idle"] = bench.idle()
        figures["hour"] = bench.hour()
        figures["peak"] = bench.peak()
        figures["decision"] = decision.measure(bench.settings)
    for part in ("idle", "hour", "decision", "peak"):
        (FOLDER / f"{part}.json").write_text(json.dumps(figures[part], indent=2) + "\n", encoding="utf-8")
    for line in table(figures):
        say(line)
    problems = limits.broken(figures)
    watcher = figures["idle"]["processes"]["watcher"]
    short = {
        "python": figures["python"],
        "watcher_rss_kib": watcher["rss_kib"],
        "watcher_pss_kib": watcher["pss_kib"],
        "watcher_cpu_share": watcher["cpu_share"],
        "step_peak_kib": figures["peak"]["bytes"] >> 10,
        "watcher_over": figures["idle"]["watcher_over"],
        "problem": "; ".join(problems),
    }
    (FOLDER / "figures.json").write_text(json.dumps(short, indent=2) + "\n", encoding="utf-8")
    for problem in problems:
        say(f"limit broken: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
