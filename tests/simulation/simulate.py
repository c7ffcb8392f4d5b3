# SPDX-License-Identifier: GPL-3.0-or-later
"""The command of the simulation: many histories side by side, what they went through, and the first that breaks.

    python -m ansible_collections.exadev.k3s_regrade.tests.simulation.simulate --seeds 2000 [--first 0 | --fresh]
    python -m ansible_collections.exadev.k3s_regrade.tests.simulation.simulate --seed 42

Exit code 0 where every invariant held in every history and enough was gone through, else 1. One history is `history`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Set

from . import deeds, faults
from .checks import INVARIANTS, Broken
from .history import History

KEPT = Path(__file__).with_name("kept_seeds.txt")
FIGURES = Path(__file__).resolve().parents[2] / "build" / "simulate" / "figures.json"  # for `make simulate`
CHUNK = 25
BREAKS_SHOWN = 5
ENOUGH_SEEDS = 20_000  # fewer do not show each rare fault a hundred times
SHARE = 0.01  # how often each fault and each refusal must come, in histories
CYCLES = 0.8  # share of histories that must complete a whole cycle

# Every fault and every refusal that must have come about: a new one is added here, or it may silently never happen.
FAULTS = (
    *(f"fault: {fate}" for fate in faults.FATES),
    *(f"fault: {accident}" for accident in faults.ACCIDENTS),
    *(f"deed: {deed.__name__.replace('_', ' ')}" for deed, _weight in deeds.DEEDS),
    *(f"fault: {name}" for name in (
        "403", "API slow", "Docker denies the restart", "Docker does not answer", "PodDisruptionBudget",
        "a member added in the middle of a step", "a recovery ends before its restart",
        "a step ended by hand just before its restart", "another server steps just before the Lease is taken",
        "certificate expired", "cut off at etcd-only in the middle of a step", "disk full", "hole in the samples",
        "large answers hang", "maintenance waits for a silent step", "no API server answers",
        "own server and a peer down with the journal open", "peer slow", "pod never ends", "process killed",
        "process stopped for a while", "process stopped just before a mark", "reading unknown",
        "something done in the middle of a step", "the record's link is lost",
        "trapped behind its own address", "two processes on one host",
    )),
    *(f"done: {what}" for what in (
        "intent taken off by hand", "maintenance under the Lease", "marks forgotten", "recovered with no API",
        "step abandoned", "step up without a dead peer",
    )),
    *(f"pressure: {kind}" for kind in ("between", "floor", "stall", "thrashing container")),
)  # fmt: skip
REFUSALS = tuple(f"refused: {reason}" for reason in (
    "members", "quorum", "ready", "voter", "full", "intent", "serviced", "fresh", "api", "lease", "lease-missing",
    "lease-lost", "cluster", "permission", "hold", "pause", "dry-run", "level", "host", "platform", "pods", "storage",
))  # fmt: skip


class Break(NamedTuple):
    seed: int
    invariant: str
    text: str


class Part(NamedTuple):
    """What some histories came to."""

    histories: int
    counts: Dict[str, int]
    checked: Dict[str, int]
    steps: int
    cycled: int
    cycled_in_faults: int
    simulated: float
    breaks: List[Break]


def run(seeds: Iterable[int], stop_at_first: bool = False) -> Part:
    """These histories, one after the other."""
    counts: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    breaks: List[Break] = []
    histories = steps = cycled = in_faults = 0
    simulated = 0.0
    for seed in seeds:
        history = History(seed)
        histories += 1
        try:
            history.run()
        except Broken as broken:
            breaks.append(Break(seed, broken.invariant, str(broken)))
        counts.update(history.counts)
        checked.update(history.checks.counts)
        steps += history.steps
        cycled += history.cycles > 0
        in_faults += history.cycles_in_faults > 0
        simulated += history.now
        if breaks and stop_at_first:
            break
    return Part(histories, dict(counts), dict(checked), steps, cycled, in_faults, simulated, breaks)


def add(one: Part, other: Part) -> Part:
    return Part(
        one.histories + other.histories,
        dict(Counter(one.counts) + Counter(other.counts)),
        dict(Counter(one.checked) + Counter(other.checked)),
        one.steps + other.steps,
        one.cycled + other.cycled,
        one.cycled_in_faults + other.cycled_in_faults,
        one.simulated + other.simulated,
        one.breaks + other.breaks,
    )


NONE = Part(0, {}, {}, 0, 0, 0, 0.0, [])


def run_all(seeds: List[int], progress: bool) -> Part:
    """Side by side on every core; ends early once enough have broken."""
    whole, began, shown = NONE, time.monotonic(), 0.0
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    chunks.reverse()
    pending: Set[Future[Part]] = set()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        while (chunks or pending) and len(whole.breaks) < BREAKS_SHOWN:
            while chunks and len(pending) < 2 * (os.cpu_count() or 1):
                pending.add(pool.submit(run, chunks.pop()))
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for part in done:
                whole = add(whole, part.result())
            now = time.monotonic()
            if progress and now - shown > (1.0 if sys.stderr.isatty() else 30.0):
                shown = now
                _bar(whole.histories, len(seeds), now - began)
        for part in pending:
            part.cancel()
    return whole


def _bar(done: int, total: int, seconds: float) -> None:
    share = done / total if total else 1.0
    filled = int(30 * share)
    left = seconds / share - seconds if share else 0.0
    end = "\r" if sys.stderr.isatty() else "\n"
    sys.stderr.write(
        f"[{'#' * filled}{'.' * (30 - filled)}] {done} of {total} histories, {done / seconds:.0f} a second, "
        f"{left:.0f} s to go{end}"
    )
    sys.stderr.flush()


def lacking(whole: Part) -> List[str]:
    """What was not gone through often enough, in words."""
    if whole.histories < ENOUGH_SEEDS:
        return []
    least = int(SHARE * whole.histories)
    found = [
        f"{name}: {whole.counts.get(name, 0)} times, expected {least} or more"
        for name in (*FAULTS, *REFUSALS)
        if whole.counts.get(name, 0) < least
    ]
    found += [f"the invariant {name!r} was never checked" for name in INVARIANTS if not whole.checked.get(name)]
    return found


def too_few_cycles(whole: Part) -> str:
    share = whole.cycled / whole.histories if whole.histories else 0.0
    if share >= CYCLES:
        return ""
    return f"{share * 100:.1f} % of the histories complete a whole cycle, expected {CYCLES * 100:.0f} % or more"


def kept() -> List[int]:
    """Seeds that once broke, each with the reason beside it."""
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def fresh() -> int:
    """A seed that nobody has chosen: of this commit, so that who runs it again sees the same histories; any other where
    there is none."""
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=KEPT.resolve().parent, capture_output=True, text=True, check=False
    )
    digits = told.stdout.strip()[:7]
    return int(digits, 16) if digits else random.SystemRandom().randrange(10**9)


def replay(seed: int) -> int:
    """One history, told as it goes."""
    history = History(seed, trace=True)
    broken: Optional[Broken] = None
    try:
        history.run()
    except Broken as found:
        broken = found
    sys.stdout.write("\n".join(history.lines) + "\n")
    sys.stdout.write(f"seed {seed}: {f'BROKEN {broken}' if broken else 'every invariant holds'}\n")
    return 1 if broken else 0


def _table(title: str, found: Dict[str, int], prefix: str) -> List[str]:
    names = sorted(name for name in found if name.startswith(prefix))
    return [f"{title}:", *(f"  {found[name]:>9}  {name[len(prefix) :]}" for name in names)]


def report(whole: Part, seconds: float, first: int) -> List[str]:
    lines = [
        *_table("faults", whole.counts, "fault: "),
        *_table("deeds of people and hosts", whole.counts, "deed: "),
        *_table("done by people's commands", whole.counts, "done: "),
        *_table("memory", whole.counts, "pressure: "),
        *_table("refusals", whole.counts, "refused: "),
        *_table("invariants checked", whole.checked, ""),
        f"{whole.histories} histories from seed {first}: {whole.histories / seconds:.1f} a second, "
        f"{whole.simulated / 86400:.0f} simulated days, {whole.steps} steps, "
        f"{100 * whole.cycled / max(1, whole.histories):.1f} % with a whole cycle, "
        f"{100 * whole.cycled_in_faults / max(1, whole.histories):.1f} % with one while calls and processes failed, "
        f"{len(whole.breaks)} broken",
    ]
    for found in whole.breaks[:BREAKS_SHOWN]:
        lines.append(f"BROKEN {found.text} (make simulate SEED={found.seed} tells how)")
    return lines


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="Simulated histories of clusters, and what must hold in them.")
    parser.add_argument("--seeds", type=int, default=2000, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--fresh", action="store_true", help="begin at a seed nobody has chosen")
    parser.add_argument("--kept", action="store_true", help="the kept seeds as well")
    parser.add_argument("--seed", type=int, help="one history, told as it goes")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return replay(options.seed)
    first = fresh() if options.fresh else options.first
    seeds = [*(kept() if options.kept else []), *range(first, first + options.seeds)]
    began = time.monotonic()
    whole = run_all(seeds, progress=True)
    seconds = max(0.001, time.monotonic() - began)
    sys.stdout.write("\n".join(report(whole, seconds, first)) + "\n")
    wrong = [found.text for found in whole.breaks]
    if not wrong:
        wrong = lacking(whole)
        few = too_few_cycles(whole)
        wrong += [few] if few else []
        sys.stdout.write("".join(f"LACKING {text}\n" for text in wrong))
    if FIGURES.parent.is_dir():  # `make simulate` has made it
        figures = {
            "first_seed": first,
            "histories": whole.histories,
            "histories_per_second": round(whole.histories / seconds, 1),
            "simulated_days": round(whole.simulated / 86400, 1),
            "steps": whole.steps,
            "cycled": round(whole.cycled / max(1, whole.histories), 4),
            "cycled_in_faults": round(whole.cycled_in_faults / max(1, whole.histories), 4),
            "breaks": [found._asdict() for found in whole.breaks],
            "counts": whole.counts,
            "checked": whole.checked,
            **({"problem": "; ".join(wrong)} if wrong else {}),
        }
        FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
