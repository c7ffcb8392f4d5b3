# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The reports of the CLI: their shapes, and their words for a person. Nothing is decided or asked here."""

from __future__ import annotations

from typing import Dict, List, Optional, TypedDict


class LevelsReport(TypedDict):
    levels: List[str]


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
StepReport = TypedDict(
    "StepReport",
    {"changed": bool, "from": str, "to": str, "level": str, "steps": List[StepTaken], "message": str},
)


class SettleReport(TypedDict):
    changed: bool
    action: str
    level: str
    back: str  # the level it is to be stepped down to again, "" for none
    message: str


class HoldReport(TypedDict):
    changed: bool
    hold: bool
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
    ok: Optional[bool]
    detail: str


class LeaseReport(TypedDict):
    holder: str
    free: bool
    error: str


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
    label: Optional[str]
    hold: Optional[bool]
    pause: Optional[bool]
    dry_run: Optional[bool]
    reading: ReadingReport
    streaks: Dict[str, Optional[float]]
    cooldown: Dict[str, Optional[float]]
    lease: LeaseReport
    gate: List[CheckReport]
    journal: Optional[Dict[str, object]]
    watcher: Optional[Dict[str, str]]
    next: str


def status_words(report: StatusReport) -> str:
    """The status as lines for a person."""
    reading = report["reading"]
    lines = [
        f"server     {report['server']}",
        f"level      {report['level'] or 'unknown: ' + report['level_unknown']}"
        f" (recorded {report['recorded'] or 'unknown'}, label {report['label'] or 'unknown'})",
        f"reading    {reading['verdict']}: pressure {_share(reading['pressure'])}, available "
        f"{_mib(reading['mem_available'])} of {_mib(reading['mem_total'])}",
        f"streaks    over for {_seconds(report['streaks'].get('over'))}, calm for "
        f"{_seconds(report['streaks'].get('calm'))}",
        f"cooldown   down {_seconds(report['cooldown'].get('down'))}, up "
        f"{_seconds(report['cooldown'].get('up'))} to go",
        f"switches   hold {_yes(report['hold'])}, pause {_yes(report['pause'])}, dry-run "
        f"{_yes(report['dry_run'])}",
        "lease      "
        f"{report['lease']['error'] or ('free' if report['lease']['free'] else report['lease']['holder'])}",
    ]
    for check in report["gate"]:
        answer = {True: "yes", False: "NO", None: "-"}[check["ok"]]
        lines.append(f"gate       {check['check']:<9} {answer:<4} {check['detail']}".rstrip())
    if report["journal"]:
        lines.append(
            f"open step  from {report['journal'].get('from')} to {report['journal'].get('to')} "
            f"({report['journal'].get('phase')}): `regrade settle` ends it"
        )
    lines.append(f"next       {report['next']}")
    return "\n".join(lines)


def _share(value: Optional[float]) -> str:
    return "unknown" if value is None else f"{value * 100:.1f}%"


def _mib(value: Optional[int]) -> str:
    return "unknown" if value is None else f"{value >> 20} MiB"


def _seconds(value: Optional[float]) -> str:
    return "unknown" if value is None else f"{value:.0f} s"


def _yes(value: Optional[bool]) -> str:
    return "unknown" if value is None else "yes" if value else "no"
