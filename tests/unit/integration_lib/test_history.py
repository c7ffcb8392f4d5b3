# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks over a history can fail: each is shown a history in which what it looks for happens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

LIB = str(Path(__file__).resolve().parents[2] / "integration" / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

import history  # noqa: E402


def node(
    rv: int, name: str, label: Optional[str] = None, step: Optional[str] = None, **more: object
) -> dict[str, Any]:
    return {
        "kind": "node",
        "rv": rv,
        "type": "MODIFIED",
        "name": name,
        "uid": name,
        "label": label,
        "step": step,
        "ours": "cordon,taint" if label else None,
        "taint": label,
        "unschedulable": bool(label),
        "time": float(rv),
        **more,
    }


def lease(rv: int, holder: str) -> dict[str, Any]:
    return {
        "kind": "lease",
        "rv": rv,
        "type": "MODIFIED",
        "name": "k3s-regrade",
        "holder": holder,
        "time": float(rv),
    }


GOOD = [
    node(1, "a"),
    node(2, "b"),
    lease(3, "a/1"),
    node(4, "a", None, "{}"),
    node(5, "a", "control-plane", "{}"),
    node(6, "a", "control-plane"),
    lease(7, ""),
    lease(8, "a/1"),
    node(9, "a", "control-plane", "{}"),
    node(10, "a"),
    lease(11, "b/2"),
    node(12, "b", None, "{}"),
    node(13, "b", "control-plane"),
]


def test_a_good_history_passes() -> None:
    assert history.two_at_once(GOOD) == []
    assert history.unlabelled_below_full(GOOD) == []
    assert history.steps_without_lease(GOOD) == []
    assert history.gaps(GOOD) == []
    assert history.levels_of(GOOD, "a") == ["full", "control-plane", "full"]


def test_two_below_full_are_found() -> None:
    assert history.two_at_once([*GOOD, node(14, "a", "control-plane")]) == [
        "revision 14: a at control-plane and b at control-plane"
    ]


def test_a_step_while_another_is_below_full_is_found() -> None:
    assert history.two_at_once([*GOOD, node(14, "a", None, "{}")]) == [
        "revision 14: a in a step and b at control-plane"
    ]


def test_revisions_are_taken_in_etcds_order_and_once() -> None:
    late = node(12, "a", "control-plane")  # seen last, but before b's label was set
    assert history.two_at_once([*GOOD, late, late])[0].startswith("revision 12")
    assert history.in_order([*GOOD, *GOOD]) == history.in_order(GOOD)


def test_a_deleted_node_is_not_below_full() -> None:
    assert (
        history.two_at_once(
            [*GOOD, node(14, "b", "control-plane", type="DELETED"), node(15, "a", "etcd-only")]
        )
        == []
    )


def test_a_lost_label_is_found() -> None:
    (found,) = history.unlabelled_below_full([*GOOD, node(14, "b", None, ours="cordon,taint", taint=None)])
    assert "revision 14" in found
    assert history.unlabelled_below_full([*GOOD, node(14, "b", "control-plane", taint="etcd-only")])


def test_a_step_without_the_lease_is_found() -> None:
    assert (
        "nobody"
        in history.steps_without_lease([*GOOD, lease(14, ""), node(15, "b", "control-plane", "{}")])[0]
    )
    assert (
        "a/3"
        in history.steps_without_lease([*GOOD, node(14, "b", "control-plane", "{}"), lease(15, "a/3")])[0]
    )


def test_what_a_watch_had_to_leap_over_is_not_waited_for() -> None:
    wanted = {("node", "a", 10), ("node", "b", 15), ("node", "b", 21), ("lease", "k3s-regrade", 15)}
    gap = {"kind": "gap", "of": "node", "after": 13, "rv": 20, "broke": 15.0}
    assert history.unseen(wanted, GOOD) == wanted - {("node", "a", 10)}
    assert history.unseen(wanted, [*GOOD, gap]) == {("node", "b", 21), ("lease", "k3s-regrade", 15)}
    assert history.unseen({("node", "b", 13)}, [GOOD[0], gap]) == {("node", "b", 13)}


def test_a_gap_counts_but_for_the_tests_own_outage() -> None:
    gap = {"kind": "gap", "of": "node", "after": 13, "rv": 20, "broke": 15.0}
    assert history.gaps([*GOOD, gap]) == ["node: between 13 and 20"]
    begin, end = {"kind": "mark", "outage": True, "time": 10.0}, {"kind": "mark", "outage": False, "time": 20.0}
    assert history.gaps([begin, gap, end]) == history.gaps([begin, end, gap]) == history.gaps([begin, gap]) == []
    assert history.outages([begin, gap, end, begin]) == [(10.0, 20.0), (10.0, float("inf"))]
    assert len(history.gaps([begin, end, {**gap, "broke": 21.0}])) == 1
    assert len(history.gaps([begin, end, {**gap, "broke": 9.0}])) == 1
