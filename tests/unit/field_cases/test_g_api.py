# SPDX-License-Identifier: GPL-3.0-or-later
"""Section G of the field cases, reaching another server's API. Whole steps: `app/test_steps_at_the_edge.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import ports
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import kubernetes_api
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import step_to
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import watch
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import RegradeError
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Lease,
    NodeChange,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.policy import State
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import pod
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Reply, status
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_cluster import StubCluster, on
from ansible_collections.exadev.k3s_regrade.tests.unit.properties.histories import SHORT, Event, samples

S = "server1"


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[StubCluster]:
    made = StubCluster(tmp_path)
    yield made
    made.close()


# --- G59: credentials that are not good any more ---


@pytest.mark.parametrize("text", ["Unauthorized", "You must be logged in to the server (Unauthorized)"])
def test_g59_an_expired_token_makes_no_step_and_the_watcher_says_what_blocks(
    wire: StubCluster, text: str
) -> None:
    wire.faults.append(on("", "", status(401, text)))
    with pytest.raises(RegradeError) as caught:
        step_to(wire.process(S), "down")
    said = str(caught.value)
    assert "not valid any more" in said and "run the role" in said
    assert wire.memory.api.writes == [] and wire.memory.hosts[S].restarts == []
    now = watch.begin({}, {}, "")._replace(state=State(level="full"), settle_at=float("inf"), busy="down")
    (sample,) = samples([Event(available=100)])
    now, _commands = watch.on_answer(now, {"result": "refused", "message": said}, sample, SHORT)
    _now, decision, _commands = watch.on_sample(now, sample._replace(monotonic=sample.monotonic + 5), SHORT)
    assert said[:500] in watch.notes(now, decision, sample)["blocked"]


def test_g59_a_kubeconfig_in_a_mounted_folder_is_followed_when_it_is_replaced(
    wire: StubCluster, tmp_path: Path
) -> None:
    """As a folder is mounted, and as Kubernetes swaps the files of one: by renaming a link."""
    folder = tmp_path / "kube"
    for name, token in (("one", "t0ken-one"), ("two", "t0ken-two")):
        (folder / name).mkdir(parents=True)
        wire.authority.kubeconfig(folder / name / "config", token=token)
    (folder / "data").symlink_to("one")
    wire.memory.settings["KUBECONFIG"] = str(folder / "data" / "config")
    cluster = wire.process(S).world.cluster
    cluster.node(S)
    (folder / "next").symlink_to("two")
    (folder / "next").rename(folder / "data")
    cluster.node(S)
    assert [request.headers["Authorization"][-3:] for request in wire.stub.requests] == ["one", "two"]


# --- G60: a kubeconfig that cannot be read ---


@pytest.mark.parametrize("what", ["missing", "folder", "dangling"])
def test_g60_path_and_mode_are_named_and_nothing_else_is_tried(wire: StubCluster, what: str) -> None:
    wire.kubeconfig.unlink()
    if what == "folder":
        wire.kubeconfig.mkdir(mode=0o700)
    elif what == "dangling":
        wire.kubeconfig.symlink_to("nowhere")
    with pytest.raises(ports.ClusterError) as caught:
        wire.process(S)
    said = str(caught.value)
    assert str(wire.kubeconfig) in said and "this process is uid" in said and "set KUBECONFIG" in said
    assert "8080" not in said and "\n" not in said
    assert what != "folder" or "has mode 0700" in said
    assert wire.stub.requests == []


# --- G61: small answers pass, large ones hang ---

CALLS: Dict[str, Callable[[Any], Any]] = {
    "read_lease": lambda cluster: cluster.read_lease(),
    "write_lease": lambda cluster: cluster.write_lease(Lease("server1/1", 60, "", "", 1, "1")),
    "nodes": lambda cluster: cluster.nodes(),
    "node": lambda cluster: cluster.node(S),
    "change_node": lambda cluster: cluster.change_node(S, NodeChange(unschedulable=True), "9"),
    "node_lease_renewals": lambda cluster: cluster.node_lease_renewals(),
    "pods": lambda cluster: cluster.pods(S),
    "evict": lambda cluster: cluster.evict(pod("web")),
    "record_event": lambda cluster: cluster.record_event(cluster.node(S), "Normal", "Regraded", "m"),
    "api_addresses": lambda cluster: cluster.api_addresses(),
    "k3s_etcd_lease": lambda cluster: cluster.k3s_etcd_lease(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", ["body", "trickle", "nothing"])
def test_g61_every_operation_ends_in_its_time_and_says_what_it_asked_for(
    wire: StubCluster, call: str, how: str
) -> None:
    large = {"kind": "List", "padding": "x" * 5000, "items": []}
    hang = {
        "body": Reply(200, large, hang=True),
        "trickle": Reply(200, large, trickle=0.05),
        "nothing": Reply(late=20),
    }
    wire.faults.append(on("", "", hang[how]))
    cluster = wire.process(S).world.cluster
    begun = time.monotonic()
    with pytest.raises(ports.Unreachable, match=r"no answer within 1 s") as caught:
        CALLS[call](cluster)
    assert time.monotonic() - begun < 15, "far from the 20 s, or the minutes, that the answer would take"
    assert "\n" not in str(caught.value)
    assert len(wire.stub.requests) == 1


def test_g61_what_is_asked_for_is_selected_by_the_server(wire: StubCluster) -> None:
    """One server's Node by name, Nodes with the etcd role, pods of one Node: never a whole cluster's."""
    wire.memory.api.pods_by_node[S] = [pod("web")]
    step_to(wire.process(S), "etcd-only")
    for request in wire.stub.requests:
        if request.path.startswith("/api/v1/nodes?") and request.method == "GET":
            assert "labelSelector=node-role.kubernetes.io%2Fetcd%3Dtrue" in request.path
        if request.path.startswith("/api/v1/pods"):
            assert request.path.endswith(f"?fieldSelector=spec.nodeName%3D{S}")


def test_g61_a_peer_that_hangs_holds_the_gate_for_its_own_time_alone(
    wire: StubCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "PEER_TIMEOUT_SECONDS", 0.5)
    wire.faults.append(on("GET", "/readyz/etcd", Reply(200, "ok" * 1000, hang=True)))
    begun = time.monotonic()
    answer = wire.process(S).world.cluster.ask_peer("127.0.0.1")
    assert "no answer within 0.5 s" in answer.readyz_etcd and answer.lease_read == ""
    assert time.monotonic() - begun < 15
