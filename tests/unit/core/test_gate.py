# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate: a check for each way a peer can fail to be whole; voters come from etcd, never from Nodes."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import gate, marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.gate import (
    Facts,
    Watch,
    check,
    look,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Member,
    Node,
    PeerAnswer,
)


def node(number: int, **changes: Any) -> Node:
    made = Node(
        f"pi{number}", f"uid{number}", "1", "", (f"10.0.0.{number}",), {},
        {marks.MEMBER_NAME: f"pi{number}-aa", marks.MEMBER_ADDRESS: f"10.0.0.{number}"}, (), False, (), True, "h", True,
    )  # fmt: skip
    return made._replace(**changes)


def member(number: int, **changes: Any) -> Member:
    made = Member(str(number), f"pi{number}-aa", (f"https://10.0.0.{number}:2380",), (), False)
    return made._replace(**changes)


def facts(
    nodes: Optional[Dict[int, Node]] = None, members: Optional[Dict[int, Member]] = None, size: int = 3
) -> Facts:
    numbers = range(1, size + 1)
    return Facts(
        "pi1",
        tuple((nodes or {}).get(number, node(number)) for number in numbers),
        tuple((members or {}).get(number, member(number)) for number in numbers),
        ages={f"pi{number}": 3.0 for number in numbers},
        peers={f"pi{number}": PeerAnswer("", "") for number in numbers},
    )


def refused(found: Facts) -> str:
    return gate.refusal(check(found))


@pytest.mark.parametrize("size", [3, 4, 5, 7])
def test_whole_peers_let_pass(size: int) -> None:
    assert refused(facts(size=size)) == ""
    assert all(item.ok for item in check(facts(size=size)))


@pytest.mark.parametrize(("size", "told"), [(1, "0 of 1"), (2, "1 of 2")])
def test_fewer_than_three_voters_never_pass(size: int, told: str) -> None:
    assert refused(facts(size=size)).startswith(f"quorum: {told}")


STEP = marks.intent_text(marks.Intent("1", "full", "control-plane", "pi2/1", ""))


@pytest.mark.parametrize(
    ("changes", "check_name", "told"),
    [
        ({"ready": False}, "ready", "pi2 is not Ready"),
        ({"ready": None}, "ready", "pi2 is not Ready"),  # field shape N2: Unknown
        ({"etcd_is_voter": False}, "voter", "pi2"),
        ({"labels": {marks.LEVEL: "etcd-only"}}, "full", "pi2 is at etcd-only"),
        ({"labels": {marks.LEVEL: "a new word"}}, "full", "pi2 is at a new word"),
        ({"unschedulable": True}, "serviced", "pi2 is cordoned by someone else"),
    ],
)
def test_a_peer_that_is_not_whole_refuses_by_name(
    changes: Dict[str, Any], check_name: str, told: str
) -> None:
    why = refused(facts({2: node(2, **changes)}))
    assert why.startswith(f"{check_name}: ")
    assert told in why
    answers = {item.check: item.ok for item in check(facts({2: node(2, **changes)}))}
    assert answers[check_name] is False
    assert [name for name, ok in answers.items() if not ok] == [check_name]


@pytest.mark.parametrize(
    ("key", "value", "check_name"),
    [
        (marks.INTENT, STEP, "intent"),
        (marks.INTENT, "{not json", "intent"),
        (marks.OURS, "cordon", "full"),
        ("weave.works/kured-reboot-in-progress", "x", "serviced"),
    ],
)
def test_a_peers_annotations_refuse(key: str, value: str, check_name: str) -> None:
    peer = node(2)
    peer = peer._replace(annotations={**peer.annotations, key: value})
    assert refused(facts({2: peer})).startswith(f"{check_name}: pi2")


def test_voter_status_that_is_not_published_passes() -> None:
    assert refused(facts({2: node(2, etcd_is_voter=None)})) == ""


def test_our_own_node_need_not_be_whole() -> None:
    assert (
        refused(facts({1: node(1, ready=None, unschedulable=True, labels={marks.LEVEL: "etcd-only"})})) == ""
    )


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({2: member(2, name="")}, "etcd member 2 .*never started"),
        ({2: member(2, learner=True)}, "pi2-aa is a learner"),
        ({2: member(2, name="pi9-bb")}, "pi9-bb .* no Node"),
        ({2: member(2, peer_urls=("https://10.9.9.9:2380",))}, "pi2-aa .*10.9.9.9.* no Node"),
        ({2: member(1, id="7")}, "Node pi1 fits two etcd members"),
    ],
)
def test_a_member_that_is_not_exactly_one_node_refuses(members: Dict[int, Member], told: str) -> None:
    why = refused(facts(members=members))
    assert re.search(told, why), why
    assert all(item.ok is None for item in check(facts(members=members))[1:])


def test_a_node_without_a_member_refuses_and_names_the_annotation() -> None:
    """Field shape N4: a member removed by annotation leaves its Node."""
    four = facts(size=4)
    ghost = node(4)
    ghost = ghost._replace(
        annotations={**ghost.annotations, "etcd.k3s.cattle.io/removed-node-name": "pi4-aa"}
    )
    found = four._replace(nodes=(*four.nodes[:3], ghost), members=(four.members or ())[:3])
    assert "removed-node-name" in refused(found)


def test_members_that_cannot_be_read_refuse() -> None:
    assert refused(facts()._replace(members=None, members_error="no quorum")) == "members: no quorum"


def test_our_own_node_missing_refuses() -> None:
    assert "pi1" in refused(facts()._replace(own="pi1x"))


@pytest.mark.parametrize("age", [None, 40.1])
def test_a_node_lease_not_seen_to_change_refuses(age: Optional[float]) -> None:
    found = facts()._replace(ages={"pi2": 1.0, "pi3": age})
    assert refused(found).startswith("fresh: the node lease of pi3 did not change within 40 s")


def test_a_peer_that_answers_badly_refuses_and_one_not_asked_does() -> None:
    found = facts()._replace(peers={"pi2": PeerAnswer("500", "hangs")})
    assert refused(found) == "api: pi2: /readyz/etcd: 500; pi2: read of the Lease: hangs; pi3 was not asked"


def test_what_was_not_asked_passes_only_where_told() -> None:
    found = facts()._replace(ages=None, peers=None)
    assert gate.refusal(check(found), strict=False) == ""
    assert gate.refusal(check(found)) == "fresh: not asked"


def watched(*reads: Tuple[float, str]) -> Watch:
    watch = Watch()
    for at, renewed in reads:
        watch = look(watch, {"pi2": renewed}, at)
    return watch


@pytest.mark.parametrize(
    ("reads", "age"),
    [
        ([(0.0, "a")], None),  # field shape N1: an old renewal seen once proves nothing
        ([(0.0, "a"), (30.0, "a")], None),
        ([(0.0, "a"), (2.0, "b")], 40.0),
        ([(0.0, "a"), (8.0, "a"), (10.0, "b")], 32.0),
        # a long pause between two looks: it changed at some time in it, perhaps long ago
        ([(0.0, "a"), (39.0, "b")], 40.0),
        ([(0.0, ""), (2.0, "b"), (4.0, "")], 40.0),
    ],
)
def test_a_lease_is_as_old_as_the_last_look_at_its_old_value(reads: Any, age: Optional[float]) -> None:
    assert gate.ages(watched(*reads), 40.0)["pi2"] == age
