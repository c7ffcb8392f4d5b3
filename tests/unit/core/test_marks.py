# SPDX-License-Identifier: GPL-3.0-or-later
"""Marks on a Node: one write a level, a person's cordon kept, and what can be read of an intent."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Node, Taint

OTHER = Taint("CriticalAddonsOnly", "true", "NoExecute")
INTENT = marks.Intent("ab12", "full", "control-plane", "pi1/01", "cordon,taint,label")


def node(**changes: Any) -> Node:
    made = Node("pi1", "u", "1", "", (), {}, {}, (OTHER,), False, (), True, "", None)
    return made._replace(**changes)


def test_down_from_full_is_one_write_of_cordon_taint_label_and_mark() -> None:
    change = marks.at_level(node(), "control-plane", INTENT)
    assert change.unschedulable is True
    assert change.taints == (OTHER, Taint(marks.LEVEL, "control-plane", "NoSchedule"))
    assert change.labels == {marks.LEVEL: "control-plane"}
    assert change.annotations[marks.OURS] == "cordon,taint"
    assert marks.intent_of(node(annotations={marks.INTENT: change.annotations[marks.INTENT]})) == INTENT


def test_field_shape_n5_a_persons_cordon_is_not_marked_as_ours() -> None:
    change = marks.at_level(node(unschedulable=True), "control-plane", INTENT)
    assert change.annotations[marks.OURS] == "taint"


def test_further_down_keeps_what_is_ours() -> None:
    below = node(
        unschedulable=True,
        labels={marks.LEVEL: "control-plane"},
        annotations={marks.OURS: "cordon,taint"},
        taints=(Taint(marks.LEVEL, "control-plane", "NoSchedule"), OTHER),
    )
    assert marks.agrees(below, "control-plane")
    change = marks.at_level(below, "etcd-only", INTENT)
    assert change.annotations[marks.OURS] == "cordon,taint"
    assert change.taints == (OTHER, Taint(marks.LEVEL, "etcd-only", "NoSchedule"))


@pytest.mark.parametrize(
    ("ours", "managers", "uncordoned"),
    [
        ("cordon,taint", ("k3s-regrade",), False),
        ("cordon,taint", ("kubectl",), None),
        ("cordon,taint", (), None),
        ("taint", ("k3s-regrade",), None),
    ],
)
def test_up_to_full_uncordons_only_what_is_ours_twice_over(ours: str, managers: Any, uncordoned: Any) -> None:
    below = node(
        unschedulable=True,
        cordoned_by=managers,
        labels={marks.LEVEL: "control-plane"},
        annotations={marks.OURS: ours},
    )
    change = marks.at_level(below, "full", None)
    assert change.unschedulable is uncordoned
    assert change.labels == {marks.LEVEL: None}
    assert change.annotations == {marks.INTENT: None, marks.OURS: None}
    assert change.taints == (OTHER,)


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"id": 1}', '{"id":"a","from":"b","to":"c","holder":"d"}'])
def test_an_intent_that_cannot_be_read_is_still_an_intent(text: str) -> None:
    found = marks.intent_of(node(annotations={marks.INTENT: text}))
    assert found is not None
    assert found.id == ""


def test_no_intent() -> None:
    assert marks.intent_of(node()) is None
    assert marks.intent_of(node(annotations={marks.INTENT: ""})) is None


@pytest.mark.parametrize(
    ("value", "on"),
    [("true", True), ("since Monday", True), ("false", False), ("No", False), ("0", False), ("", False)],
)
def test_switches(value: str, on: bool) -> None:
    assert marks.switch(node(annotations={marks.HOLD: value}), marks.HOLD) is on


@pytest.mark.parametrize("lost", ["label", "taint", "ours"])
def test_marks_that_lack_something_do_not_agree(lost: str) -> None:
    whole = node(
        unschedulable=True,
        labels={marks.LEVEL: "etcd-only"},
        annotations={marks.OURS: "taint"},
        taints=(Taint(marks.LEVEL, "etcd-only", "NoSchedule"),),
    )
    assert marks.agrees(whole, "etcd-only")
    less: Dict[str, Dict[str, Any]] = {
        "label": {"labels": {}},
        "taint": {"taints": ()},
        "ours": {"annotations": {}},
    }
    assert not marks.agrees(whole._replace(**less[lost]), "etcd-only")


def test_the_taint_tells_since_when_the_server_is_below_full_whatever_came_after() -> None:
    now = "2026-11-30T09:00:00.123456Z"
    first = marks.at_level(node(), "control-plane", INTENT, now).taints or ()
    assert first[-1].time_added == "2026-11-30T09:00:00Z", "as the API gives it back"
    below = node(labels={marks.LEVEL: "control-plane"}, taints=first)
    assert marks.below_full_since(below) == "2026-11-30T09:00:00Z"
    later = marks.at_level(below, "etcd-only", INTENT, "2026-11-30T10:00:00.000000Z").taints or ()
    assert [taint.time_added for taint in later] == [None, "2026-11-30T09:00:00Z"]


def test_since_when_is_not_told_at_full_nor_by_marks_of_a_version_before() -> None:
    taints = (Taint(marks.LEVEL, "etcd-only", "NoSchedule"),)
    assert marks.below_full_since(node(labels={marks.LEVEL: "etcd-only"}, taints=taints)) == ""
    assert marks.below_full_since(node(labels={marks.LEVEL: "etcd-only"})) == ""
    assert marks.below_full_since(node(taints=(taints[0]._replace(time_added="2026-11-30T09:00:00Z"),))) == ""


OUT = "node.kubernetes.io/out-of-service"


@pytest.mark.parametrize(
    ("taint", "named"),
    [
        (Taint(OUT, "nodeshutdown", "NoExecute"), f"{OUT}=nodeshutdown:NoExecute"),
        (Taint(OUT, "", "NoExecute"), f"{OUT}:NoExecute"),
        (Taint("team", "a", "NoSchedule"), "team=a:NoSchedule"),
        (Taint("team", "a", "PreferNoSchedule"), ""),
        (Taint(marks.LEVEL, "etcd-only", "NoSchedule"), ""),
        (Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"), ""),
        (Taint("node.kubernetes.io/unreachable", "", "NoExecute"), ""),
        (Taint("node-role.kubernetes.io/control-plane", "true", "NoSchedule"), ""),
        (OTHER, ""),
    ],
)
def test_taints_of_others_are_named_and_not_those_the_fleet_asked_k3s_for(taint: Taint, named: str) -> None:
    asked = {marks.NODE_ARGS: '["server","--node-taint","CriticalAddonsOnly=true:NoExecute"]'}
    assert marks.foreign_taints(node(annotations=asked, taints=(taint,))) == ((named,) if named else ())
