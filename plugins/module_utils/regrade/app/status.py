# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""All that a person asks about this server, gathered: what cannot be read is said in its place, never guessed.

Nothing is changed or written here, and nothing is waited for. The shapes are `reports`; what they mean for the
next step is `outlook`.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Optional, Tuple, TypeVar

from ..adapters import pair_files, psi
from ..core import cures, gate, marks, policy, watch
from ..core import lease as leases
from ..core.errors import Missing, RegradeError, SettingsWrong
from ..core.levels import DOWN, ETCD_ONLY, FULL, UP
from ..core.model import Node
from ..core.step import BRING_BACK, JOURNAL, SEEN, UNCURED
from . import outlook, watcher_notes
from .driver import World
from .reports import CheckReport, LeaseReport, StatusReport, TrapReport, WhyBlocked

T = TypeVar("T")


def gather(world: World, holder: str) -> StatusReport:
    """The whole report. `holder` is this process as a holder of the Lease. Raises SettingsWrong where there is no
    pressure to read at full."""
    settings = world.settings
    why = psi.missing_pressure(settings.pressure_file)
    level, unknown = _or_why(world.actuator.current_level)
    if why and level == FULL:
        raise SettingsWrong(why)
    recorded, recorded_error = _or_why(world.vote.recorded_level) if world.vote else (None, "")
    journal, journal_error = _or_why(lambda: world.store.read(JOURNAL))
    back, _error = _or_why(lambda: world.store.read(BRING_BACK))
    facts, node, trouble = _facts(world)
    notes, silent = _notes(world)
    told = {} if silent else notes
    seen = psi.sample(settings.pressure_file, settings.meminfo_file, world.clock.boot_id())
    report: StatusReport = {
        "server": settings.node_name,
        "level": level,
        "level_unknown": unknown,
        "recorded": recorded,
        "recorded_error": recorded_error,
        "label": marks.level_of(node) if node else None,
        "node_error": trouble,
        "hold": marks.switch(node, marks.HOLD) if node else None,
        "pause": marks.switch(node, marks.PAUSE) if node else None,
        "dry_run": marks.switch(node, marks.DRY_RUN) if node else None,
        "foreign_taints": list(marks.foreign_taints(node)) if node else [],
        "reading": {
            "pressure": watcher_notes.number(told, "pressure"),
            "mem_available": seen.available,
            "mem_total": seen.total,
            "verdict": told.get("verdict", "unknown"),
        },
        "reading_error": why,
        "streaks": {
            "over": watcher_notes.number(told, "over_for"),
            "calm": watcher_notes.number(told, "calm_for"),
            "over_asked": watcher_notes.number(told, "over_asked"),
            "calm_asked": watcher_notes.number(told, "calm_asked"),
        },
        "cooldown": _cooldown(world),
        "relapses": int(told["relapses"]) if told.get("relapses", "").isdigit() else None,
        "lease": _lease(world, holder),
        "gate": _checks(facts, trouble),
        "blocked": _blocked(told),
        "exhausted": told.get("exhausted") == "yes",
        "back": str(back.get("level", "")) if back else "",
        "trap": _trap(world, level),
        "journal": journal,
        "journal_error": journal_error,
        "watcher": notes or None,
        "watcher_error": silent,
        "down": {"to": "", "needs": [], "automatic_needs": []},
        "up": {"to": "", "needs": [], "automatic_needs": []},
        "next": "",
    }
    outlook.fill(report, settings, node is None or level is None or marks.agrees(node, level))
    return report


def _or_why(read: Callable[[], T]) -> Tuple[Optional[T], str]:
    """What was read, or None and why it could not be."""
    try:
        return read(), ""
    except RegradeError as error:
        return None, str(error)


def _notes(world: World) -> Tuple[Dict[str, str], str]:
    """(the watcher's notes, why they tell nothing of now: "" where they do)."""
    notes = watcher_notes.read(world.settings)
    return notes, watcher_notes.silence(world.settings, notes, world.clock.boottime())


def _cooldown(world: World) -> Dict[str, Optional[float]]:
    """From the note of the last step, which needs no watcher."""
    try:
        last = watch.last_step(pair_files.read(os.path.join(world.settings.state_dir, pair_files.LAST_STEP)))
    except OSError:
        return {DOWN: None, UP: None}
    now, boot = world.clock.boottime(), world.clock.boot_id()
    return {move: policy.cooldown_left(last, move, now, boot, world.settings) for move in (DOWN, UP)}


def _blocked(told: Dict[str, str]) -> Optional[WhyBlocked]:
    if not told.get("blocked"):
        return None
    return {
        "move": told.get("blocked_move", ""),
        "reason": told.get("blocked_reason", "other"),
        "message": told["blocked"],
        "cure": told.get("blocked_cure", "") or cures.cure(told.get("blocked_reason", "")),
        "retry_in": watcher_notes.number(told, "retry_in"),
    }


def _trap(world: World, level: Optional[str]) -> TrapReport:
    if not world.vote or level != ETCD_ONLY:
        return {"trapped": False, "detail": ""}
    trapped, why = _or_why(world.vote.trapped)
    if not trapped:
        return {"trapped": trapped, "detail": why}
    uncured, why = _or_why(lambda: world.store.read(UNCURED))
    detail = "k3s is locked behind its own address, and ends by itself within 15 minutes; "
    detail += why or "a restart did not cure it" if uncured or why else "the watcher restarts it"
    return {"trapped": True, "detail": f"{detail}; cure: {cures.cure('trap')}"}


def _checks(facts: Optional[gate.Facts], trouble: str) -> List[CheckReport]:
    found = gate.check(facts) if facts else gate.check(gate.Facts("", (), None, trouble))
    if not facts:  # nothing was asked, so nothing is refused either
        found = tuple(item._replace(ok=None) for item in found)
    return [
        {
            "check": item.check,
            "ok": item.ok,
            "detail": item.detail,
            "cure": cures.cure(item.check) if item.ok is False else "",
        }
        for item in found
    ]


def _facts(world: World) -> Tuple[Optional[gate.Facts], Optional[Node], str]:
    """(facts for the gate, but for the node leases, which take up to 40 s to watch; own Node; what
    failed)."""
    name = world.settings.node_name
    try:
        nodes = world.cluster.nodes()
    except RegradeError as error:
        return None, None, str(error)
    own = next((node for node in nodes if node.name == name), None)
    members, why = _or_why(world.etcd.members)
    facts = gate.Facts(name, nodes, members, why)
    answers = {
        node.name: world.cluster.ask_peer(node.addresses[0] if node.addresses else node.name)
        for node in gate.peer_nodes(facts)
    }
    return (
        facts._replace(peers=answers),
        own,
        "" if own else f"NODE_NAME={name} is no Node with the etcd role",
    )


def _lease(world: World, holder: str) -> LeaseReport:
    try:
        found = world.cluster.read_lease()
    except RegradeError as error:
        reason = "lease-missing" if isinstance(error, Missing) else error.reason
        return {
            "holder": "", "free": False, "error": str(error), "age": None, "duration": None,
            "cure": cures.cure(reason),
        }  # fmt: skip
    now, boot = world.clock.boottime(), world.clock.boot_id()
    before, _why = _or_why(lambda: leases.seen_from(world.store.read(SEEN)))
    seen = leases.see(found, before, now, boot)
    verdict = leases.judge(found, holder, seen, now, world.settings.lease_seconds)
    free = verdict.kind in (leases.FREE, leases.EXPIRED)
    return {
        "holder": found.holder,
        "free": free,
        "error": "",
        "age": verdict.age if found.holder else None,
        "duration": verdict.duration if found.holder else None,
        "cure": "" if free else cures.cure("lease"),
    }
