# SPDX-License-Identifier: GPL-3.0-or-later
"""Which Nodes are waited for: those that are not Ready, or not there, and not stepped down on purpose."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.filter.unready_nodes import unready_nodes

LABEL = "github-runner.exadev.com/regrade-level"
STEP = "github-runner.exadev.com/regrade-step"
SINCE = "2026-11-30T09:00:00Z"


def node(
    name: str, ready: str = "True", level: str = "", annotations: Optional[Dict[str, str]] = None
) -> Dict[str, Any]:
    conditions = [
        {"type": "MemoryPressure", "status": "Unknown"},
        {"type": "Ready", "status": ready, "lastTransitionTime": SINCE},
    ]
    metadata = {"name": name, "labels": {LABEL: level} if level else {}, "annotations": annotations or {}}
    return {"metadata": metadata, "status": {"conditions": conditions}}


def waited_for(nodes: List[Dict[str, Any]], expected: Any = ()) -> List[str]:
    return [found["name"] for found in unready_nodes(nodes, expected) if not found["regrade_level"]]


def test_where_all_are_ready_nobody_is_waited_for() -> None:
    assert unready_nodes([node("a"), node("b"), node("agent")], ["a", "b"]) == []


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_a_node_that_is_not_ready_is_named_with_since_when(ready: str) -> None:
    (found,) = unready_nodes([node("a"), node("b", ready)])
    assert found == {
        "name": "b", "regrade_level": None, "step": False, "since": SINCE, "words": f"b (not Ready since {SINCE})",
    }  # fmt: skip


@pytest.mark.parametrize("level", ["etcd-only", "control-plane"])
def test_one_that_is_stepped_down_is_told_and_not_waited_for(level: str) -> None:
    nodes = [node("a"), node("b", "Unknown", level), node("c", "Unknown")]
    assert waited_for(nodes) == ["c"]
    assert f"stepped down to {level}" in unready_nodes(nodes)[0]["words"]


def test_a_label_that_says_full_is_no_step_down() -> None:
    assert waited_for([node("a", "False", "full")]) == ["a"]


def test_an_open_step_is_told() -> None:
    assert unready_nodes([node("a", "False", annotations={STEP: "{}"})])[0]["step"] is True


@pytest.mark.parametrize(
    "bare", [{}, {"status": None}, {"status": {"conditions": None}}, {"status": {"conditions": []}}]
)
def test_a_node_that_never_told_whether_it_is_ready_is_waited_for(bare: Dict[str, Any]) -> None:
    found = unready_nodes([{"metadata": {"name": "new", "labels": None, "annotations": None}, **bare}])
    assert [(item["name"], item["since"], item["words"]) for item in found] == [
        ("new", "", "new (not Ready)")
    ]


def test_a_host_without_a_node_is_waited_for() -> None:
    (found,) = unready_nodes([node("a")], ["a", "later"])
    assert (found["name"], found["words"]) == ("later", "later (has no Node)")


def test_without_an_api_nothing_is_known_and_that_is_no_readiness() -> None:
    (found,) = unready_nodes([], ["a"])
    assert (found["name"], found["regrade_level"]) == ("", None)
    assert "answers" in found["words"]
