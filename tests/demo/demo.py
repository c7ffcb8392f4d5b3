# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job end to end: pressure takes one of three servers to etcd-only, and calm brings it back to full.

`make demo` installs the collection first, and takes the servers down after. Shows a timeline while it goes, and leaves
build/demo/timeline.json, cycle.svg, and for the summary figures.json. What a step is and what is read comes from the
product and from tests/integration/lib; drawing is in plot.py. Checks belong to the scenarios.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
INTEGRATION = ROOT / "tests" / "integration"
sys.path[:0] = [str(ROOT / "tests" / "bed"), str(INTEGRATION / "lib"), str(INTEGRATION / "writes")]

import observer  # noqa: E402
import plays  # noqa: E402
import pressure  # noqa: E402
from admin_api import AdminApi, NoAnswer  # noqa: E402
from bed import Bed, BedError, Server  # noqa: E402
from operations import APPEND  # noqa: E402
from plot import draw  # noqa: E402
from writers import Writers  # noqa: E402

FOLDER = ROOT / "build" / "demo"
SAMPLE_SECONDS = 2.0
STEP_SECONDS = 180
# Long enough on either side for a plot that shows what changed.
REST_SECONDS = 15
RAMP = (pressure.Wanted(10, 1200), pressure.Wanted(25, 900), pressure.OVER)

Sample = dict[str, Any]


class Failed(Exception):
    """The demo did not show what it is to show; one line."""


class Writes:
    """How long the writes took that go through the other servers' APIs the whole time."""

    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self._asked = time.monotonic()

    def slowest_since(self) -> float | None:
        """The slowest append since this was last asked, in seconds; None where none was acknowledged."""
        since, self._asked = self._asked, time.monotonic()
        took = [
            operation.completed - operation.invoked
            for operation in self._writers.history().operations
            if operation.kind == APPEND and operation.acknowledged and operation.completed > since
        ]
        return round(max(took), 4) if took else None


class Sampler(threading.Thread):
    """Reads all three servers every two seconds, prints a line for each round, and keeps the samples."""

    def __init__(self, bed: Bed, api: AdminApi, writes: Writes) -> None:
        super().__init__(daemon=True)
        self._bed, self._api, self._writes = bed, api, writes
        self._ended = threading.Event()
        self._totals: dict[str, tuple[float, int]] = {}
        self._began = time.time()
        self.samples: list[Sample] = []

    def run(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(max_workers=len(self._bed.servers) + 1) as pool:
            while not self._ended.is_set():
                began = time.monotonic()
                asked = pool.submit(_or_none, lambda: sorted(observer.members(self._bed)))
                nodes = _or_none(self._api.nodes) or {}
                found = list(
                    pool.map(lambda server, nodes=nodes: self._one(server, nodes), self._bed.servers)
                )
                shared = {"member_ids": asked.result(), "write_latency": self._writes.slowest_since()}
                self.samples += [{**sample, **shared} for sample in found]
                self._print(found, shared)
                self._ended.wait(max(0.0, SAMPLE_SECONDS - (time.monotonic() - began)))

    def end(self) -> None:
        self._ended.set()
        self.join(60)

    def _one(self, server: Server, nodes: dict[str, Any]) -> Sample:
        stall, available = self._memory(server)
        return {
            "time": round(time.time(), 2),
            "server": server.name,
            "level": _level(observer.runs_at(server), nodes.get(server.name)),
            "pressure": stall,
            "mem_available": available,
            "etcd_health": _or_none(lambda: observer.etcd_healthy(server)),
        }

    def _memory(self, server: Server) -> tuple[float | None, int | None]:
        """Stall in percent since the sample before, and bytes available."""
        text = server.sh(f"cat {pressure.FOLDER}/memory {pressure.FOLDER}/meminfo", check=False).stdout
        now = time.monotonic()
        total = re.search(r"^some .*total=(\d+)", text, re.M)
        available = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.M)
        if not total or not available:
            return None, None
        before = self._totals.get(server.name)
        self._totals[server.name] = (now, int(total.group(1)))
        stall = (
            None if before is None else round((int(total.group(1)) - before[1]) / (now - before[0]) / 1e4, 1)
        )
        return stall, int(available.group(1)) * 1024

    def _print(self, samples: list[Sample], shared: Sample) -> None:
        parts = [f"{time.time() - self._began:5.0f} s"]
        for sample in samples:
            etcd = {True: "etcd ok", False: "etcd unwell", None: "etcd ?"}[sample["etcd_health"]]
            stall = "?" if sample["pressure"] is None else f"{sample['pressure']:.0f}"
            parts.append(f"{sample['server']} {sample['level'] or 'between':13} {stall:>3} % {etcd:11}")
        latency = shared["write_latency"]
        parts.append("write " + ("none taken" if latency is None else f"{latency:.2f} s"))
        print(" | ".join(parts), flush=True)


def _or_none(read: Any) -> Any:
    try:
        return read()
    except (NoAnswer, BedError):
        return None


def _level(runs_at: str | None, node: dict[str, Any] | None) -> str | None:
    """The level a server runs at; None between two, or where its Node cannot be read."""
    if runs_at != "full" or node is None:
        return runs_at if runs_at != "full" else None
    # Full and control-plane run the same k3s and differ in the Node's marks.
    return "control-plane" if observer.LEVEL in (node["metadata"].get("labels") or {}) else "full"


def show(bed: Bed) -> dict[str, Any]:
    """Turn regrading on and go through the cycle; the figures of the summary."""
    part("Turning regrading on")
    for server in bed.servers:
        pressure.begin(server)
        pressure.put(server, pressure.CALM)
    run = plays.playbook("enable")
    if run.code:
        raise Failed(f"the role failed: {run.output.strip().splitlines()[-1]}")
    pressed, *peers = bed.servers
    api = AdminApi(bed)
    before = sorted(observer.members(bed))
    with Writers(bed, FOLDER, [peer.name for peer in peers]) as writers:
        sampler = Sampler(bed, api, Writes(writers))
        sampler.start()
        try:
            time.sleep(REST_SECONDS)
            part(f"Pressure on {pressed.name}, by {pressure.SOURCE}")
            began = time.monotonic()
            for wanted in RAMP:
                pressure.put(pressed, wanted)
                time.sleep(2)
            observer.wait_for(
                f"{pressed.name} runs at etcd-only",
                lambda: observer.runs_at(pressed) == "etcd-only",
                STEP_SECONDS,
            )
            down = time.monotonic() - began
            time.sleep(REST_SECONDS)
            part(f"Calm on {pressed.name}")
            began = time.monotonic()
            pressure.put(pressed, pressure.CALM)
            observer.wait_for(
                f"{pressed.name} is at full",
                lambda: observer.at_full_again(api, pressed.name),
                2 * STEP_SECONDS,
            )
            up = time.monotonic() - began
            time.sleep(REST_SECONDS)
        finally:
            sampler.end()
            (FOLDER / "timeline.json").write_text(
                json.dumps(sampler.samples, indent=1) + "\n", encoding="utf-8"
            )
        report = writers.verdict()
    svg = draw(sampler.samples, f"Memory pressure here comes from {pressure.SOURCE}.")
    (FOLDER / "cycle.svg").write_text(svg, encoding="utf-8")
    kept = sorted(observer.members(bed)) == before
    if not kept:
        raise Failed(f"the etcd members changed: {before} before, {sorted(observer.members(bed))} after")
    if report.problems:
        raise Failed(f"the write check finds {report.problems[0]}")
    return {
        "seconds_to_etcd_only": round(down, 1),
        "seconds_to_full": round(up, 1),
        "writes": report.acknowledged,
        "writes_lost": report.lost,
        "slowest_write_seconds": report.slowest,
        "members_kept": kept,
        "pressure_source": pressure.SOURCE,
    }


def part(text: str) -> None:
    print(f"== {text}", flush=True)


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    figures: dict[str, Any] = {}
    problem = ""
    bed = Bed()
    try:
        part("Bringing three servers up")
        bed.up()
        figures = show(bed)
    except (Failed, BedError, NoAnswer, AssertionError, RuntimeError, OSError) as error:
        problem = str(error) or type(error).__name__
    except KeyboardInterrupt:
        problem = "interrupted"
    seconds = time.monotonic() - began
    told = {**figures, **({"problem": problem} if problem else {})}
    (FOLDER / "figures.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    if problem:
        print(f"demo: failed after {seconds:.0f} s: {problem}")
        return 1
    print(
        f"demo: ok in {seconds:.0f} s: to etcd-only in {figures['seconds_to_etcd_only']} s, back to full in "
        f"{figures['seconds_to_full']} s, {figures['writes']} writes and none lost, "
        f"the slowest {figures['slowest_write_seconds']} s; see build/demo/cycle.svg"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
