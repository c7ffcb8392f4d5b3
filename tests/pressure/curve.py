# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run told, line by line, and what it says together. Pure: text in, figures and problems out.

A line is `KIND SECONDS TEXT` (guest/run.py writes them). One that is cut short or garbled is left out: the second
serial port of a machine that is out of memory ends where the machine ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from loads import NO_STEP, STEP, TOLD

WINDOW_SECONDS = 60.0  # PRESSURE_WINDOW_SECONDS, the default that the watcher runs with
MIB = 1024  # of KiB
R8_CODE = 2
R8_WORDS = "/proc/pressure/memory does not exist: the kernel is built without CONFIG_PSI, or PSI is switched off"


class Sample(NamedTuple):
    """Stalls in microseconds since boot, None without PSI; memory in KiB."""

    at: float
    some: Optional[int]
    full: Optional[int]
    available: int
    total: int
    free: int
    swapped: int
    killed: int


class Told(NamedTuple):
    samples: tuple[Sample, ...]
    log: tuple[tuple[float, str], ...]  # of the watcher
    events: tuple[tuple[float, str], ...]
    results: tuple[dict[str, Any], ...]


class Figures(NamedTuple):
    """Of one run. Times are seconds since the load began; shares are of 100. None: it did not happen."""

    peak_some: Optional[float]  # of the watcher's window
    peak_some_10: Optional[float]  # of ten seconds
    least_available: Optional[float]  # of MemTotal
    total_mib: int
    first_over: Optional[float]
    decided: Optional[float]
    over_to_decision: Optional[float]
    decided_on: str  # what the reading was over by: pressure, floor, or both
    available_at_over: Optional[float]
    available_at_decision: Optional[float]
    falling: Optional[float]  # MiB a second from the first over reading to the decision
    killed: Optional[float]  # when the kernel first killed for memory outside a cgroup's own limit
    control_plane: Optional[float]  # when that step was done
    etcd_only: Optional[float]


def parse(text: str) -> Told:
    samples, log, events, results = [], [], [], []
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        stamp, _, words = rest.partition(" ")
        try:
            at = float(stamp)
            if kind == "S":
                samples.append(_sample(at, words))
            elif kind == "L":
                log.append((at, words))
            elif kind == "E":
                events.append((at, words))
            elif kind == "R":
                results.append(json.loads(words))
        except (ValueError, TypeError):
            continue
    return Told(tuple(samples), tuple(log), tuple(events), tuple(results))


def _sample(at: float, words: str) -> Sample:
    some, full, *memory = words.split()
    available, total, free, swapped, killed = map(int, memory)
    stalls = [None if text == "-" else int(text) for text in (some, full)]
    return Sample(at, stalls[0], stalls[1], available, total, free, swapped, killed)


def pressure(samples: Sequence[Sample], window: float) -> list[tuple[float, float]]:
    """(time, `some` as % of the window that ends there), from the first full window on."""
    found, first = [], 0
    for last, sample in enumerate(samples):
        while first + 1 <= last and sample.at - samples[first + 1].at >= window:
            first += 1
        earlier = samples[first]
        span = sample.at - earlier.at
        if span < window or sample.some is None or earlier.some is None:
            continue
        found.append((sample.at, min(100.0, (sample.some - earlier.some) / 1e4 / span)))
    return found


def until(samples: Sequence[Sample], end: float) -> list[Sample]:
    return [sample for sample in samples if sample.at <= end]


def event(told: Told, begins: str) -> Optional[float]:
    return next((at for at, words in told.events if words.startswith(begins)), None)


def figures(told: Told) -> Figures:
    began = event(told, "load begins")
    ends = event(told, "ends") or float("inf")
    over, decision = first_over(told.log), logged(told.log, "down at full: ")
    within = [sample for sample in told.samples if began is not None and began <= sample.at <= ends]
    window = [share for at, share in pressure(told.samples, WINDOW_SECONDS) if at <= ends]
    short = [share for at, share in pressure(told.samples, 10.0) if began is not None and began <= at <= ends]
    at_over, at_decision = _near(told.samples, over), _near(told.samples, decision)
    fell = None
    if at_over and at_decision and at_decision.at > at_over.at:
        fell = (at_over.available - at_decision.available) / MIB / (at_decision.at - at_over.at)

    def since(at: Optional[float]) -> Optional[float]:
        return None if at is None or began is None else round(at - began, 1)

    return Figures(
        peak_some=_rounded(max(window, default=None)),
        peak_some_10=_rounded(max(short, default=None)),
        least_available=_rounded(min((100 * one.available / one.total for one in within), default=None)),
        total_mib=told.samples[-1].total // MIB if told.samples else 0,
        first_over=since(over),
        decided=since(decision),
        over_to_decision=None if over is None or decision is None else round(decision - over, 1),
        decided_on=decided_on(told.log),
        available_at_over=_rounded(100 * at_over.available / at_over.total if at_over else None),
        available_at_decision=_rounded(100 * at_decision.available / at_decision.total if at_decision else None),
        falling=None if fell is None else round(fell, 2),
        killed=since(_killed(told.samples, began)),
        control_plane=since(logged(told.log, "down: done: ", "control-plane")),
        etcd_only=since(logged(told.log, "down: done: ", "etcd-only")),
    )


def _rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 1)


def _near(samples: Sequence[Sample], at: Optional[float]) -> Optional[Sample]:
    """The last sample up to that time."""
    return None if at is None else next((one for one in reversed(samples) if one.at <= at), None)


def _killed(samples: Sequence[Sample], began: Optional[float]) -> Optional[float]:
    if began is None:
        return None
    before = next((one.killed for one in reversed(samples) if one.at < began), 0)
    return next((one.at for one in samples if one.at >= began and one.killed > before), None)


def logged(log: Sequence[tuple[float, str]], begins: str, ends: str = "") -> Optional[float]:
    return next((at for at, line in log if line.startswith(begins) and line.endswith(ends)), None)


def first_over(log: Sequence[tuple[float, str]]) -> Optional[float]:
    """When the streak began that was decided on; without a decision, the first reading that was over."""
    began = first = None
    for at, line in log:
        verdict = re.search(r"; (over|calm|between|unknown), pressure ", line)
        if not verdict:
            continue
        if verdict.group(1) != "over":
            began = None
            continue
        began = at if began is None else began
        first = at if first is None else first
        if line.startswith("down at "):
            return began
    return first


def decided_on(log: Sequence[tuple[float, str]]) -> str:
    """What the reading was over by when it was decided on: `pressure`, `floor`, or both."""
    line = next((line for _, line in log if line.startswith("down at ")), "")
    stall = re.search(r"pressure ([0-9.]+)% \(threshold ([0-9.]+)%\)", line)
    memory = re.search(r"available (\d+)MiB of \d+MiB \(floor (\d+)MiB\)", line)
    by = []
    if stall and float(stall.group(1)) >= float(stall.group(2)):
        by.append("pressure")
    if memory and int(memory.group(1)) < int(memory.group(2)):
        by.append("floor")
    return " and ".join(by)


def problems(name: str, told: Told, expected: str) -> list[str]:
    """One line for each thing that is not as it has to be."""
    found = [f"{name}: {words}" for _, words in told.events if words.startswith("failed: ")]
    if event(told, "ends") is None:
        found.append(f"{name}: the machine ended before its load did, expected the event `ends`")
    if expected == TOLD:
        return found + _untold(name, told)
    seen = figures(told)
    if seen.first_over is None and not told.log:
        return [*found, f"{name}: the watcher said nothing, expected its log"]
    if event(told, "load begins") is None:
        return [*found, f"{name}: the load did not begin"]
    if expected == NO_STEP and (seen.decided is not None or seen.first_over is not None):
        what = "a step was decided on" if seen.decided is not None else "a reading was over"
        found.append(
            f"{name}: {what} (peak `some` {seen.peak_some} %, least available {seen.least_available} %), expected none"
        )
    if expected == STEP:
        if seen.decided is None:
            found.append(
                f"{name}: no step was decided on (peak `some` {seen.peak_some} %, least available "
                f"{seen.least_available} %), expected one"
            )
        elif seen.killed is not None and seen.killed < seen.decided:
            found.append(
                f"{name}: the kernel killed for memory after {seen.killed:g} s, before the decision at "
                f"{seen.decided:g} s"
            )
    return found


def _untold(name: str, told: Told) -> list[str]:
    by_verb = {result["verb"]: result for result in told.results}
    found = []
    for verb in ("watch", "status"):
        result = by_verb.get(verb)
        if result is None:
            found.append(f"{name}: `{verb}` was not run")
        elif result["code"] != R8_CODE:
            found.append(f"{name}: `{verb}` ended with {result['code']}, expected {R8_CODE}: {result['said'][-200:]}")
        elif R8_WORDS not in result["said"]:
            found.append(f"{name}: `{verb}` does not say what is missing: {result['said'][-200:]}")
    return found
