# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What the command does: each verb as a function of a World, giving a report or raising a RegradeError.

Order and decisions of a step are `core.step`'s; here several whole steps are put together, and facts are
gathered for a person. Nothing is printed here.
"""

from __future__ import annotations

from typing import Callable, Generator, NamedTuple, Optional, Tuple, TypeVar

from ..adapters import psi
from ..core import cures, gate, marks, reconcile, requests
from ..core import lease as leases
from ..core.errors import (
    ClusterError,
    Conflict,
    LevelUnknown,
    RegradeError,
    SettingsWrong,
    StepFailed,
)
from ..core.levels import DOWN, FULL, LEVELS, UP
from ..core.model import Node, NodeChange
from ..core.step import JOURNAL, LOCK_SECONDS, SEEN, Plan, locked, tell
from ..core.walk import Taken, walk
from . import watcher_notes
from .driver import Driver, Hooks, World
from .reports import (
    AlertReport,
    BlockedReport,
    CheckReport,
    HoldReport,
    LeaseReport,
    LevelsReport,
    SettleReport,
    StatusReport,
    StepReport,
    StepTaken,
)

T = TypeVar("T")

__all__ = ("Server", "alert", "blocked", "levels", "release", "settle", "status", "step_to")


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
) -> StepReport:
    """Steps DOWN, UP, or to a level (`core.walk`). Raises RegradeError."""
    node = server.world.settings.node_name
    done = server.run(walk(server.plan(automatic, hold, wait), where, expected, check))
    way = " to ".join((done.start, *done.planned))
    if not done.planned:
        message = f"{node} is at {done.start} already"
        message += f", there is no level further {where}" if where in (DOWN, UP) else ""
    elif check:
        message = f"{node} would step from {way}"
    else:
        message = f"{node} stepped from {way}"
    remaining = [pod for entry in done.taken for pod in entry.remaining]
    if remaining:
        message += f"; pods that were not evicted: {'; '.join(remaining)}"
    return {
        "changed": bool(done.planned),
        "from": done.start,
        "to": done.end,
        "level": done.start if check else done.end,
        "steps": [_taken(entry) for entry in done.taken],
        "message": message,
    }


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


def release(server: Server) -> HoldReport:
    """Ends a hold: automatic steps may come again. Raises RegradeError."""
    name = server.world.settings.node_name

    def work() -> requests.Steps[bool]:
        asked = False  # a write of ours may have come through without its answer
        for _attempt in range(8):
            node: Node = yield requests.ReadNode(name)
            if marks.HOLD not in node.annotations and not asked:
                return False
            try:
                if marks.HOLD in node.annotations:
                    node = yield requests.ChangeNode(
                        name, NodeChange(annotations={marks.HOLD: None}), node.resource_version
                    )
                yield from tell(node, "Normal", "RegradeReleased", f"the hold of {name} was ended by hand")
                return True
            except ClusterError as error:
                asked = asked or not isinstance(error, Conflict)
                yield requests.Log(f"ending the hold: {error}")
                yield requests.Sleep(1.0)
        raise StepFailed(
            f"the hold of {name} could not be ended: its Node could not be written", left_open=False
        )

    changed = server.run(locked(f"releasing {name}", work(), LOCK_SECONDS))
    return {
        "changed": changed,
        "hold": False,
        "message": f"the hold of {name} is ended" if changed else f"{name} is not held",
    }


def status(server: Server) -> StatusReport:
    """All that a person asks about this server; what cannot be read is said in its place, never guessed."""
    world, settings = server.world, server.world.settings
    why = psi.missing_pressure(settings.pressure_file)
    level: Optional[str] = None
    unknown = ""
    try:
        level = world.actuator.current_level()
    except LevelUnknown as error:
        unknown = str(error)
    if why and level == FULL:
        raise SettingsWrong(why)
    try:
        recorded = world.vote.recorded_level() if world.vote else None
    except RegradeError:
        recorded = None
    facts, node, trouble = _facts(world)
    notes = watcher_notes.read(settings)
    seen = psi.sample(settings.pressure_file, settings.meminfo_file, world.clock.boot_id())
    checks = list(gate.check(facts)) if facts else [gate.Check("members", None, trouble)]
    journal = world.store.read(JOURNAL)
    lease = _lease(server)
    report: StatusReport = {
        "server": settings.node_name,
        "level": level,
        "level_unknown": unknown,
        "recorded": recorded,
        "label": marks.level_of(node) if node else None,
        "hold": marks.switch(node, marks.HOLD) if node else None,
        "pause": marks.switch(node, marks.PAUSE) if node else None,
        "dry_run": marks.switch(node, marks.DRY_RUN) if node else None,
        "reading": {
            "pressure": watcher_notes.number(notes, "pressure"),
            "mem_available": seen.available,
            "mem_total": seen.total,
            "verdict": notes.get("verdict", "unknown") if notes else "unknown",
        },
        "streaks": {
            "over": watcher_notes.number(notes, "over_for"),
            "calm": watcher_notes.number(notes, "calm_for"),
        },
        "cooldown": {
            "down": watcher_notes.number(notes, "cooldown_down"),
            "up": watcher_notes.number(notes, "cooldown_up"),
        },
        "lease": lease,
        "gate": [_check(item) for item in checks],
        "journal": journal,
        "watcher": notes or None,
        "next": "",
    }
    report["next"] = _next(report, why)
    return report


def _check(item: gate.Check) -> CheckReport:
    return {"check": item.check, "ok": item.ok, "detail": item.detail}


def _facts(world: World) -> Tuple[Optional[gate.Facts], Optional[Node], str]:
    """(facts for the gate, but for the node leases, which take up to 40 s to watch; own Node; what
    failed)."""
    name = world.settings.node_name
    try:
        nodes = world.cluster.nodes()
    except RegradeError as error:
        return None, None, str(error)
    own = next((node for node in nodes if node.name == name), None)
    try:
        facts = gate.Facts(name, nodes, world.etcd.members())
    except LevelUnknown as error:
        facts = gate.Facts(name, nodes, None, str(error))
    answers = {
        node.name: world.cluster.ask_peer(node.addresses[0] if node.addresses else node.name)
        for node in gate.peer_nodes(facts)
    }
    return facts._replace(peers=answers), own, ""


def _lease(server: Server) -> LeaseReport:
    world = server.world
    try:
        found = world.cluster.read_lease()
        now, boot = world.clock.boottime(), world.clock.boot_id()
        seen = leases.see(found, leases.seen_from(world.store.read(SEEN)), now, boot)
        verdict = leases.judge(found, server.holder, seen, now, world.settings.lease_seconds)
    except RegradeError as error:
        return {"holder": "", "free": False, "error": str(error)}
    return {"holder": found.holder, "free": verdict.kind in (leases.FREE, leases.EXPIRED), "error": ""}


def _next(report: StatusReport, why: str) -> str:
    """What would have to change for a step to happen, in words."""
    if report["journal"]:
        return "a step is open; the watcher goes on with it (or `regrade settle`)"
    if report["level"] is None:
        return "nothing until the level is known"
    if why:
        return f"nothing steps up by itself: {why}"
    refused = next(
        (f"{item['check']}: {item['detail']}" for item in report["gate"] if item["ok"] is False), ""
    )
    if refused:
        return f"no step until the gate allows it: {refused}"
    if report["lease"]["error"] or not report["lease"]["free"]:
        busy = report["lease"]["error"] or f"held by {report['lease']['holder']}"
        return f"no step until the Lease is free: {busy}"
    for key, word in (
        ("hold", "held: `regrade release` ends it"),
        ("pause", "paused"),
        ("dry_run", "in dry-run"),
    ):
        if report.get(key):
            return f"no automatic step: this server is {word}"
    notes = report["watcher"]
    if not notes:
        return "no automatic step: no watcher runs (or it runs elsewhere)"
    return notes.get("reason", "")
