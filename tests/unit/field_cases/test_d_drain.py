# SPDX-License-Identifier: GPL-3.0-or-later
"""Section D of the field cases, cordon and drain: a person's cordon survives, and no pod holds a step for ever."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, List

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import kubernetes_api
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import step_to
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    RegradeError,
    StepRefused,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Pod, Taint
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.policy import (
    LastStep,
    State,
    after_step,
    observe,
)
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster, pod, unreachable
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_cluster import StubCluster
from ansible_collections.exadev.k3s_regrade.tests.unit.properties.histories import SHORT, Event, samples

S = "server1"
OTHER_TAINTS = (
    Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"),
    Taint("CriticalAddonsOnly", "true", "NoExecute"),
)


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[StubCluster]:
    made = StubCluster(tmp_path)
    yield made
    made.close()


def with_pods(*pods: Pod, **settings: str) -> Cluster:
    cluster = Cluster(**{"DRAIN_TIMEOUT_SECONDS": "20", **settings})
    cluster.api.pods_by_node[S] = list(pods)
    return cluster


def left(cluster: Cluster) -> List[str]:
    return [found.name for found in cluster.api.pods_by_node[S]]


# --- D28: a person's cordon ---


@pytest.mark.parametrize("by", [("kubectl",), ("kubectl-cordon",), ("kured", "kubectl"), ()])
@pytest.mark.parametrize("lowest", ["control-plane", "etcd-only"])
def test_d28_a_cordon_from_before_the_step_survives_the_way_down_and_up(
    by: tuple[str, ...], lowest: str
) -> None:
    cluster = Cluster()
    cluster.api.set_node(S, unschedulable=True, cordoned_by=by, taints=OTHER_TAINTS)
    step_to(cluster.process(S), lowest)
    assert "cordon" not in marks.ours_of(cluster.node(S))
    step_to(cluster.process(S), "full")
    node = cluster.node(S)
    assert node.unschedulable and node.taints == OTHER_TAINTS
    assert marks.OURS not in node.annotations and marks.LEVEL not in node.labels


@pytest.mark.parametrize("lowest", ["control-plane", "etcd-only"])
def test_d28_a_cordon_renewed_by_a_person_below_full_survives_and_one_taken_off_is_not_put_back(
    lowest: str,
) -> None:
    cluster = Cluster()
    step_to(cluster.process(S), lowest)
    cluster.api.set_node(S, cordoned_by=("kubectl",))
    step_to(cluster.process(S), "full")
    assert cluster.node(S).unschedulable
    cluster = Cluster()
    step_to(cluster.process(S), lowest)
    cluster.api.set_node(S, unschedulable=False, cordoned_by=())
    step_to(cluster.process(S), "full")
    assert not cluster.node(S).unschedulable


# --- D29: a drain that fails, and the step again ---


@pytest.mark.parametrize("how", ["budget", "silence"])
def test_d29_a_drain_that_fails_is_control_plane_and_the_step_again_is_idempotent(how: str) -> None:
    cluster = with_pods(pod("db"))
    if how == "budget":
        cluster.api.stuck["db"] = "budget db-pdb"
    else:
        cluster.api.faults.append(_silent("evict"))
    step_to(cluster.process(S), "down")
    assert cluster.hosts[S].running == "control-plane"
    assert marks.agrees(cluster.node(S), "control-plane") and cluster.node(S).unschedulable
    before = cluster.node(S)
    assert step_to(cluster.process(S), "control-plane")["changed"] is False
    assert cluster.node(S) == before
    cluster.api.stuck.clear()
    cluster.api.faults.clear()
    step_to(cluster.process(S), "etcd-only")
    assert left(cluster) == []
    step_to(cluster.process(S), "full")
    assert not cluster.node(S).unschedulable


def _silent(what: str) -> Any:
    def fault(call: str) -> None:
        if call == what:
            raise unreachable()

    return fault


# --- D30: a PodDisruptionBudget that never yields ---


@pytest.mark.parametrize("place", range(3))
def test_d30_the_other_pods_go_the_time_is_bounded_and_pod_and_budget_are_named(place: int) -> None:
    names = ["web-1", "web-2", "web-3"]
    cluster = with_pods(*(pod(name) for name in names))
    cluster.api.stuck[names[place]] = "The disruption budget web-pdb needs 1 healthy pods and has 1 currently"
    begun = cluster.time.seconds
    report = step_to(cluster.process(S), "down")
    assert report["changed"] and left(cluster) == [names[place]]
    assert 20 <= cluster.time.seconds - begun <= 60
    (remaining,) = report["steps"][0]["remaining"]
    assert f"default/{names[place]}" in remaining and "web-pdb" in remaining


def test_d30_a_429_without_retry_after_over_the_wire(wire: StubCluster) -> None:
    wire.memory.api.pods_by_node[S] = [pod("web-1"), pod("web-2"), pod("web-3")]
    wire.memory.api.stuck["web-2"] = "web-pdb needs 1 healthy pods"
    report = step_to(wire.process(S), "down")
    assert left(wire.memory) == ["web-2"]
    assert "web-pdb" in report["steps"][0]["remaining"][0]


# --- D32: a policy for each kind of pod ---

KINDS = [
    (pod("bare", ""), "refuses"),
    (pod("empty-dir", "ReplicaSet"), "goes"),  # its data goes with it, as at any eviction
    (pod("static", "Node", mirror=True), "stays"),
    (pod("agent", "DaemonSet"), "stays"),
    (pod("job", "Job", finished=True), "stays"),
    (pod("bare-done", "", finished=True), "stays"),
    (pod("running-job", "Job"), "goes"),
    (pod("db", "StatefulSet"), "goes"),
]


@pytest.mark.parametrize(("which", "policy"), KINDS, ids=[found.name for found, _policy in KINDS])
def test_d32_each_kind_of_pod_has_its_policy_at_both_steps(which: Pod, policy: str) -> None:
    cluster = with_pods(which)
    first = step_to(cluster.process(S), "down")
    assert bool(left(cluster)) == (policy != "goes")
    assert bool(first["steps"][0]["remaining"]) == (policy == "refuses")
    if policy != "refuses":
        step_to(cluster.process(S), "down")
        assert cluster.hosts[S].running == "etcd-only"
        return
    with pytest.raises(StepRefused, match=r"without an owner.*default/bare"):
        step_to(cluster.process(S), "down")
    cluster.settings["DRAIN_PODS_WITHOUT_OWNER"] = "end"
    step_to(cluster.process(S), "down")
    assert left(cluster) == []


# --- D33: a pod that cannot come up elsewhere, or never ends ---


def test_d33_a_pod_that_never_ends_is_waited_for_within_the_drains_time_and_named() -> None:
    cluster = with_pods(pod("db-0", "StatefulSet", terminating=True))
    begun = cluster.time.seconds
    report = step_to(cluster.process(S), "down")
    assert 20 <= cluster.time.seconds - begun <= 60
    assert report["steps"][0]["remaining"] == ["default/db-0: is ending"]


@pytest.mark.parametrize(("setting", "level"), [("end", "etcd-only"), ("refuse", "control-plane")])
def test_d33_a_setting_decides_whether_what_stays_forbids_the_restart(setting: str, level: str) -> None:
    cluster = with_pods(pod("db-0", "StatefulSet", terminating=True), DRAIN_REMAINING=setting)
    step_to(cluster.process(S), "down")
    try:
        step_to(cluster.process(S), "down")
    except RegradeError as error:
        assert "DRAIN_REMAINING=refuse" in str(error) and "db-0" in str(error)
    assert cluster.hosts[S].running == level


# --- D34: the drain frees little ---


def test_d34_the_next_step_comes_after_the_cooldown_where_the_drain_did_not_help() -> None:
    state = State(level="full")
    taken = []
    for sample in samples([Event(available=100)] * 40):
        state, decision = observe(state, sample, SHORT)
        if decision.action in ("down", "up"):
            taken.append((decision.action, sample.boottime))
            level = "control-plane" if state.level == "full" else "etcd-only"
            state = after_step(state, level, LastStep(sample.boottime, sample.boot_id, "down"), SHORT)
    assert [action for action, _at in taken] == ["down", "down"]
    assert taken[1][1] - taken[0][1] == SHORT.cooldown_down_seconds


@pytest.mark.parametrize("said", ["True", "False", "Unknown", None])
def test_d34_the_nodes_memory_pressure_is_no_signal(said: Any) -> None:
    plain = {"metadata": {"name": S}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    told = {
        "metadata": {"name": S},
        "status": {
            "conditions": [*plain["status"]["conditions"], {"type": "MemoryPressure", "status": said}]
        },  # type: ignore[index]
    }
    assert kubernetes_api._node(plain) == kubernetes_api._node(told)


# --- D35: the drain ends the only coredns ---


def test_d35_no_name_is_resolved_once_addresses_are_given(
    wire: StubCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo

    def only_numbers(host: Any, *rest: Any, **more: Any) -> Any:
        if not str(host).replace(".", "").isdigit():
            raise socket.gaierror(socket.EAI_AGAIN, f"no DNS for {host}")
        return resolve(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", only_numbers)
    wire.memory.api.pods_by_node[S] = [pod("coredns")]
    step_to(wire.process(S), "etcd-only")
    assert left(wire.memory) == [] and wire.memory.hosts[S].running == "etcd-only"


def test_d35_a_name_that_resolves_no_more_leaves_the_addresses_found_in_the_nodes(wire: StubCluster) -> None:
    wire.memory.settings["KUBE_SERVER"] = f"https://api.invalid:{wire.stub.port},{wire.stub.url}"
    cluster: Any = wire.process(S).world.cluster
    cluster.nodes()
    cluster._urls.remove(wire.stub.url)  # the one of the setting is gone too
    cluster._learn(wire.memory.api.nodes())
    assert cluster.node(S).name == S
