# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The Prometheus text of what the watcher noted: names, help, values. Nothing is decided and nothing read here.

Rules
1. Each sample carries `server`, so that two servers of one host may share a folder of text files.
2. What is not known has no sample; it is never 0. A level that is not known is told by a metric of its own.
3. A label takes words of a closed list, never a message: each new text would be a new series.

The form is that of prometheus.io/docs/instrumenting/exposition_formats. Light: the idle loop imports it where it
writes METRICS_FILE.
"""

from __future__ import annotations

from .digits import whole
from .levels import DOWN, FULL, LEVELS, UP
from .light import NamedTuple
from .policy import BETWEEN, CALM, NOT_KNOWN, OVER
from .settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Optional, Tuple

    Labels = Tuple[Tuple[str, str], ...]

PREFIX = "k3s_regrade_"
HELP = {
    "info": "How the watcher of this server is set, always 1.",
    "level": "1 for the level k3s runs at, 0 for the others, and for all while it is not known.",
    "level_unknown": "1 while the level k3s runs at is not known.",
    "below_full": "1 where the last level that was known is below full.",
    "pressure_ratio": "Share of the window that some task stalled for memory.",
    "pressure_threshold_ratio": "Pressure from which on a reading is over.",
    "memory_total_bytes": "MemTotal of the host.",
    "memory_available_bytes": "MemAvailable of the host.",
    "memory_floor_bytes": "MemAvailable below which a reading is over, whatever the pressure.",
    "memory_ceiling_bytes": "MemAvailable below which pressure counts.",
    "verdict": "1 for what the last reading is, 0 for the others.",
    "streak_seconds": "How long the readings have been over, or calm.",
    "streak_asked_seconds": "How long they have to be so before a step.",
    "cooldown_seconds": "How long until a step in this direction may be taken.",
    "relapses": "Steps up that memory did not bear; each doubles the calm asked before the next.",
    "blocked": "1 where the step that is due is refused, with its direction and the reason, else 0.",
    "exhausted": "1 where memory stays short at the lowest level.",
    "step_open": "1 while a step is open, or something of one may be left in the cluster.",
    "unhealthy": "1 where a person should look at the watcher; `regrade health` says why.",
    "last_sample_timestamp_seconds": "When the watcher last took a sample.",
}
ESCAPES = {ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n"}


class Facts(NamedTuple):
    """What the text is made of; notes are {} where they tell nothing of now."""

    notes: dict[str, str]  # `watch.notes`
    memory: dict[str, str]  # `watch.memory_of`
    step_open: bool
    unhealthy: bool
    sampled_at: Optional[float]  # Unix time of the last sample


def text(facts: Facts, settings: Settings) -> str:
    """All of it, each metric with its help and type."""
    server = (("server", settings.node_name),)
    lines: list[str] = []
    said = ""
    for name, labels, value in _samples(facts, settings):
        if not value:
            continue
        if name != said:
            said = name
            lines.append(f"# HELP {PREFIX}{name} {HELP[name]}\n# TYPE {PREFIX}{name} gauge\n")
        inside = ",".join(f'{key}="{word.translate(ESCAPES)}"' for key, word in (*server, *labels))
        lines.append(f"{PREFIX}{name}{{{inside}}} {value}\n")
    return "".join(lines)


def _samples(facts: Facts, settings: Settings) -> Iterator[Tuple[str, Labels, str]]:
    """(name, labels, value or "" where it is not known); those of one name stand together."""
    notes = facts.notes
    yield "info", (("runtime", settings.runtime), ("step_up", settings.step_up)), "1"
    level = notes.get("level", "")
    for one in LEVELS:
        yield "level", (("level", one),), _flag(one == level)
    yield "level_unknown", (), _flag(level not in LEVELS)
    yield "below_full", (), _flag(facts.memory["level"] != FULL) if facts.memory.get("level") else ""
    yield "pressure_ratio", (), notes.get("pressure", "")
    yield "pressure_threshold_ratio", (), f"{settings.pressure_threshold:g}"
    total = whole(notes.get("mem_total", ""))
    if total:
        yield "memory_total_bytes", (), str(total)
        yield "memory_available_bytes", (), notes.get("mem_available", "")
        yield "memory_floor_bytes", (), str(settings.memavailable_floor.of(total))
        yield "memory_ceiling_bytes", (), str(int(settings.pressure_ceiling * total))
    for verdict in (OVER, CALM, BETWEEN, NOT_KNOWN):
        yield "verdict", (("verdict", verdict),), _flag(verdict == notes.get("verdict", NOT_KNOWN))
    for verdict in (OVER, CALM):
        yield "streak_seconds", (("verdict", verdict),), notes.get(f"{verdict}_for", "")
    for verdict in (OVER, CALM):
        yield "streak_asked_seconds", (("verdict", verdict),), notes.get(f"{verdict}_asked", "")
    for move in (DOWN, UP):
        yield "cooldown_seconds", (("move", move),), notes.get(f"cooldown_{move}", "")
    yield "relapses", (), notes.get("relapses", "")
    if notes.get("blocked"):
        why = (("move", notes.get("blocked_move", "")), ("reason", notes.get("blocked_reason", "other")))
        yield "blocked", why, "1"
    else:
        yield "blocked", (), _flag(False) if notes else ""
    yield "exhausted", (), _flag(notes.get("exhausted") == "yes") if notes else ""
    yield "step_open", (), _flag(facts.step_open)
    yield "unhealthy", (), _flag(facts.unhealthy)
    yield "last_sample_timestamp_seconds", (), "" if facts.sampled_at is None else f"{facts.sampled_at:.1f}"


def _flag(holds: bool) -> str:
    return "1" if holds else "0"
