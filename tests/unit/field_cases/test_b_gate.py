# SPDX-License-Identifier: GPL-3.0-or-later
"""Section B of the field cases, peers and quorum: a step only while every other voter is surely whole."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import kubernetes_api
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import settle, step_to
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    RegradeError,
    StepFailed,
    StepRefused,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Node, PeerAnswer
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster

S = "server1"
ETCD = "etcd.k3s.cattle.io/"


def fixture(ready: str, voter: str = "True", **metadata: Any) -> Node:
    """N1, N2 and N4 of the field cases, as the API gives them."""
    return kubernetes_api._node({
        "metadata": {"name": "server2", "uid": "0f0e", "labels": {"node-role.kubernetes.io/etcd": "true"}, **metadata},
        "status": {
            "conditions": [
                {"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-09-20T10:00:00Z"},
                {"type": "EtcdIsVoter", "status": voter, "reason": "MemberNotLearner"},
            ]
        },
    })  # fmt: skip


def refused(cluster: Cluster, where: str = "down") -> str:
    """Why the step is refused; nothing is left of it."""
    with pytest.raises(StepRefused) as caught:
        step_to(cluster.process(S), where)
    node = cluster.node(S)
    assert marks.INTENT not in node.annotations and "journal" not in cluster.hosts[S].disk
    assert cluster.hosts[S].restarts == []
    assert cluster.api.lease is not None and cluster.api.lease.holder == ""
    return str(caught.value)


# --- B11: powered off, still Ready ---


@pytest.mark.parametrize("renewal", [None, "", "2026-09-20T10:00:03.123456Z", "2036-09-20T10:00:03.123456Z"])
def test_b11_a_ready_peer_whose_node_lease_is_not_seen_to_change_is_refused_by_name(
    renewal: Optional[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old, in the future, empty or absent: what counts is that it changes, on our own clock."""
    cluster = Cluster()
    node = fixture("True")
    cluster.api.set_node("server2", ready=node.ready, etcd_is_voter=node.etcd_is_voter)
    real = cluster.api.node_lease_renewals

    def renewals() -> Dict[str, str]:
        found = {name: text for name, text in real().items() if name != "server2"}
        return found if renewal is None else {**found, "server2": renewal}

    monkeypatch.setattr(cluster.api, "node_lease_renewals", renewals)
    begun = cluster.time.seconds
    said = refused(cluster)
    assert "fresh" in said and "server2" in said and "server3" not in said
    assert 40 <= cluster.time.seconds - begun <= 60


# --- B12: a voter whose machine is gone ---


@pytest.mark.parametrize(
    ("ready", "voter"), [("Unknown", "True"), ("False", "True"), ("", "True"), ("True", "False")]
)
def test_b12_being_a_voter_alone_never_passes_a_peer(ready: str, voter: str) -> None:
    node, cluster = fixture(ready, voter), Cluster()
    cluster.api.set_node("server2", ready=node.ready, etcd_is_voter=node.etcd_is_voter)
    assert "server2" in refused(cluster)


# --- B14: how many voters ---


def test_b14_two_servers_are_never_stepped() -> None:
    assert "quorum: 1 of 2 voters" in refused(Cluster(2))


@pytest.mark.parametrize("size", [3, 4, 5])
def test_b14_nodes_that_are_no_voters_are_not_counted(size: int) -> None:
    """What the API lists is more than etcd has: two voters, however many Nodes."""
    cluster = Cluster(size)
    del cluster.etcd[2:]
    assert "members" in refused(cluster)


@pytest.mark.parametrize("size", [3, 4, 5, 7])
@pytest.mark.parametrize("down", [{"ready": None}, {"ready": False}])
def test_b14_one_of_the_others_down_refuses_whatever_the_size(size: int, down: Dict[str, Any]) -> None:
    cluster = Cluster(size)
    cluster.api.set_node(f"server{size}", **down)
    assert f"ready: server{size}" in refused(cluster)


# --- B15: a member that was removed by an annotation ---


@pytest.mark.parametrize("key", ["remove", "removed-node-name"])
def test_b15_a_removed_member_is_no_voter_and_its_node_is_for_a_person_to_delete(key: str) -> None:
    cluster = Cluster(4)
    node = fixture("Unknown", annotations={ETCD + key: "server4-535ce28c"})
    del cluster.etcd[3]
    cluster.api.set_node("server4", ready=node.ready, annotations=node.annotations, unschedulable=True)
    said = refused(cluster)
    assert "server4" in said and ETCD + key in said and "a person must delete that Node" in said


def test_b15_no_annotation_of_etcd_is_ever_written() -> None:
    cluster = Cluster()
    before = {key: text for key, text in cluster.node(S).annotations.items() if key.startswith(ETCD)}
    written = []
    change_node = cluster.api.change_node

    def changing(name: str, change: Any, version: str) -> Node:
        written.extend(change.annotations)
        return change_node(name, change, version)

    cluster.api.change_node = changing  # type: ignore[method-assign]
    for level in ("etcd-only", "full"):
        step_to(cluster.process(S), level)
    assert written and all(key.startswith(marks.PREFIX) for key in written)
    assert {key: text for key, text in cluster.node(S).annotations.items() if key.startswith(ETCD)} == before


# --- B16: our own Node is deleted while we are below full ---


@pytest.mark.parametrize("what", ["deleted", "made anew", "member gone", "member anew"])
@pytest.mark.parametrize("level", ["control-plane", "etcd-only"])
def test_b16_a_deleted_node_or_member_stops_everything(what: str, level: str) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), level)
    restarts = list(cluster.hosts[S].restarts)
    if what == "deleted":
        del cluster.api.nodes_by_name[S]
    elif what == "made anew":
        cluster.api.set_node(S, uid="another")
    elif what == "member gone":
        del cluster.etcd[0]
    else:
        cluster.etcd[0] = cluster.etcd[0]._replace(id="777")
    for work in (lambda: settle(cluster.process(S)), lambda: step_to(cluster.process(S), "full")):
        with pytest.raises(RegradeError) as caught:
            work()
        assert "\n" not in str(caught.value)
    assert cluster.hosts[S].restarts == restarts, "no silent joining anew"
    assert cluster.hosts[S].running == level


# --- B17: a peer falls between the Lease and the restart ---

FALLS: Dict[str, Callable[[Cluster], None]] = {
    "not ready": lambda cluster: cluster.api.set_node("server2", ready=None),
    "silent kubelet": lambda cluster: cluster.api.silent.update(server2=cluster.time.seconds - 45),
    "silent api": lambda cluster: cluster.api.answers.update({"10.0.0.2": PeerAnswer("no answer", "no answer")}),
    "in a step": lambda cluster: cluster.api.set_node("server2", annotations={
        **cluster.node("server2").annotations,
        marks.INTENT: marks.intent_text(marks.Intent("9", "full", "control-plane", "server2/1", "")),
    }),
    "below full": lambda cluster: cluster.api.set_node("server2", labels={marks.LEVEL: "control-plane"}),
    "cordoned": lambda cluster: cluster.api.set_node("server2", unschedulable=True),
    "a learner": lambda cluster: cluster.etcd.__setitem__(1, cluster.etcd[1]._replace(learner=True)),
    "deleted": lambda cluster: cluster.api.nodes_by_name.pop("server2") and None,
}  # fmt: skip


@pytest.mark.parametrize("how", FALLS)
@pytest.mark.parametrize(
    ("level", "target"), [("control-plane", "etcd-only"), ("etcd-only", "control-plane")]
)
def test_b17_peers_are_asked_again_after_the_drain_and_a_refusal_changes_no_level(
    how: str, level: str, target: str
) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), level)
    host = cluster.hosts[S]
    restarts = list(host.restarts)

    def falls(_level: str) -> None:
        host.fail.clear()
        FALLS[how](cluster)
        if how == "silent kubelet":
            cluster.time.sleep(45)  # what was seen of its node lease is old by then

    host.fail.append(falls)
    with pytest.raises(StepFailed, match="server2") as caught:
        step_to(cluster.process(S), target)
    assert not caught.value.left_open
    assert host.restarts == restarts
    assert (host.record, host.running) == (level, level)
    assert marks.agrees(cluster.node(S), level)
    assert cluster.api.lease is not None and cluster.api.lease.holder == ""


# --- B20: storage ends on the way ---


@pytest.mark.parametrize("nth", range(1, 12))
@pytest.mark.parametrize(("level", "target"), [("full", "control-plane"), ("control-plane", "etcd-only")])
def test_b20_a_full_disk_at_any_write_never_restarts_and_never_leaves_half_a_step(
    level: str, target: str, nth: int
) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), level)
    host, writes = cluster.hosts[S], [0]
    real = host.write

    def write(name: str, document: Dict[str, object]) -> None:
        writes[0] += 1
        if writes[0] >= nth:
            raise RegradeError(f"STATE_DIR/{name}.json cannot be written: No space left on device")
        real(name, document)

    host.write = write  # type: ignore[method-assign]
    restarts = list(host.restarts)
    try:
        step_to(cluster.process(S), target)
    except RegradeError as error:
        assert "No space left" in str(error) and "\n" not in str(error)
        assert host.restarts == restarts
        assert host.running == level
    else:
        assert host.running == target, "all its writes came before"
    host.write = real  # type: ignore[method-assign]
    settle(cluster.process(S))
    assert marks.agrees(cluster.node(S), host.running) and "journal" not in host.disk
