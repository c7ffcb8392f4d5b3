# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The cluster as its Nodes show it, for programs that watch a fleet (`reports.ClusterReport`).

Pure, and from the Nodes alone, so that any server that reaches an API can tell it of all. What of it is an outage
is for the reader to judge: the filter `fleet_alerts` does.
"""

from __future__ import annotations

from typing import Optional, Tuple

from ..core import marks
from ..core.levels import FULL
from ..core.model import Node
from .reports import ClusterReport, NodeReport, OpenStepReport

VERSION = 1


def report(nodes: Tuple[Node, ...], now: str, server: str) -> ClusterReport:
    """`now` in UTC; `server` is the name of the Node that tells."""
    found = sorted(nodes, key=lambda node: node.name)
    return {"version": VERSION, "time": now, "server": server, "nodes": [_node(node) for node in found]}


def _node(node: Node) -> NodeReport:
    level = marks.level_of(node)
    return {
        "name": node.name,
        "server": node.labels.get(marks.ETCD_ROLE) == "true",
        "ready": node.ready is True,
        "ready_since": node.ready_since or None,
        "regrade_level": None if level == FULL else level,
        "below_full_since": marks.below_full_since(node) or None,
        "hold": marks.switch(node, marks.HOLD),
        "step": _step(node),
        "foreign_taints": list(marks.foreign_taints(node)),
    }


def _step(node: Node) -> Optional[OpenStepReport]:
    intent = marks.intent_of(node)
    return {"from": intent.start, "to": intent.target} if intent else None
