# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What this project writes on a Node: keys, the intent of an open step, and what is ours to take back.

Pure: builds and reads marks, and works out one conditional write (`NodeChange`) from a Node. When a
mark is written is `step`; that k3s or another tool's marks are read is `gate`.
"""

from __future__ import annotations

import json
from typing import Dict, NamedTuple, Optional, Tuple

from .levels import FULL
from .model import Node, NodeChange, Taint

PREFIX = "github-runner.exadev.com/"
LEVEL = PREFIX + "regrade-level"  # label and taint: the level, from the first step down until full again. The
# taint's timeAdded is when the server left full: for people and reports, never compared by a step
INTENT = PREFIX + "regrade-step"  # annotation: the open step
OURS = PREFIX + "regrade-ours"  # annotation: what we set and will take back, until full
HOLD = PREFIX + "regrade-hold"  # annotations a person sets: leave this server where it is,
PAUSE = PREFIX + "regrade-pause"  # take no new automatic step,
DRY_RUN = PREFIX + "regrade-dry-run"  # only say what would be done
SWITCHES = {"hold": HOLD, "pause": PAUSE, "dry-run": DRY_RUN}
STILL_WORDS = {"hold": "held", "pause": "paused", "dry-run": "in dry-run"}
FIELD_MANAGER = "k3s-regrade"
PROTOCOL = 1

ETCD_ROLE = "node-role.kubernetes.io/etcd"
MEMBER_NAME = "etcd.k3s.cattle.io/node-name"
MEMBER_ADDRESS = "etcd.k3s.cattle.io/node-address"
NODE_ARGS = "k3s.io/node-args"  # annotation: k3s's arguments, in JSON
# Taints that Kubernetes puts on and takes off by itself, a cordon's among them.
PASSING = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/unschedulable",
           "node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure", "node.kubernetes.io/pid-pressure",
           "node.kubernetes.io/network-unavailable")  # fmt: skip
ROLES = "node-role.kubernetes.io/"
REMOVED_MEMBER = ("etcd.k3s.cattle.io/remove", "etcd.k3s.cattle.io/removed-node-name")


class Intent(NamedTuple):
    """The open step of a Node. `start` and `target` are levels; equal where the trap is cured."""

    id: str
    start: str
    target: str
    holder: str
    changes: str
    protocol: int = PROTOCOL


def intent_text(intent: Intent) -> str:
    return json.dumps(
        {
            "id": intent.id,
            "from": intent.start,
            "to": intent.target,
            "holder": intent.holder,
            "changes": intent.changes,
            "protocol": intent.protocol,
        },
        separators=(",", ":"),
    )


def intent_of(node: Node) -> Optional[Intent]:
    """The Node's intent; one that cannot be read still counts as open, with an empty id."""
    text = node.annotations.get(INTENT)
    if not text:
        return None
    try:
        found = json.loads(text)
        return Intent(
            str(found["id"]),
            str(found["from"]),
            str(found["to"]),
            str(found["holder"]),
            str(found.get("changes", "")),
            int(found["protocol"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return Intent("", "", "", "", "", 0)


def level_of(node: Node) -> str:
    """The level the Node's label names: full without one. May be a word that is no level."""
    return node.labels.get(LEVEL, FULL)


def ours_of(node: Node) -> Tuple[str, ...]:
    return tuple(word for word in node.annotations.get(OURS, "").split(",") if word)


def switch(node: Node, key: str) -> bool:
    """Whether a person's switch (HOLD, PAUSE, DRY_RUN) is on; any value but an explicit no counts."""
    return node.annotations.get(key, "false").strip().lower() not in ("false", "no", "0", "")


def hold_words(level: str) -> str:
    """What a hold says that a step by hand to `level` sets."""
    return f"stepped by hand to {level}"


def stilled(node: Node) -> str:
    """The first of a person's switches that is on and forbids automatic steps: hold, pause, dry-run, or ""."""
    return next((word for word, key in SWITCHES.items() if switch(node, key)), "")


def below_full_since(node: Node) -> str:
    """When the server left full, in UTC, as its own clock told; "" at full, and where nobody told it."""
    if level_of(node) == FULL:
        return ""
    return next((taint.time_added or "" for taint in node.taints if taint.key == LEVEL), "")


def foreign_taints(node: Node) -> Tuple[str, ...]:
    """Taints of others that keep pods away from a Node that is at full, as `key=value:effect`.

    Not those that Kubernetes takes off by itself, nor those the fleet asked k3s for (`--node-taint`, a role's).
    """
    asked = node.annotations.get(NODE_ARGS, "")
    found = []
    for taint in node.taints:
        words = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
        ours = taint.key == LEVEL or taint.key in PASSING or taint.key.startswith(ROLES)
        if not ours and taint.effect in ("NoSchedule", "NoExecute") and f'"{words}"' not in asked:
            found.append(words)
    return tuple(found)


def taint_words(taints: Tuple[str, ...]) -> str:
    return f"taints that are not ours keep pods away from it: {', '.join(taints)}"


def at_level(node: Node, level: str, intent: Optional[Intent], now: str = "") -> NodeChange:
    """One write that makes the Node's marks those of `level`, and its intent `intent` (None clears it).

    `now`, in UTC, is what the taint tells as the time the server left full, where it does not tell one yet.
    Going below full it cordons, and marks the cordon as ours only where nobody had set it. Back at full
    it takes the cordon off only where the mark says ours *and* managedFields names us: a person's
    cordon, set before or during, survives.
    """
    taints = tuple(taint for taint in node.taints if taint.key != LEVEL)
    ours = ours_of(node)
    annotations: Dict[str, Optional[str]] = {INTENT: intent_text(intent) if intent else None}
    if level == FULL:
        uncordon = node.unschedulable and "cordon" in ours and FIELD_MANAGER in node.cordoned_by
        annotations[OURS] = None
        return NodeChange({LEVEL: None}, annotations, taints, False if uncordon else None)
    if not node.unschedulable and "cordon" not in ours:
        ours = (*ours, "cordon")
    if "taint" not in ours:
        ours = (*ours, "taint")
    annotations[OURS] = ",".join(ours)
    # Whole seconds, as the API gives them back.
    since = below_full_since(node) or (f"{now[:19]}Z" if now else None)
    return NodeChange({LEVEL: level}, annotations, (*taints, Taint(LEVEL, level, "NoSchedule", since)), True)


def agrees(node: Node, level: str) -> bool:
    """Whether label, taint and mark are those of `level`.

    Not the cordon: a person who takes it off below full is not fought, and the taint keeps pods away.
    """
    mine = [(taint.value, taint.effect) for taint in node.taints if taint.key == LEVEL]
    if level == FULL:
        return LEVEL not in node.labels and not mine and OURS not in node.annotations
    return node.labels.get(LEVEL) == level and OURS in node.annotations and mine == [(level, "NoSchedule")]
