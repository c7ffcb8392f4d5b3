# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulation itself: a seed is the whole history, and it fails where the code is made wrong."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import cures
from ansible_collections.exadev.k3s_regrade.tests.simulation import mutants, simulate
from ansible_collections.exadev.k3s_regrade.tests.simulation.checks import INVARIANTS
from ansible_collections.exadev.k3s_regrade.tests.simulation.history import History
from ansible_collections.exadev.k3s_regrade.tests.simulation.mutations import MUTANTS, Edit, Mutant
from ansible_collections.exadev.k3s_regrade.tests.simulation.scheduler import Scheduler, Waits

# Reasons that no history is refused for, or not often enough to be asked for, and why.
NOT_IN_HISTORIES = {
    "open-step": "a watcher settles before it steps, so only a rare race finds a step open (8 in 1,000 histories)",
    "marks": "the same: settling has made them agree",
    "abandoned": "only where a person ends a step just before its restart (2 in 1,000)",
    "level-unknown": "an error of its own, no refusal",
    "despite": "a command of a person, whose refusals are counted as one",
    "node": "NODE_NAME is right in every history",
    "identity": "a Node made anew ends the history: its member is gone",
    "two-steps": "an alarm, no refusal",
    "settings": "they are read before anything begins",
    "trap": "a failed step, no refusal",
    "process": "the children of a simulated watcher always start",
    "other": "a break: every refusal has its reason",
}
QUICK = ("intent before the journal", "never steps")


def named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def test_a_seed_is_the_whole_history() -> None:
    one, other, another = History(7, trace=True), History(7, trace=True), History(8, trace=True)
    assert one.run() == other.run()
    assert one.lines == other.lines
    another.run()
    assert one.lines != another.lines


def test_what_is_due_first_happens_first_and_what_is_due_at_once_in_the_order_it_was_asked_for() -> None:
    scheduler, seen = Scheduler(1), []  # type: ignore[var-annotated]

    def waits(name: str, *pauses: float) -> Waits:
        for pause in pauses:
            seen.append((scheduler.now, name))
            yield pause

    scheduler.spawn(waits("late", 1.0, 1.0), after=2.0)
    scheduler.spawn(waits("early", 2.0, 9.0))
    dead = scheduler.call(2.5, lambda: seen.append((scheduler.now, "dead")))
    scheduler.call(2.0, lambda: seen.append((scheduler.now, "called")))
    dead.alive = False
    scheduler.run(5.0)
    assert seen == [(0.0, "early"), (2.0, "late"), (2.0, "called"), (2.0, "early"), (3.0, "late")]
    assert scheduler.now == 5.0


def test_nothing_runs_on_a_host_that_sleeps() -> None:
    class Asleep:
        asleep_until = 10.0

    scheduler = Scheduler(1)
    seen: List[float] = []
    scheduler.call(1.0, lambda: seen.append(scheduler.now), Asleep())
    scheduler.run(9.0)
    assert not seen
    scheduler.run(12.0)
    assert len(seen) == 1
    assert 10.0 <= seen[0] <= 11.0


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_in_a_copy_of_the_code_is_caught_by_its_invariant(name: str, tmp_path: Path) -> None:
    found = mutants.catch(named(name), tmp_path, seeds=50)
    assert not found.problem
    assert found.invariant in named(name).caught_by


def test_a_copy_without_a_fault_is_not_caught_and_that_is_a_problem(tmp_path: Path) -> None:
    harmless = Mutant(
        "harmless", (Edit("cures.py", '    "other": "do', '    "other":  "do'),), ("cycle",), ""
    )
    assert "was not caught" in mutants.catch(harmless, tmp_path, seeds=2).problem


def test_being_caught_by_another_invariant_is_a_problem() -> None:
    found = mutants.Caught(named("never steps"), "calm", 1, 2, 0.1, "calm: told so")
    assert "expected 'cycle'" in found.problem


def test_each_mutant_still_finds_its_text() -> None:
    texts = mutants.core_texts()
    for mutant in MUTANTS:
        assert mutants.mutated(mutant, texts) != texts
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30


@pytest.mark.parametrize("found", ["no such text", "\n"])
def test_a_text_that_is_not_found_exactly_once_is_an_error(found: str) -> None:
    stale = Mutant("stale", (Edit("policy.py", found, ""),), ("cycle",), "")
    with pytest.raises(mutants.Stale, match=r"stands \d+ times in policy.py, expected once"):
        mutants.mutated(stale, mutants.core_texts())


def test_a_mutant_names_invariants_that_there_are() -> None:
    for caught_by in ((), ("no such invariant",)):
        with pytest.raises(mutants.Stale, match="no invariant"):
            mutants.mutated(named("never steps")._replace(caught_by=caught_by), mutants.core_texts())
    assert {name for mutant in MUTANTS for name in mutant.caught_by} <= set(INVARIANTS)


def test_each_reason_for_a_refusal_comes_in_histories_or_is_said_not_to() -> None:
    asked = {name.partition(": ")[2] for name in simulate.REFUSALS}
    assert not asked & set(NOT_IN_HISTORIES)
    assert asked | set(NOT_IN_HISTORIES) == set(cures.CURES)
