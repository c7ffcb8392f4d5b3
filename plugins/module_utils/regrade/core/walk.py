# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""From one level to another, by as many whole steps as that takes, as a generator of requests.

Rules
1. What is open is ended first, and the Node's marks agree with the running level before the first step.
2. Each step is one of its own, with its own lock, Lease and gate: between two of them anybody may step.
3. Where a later step of several does not come about, the error names how far it went.
4. A step by hand that finds its level already says all the same what the person wants: see `_stay`.
5. What `check` tells is what would be done: a walk whose first step would be refused is refused, and so is one whose
   server must be settled first, since what comes of that is not known before.
The order inside a step is `step`'s. No I/O and no clock here: the world answers the requests.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

from . import marks
from .errors import ClusterError, LevelMoved, RegradeError, StepFailed, StepRefused
from .levels import DOWN, FULL, LEVELS, UP, above, below, direction
from .model import Node, NodeChange
from .people import agreed, release
from .reconcile import LEFT, NOTHING, UNCURED, Settled, settle, to_return_to
from .requests import BeginMeter, CurrentLevel, EndMeter, Now, ReadNode, ReadState, RemoveState, Steps
from .step import (
    BRING_BACK,
    JOURNAL,
    Plan,
    always,
    foretell,
    judge_marks,
    lock_patience,
    locked,
    step,
    write_node,
)


class Taken(NamedTuple):
    """One step of the walk. Times in seconds; the last two None where nothing was measured."""

    start: str
    target: str
    seconds: float
    remaining: Tuple[str, ...]  # pods that were not evicted, each with why
    taints: Tuple[str, ...]  # of others, that keep pods away from a Node that is back at full
    etcd_away: Optional[float]
    api_away: Optional[float]


class Walked(NamedTuple):
    """A walk that came to its end; `planned` are the levels on the way, none where it was there already: then
    `besides` says what was changed all the same, "" for nothing. Of a walk that is only foretold it says what that
    would wait for."""

    start: str
    end: str
    planned: Tuple[str, ...]
    taken: Tuple[Taken, ...]
    besides: str = ""


def walk(plan: Plan, where: str, expected: str = "", check: bool = False) -> Steps[Walked]:
    """Steps DOWN, UP, or to the level `where`.

    `check` tells what would be done and writes nothing. `expected` is the level it was decided at: refused
    where the server is at another one, "" for any. Raises RegradeError.
    """
    settled = yield from (_nothing_to_settle(plan) if check else _settled(plan))
    start = settled.level
    if expected and start != expected:
        raise LevelMoved(plan.node, start, expected)
    planned = moves(start, _target(start, where))
    if plan.automatic and settled.back and planned and direction(start, planned[0]) == UP:
        # Decided before it was known, as every settling failed: now it is, and the next one tells the watcher.
        raise StepRefused(f"{plan.node} is to be stepped down to {settled.back} again first", "level", start)
    if not planned:
        return Walked(start, start, (), (), (yield from _stay(plan, settled, check)))
    if check:
        return Walked(start, planned[-1], planned, (), (yield from foretell(plan, (start, *planned))))
    plan = yield from agreed(plan, (start, *planned))
    taken: List[Taken] = []
    at = start
    for goal in planned:
        try:
            taken.append((yield from _measured(plan, at, goal)))
        except RegradeError as error:
            if taken:
                raise StepFailed(
                    f"{plan.node} came from {start} to {at}, then: {error}",
                    isinstance(error, StepFailed) and error.left_open,
                ) from None
            raise
        at = goal
    return Walked(start, at, planned, tuple(taken))


def _stay(plan: Plan, settled: Settled, check: bool) -> Steps[str]:
    """What a step by hand means where it finds its level already, and what settling did before: at full the hold
    ends, and a server that was to be stepped down to `back` again is left where it is, and held there."""
    if plan.automatic:
        return ""
    level, told = settled.level, []
    if settled.action not in (NOTHING, LEFT, UNCURED):
        told.append(settled.message)
    if level == FULL and plan.hold and (yield from release(plan, check)).changed:
        told.append("its hold would be ended" if check else "its hold is ended")
    if settled.back and not check:
        yield from locked(f"a step of {plan.node} to {level}", _left_here(plan, level), lock_patience(plan))
    if settled.back:
        stepped = "would not be stepped" if check else "is not stepped"
        told.append(f"it {stepped} down to {settled.back} again")
    return "; ".join(told)


def _left_here(plan: Plan, level: str) -> Steps[None]:
    def build(_node: Node) -> NodeChange:
        return NodeChange(annotations={marks.HOLD: marks.hold_words(level)})

    if plan.hold:
        try:
            yield from write_node(plan.node, "", build, lambda node: marks.HOLD in node.annotations, 0.0)
        except ClusterError as error:
            raise StepRefused(f"the hold of {plan.node} could not be set: {error}", error.reason) from None
    yield RemoveState(BRING_BACK)


def _settled(plan: Plan) -> Steps[Settled]:
    """Once nothing is open and the Node's marks agree with the running level."""
    try:
        return (yield from settle(plan, cure=False))
    except ClusterError as error:
        raise StepRefused(f"the cluster does not answer: {error}", error.reason) from None


def _nothing_to_settle(plan: Plan) -> Steps[Settled]:
    """What settling would find where there is nothing to do for it. Raises StepRefused where there is."""
    level: str = yield CurrentLevel()
    if (yield ReadState(JOURNAL)):
        raise StepRefused("a step of this server is still open; `regrade settle` ends it", "open-step")
    try:
        node: Node = yield ReadNode(plan.node)
    except ClusterError as error:
        raise StepRefused(f"the cluster does not answer: {error}", error.reason) from None
    judge_marks(node, level)
    return Settled(NOTHING, level, "", to_return_to(level, (yield ReadState(BRING_BACK))))


def _target(start: str, where: str) -> str:
    if where == DOWN:
        return below(start) or start
    if where == UP:
        return above(start) or start
    return where


def moves(start: str, target: str) -> Tuple[str, ...]:
    """The levels to step to, in order. Raises ValueError for a name that is no level."""
    first, last = LEVELS.index(start), LEVELS.index(target)
    return LEVELS[first + 1 : last + 1] if last >= first else tuple(reversed(LEVELS[last:first]))


def _measured(plan: Plan, at: str, goal: str) -> Steps[Taken]:
    """One step. A person reads how long etcd and the API were away; the watcher does not, and each look costs."""
    begun = yield Now()
    away: List[Tuple[Optional[float], Optional[float]]] = []
    if not plan.automatic:
        yield BeginMeter(at, goal)

    def end() -> Steps[None]:
        if not plan.automatic:
            away.append((yield EndMeter()))

    done = yield from always(step(plan, direction(at, goal), at), end)
    now = yield Now()
    etcd_away, api_away = away[0] if away else (None, None)
    seconds = round(now.boottime - begun.boottime, 1)
    return Taken(done.start, done.target, seconds, done.remaining, done.taints, etcd_away, api_away)
