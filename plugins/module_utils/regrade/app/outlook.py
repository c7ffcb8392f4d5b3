# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What would have to change for a step to happen, in words, worked out of a status report. Pure.

`needs` holds a step by hand up as well; `automatic_needs` only one by the watcher. `next` is the one line that
says what comes next, or what stands in the way of it first.
"""

from __future__ import annotations

from typing import List

from ..core import cures
from ..core.levels import above, below
from ..core.settings import Settings
from .reports import MoveReport, StatusReport


def fill(report: StatusReport, settings: Settings, agrees: bool) -> None:
    """Sets `down`, `up` and `next` of a report whose other fields are. `agrees`: the Node's marks are those of
    the running level (or one of the two is not known)."""
    report["down"] = _move(report, settings, agrees, down=True)
    report["up"] = _move(report, settings, agrees, down=False)
    report["next"] = _next(report)


def _move(report: StatusReport, settings: Settings, agrees: bool, down: bool) -> MoveReport:
    level = report["level"]
    if level is None:
        return {
            "to": "",
            "needs": [f"the level has to become known: {report['level_unknown']}"],
            "automatic_needs": [],
        }
    target = below(level) if down else above(level)
    if not target:
        return {"to": "", "needs": [], "automatic_needs": []}
    automatic = _memory(report, settings, down) + _by_itself(report, settings, down)
    return {"to": target, "needs": _either(report, agrees), "automatic_needs": automatic}


def _either(report: StatusReport, agrees: bool) -> List[str]:
    """What holds a step up whoever takes it."""
    needs: List[str] = []
    if report["journal"]:
        needs.append(f"the open step has to end: {cures.cure('open-step')}")
    if report["journal_error"]:
        needs.append(f"whether a step is open has to become known: {report['journal_error']}")
    if report["node_error"]:
        needs.append(f"{report['node_error']}: {cures.cure('cluster')}")
    if not agrees:
        needs.append(
            f"the Node's marks say {report['label']} and have to say {report['level']}: {cures.cure('marks')}"
        )
    needs += [
        f"{item['check']}: {item['detail']}: {item['cure']}" for item in report["gate"] if item["ok"] is False
    ]
    lease = report["lease"]
    if lease["error"]:
        needs.append(f"the Lease has to be readable: {lease['error']}: {lease['cure']}")
    elif not lease["free"]:
        needs.append(f"the Lease has to be free, and is held by {lease['holder']}: {lease['cure']}")
    return needs


def _memory(report: StatusReport, settings: Settings, down: bool) -> List[str]:
    """What the readings still have to show, and the cooldown."""
    needs: List[str] = []
    streak = report["streaks"]["over" if down else "calm"]
    asked = report["streaks"]["over_asked" if down else "calm_asked"]
    if asked is None:
        asked = settings.sustain_down_seconds if down else settings.sustain_up_seconds
    if not (down and report["back"]) and (streak is None or streak < asked):
        so_far = "not known how long it is" if streak is None else f"so far {streak:.0f} s"
        needs.append(f"{_over(settings) if down else _calm(report, settings)} for {asked:.0f} s, {so_far}")
    left = report["cooldown"]["down" if down else "up"]
    if left is None:
        needs.append("the cooldown has to become known: the note of the last step cannot be read")
    elif left > 0:
        needs.append(f"the cooldown has to pass: {left:.0f} s to go")
    return needs


def _over(settings: Settings) -> str:
    return (
        f"memory has to be over (pressure {settings.pressure_threshold * 100:g}% or more with less than "
        f"{settings.pressure_ceiling * 100:g}% available, or less than {settings.memavailable_floor.text} available)"
    )


def _calm(report: StatusReport, settings: Settings) -> str:
    headroom = settings.headroom(report["level"] or "")
    more = f" and {headroom.text} more" if headroom else ""
    return (
        f"memory has to be calm (pressure below {settings.pressure_threshold * 100:g}%, and "
        f"{settings.memavailable_floor.text}{more} available)"
    )


def _by_itself(report: StatusReport, settings: Settings, down: bool) -> List[str]:
    """What holds the watcher up and no person."""
    needs: List[str] = []
    if not down and report["back"]:
        needs.append(f"it is stepped down to {report['back']} again first")
    if not down and settings.step_up != "automatic":
        needs.append(f"STEP_UP=manual: a person has to step it up, or set {cures.setting('STEP_UP', 'automatic')}")
    for word, on in (("hold", report["hold"]), ("pause", report["pause"]), ("dry-run", report["dry_run"])):
        if on:
            needs.append(f"{word} has to end: {cures.cure(word)}")
    if report["reading_error"]:
        needs.append(f"there has to be pressure to read: {report['reading_error']}")
    if report["watcher_error"]:
        needs.append(f"a watcher has to run: {report['watcher_error']}")
    blocked = report["blocked"]
    if blocked and blocked["retry_in"] and (blocked["move"] == "down") == down:
        needs.append(f"it was refused for {blocked['reason']}, and is tried again in {blocked['retry_in']:.0f} s")
    return needs


def _next(report: StatusReport) -> str:
    """What comes next, or what stands in its way first."""
    if report["journal"]:
        return "a step is open; the watcher goes on with it (or `regrade settle`)"
    if report["journal_error"]:
        return f"nothing until it is known whether a step is open: {report['journal_error']}"
    if report["level"] is None:
        return "nothing until the level is known"
    if report["reading_error"]:
        return f"nothing steps up by itself: {report['reading_error']}"
    refused = next(
        (f"{item['check']}: {item['detail']}" for item in report["gate"] if item["ok"] is False), ""
    )
    if refused:
        return f"no step until the gate allows it: {refused}"
    if report["node_error"]:
        return f"no step until the cluster answers: {report['node_error']}"
    if report["lease"]["error"] or not report["lease"]["free"]:
        busy = report["lease"]["error"] or f"held by {report['lease']['holder']}"
        return f"no step until the Lease is free: {busy}"
    for key, word in (
        (report["hold"], "held: `regrade release` ends it"),
        (report["pause"], "paused"),
        (report["dry_run"], "in dry-run"),
    ):
        if key:
            return f"no automatic step: this server is {word}"
    if report["watcher_error"] or report["watcher"] is None:
        return f"no automatic step: no watcher runs (or it runs elsewhere): {report['watcher_error']}"
    return report["watcher"].get("reason", "")
