# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The reports of the CLI: their shapes, and their words for a person. Nothing is decided or asked here."""

from __future__ import annotations

from typing import Dict, List, Optional, TypedDict


class LevelsReport(TypedDict):
    levels: List[str]


class LevelReport(TypedDict):
    level: str


class TrialReport(TypedDict):
    check: str
    ok: bool
    detail: str


class ActuatorReport(TypedDict):
    executable: str
    passed: bool
    checks: List[TrialReport]


# `from` is a keyword, so this one cannot be written as a class
# Times in seconds, None where they were not measured; `remaining` names pods that were not evicted.
StepTaken = TypedDict(
    "StepTaken",
    {
        "from": str,
        "to": str,
        "seconds": float,
        "etcd_away_seconds": Optional[float],
        "api_away_seconds": Optional[float],
        "remaining": List[str],
    },
)
# Whether the server is held, before and after; None where it was not asked, or not told.
HoldMove = TypedDict("HoldMove", {"from": Optional[bool], "to": Optional[bool]})
# `to` is the level asked for, `level` the one it runs at now: with `--check` the two differ.
StepReport = TypedDict(
    "StepReport",
    {
        "changed": bool,
        "from": str,
        "to": str,
        "level": str,
        "hold": HoldMove,
        "steps": List[StepTaken],
        "message": str,
    },
)


class SettleReport(TypedDict):
    changed: bool
    action: str
    level: str
    back: str  # the level it is to be stepped down to again, "" for none
    message: str


class HoldReport(TypedDict):
    changed: bool
    hold: bool  # what it is at the end, or with `--check` would be
    message: str


class DoneReport(TypedDict):
    changed: bool
    message: str


class RanReport(TypedDict):
    changed: bool
    code: int  # the command's own exit code
    lease_lost: str  # why the Lease was lost while it ran, "" where it was held to the end
    message: str


class AlertReport(TypedDict):
    changed: bool  # whether there was something to alert of
    level: str
    message: str


class BlockedReport(TypedDict):
    changed: bool
    reason: str
    message: str


class CheckReport(TypedDict):
    check: str
    ok: Optional[bool]  # None: not asked
    detail: str
    cure: str  # what a person can do, "" where it holds


class LeaseReport(TypedDict):
    holder: str
    free: bool
    error: str
    age: Optional[float]  # seconds that this server has seen it unchanged; None where it is free or not known
    duration: Optional[float]  # seconds unchanged after which it may be taken over
    cure: str


# Levels, "" where the Node's mark cannot be read.
OpenStepReport = TypedDict("OpenStepReport", {"from": str, "to": str})


class NodeReport(TypedDict):
    """A Node as `heartbeat` tells it. Times in UTC, as the API has them; None where they are not told."""

    name: str
    server: bool  # whether it holds the etcd role
    ready: bool
    ready_since: Optional[str]  # since when it is ready, or not
    regrade_level: Optional[str]  # None at full
    below_full_since: Optional[str]
    hold: bool
    step: Optional[OpenStepReport]  # an open one
    foreign_taints: List[str]  # of others, that keep pods away, as key=value:effect


class ClusterReport(TypedDict):
    """What `heartbeat` prints. `version` rises only where a reader of the one before would misread it: what is
    added to it has to be left alone by readers that do not know it."""

    version: int
    time: str
    server: str  # whose command tells it
    nodes: List[NodeReport]


class WhyBlocked(TypedDict):
    move: str
    reason: str  # of the closed list of `core.cures`
    message: str
    cure: str
    retry_in: Optional[float]


class TrapReport(TypedDict):
    trapped: Optional[bool]  # behind its own address; None where it cannot be told
    detail: str


class MoveReport(TypedDict):
    to: str  # the level, "" where there is none further that way
    needs: List[str]  # what would have to change, also for a step by hand
    automatic_needs: List[str]  # and besides, for one by the watcher


class ReadingReport(TypedDict):
    pressure: Optional[float]  # share of the window that some task stalled, 0 to 1, as the watcher last told
    mem_available: Optional[int]  # bytes
    mem_total: Optional[int]
    verdict: str


class StatusReport(TypedDict):
    server: str
    level: Optional[str]
    level_unknown: str
    recorded: Optional[str]
    recorded_error: str  # this and the other errors: why what stands beside it is not known, "" where it is
    label: Optional[str]
    node_error: str
    hold: Optional[bool]
    pause: Optional[bool]
    dry_run: Optional[bool]
    foreign_taints: List[str]  # of others, that keep pods away, as key=value:effect
    reading: ReadingReport
    reading_error: str
    streaks: Dict[str, Optional[float]]  # over, calm; over_asked, calm_asked: how long a step asks
    cooldown: Dict[str, Optional[float]]  # seconds to go
    relapses: Optional[int]
    lease: LeaseReport
    gate: List[CheckReport]
    blocked: Optional[WhyBlocked]
    exhausted: bool  # over at the lowest level
    back: str  # the level a recreated container is to be stepped down to again, "" for none
    trap: TrapReport
    journal: Optional[Dict[str, object]]
    journal_error: str
    watcher: Optional[Dict[str, str]]
    watcher_error: str
    down: MoveReport
    up: MoveReport
    next: str


def status_words(report: StatusReport) -> str:
    """The status as lines for a person."""
    reading, streaks, cooldown = report["reading"], report["streaks"], report["cooldown"]
    lines = [
        f"server     {report['server']}",
        f"level      {report['level'] or 'unknown: ' + report['level_unknown']}"
        f" (recorded {report['recorded'] or _unknown(report['recorded_error'])}, label "
        f"{report['label'] or _unknown(report['node_error'])})",
        f"reading    {reading['verdict']}: pressure {_share(reading['pressure'])}, available "
        f"{_mib(reading['mem_available'])} of {_mib(reading['mem_total'])}",
        f"streaks    over for {_seconds(streaks.get('over'))} of {_seconds(streaks.get('over_asked'))}, calm for "
        f"{_seconds(streaks.get('calm'))} of {_seconds(streaks.get('calm_asked'))} (relapses: "
        f"{'unknown' if report['relapses'] is None else report['relapses']})",
        f"cooldown   down {_seconds(cooldown.get('down'))}, up {_seconds(cooldown.get('up'))} to go",
        f"switches   hold {_yes(report['hold'])}, pause {_yes(report['pause'])}, dry-run "
        f"{_yes(report['dry_run'])}",
        f"lease      {_lease_words(report['lease'])}",
    ]
    if report["foreign_taints"]:
        lines.append(f"taints     not ours, and they keep pods away: {', '.join(report['foreign_taints'])}")
    if report["reading_error"]:
        lines.append(f"reading    {report['reading_error']}")
    if report["watcher_error"]:
        lines.append(f"watcher    {report['watcher_error']}")
    for check in report["gate"]:
        answer = {True: "yes", False: "NO", None: "-"}[check["ok"]]
        cure = f"; cure: {check['cure']}" if check["ok"] is False else ""
        lines.append(f"gate       {check['check']:<9} {answer:<4} {check['detail']}{cure}".rstrip())
    if report["journal_error"]:
        lines.append(f"open step  unknown: {report['journal_error']}")
    if report["journal"]:
        lines.append(
            f"open step  from {report['journal'].get('from')} to {report['journal'].get('to')} "
            f"({report['journal'].get('phase')}): `regrade settle` ends it"
        )
    blocked = report["blocked"]
    if blocked:
        lines.append(
            f"blocked    a step {blocked['move']} is due, and refused for {blocked['reason']}: {blocked['message']}; "
            f"tried again in {_seconds(blocked['retry_in'])}; cure: {blocked['cure']}"
        )
    if report["exhausted"]:
        lines.append("exhausted  memory is short at the lowest level: nothing is left to step down")
    if report["back"]:
        lines.append(
            f"back       the container came back without its record's link: stepped down to {report['back']} again"
        )
    if report["trap"]["trapped"] is not False or report["trap"]["detail"]:
        lines.append(f"trap       {_yes(report['trap']['trapped'])}: {report['trap']['detail']}")
    for word, move in (("down", report["down"]), ("up", report["up"])):
        lines += _move_lines(word, move)
    lines.append(f"next       {report['next']}")
    return "\n".join(lines)


def _move_lines(word: str, move: MoveReport) -> List[str]:
    if not move["to"]:
        return [f"{word:<10} {'; '.join(move['needs']) or 'no level further that way'}"]
    by_hand = "; ".join(move["needs"]) or "nothing more"
    besides = "; ".join(move["automatic_needs"]) or "nothing more"
    return [
        f"{word:<10} to {move['to']} by hand needs: {by_hand}",
        f"{word:<10} to {move['to']} by itself needs besides: {besides}",
    ]


def _lease_words(lease: LeaseReport) -> str:
    if lease["error"]:
        return f"unknown: {lease['error']}"
    if not lease["holder"]:
        return "free"
    seen = f"held by {lease['holder']}, seen unchanged for {_seconds(lease['age'])} of {_seconds(lease['duration'])}"
    return f"{seen}; may be taken over" if lease["free"] else seen


def _unknown(why: str) -> str:
    return f"unknown: {why}" if why else "unknown"


def _share(value: Optional[float]) -> str:
    return "unknown" if value is None else f"{value * 100:.1f}%"


def _mib(value: Optional[int]) -> str:
    return "unknown" if value is None else f"{value >> 20} MiB"


def _seconds(value: Optional[float]) -> str:
    return "unknown" if value is None else f"{value:.0f} s"


def _yes(value: Optional[bool]) -> str:
    return "unknown" if value is None else "yes" if value else "no"
