# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof that the simulation can fail: deliberate faults in copies of the code, each to be caught by its invariant.

    python -m ansible_collections.exadev.k3s_regrade.tests.simulation.mutants [--only NAME ...]

A mutant is one or more exact texts of `core`, each found once in its file, and what stands there instead. It runs in a
copy of the collection and in a process of its own, until its first history breaks. Exit code 0 where each was caught
within SEEDS histories, by an invariant that is named for it. What the invariants are is `checks`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from .checks import INVARIANTS
from .mutations import MUTANTS, Mutant
from .simulate import run

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutants"
FIGURES = ROOT / "build" / "simulate-mutants" / "figures.json"  # for `make simulate-mutants`
NAME = ("ansible_collections", "exadev", "k3s_regrade")
CORE = ("plugins", "module_utils", "regrade", "core")
SEEDS = 2000
SECONDS = 600.0  # for one mutant: one that never ends is not caught
AT_A_TIME = 2


class Stale(Exception):
    """The table does not fit the code any more."""


class Caught(NamedTuple):
    """What became of one mutant; `invariant` "" where no history broke."""

    mutant: Mutant
    invariant: str
    seed: int
    histories: int
    seconds: float
    text: str

    @property
    def problem(self) -> str:
        """Why this is no proof, "" where it is."""
        if not self.invariant:
            return f"{self.mutant.name} was not caught: {self.text}"
        if self.invariant not in self.mutant.caught_by:
            wanted = " or ".join(map(repr, self.mutant.caught_by))
            return f"{self.mutant.name} was caught by {self.invariant!r}, expected {wanted}: {self.text}"
        return ""


def mutated(mutant: Mutant, text_of: Dict[str, str]) -> Dict[str, str]:
    """File name -> its text with the mutant in it. Raises Stale where a text is not found exactly once."""
    unknown = [name for name in mutant.caught_by if name not in INVARIANTS]
    if unknown or not mutant.caught_by:
        raise Stale(f"mutant {mutant.name}: {unknown or 'nothing'} is no invariant of checks.INVARIANTS")
    texts: Dict[str, str] = {}
    for edit in mutant.edits:
        text = texts.get(edit.file, text_of[edit.file])
        found = text.count(edit.found)
        if found != 1:
            raise Stale(
                f"mutant {mutant.name}: its text stands {found} times in {edit.file}, expected once: "
                f"{edit.found.strip()[:60]!r}; write the mutant anew"
            )
        texts[edit.file] = text.replace(edit.found, edit.put)
    return texts


def core_texts(root: Path = ROOT) -> Dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in root.joinpath(*CORE).glob("*.py")}


def copy(mutant: Mutant, folder: Path) -> Path:
    """Lays the mutated collection below `folder`; returns the folder that is imported from."""
    texts = mutated(mutant, core_texts())
    below = folder / mutant.name
    shutil.rmtree(below, ignore_errors=True)
    collection = below.joinpath(*NAME)
    shutil.copytree(ROOT / "plugins", collection / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    (collection / "tests").symlink_to(ROOT / "tests")
    for name, text in texts.items():
        collection.joinpath(*CORE, name).write_text(text, encoding="utf-8")
    return below


def catch(mutant: Mutant, folder: Path, seeds: int = SEEDS, first: int = 0) -> Caught:
    """Runs it until a history breaks. Raises Stale."""
    below = copy(mutant, folder)
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        __spec__.name if __spec__ else __name__,
        "--child",
        "--seeds",
        str(seeds),
    ]
    command += ["--first", str(first)]
    env = {**os.environ, "PYTHONPATH": str(below)}
    try:
        done = subprocess.run(command, env=env, cwd=below, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Caught(mutant, "", -1, 0, time.monotonic() - began, f"it did not end within {SECONDS:.0f} s")
    seconds = time.monotonic() - began
    try:
        found = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        return Caught(mutant, "", -1, 0, seconds, f"its process ended with {done.returncode}: {last}")
    shutil.rmtree(below, ignore_errors=True)
    return Caught(mutant, found["invariant"], found["seed"], found["histories"], seconds, found["text"])


def child(first: int, seeds: int) -> int:
    """What runs in the copy: the first break as JSON."""
    part = run(range(first, first + seeds), stop_at_first=True)
    broken = part.breaks[0] if part.breaks else None
    found = {
        "histories": part.histories,
        "seed": broken.seed if broken else -1,
        "invariant": broken.invariant if broken else "",
        "text": broken.text if broken else f"every invariant holds in {part.histories} histories",
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def row(found: Caught) -> str:
    by = found.invariant or "NOT CAUGHT"
    return f"{found.mutant.name:<34} {by:<15} {found.seed:>6} {found.histories:>9} {found.seconds:>7.1f} s"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description="Deliberate faults, each of which the simulation must catch."
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants, not all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many histories each gets at most")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return child(options.first, options.seeds)
    unknown = set(options.only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    texts = core_texts()
    try:
        for mutant in chosen:  # before any has taken its time
            mutated(mutant, texts)
    except Stale as error:
        sys.stderr.write(f"{error}\n")
        return 1
    results = _catch_all(chosen, options.seeds, options.first)
    _table(results)
    problems = [found.problem for found in results if found.problem]
    sys.stdout.write("".join(f"PROBLEM {problem}\n" for problem in problems))
    sys.stdout.write(f"{len(results) - len(problems)} of {len(results)} mutants caught\n")
    if FIGURES.parent.is_dir():  # `make simulate-mutants` has made it
        FIGURES.write_text(json.dumps(_figures(results, problems), indent=1) + "\n", encoding="utf-8")
    return 1 if problems else 0


def _catch_all(chosen: List[Mutant], seeds: int, first: int) -> Tuple[Caught, ...]:
    """In the table's order, some side by side, one line as each ends."""
    results: Dict[str, Caught] = {}
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        futures = [pool.submit(catch, mutant, FOLDER, seeds, first) for mutant in chosen]
        for future in concurrent.futures.as_completed(futures):
            found = future.result()
            results[found.mutant.name] = found
            sys.stderr.write(f"[{len(results)} of {len(chosen)}] {row(found)}\n")
            sys.stderr.flush()
    return tuple(results[mutant.name] for mutant in chosen)


def _table(results: Tuple[Caught, ...]) -> None:
    sys.stdout.write(f"{'mutant':<34} {'caught by':<15} {'seed':>6} {'histories':>9} {'took':>9}\n")
    sys.stdout.write("".join(f"{row(found)}\n" for found in results))


def _figures(results: Tuple[Caught, ...], problems: List[str]) -> Dict[str, object]:
    figures: Dict[str, object] = {
        "mutants": len(results),
        "caught": len(results) - len(problems),
        "table": [
            {
                "mutant": found.mutant.name,
                "why": found.mutant.why,
                "caught_by": found.invariant,
                "seed": found.seed,
                "histories": found.histories,
                "seconds": round(found.seconds, 1),
                "text": found.text,
            }
            for found in results
        ],
    }
    if problems:
        figures["problem"] = "; ".join(problems)
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
