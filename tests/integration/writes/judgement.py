# SPDX-License-Identifier: GPL-3.0-or-later
"""What must hold of a history of appends and reads, and what it tells of stalls. Pure: no clock, no cluster.

Every acknowledged append is there exactly once at the end, one whose answer is not known at most once, one that was
refused not at all; and each key's history is linearizable (linearizability.py). The first are read off the lists, and
so can be named one by one; the last is what the whole of it rests on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from linearizability import Timed, TooMuch, linearize
from operations import ACKNOWLEDGED, APPEND, CONFLICT, REFUSED, UNKNOWN, History, Operation

LOST = "lost"
DOUBLED = "doubled"
STRANGE = "strange"  # a value that no client wrote there
NOT_REFUSED = "not refused"  # it is there, and its client was told no
ORDER = "order"  # not linearizable
UNDECIDED = "undecided"

STALL_SECONDS = 1.0


@dataclass(frozen=True)
class Problem:
    kind: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.key}: {self.text}" if self.key else f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Stall:
    """So long no append was acknowledged, from a moment of the wall clock on."""

    seconds: float
    time: float


@dataclass(frozen=True)
class Through:
    """What the clients of one server were answered, and the longest time without an append acknowledged through it."""

    acknowledged: int
    refused: int
    unknown: int
    conflicts: int
    longest_stall: Stall


@dataclass(frozen=True)
class Report:
    problems: tuple[Problem, ...]
    seconds: float
    keys: int
    reads: int
    acknowledged: int
    refused: int
    unknown: int
    unknown_there: int
    """How many appends whose answer is not known took effect all the same."""
    conflicts: int
    slowest: float
    """Seconds of the slowest append that was acknowledged."""
    longest_stall: Stall
    stalls: tuple[Stall, ...]
    """Those of a second and more through all servers together, in the order of time."""
    servers: dict[str, Through] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def lost(self) -> int:
        return sum(problem.kind == LOST for problem in self.problems)

    def stalled_outside(self, *spans: tuple[float, float]) -> float:
        """The longest stall in seconds but for those that overlap with one of these spans of the wall clock; 0.0 where
        none is as long as a second."""
        return max(
            (
                stall.seconds
                for stall in self.stalls
                if all(stall.time + stall.seconds < begun or stall.time > ended for begun, ended in spans)
            ),
            default=0.0,
        )

    def line(self) -> str:
        told = (
            f"{self.acknowledged} appends acknowledged, {self.lost} lost, {self.refused} refused, "
            f"{self.unknown} unknown ({self.unknown_there} of them there), {self.reads} reads, "
            f"{self.keys} keys, in {self.seconds:.0f} s; longest stall {self.longest_stall.seconds:.1f} s"
        )
        through = ", ".join(
            f"{name} {found.longest_stall.seconds:.1f} s" for name, found in sorted(self.servers.items())
        )
        return f"{told} (through {through})" if through else told

    def document(self) -> dict[str, Any]:
        return {"ok": self.ok, "lost": self.lost, **asdict(self)}


def judge(history: History) -> Report:
    """All of it. A history that shows nothing is a problem of its own."""
    keys: dict[str, list[Operation]] = {}
    for operation in history.operations:
        keys.setdefault(operation.key, []).append(operation)
    problems = [problem for key, of in sorted(keys.items()) for problem in judge_key(key, of)]
    written = [operation for operation in history.operations if operation.kind == APPEND]
    counts = Counter(operation.answer for operation in written)
    if not counts[ACKNOWLEDGED]:
        problems.append(Problem(UNDECIDED, "", "no append was acknowledged, so nothing was shown"))
    if history.bounded:
        problems.append(
            Problem(
                UNDECIDED,
                "",
                f"the clients ended after {history.ended - history.began:.0f} s, when they had made as many operations "
                "as they were given: what came later was not watched; give more, or a longer pause",
            )
        )
    problems += [
        Problem(UNDECIDED, "", f"a client died, so what it wrote through was not watched: {why}")
        for why in history.died
    ]
    there = {value for operation in history.operations for value in operation.values}
    took = [operation.completed - operation.invoked for operation in written if operation.acknowledged]
    stalls = _stalls(history, written)
    return Report(
        problems=tuple(problems),
        seconds=history.ended - history.began,
        keys=len(keys),
        reads=sum(operation.kind != APPEND and operation.acknowledged for operation in history.operations),
        acknowledged=counts[ACKNOWLEDGED],
        refused=counts[REFUSED],
        unknown=counts[UNKNOWN],
        unknown_there=sum(operation.answer == UNKNOWN and operation.id in there for operation in written),
        conflicts=counts[CONFLICT],
        slowest=round(max(took, default=0.0), 3),
        longest_stall=_longest(stalls),
        stalls=tuple(stall for stall in stalls if stall.seconds >= STALL_SECONDS),
        servers={
            server: _through(history, [operation for operation in written if operation.server == server])
            for server in sorted({operation.server for operation in written})
        },
    )


def judge_key(key: str, operations: Sequence[Operation]) -> list[Problem]:
    """What is wrong with one key's history; nothing is a good sign only where its last list was read."""
    appends = {operation.id: operation for operation in operations if operation.kind == APPEND}
    answered = [operation for operation in operations if operation.acknowledged]
    finals = [operation.values for operation in answered if operation.final]
    if not finals:
        return [Problem(UNDECIDED, key, "its list could not be read at the end")]
    found: list[Problem] = []
    for append in appends.values():
        if append.acknowledged and not all(append.id in values for values in finals):
            found.append(Problem(LOST, key, f"{told(append)}, and it is not there at the end"))
    lists = {operation.values for operation in answered}
    for value, count in sorted(_most(lists).items()):
        if value not in appends:
            found.append(Problem(STRANGE, key, f"{value} is there, and no client wrote it"))
        elif count > 1:
            found.append(Problem(DOUBLED, key, f"{told(appends[value])}, and it is there {count} times"))
        elif appends[value].answer in (REFUSED, CONFLICT):
            found.append(Problem(NOT_REFUSED, key, f"{told(appends[value])}, and it is there"))
    return found + _order(key, operations, max(lists, key=len))


def told(operation: Operation) -> str:
    """What an operation was, for a person."""
    what = f"{operation.client} {operation.kind} {operation.id} through {operation.server}"
    why = f" ({operation.why})" if operation.why else ""
    count = f" with {len(operation.values)} values" if operation.acknowledged else ""
    return f"{what} at {operation.invoked:.3f} was {operation.answer}{count}{why}"


def append_only(order: tuple[str, ...]) -> Callable[[int, Operation], Optional[int]]:
    """A list that only grows, as a function from a state and an operation to the next state; a state is how many
    values of ``order``, the longest list that was answered, are there.

    It is the plain model (a state is a list) without its dead ends: no list can be answered that ``order`` does not
    begin with, so an append of any other value has no way to go on. Values that were never answered are left out
    before, by ``_order``.
    """

    def step(length: int, operation: Operation) -> Optional[int]:
        if operation.kind == APPEND:
            if length == len(order) or order[length] != operation.id:
                return None
            length += 1
        if operation.acknowledged and operation.values != order[:length]:
            return None
        return length

    return step


def _order(key: str, operations: Sequence[Operation], longest: tuple[str, ...]) -> list[Problem]:
    """Whether the key's history is linearizable."""
    # A read without an answer says nothing, and what was refused did nothing. An unknown append that is in no list
    # that was answered took effect after all of them or never: every list holds all that took effect before.
    there = set(longest)
    said = [
        operation
        for operation in operations
        if operation.acknowledged
        or (operation.kind == APPEND and operation.answer == UNKNOWN and operation.id in there)
    ]
    for operation in said:
        if operation.acknowledged and operation.values != longest[: len(operation.values)]:
            return [Problem(ORDER, key, f"{told(operation)}, and a longer list does not begin with them")]
    timed = [
        Timed(operation, operation.invoked, operation.completed if operation.acknowledged else float("inf"))
        for operation in said
    ]
    try:
        found = linearize(timed, 0, append_only(longest))
    except TooMuch as error:
        return [Problem(UNDECIDED, key, str(error))]
    if found.stuck is None:
        return []
    placed = f"after the {len(found.order)} operations of {len(said)} that can be put in an order"
    return [Problem(ORDER, key, f"{told(said[found.stuck])}, which cannot come {placed}")]


def _most(lists: Iterable[tuple[str, ...]]) -> Counter[str]:
    """How often each value is there, in the list that has it most often."""
    most: Counter[str] = Counter()
    for values in lists:
        most |= Counter(values)
    return most


def _through(history: History, written: Sequence[Operation]) -> Through:
    counts = Counter(operation.answer for operation in written)
    return Through(
        counts[ACKNOWLEDGED],
        counts[REFUSED],
        counts[UNKNOWN],
        counts[CONFLICT],
        _longest(_stalls(history, written)),
    )


def _stalls(history: History, written: Iterable[Operation]) -> list[Stall]:
    """The times between one acknowledgement and the next, with begin and end of the history."""
    moments = sorted(operation.completed for operation in written if operation.acknowledged)
    moments = [history.began, *(moment for moment in moments if moment <= history.ended), history.ended]
    return [
        Stall(round(after - before, 3), round(history.wall + before - history.began, 3))
        for before, after in zip(moments, moments[1:])
    ]


def _longest(stalls: Iterable[Stall]) -> Stall:
    return max(stalls, key=lambda stall: stall.seconds)
