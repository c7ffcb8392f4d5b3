# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for an order, on a plain register: against what is known of it, and against every permutation."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, permutations
from pathlib import Path
from typing import NamedTuple, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

WRITES = str(Path(__file__).resolve().parents[2] / "integration" / "writes")
if WRITES not in sys.path:
    sys.path.insert(0, WRITES)

from linearizability import NEVER, Timed, TooMuch, linearize  # noqa: E402


class Write(NamedTuple):
    value: int


class Read(NamedTuple):
    value: int


def register(state: int, call: object) -> Optional[int]:
    if isinstance(call, Write):
        return call.value
    assert isinstance(call, Read)
    return state if call.value == state else None


def W(value: int, begin: float, end: float) -> Timed[object]:
    return Timed(Write(value), begin, end)


def R(value: int, begin: float, end: float) -> Timed[object]:
    return Timed(Read(value), begin, end)


@pytest.mark.parametrize(
    ("calls", "ok"),
    [
        ([], True),
        ([W(1, 0, 1), R(1, 2, 3)], True),
        ([W(1, 0, 1), R(0, 2, 3)], False),
        # At the same time, either may be first.
        ([W(1, 0, 3), R(0, 1, 2)], True),
        ([W(1, 0, 3), R(1, 1, 2)], True),
        # What touches overlaps.
        ([W(1, 0, 1), R(0, 1, 2)], True),
        # Two reads in turn cannot see new, then old.
        ([W(1, 0, 9), R(1, 1, 2), R(0, 3, 4)], False),
        ([W(1, 0, 9), R(0, 1, 2), R(1, 3, 4)], True),
        # Two writes at the same time have one order for all.
        ([W(1, 0, 9), W(2, 0, 9), R(1, 10, 11), R(2, 12, 13)], False),
        ([W(1, 0, 9), W(2, 0, 9), R(2, 10, 11), R(2, 12, 13)], True),
        # An unknown write may take effect never, at once, or much later; but once.
        ([W(1, 0, NEVER), R(0, 5, 6)], True),
        ([W(1, 0, NEVER), R(1, 5, 6)], True),
        ([W(1, 0, NEVER), R(0, 5, 6), R(1, 7, 8)], True),
        ([W(1, 0, NEVER), R(1, 5, 6), R(0, 7, 8)], False),
        ([W(1, 4, NEVER), R(1, 1, 2)], False),
    ],
)
def test_what_is_known_of_a_register(calls: list[Timed[object]], ok: bool) -> None:
    assert linearize(calls, 0, register).ok is ok


def test_the_call_that_cannot_come_is_named() -> None:
    found = linearize([W(1, 0, 1), R(1, 2, 3), R(0, 4, 5)], 0, register)
    assert (found.order, found.stuck) == ((0, 1), 2)


def test_it_ends_when_it_has_looked_at_as_much_as_it_was_given() -> None:
    calls = [W(number, 0, 9) for number in range(1, 9)] + [R(77, 10, 11)]
    assert not linearize(calls, 0, register).ok
    with pytest.raises(TooMuch, match="100 configurations of 9 calls"):
        linearize(calls, 0, register, limit=100)


def test_what_was_seen_is_not_gone_through_again() -> None:
    # 20 reads at the same time: 20! orders, of which none helps the last read, but only 2^10 sets for a bad one here.
    calls = [R(0, 0, 9) for _ in range(10)] + [R(1, 10, 11)]
    assert not linearize(calls, 0, register, limit=2000).ok


# -- against every permutation


def explains(calls: Sequence[Timed[object]], order: Sequence[int]) -> bool:
    """Whether the order keeps to the times and each call in it can have been answered so."""
    for place, number in enumerate(order):
        if any(calls[later].end < calls[number].begin for later in order[place + 1 :]):
            return False
    state: Optional[int] = 0
    for number in order:
        state = register(state, calls[number].call)
        if state is None:
            return False
    return True


def every_order(calls: Sequence[Timed[object]]) -> Iterator[tuple[int, ...]]:
    known = [number for number, timed in enumerate(calls) if timed.end != NEVER]
    unknown = [number for number, timed in enumerate(calls) if timed.end == NEVER]
    for some in chain.from_iterable(combinations(unknown, count) for count in range(len(unknown) + 1)):
        yield from permutations([*known, *some])


def timed_calls() -> st.SearchStrategy[list[Timed[object]]]:
    one = st.tuples(
        st.sampled_from([Write, Read]),
        st.integers(0, 2),
        st.integers(0, 9),
        st.one_of(st.just(NEVER), *[st.integers(0, 5)] * 3),
    )

    def timed(made: tuple[type, int, int, float]) -> Timed[object]:
        kind, value, begin, long = made
        return Timed(kind(value), begin, begin + long)

    return st.lists(one.map(timed), max_size=5)


@given(timed_calls())
def test_it_says_what_going_through_every_permutation_says(calls: list[Timed[object]]) -> None:
    found = linearize(calls, 0, register)
    assert found.ok is any(explains(calls, order) for order in every_order(calls))
    if found.ok:
        assert explains(calls, found.order)
        assert {number for number, timed in enumerate(calls) if timed.end != NEVER} <= set(found.order)
