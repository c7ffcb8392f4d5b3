# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of what of a cluster's report is worth an alert, and what is not."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.filter.fleet_alerts import fleet_alerts
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import heartbeat
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Node, Taint

NOW = "2026-11-30T12:00:00.123456Z"


def node(name: str, **changes: Any) -> Dict[str, Any]:
    made = {
        "name": name, "server": True, "ready": True, "ready_since": "2026-11-01T00:00:00Z", "regrade_level": None,
        "below_full_since": None, "hold": False, "step": None, "foreign_taints": [],
    }  # fmt: skip
    return {**made, **changes}


def stepped(name: str, **changes: Any) -> Dict[str, Any]:
    below = {"ready": False, "ready_since": "2026-11-30T11:00:00Z", "regrade_level": "etcd-only"}
    return node(name, **{**below, "below_full_since": "2026-11-30T10:59:00Z", **changes})


def report(*nodes: Dict[str, Any], **changes: Any) -> Dict[str, Any]:
    return {"version": 1, "time": NOW, "server": "a", "nodes": list(nodes), **changes}


def alerts(told: Optional[Dict[str, Any]], **options: Any) -> List[tuple[str, str]]:
    found = fleet_alerts(told, **options)
    assert all(alert["message"] and "\n" not in alert["message"] for alert in found)
    return [(alert["kind"], alert["node"]) for alert in found]


def test_a_cluster_that_is_well_gives_no_alert() -> None:
    assert alerts(report(node("a"), node("b"), node("c")), expected=["a", "b", "c"]) == []


@pytest.mark.parametrize(
    "out",
    [
        node("b", ready=False),
        node("b", ready=False, regrade_level="full"),
        {"name": "b", "ready": False},
        {"name": "b"},
    ],
    ids=["at full", "named full", "a report before the levels", "that does not tell ready either"],
)
def test_a_node_that_is_not_ready_at_full_is_an_outage(out: Dict[str, Any]) -> None:
    assert alerts(report(node("a"), out)) == [("outage", "b")]


@pytest.mark.parametrize("level", ["etcd-only", "control-plane", "a level of a later version"])
def test_a_server_that_carries_a_level_is_no_outage(level: str) -> None:
    assert alerts(report(node("a"), stepped("b", regrade_level=level))) == []


def test_a_report_of_a_version_before_the_levels_alerts_as_it_did() -> None:
    before = {
        "nodes": [{"name": "a", "ready": True}, {"name": "b", "ready": False}, {"name": "c", "ready": False}]
    }
    assert alerts(before) == [("outage", "b"), ("outage", "c")]


def test_one_stepped_down_does_not_hide_another_that_is_out() -> None:
    assert alerts(report(stepped("a"), node("b", ready=False), node("c"))) == [("outage", "b")]


def test_a_server_that_has_no_node_any_more_is_an_outage() -> None:
    assert alerts(report(node("a")), expected=["a", "gone"]) == [("outage", "gone")]


@pytest.mark.parametrize(
    ("below", "seconds", "alerted"),
    [
        (stepped("a"), 3661, False),  # it is 3,660 s
        (stepped("a"), 3659, True),
        (stepped("a"), 0, False),
        (node("a", regrade_level="control-plane", below_full_since="2026-11-30T10:59:00Z"), 3659, True),
        (stepped("a", below_full_since=None), 3599, True),  # not told, so for as long as it is not ready
        (stepped("a", below_full_since=None), 3601, False),
        (stepped("a", below_full_since=None, ready_since=None), 1, False),
        (stepped("a", below_full_since="last week"), 1, False),
        (node("a", regrade_level="control-plane"), 1, False),  # ready since is since when it is up
    ],
)
def test_a_server_below_full_for_longer_than_allowed_is_an_alert_of_its_own(
    below: Dict[str, Any], seconds: int, alerted: bool
) -> None:
    assert alerts(report(below, node("b")), below_full_seconds=seconds) == (
        [("below-full", "a")] if alerted else []
    )


@pytest.mark.parametrize(
    ("hold", "words"),
    [(True, "a person holds it there: `regrade step to full`"), (False, "`regrade status`")],
)
def test_the_alert_tells_for_how_long_and_what_to_do(hold: bool, words: str) -> None:
    (alert,) = fleet_alerts(report(stepped("a", hold=hold)), below_full_seconds=1800)
    assert "a is at etcd-only, below full for 61 min, longer than 30 min" in alert["message"]
    assert words in alert["message"]


def test_outages_come_first() -> None:
    told = report(stepped("a"), node("b", ready=False))
    assert alerts(told, below_full_seconds=1, expected=["c"]) == [
        ("outage", "c"),
        ("outage", "b"),
        ("below-full", "a"),
    ]


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        report(node("a"), version=2),
        report(node("a"), version="one"),
        report(),
        report(nodes=None),
        report({"ready": True}),
        report(nodes=["a", "b"]),
        '{"version": 1, "nodes": []}',
        ["a"],
    ],
)
def test_a_report_that_cannot_be_read_is_an_alert_and_no_silence(told: Any) -> None:
    assert alerts(told, expected=["a"]) == [("report", "")]


def test_what_a_later_version_adds_is_left_alone() -> None:
    assert alerts(report(node("a", more={"x": 1}), extra=[1])) == []


def test_the_heartbeat_of_this_version_is_read() -> None:
    made = Node("a", "u", "1", "", (), {}, {}, (), False, (), True, "", True, "", "2026-11-30T11:00:00Z")
    below = made._replace(
        name="b", ready=None, labels={marks.LEVEL: "etcd-only"},
        taints=(Taint(marks.LEVEL, "etcd-only", "NoSchedule", "2026-11-30T10:59:00Z"),),
    )  # fmt: skip
    out = made._replace(name="c", ready=False)
    told = dict(heartbeat.report((below, made, out), NOW, "a"))
    assert alerts(told) == [("outage", "c")]
    assert alerts(told, below_full_seconds=3659) == [("outage", "c"), ("below-full", "b")]
