# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What the command does: each verb as a function of a World, giving a report or raising a RegradeError.

Order and decisions of a step are `core.step`'s; here several whole steps are put together, and facts are
gathered for a person. Nothing is printed here.
"""

from __future__ import annotations

from typing import Callable, Generator, NamedTuple, Optional, Tuple, TypeVar

from ..core import cures, marks, people, reconcile, requests
from ..core.errors import ClusterError, RegradeError, StepFailed
from ..core.levels import DOWN, FULL, LEVELS, UP
from ..core.step import Plan
from ..core.walk import Taken, Walked, walk
from . import heartbeat as beat
from .driver import Driver, Hooks, World
from .reports import (
    AlertReport,
    BlockedReport,
    ClusterReport,
    DoneReport,
    HoldMove,
    HoldReport,
    LevelReport,
    LevelsReport,
    RanReport,
    SettleReport,
    StatusReport,
    StepReport,
    StepTaken,
)
from .status import gather

T = TypeVar("T")

__all__ = (
    "Server",
    "abandon_step",
    "alert",
    "blocked",
    "current_level",
    "forget",
    "heartbeat",
    "hold",
    "levels",
    "recover",
    "release",
    "settle",
    "status",
    "step_to",
    "with_lease",
)


class Server(NamedTuple):
    """This server, as the verbs see it."""

    world: World
    hooks: Hooks
    holder: str
    driver: Callable[[World, Hooks], Driver] = Driver

    def run(self, steps: Generator[requests.Request, object, T]) -> T:
        return self.driver(self.world, self.hooks).run(steps)

    def plan(self, automatic: bool = False, hold: bool = True, wait: float = 0.0) -> Plan:
        return Plan(self.world.settings.node_name, self.holder, self.world.settings, automatic, hold, wait)


def levels() -> LevelsReport:
    return {"levels": list(LEVELS)}


def current_level(server: Server) -> LevelReport:
    """The level this server runs at. Raises LevelUnknown."""
    return {"level": server.world.actuator.current_level()}


def settle(server: Server, automatic: bool = False, wait: float = 0.0) -> SettleReport:
    """Ends what is open. Raises RegradeError."""
    done = server.run(reconcile.settle(server.plan(automatic=automatic, wait=wait)))
    return {
        "changed": done.action not in (reconcile.NOTHING, reconcile.LEFT, reconcile.UNCURED),
        "action": done.action,
        "level": done.level,
        "back": done.back,
        "message": done.message,
    }


def step_to(
    server: Server,
    where: str,
    automatic: bool = False,
    hold: bool = True,
    wait: float = 0.0,
    check: bool = False,
    expected: str = "",
    despite: Tuple[str, ...] = (),
    after: Optional[str] = None,
    held: Optional[bool] = None,
) -> StepReport:
    """Steps DOWN, UP, or to a level (`core.walk`). Raises RegradeError.

    `hold`: a step by hand below full begins a hold, and one to full ends it. `held` says instead whether the server
    is held once it is there, whatever the level; where it is to be, no moment is left in which it is not.
    """
    node = server.world.settings.node_name
    if held is not None:
        hold = held and where not in (UP, FULL)
    plan = server.plan(automatic, hold, wait)._replace(despite=despite, after=after)
    before = None if automatic else _is_held(server)
    done = server.run(walk(plan, where, expected, check))
    holding = _hold_move(server, plan, before, done, held, check)
    way = " to ".join((done.start, *done.planned))
    if not done.planned:
        message = f"{node} is at {done.start} already" + (f"; {done.besides}" if done.besides else "")
        message += f", there is no level further {where}" if where in (DOWN, UP) else ""
    elif check:
        message = f"{node} would step from {way}"
        message += f" once its turn comes ({done.besides})" if done.besides else ""
    else:
        message = f"{node} stepped from {way}"
    remaining = [pod for entry in done.taken for pod in entry.remaining]
    if remaining:
        message += f"; pods that were not evicted: {'; '.join(remaining)}"
    taints = tuple(taint for entry in done.taken for taint in entry.taints)
    if taints:
        message += f"; {marks.taint_words(taints)}"
    if held is not None and holding["from"] != holding["to"]:
        message += f"; it {'would be' if check else 'is'} {'held' if held else 'held no more'}"
    return {
        "changed": bool(done.planned or done.besides) or holding["from"] != holding["to"],
        "from": done.start,
        "to": done.end,
        "level": done.start if check else done.end,
        "hold": holding,
        "steps": [_taken(entry) for entry in done.taken],
        "message": message,
    }


def _is_held(server: Server) -> Optional[bool]:
    """None where the cluster does not tell; what the walk then says of it counts."""
    try:
        return marks.switch(server.world.cluster.node(server.world.settings.node_name), marks.HOLD)
    except ClusterError:
        return None


def _hold_move(
    server: Server, plan: Plan, before: Optional[bool], done: Walked, held: Optional[bool], check: bool
) -> HoldMove:
    """Makes the hold what was asked for, after the walk, and tells what it was and is (or would be)."""
    if plan.automatic:
        return {"from": None, "to": None}
    if check:
        switched = plan.hold and bool(done.planned or done.besides or done.end == FULL)
        by_level = done.end != FULL if switched else before
        return {"from": before, "to": by_level if held is None else held}
    if held is not None:
        try:
            server.run(people.hold(plan) if held else people.release(plan))
        except RegradeError as error:
            raise StepFailed(f"{plan.node} is at {done.end}, but: {error}", left_open=False) from None
    return {"from": before, "to": _is_held(server)}


def _taken(entry: Taken) -> StepTaken:
    return {
        "from": entry.start,
        "to": entry.target,
        "seconds": entry.seconds,
        "etcd_away_seconds": entry.etcd_away,
        "api_away_seconds": entry.api_away,
        "remaining": list(entry.remaining),
    }


def alert(server: Server) -> AlertReport:
    """One Event: at the lowest level and still over. Never steps, also where the level rose meanwhile.

    Raises RegradeError.
    """
    name = server.world.settings.node_name
    level = server.world.actuator.current_level()
    if level != LEVELS[-1]:
        return {"changed": False, "level": level, "message": f"{name} is at {level} by now: nothing to alert"}
    message = f"{name} is at its lowest level and memory is still short: nothing is left to step down"
    server.world.cluster.record_event(server.world.cluster.node(name), "Warning", "RegradeExhausted", message)
    return {"changed": True, "level": level, "message": message}


def blocked(server: Server, move: str, reason: str, text: str) -> BlockedReport:
    """One Event: an automatic step is due and refused, with what a person can do. Raises RegradeError."""
    name = server.world.settings.node_name
    message = f"the step {move} of {name} that is due is blocked by {reason}: {text}; cure: {cures.cure(reason)}"
    server.world.cluster.record_event(server.world.cluster.node(name), "Warning", "RegradeBlocked", message)
    return {"changed": True, "reason": reason, "message": message}


def heartbeat(server: Server) -> ClusterReport:
    """The whole cluster as its Nodes show it. Raises RegradeError."""
    world = server.world
    return beat.report(world.cluster.all_nodes(), world.clock.now_text(), world.settings.node_name)


def hold(server: Server, check: bool = False) -> HoldReport:
    """Leaves this server where it is: no automatic step until `release`. Raises RegradeError."""
    done = server.run(people.hold(server.plan(), check))
    return {"changed": done.changed, "hold": True, "message": done.message}


def release(server: Server, check: bool = False) -> HoldReport:
    """Ends a hold: automatic steps may come again. Raises RegradeError."""
    done = server.run(people.release(server.plan(), check))
    return {"changed": done.changed, "hold": False, "message": done.message}


def abandon_step(server: Server, node: str, step_id: str = "") -> DoneReport:
    """Closes the step that a dead server left open. Raises RegradeError."""
    return _done(server.run(people.abandon_step(server.plan(), node, step_id)))


def forget(server: Server, node: str, wait: float = 0.0) -> DoneReport:
    """Takes our marks off the Node of a server that has no watcher any more. Raises RegradeError."""
    return _done(server.run(people.forget(server.plan(wait=wait), node)))


def recover(server: Server) -> DoneReport:
    """Runs this server full again where no API server is left to ask. Raises RegradeError."""
    return _done(server.run(people.recover(server.plan())))


def with_lease(server: Server, words: Tuple[str, ...], wait: float = 0.0) -> RanReport:
    """Runs a command under the host's lock and the Lease. Raises RegradeError."""
    ran = server.run(people.with_lease(server.plan(wait=wait), words))
    return {"changed": True, "code": ran.code, "lease_lost": ran.lost, "message": ran.message}


def _done(done: people.Done) -> DoneReport:
    return {"changed": done.changed, "message": done.message}


def status(server: Server) -> StatusReport:
    """All that a person asks about this server. Raises SettingsWrong where there is no pressure to read at full."""
    return gather(server.world, server.holder)
