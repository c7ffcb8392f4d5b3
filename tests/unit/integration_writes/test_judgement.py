# SPDX-License-Identifier: GPL-3.0-or-later
"""The judgement of a history of appends can fail: a history for each kind of it, and mutants of good ones.

What is good is drawn from a real list with clients that overlap; what is judged is held against an oracle that goes
through every order of tiny histories and knows nothing but what an append and a read are.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

WRITES = str(Path(__file__).resolve().parents[2] / "integration" / "writes")
if WRITES not in sys.path:
    sys.path.insert(0, WRITES)

import judgement  # noqa: E402
import operations as ops  # noqa: E402
from judgement import Problem, judge, judge_key  # noqa: E402
from operations import FINAL, NEVER, History, Operation  # noqa: E402


def append(value: str, begin: float, end: float, values: str, client: str = "c0") -> Operation:
    found = tuple(values.split())
    return Operation(ops.APPEND, value, "k", client, "server1", begin, end, ops.ACKNOWLEDGED, found)


def unknown(value: str, begin: float, end: float = NEVER) -> Operation:
    return Operation(ops.APPEND, value, "k", "c9", "server2", begin, end, ops.UNKNOWN, why="no answer in 3 s")


def refused(value: str, begin: float, end: float, answer: str = ops.REFUSED) -> Operation:
    return Operation(ops.APPEND, value, "k", "c8", "server3", begin, end, answer)


def read(begin: float, end: float, values: str, client: str = "c1") -> Operation:
    found = tuple(values.split())
    return Operation(ops.READ, f"r{begin}", "k", client, "server2", begin, end, ops.ACKNOWLEDGED, found)


def final(values: str) -> Operation:
    return read(1000, 1001, values, FINAL)


GOOD = [append("a", 0, 1, "a"), read(2, 3, "a"), append("b", 4, 5, "a b"), read(6, 7, "a b"), final("a b")]


def kinds(operations: list[Operation]) -> set[str]:
    return {problem.kind for problem in judge_key("k", operations)}


def test_a_good_history_passes() -> None:
    assert judge_key("k", GOOD) == []


@pytest.mark.parametrize(
    ("operations", "found"),
    [
        ([*GOOD[:-1], final("a")], {judgement.LOST, judgement.ORDER}),
        ([*GOOD[:-1], final("b")], {judgement.LOST, judgement.ORDER}),
        # Lost, although nobody ever read it: its own answer is all there is.
        ([append("a", 0, 1, "a"), final("")], {judgement.LOST, judgement.ORDER}),
        ([*GOOD[:-1], final("a b a")], {judgement.DOUBLED, judgement.ORDER}),
        ([*GOOD[:-1], final("a b x")], {judgement.STRANGE, judgement.ORDER}),
        # Stale: a read that began after an append was acknowledged does not see it.
        ([*GOOD, read(8, 9, "a")], {judgement.ORDER}),
        # Two reads in turn, the second older than the first, while an append is under way.
        ([append("a", 0, 9, "a"), read(1, 2, "a"), read(3, 4, ""), final("a")], {judgement.ORDER}),
        # Reordered: the first to be acknowledged comes second.
        ([append("a", 0, 1, "b a"), append("b", 2, 3, "b"), final("b a")], {judgement.ORDER}),
        # Two lists of which neither begins with the other.
        ([append("a", 0, 9, "a"), append("b", 0, 9, "b"), final("a b")], {judgement.ORDER}),
        ([*GOOD[:-1], final("b a")], {judgement.ORDER}),
        # An append that is answered with a list it is not in.
        ([append("a", 0, 1, ""), final("a")], {judgement.ORDER}),
        # An append that was told no.
        ([*GOOD[:-1], refused("c", 8, 9), final("a b c")], {judgement.NOT_REFUSED, judgement.ORDER}),
        (
            [*GOOD[:-1], refused("c", 8, 9, ops.CONFLICT), final("a b c")],
            {judgement.NOT_REFUSED, judgement.ORDER},
        ),
        # An unknown one is there before it began, twice, or gone again.
        ([*GOOD[:-1], unknown("c", 8), read(6, 7, "a b c"), final("a b c")], {judgement.ORDER}),
        ([*GOOD[:-1], unknown("c", 8), final("a b c c")], {judgement.DOUBLED, judgement.ORDER}),
        ([*GOOD[:-1], unknown("c", 8), read(9, 10, "a b c"), final("a b")], {judgement.ORDER}),
        # Nothing was read at the end.
        (GOOD[:-1], {judgement.UNDECIDED}),
    ],
)
def test_every_kind_of_harm_is_found(operations: list[Operation], found: set[str]) -> None:
    assert kinds(operations) == found


@pytest.mark.parametrize(
    "operations",
    [
        [*GOOD[:-1], refused("c", 8, 9), final("a b")],
        [*GOOD[:-1], unknown("c", 8), final("a b")],
        [*GOOD[:-1], unknown("c", 8, 9), final("a b c")],
        # Its client gave up at 9, and it takes effect long after.
        [*GOOD[:-1], unknown("c", 8, 9), read(10, 11, "a b"), read(12, 13, "a b c"), final("a b c")],
        # While it is under way, who comes first sees it or not.
        [append("a", 0, 9, "a"), read(1, 2, ""), read(3, 4, "a"), final("a")],
        # Many that are not known, in an order that is not theirs.
        [*(unknown(f"u{n}", n) for n in range(12)), final(" ".join(f"u{n}" for n in range(11, 0, -1)))],
    ],
)
def test_what_may_be_is_accepted(operations: list[Operation]) -> None:
    assert judge_key("k", operations) == []


def test_a_problem_names_the_operation() -> None:
    (lost, order) = judge_key("k", [*GOOD[:-1], final("a")])
    assert str(lost) == (
        "lost: k: c0 append b through server1 at 4.000 was acknowledged with 2 values, and it is not there at the end"
    )
    assert "final read r1000 through server2" in order.text
    assert "after the 4 operations of 5" in order.text


def test_the_report_counts_and_finds_the_stall() -> None:
    written = [
        append("a", 10, 11, "a"),
        refused("x", 11, 11.1),
        refused("y", 11, 11.1, ops.CONFLICT),
        unknown("u", 12),
        unknown("v", 12, 15),
        append("b", 12, 19, "a u b"),
    ]
    report = judge(History((*written, final("a u b")), began=10, ended=20, wall=5000))
    assert report.problems == ()
    assert (report.acknowledged, report.refused, report.unknown, report.conflicts) == (2, 1, 2, 1)
    assert (report.unknown_there, report.reads, report.keys, report.lost) == (1, 1, 1, 0)
    assert (report.longest_stall.seconds, report.longest_stall.time) == (8, 5001)
    assert report.servers["server2"].longest_stall.seconds == 10
    assert report.slowest == 7
    assert report.servers["server1"].acknowledged == 2
    assert report.stalled_outside((5002, 5003)) == 1
    assert report.stalled_outside((5002, 5003), (5000, 5000.5)) == 1
    assert report.stalled_outside((5002, 5003), (5000, 5000.5), (5009.5, 5011)) == 0
    assert report.stalled_outside((5015, 5016)) == report.stalled_outside() == 8
    assert "2 appends acknowledged, 0 lost, 1 refused, 2 unknown (1 of them there)" in report.line()
    assert "longest stall 8.0 s (through server1 8.0 s, server2 10.0 s, server3 10.0 s)" in report.line()
    assert json.loads(json.dumps(report.document()))["longest_stall"] == {"seconds": 8, "time": 5001}


def test_a_history_that_shows_nothing_is_a_problem() -> None:
    nothing = judge(History((refused("a", 0, 1), final("")), 0, 10))
    assert [problem.kind for problem in nothing.problems] == [judgement.UNDECIDED]
    cut = judge(History(tuple(GOOD), 0, 10, bounded=True))
    assert [problem.kind for problem in cut.problems] == [judgement.UNDECIDED]
    assert "not watched" in str(cut.problems[0])


def test_a_search_that_was_given_up_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = judgement.linearize
    monkeypatch.setattr(judgement, "linearize", lambda *given: whole(*given, limit=3))
    assert judge_key("k", GOOD) == [
        Problem(judgement.UNDECIDED, "k", "no answer after 3 configurations of 5 calls")
    ]


def test_a_file_gives_back_what_was_written_to_it() -> None:
    operations = [*GOOD, refused("x", 8, 9), replace(unknown("u", 8), why="")]
    lines = [json.dumps({"line": "begin", "monotonic": 0.5, "time": 99.0}) + "\n"]
    for operation in operations:
        if operation.kind == ops.APPEND:
            lines.append(json.dumps(operation.begun()) + "\n")
        if operation.completed != NEVER:
            lines.append(json.dumps(operation.answered()) + "\n")
    ended = [json.dumps({"line": "end", "monotonic": 2000.0, "bounded": True}) + "\n"]
    assert ops.read_lines([*lines, *ended]) == History(tuple(operations), 0.5, 2000.0, 99.0, True)
    # Where the clients were killed, the last answer is the end; a line that was cut off is none.
    assert ops.read_lines([*lines, '{"line": "ans']) == History(tuple(operations), 0.5, 1001.0, 99.0, False)
    with pytest.raises(ValueError, match="nothing was recorded"):
        ops.read_lines([])


# -- good histories, mutants and the oracle


def real_history(random: Random, count: int) -> list[Operation]:
    """What clients of one real list would record: each operation takes effect at a moment of its own, within the time
    its client waited for it; some answers never come, of which some took effect, and some are refused."""
    state: tuple[str, ...] = ()
    made = []
    for number in range(count):
        moment = float(number)
        invoked, completed = moment - random.random() * 4, moment + random.random() * 4
        if random.random() < 0.4:
            made.append(read(invoked, completed, " ".join(state)))
            continue
        value = f"v{number}"
        fate = random.random()
        if fate < 0.15:
            made.append(refused(value, invoked, completed, random.choice([ops.REFUSED, ops.CONFLICT])))
        elif fate < 0.35:
            if random.random() < 0.5:
                state = (*state, value)
            # It may have been given up before it took effect.
            made.append(unknown(value, invoked, random.choice([NEVER, invoked + 0.1, completed])))
        else:
            state = (*state, value)
            made.append(append(value, invoked, completed, " ".join(state)))
    random.shuffle(made)
    return [*made, final(" ".join(state))]


@given(st.randoms(use_true_random=False), st.integers(0, 40))
def test_what_a_real_list_answers_is_accepted(random: Random, count: int) -> None:
    assert judge_key("k", real_history(random, count)) == []


def without(values: tuple[str, ...], value: str) -> tuple[str, ...]:
    return tuple(other for other in values if other != value)


@given(st.randoms(use_true_random=False), st.integers(3, 40))
def test_a_mutant_of_it_is_refused(random: Random, count: int) -> None:
    history = real_history(random, count)
    acknowledged = [op for op in history if op.kind == ops.APPEND and op.acknowledged]
    assume(acknowledged)
    victim = random.choice(acknowledged)
    value = victim.id
    last = history[-1]
    # Lost: gone from every list that was read after its acknowledgement, or only from the last.
    gone = [
        replace(op, values=without(op.values, value))
        if op is not victim and op.invoked > victim.completed
        else op
        for op in history
    ]
    assert judgement.LOST in kinds(gone)
    assert kinds([*history[:-1], replace(last, values=without(last.values, value))]) == {
        judgement.LOST,
        judgement.ORDER,
    }
    # Doubled, and from nowhere.
    assert judgement.DOUBLED in kinds([*history[:-1], replace(last, values=(*last.values, value))])
    assert judgement.STRANGE in kinds([*history[:-1], replace(last, values=(*last.values, "nobody's"))])
    # A stale read: later than the acknowledgement, and what was there before.
    before = victim.values[: victim.values.index(value)]
    stale = read(victim.completed + 5, victim.completed + 6, " ".join(before))
    assert judgement.ORDER in kinds([*history, stale])
    # Reordered: its own answer has the one before it before it.
    if before:
        swapped = [
            value if other == before[-1] else before[-1] if other == value else other for other in last.values
        ]
        assert judgement.ORDER in kinds([*history[:-1], replace(last, values=tuple(swapped))])


def oracle(history: list[Operation]) -> bool:
    """Whether any order explains the history; goes through all of them. An append adds one value to the end, a read
    changes nothing, both see the whole list; what was refused does nothing, what is unknown may."""
    said = [op for op in history if op.acknowledged or (op.kind == ops.APPEND and op.answer == ops.UNKNOWN)]

    def goes_on(state: tuple[str, ...], left: frozenset[int]) -> bool:
        if not any(said[number].acknowledged for number in left):
            return True
        for number in left:
            op = said[number]
            if any(said[other].acknowledged and said[other].completed < op.invoked for other in left):
                continue
            after = (*state, op.id) if op.kind == ops.APPEND else state
            if op.acknowledged and op.values != after:
                continue
            if goes_on(after, left - {number}):
                return True
        return False

    return goes_on((), frozenset(range(len(said))))


def mutate(random: Random, history: list[Operation]) -> list[Operation]:
    """One thing about one operation is otherwise: a list, a time, or an answer."""
    number = random.randrange(len(history))
    op = history[number]
    values = list(op.values)
    choice = random.randrange(6)
    if choice == 0 and values:
        values.pop(random.randrange(len(values)))
    elif choice == 1 and len(values) > 1:
        random.shuffle(values)
    elif choice == 2:
        values.insert(random.randint(0, len(values)), random.choice([other.id for other in history]))
    elif choice == 3:
        values = list(random.choice(history).values)
    elif choice == 4:
        # Earlier or later by a little, and as long as it was.
        by = random.uniform(-3, 3)
        op = replace(op, invoked=op.invoked + by, completed=op.completed + by)
    elif op.kind == ops.APPEND:
        op = replace(op, answer=random.choice([ops.REFUSED, ops.UNKNOWN]), values=())
        return [*history[:number], op, *history[number + 1 :]]
    if op.acknowledged:
        op = replace(op, values=tuple(values))
    return [*history[:number], op, *history[number + 1 :]]


seen_by_oracle = {True: 0, False: 0}


@given(st.randoms(use_true_random=False), st.integers(0, 5), st.integers(0, 3))
def test_it_says_what_the_oracle_says_of_tiny_histories(random: Random, count: int, mutations: int) -> None:
    history = real_history(random, count)
    for _ in range(mutations):
        history = mutate(random, history)
    verdict = judgement.ORDER not in kinds(history)
    assert verdict is oracle(history), history
    # The other kinds only name what the order shows too.
    if verdict:
        assert kinds(history) == set()
    seen_by_oracle[verdict] += 1


def test_the_oracle_was_asked_about_both() -> None:
    test_it_says_what_the_oracle_says_of_tiny_histories()
    assert min(seen_by_oracle.values()) >= 10
