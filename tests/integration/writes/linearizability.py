# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether calls that overlapped in time can have taken effect one after another: the algorithm alone.

J. Wing and C. Gong, "Testing and Verifying Concurrent Objects" (1993), with the memoisation of G. Lowe, "Testing for
linearizability" (2017): a depth-first search over which call took effect next, that never enters the same pair of
(calls placed so far, state) twice. A call may be placed once it has begun and no call that ended before it began is
still to be placed. A call whose answer is not known never ends: it may take effect at any time after it began, or
never.

Pure. What the calls are, and what one does to the state, is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Optional, TypeVar

State = TypeVar("State", bound=Hashable)
Call = TypeVar("Call")

NEVER = float("inf")


class TooMuch(Exception):
    """The search went through as many configurations as it was given and found no answer."""


@dataclass(frozen=True)
class Timed(Generic[Call]):
    """A call, and its begin and end on one clock; the end is NEVER where the answer is not known."""

    call: Call
    begin: float
    end: float


@dataclass(frozen=True)
class Found:
    """``order`` holds indices of the calls in an order that explains them all; where there is none, the longest that
    could be found, and ``stuck`` is the call that had to come next and could not."""

    order: tuple[int, ...]
    stuck: Optional[int] = None

    @property
    def ok(self) -> bool:
        return self.stuck is None


def linearize(
    calls: Sequence[Timed[Call]],
    initial: State,
    step: Callable[[State, Call], Optional[State]],
    limit: int = 1_000_000,
) -> Found:
    """Look for an order. ``step`` gives the state after a call, None where the call cannot have been answered as it
    was in that state. Raises TooMuch after ``limit`` configurations."""
    timeline = _Timeline(calls)
    state = initial
    placed = 0  # one bit a call
    seen = {(placed, state)}
    path: list[tuple[int, State]] = []  # the calls placed, and the state before each
    left = sum(timed.end != NEVER for timed in calls)
    longest, stuck = (), None  # type: tuple[int, ...], Optional[int]
    at = timeline.first()
    while left:
        call = timeline.call(at)
        after = None if call is None else step(state, calls[call].call)
        if call is not None and after is not None and (placed | 1 << call, after) not in seen:
            if len(seen) >= limit:
                raise TooMuch(f"no answer after {limit} configurations of {len(calls)} calls")
            placed |= 1 << call
            seen.add((placed, after))
            path.append((call, state))
            state = after
            left -= calls[call].end != NEVER
            timeline.lift(call)
            at = timeline.first()
        elif call is not None:
            at = timeline.next(at)
        else:
            # The end of a call that is not placed (or of all): nothing after it may come before it.
            if stuck is None or len(path) > len(longest):
                longest, stuck = tuple(number for number, _ in path), timeline.ended(at)
            if not path:
                return Found(longest, stuck)
            call, state = path.pop()
            placed &= ~(1 << call)
            left += calls[call].end != NEVER
            timeline.unlift(call)
            at = timeline.next(timeline.begin(call))
    return Found(tuple(number for number, _ in path))


class _Timeline(Generic[Call]):
    """Begins and ends in the order of time, as a doubly linked list from which a call is lifted and put back.

    Entry 0 is the list's own; a call's begin and, where it has one, its end are entries of their own. At the same
    moment a begin comes before an end: two calls that touch overlap.
    """

    def __init__(self, calls: Sequence[Timed[Call]]) -> None:
        entries = [(timed.begin, 0, number) for number, timed in enumerate(calls)]
        entries += [(timed.end, 1, number) for number, timed in enumerate(calls) if timed.end != NEVER]
        entries.sort()
        count = len(entries) + 1
        self._after: list[int] = [*range(1, count), 0]
        self._before: list[int] = [count - 1, *range(count - 1)]
        self._entry = [(2, -1), *((kind, number) for _time, kind, number in entries)]
        self._of: list[list[int]] = [[] for _ in calls]
        for entry, (_time, _kind, number) in enumerate(entries, 1):
            self._of[number].append(entry)

    def first(self) -> int:
        return self._after[0]

    def next(self, entry: int) -> int:
        return self._after[entry]

    def call(self, entry: int) -> Optional[int]:
        """The call that begins there; None at an end and past the last."""
        kind, number = self._entry[entry]
        return number if kind == 0 else None

    def ended(self, entry: int) -> int:
        """The call whose end this is. Every call that ended is before the list's end, so there is one."""
        kind, number = self._entry[entry]
        assert kind == 1
        return number

    def begin(self, call: int) -> int:
        return self._of[call][0]

    def lift(self, call: int) -> None:
        for entry in self._of[call]:
            before, after = self._before[entry], self._after[entry]
            self._after[before], self._before[after] = after, before

    def unlift(self, call: int) -> None:
        for entry in reversed(self._of[call]):
            self._after[self._before[entry]] = self._before[self._after[entry]] = entry
