# SPDX-License-Identifier: GPL-3.0-or-later
"""The Kubernetes adapter against the bed's real API servers, with the product's own small rights."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import ports
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Lease,
    NodeChange,
    Taint,
)
from ansible_collections.exadev.k3s_regrade.tests.integration.real import NAME, Real

LABEL, MARK = f"example.com/{NAME}", f"example.com/{NAME}-mark"
TIME = "2026-01-01T00:00:00.000000Z"


def test_the_lease_is_swapped_by_its_resource_version(real: Real) -> None:
    first, second = real.cluster(real.servers[0]), real.cluster(real.servers[1])
    free = first.read_lease()
    taken = first.write_lease(Lease("server1/aa", 60, TIME, "2026-01-01T00:00:00+00:00", 1, free.resource_version))
    assert second.read_lease() == taken
    assert (taken.holder, taken.duration_seconds, taken.renew_time) == ("server1/aa", 60, TIME)
    with pytest.raises(ports.Conflict):
        second.write_lease(Lease("server2/bb", 60, TIME, TIME, 2, free.resource_version))
    released = first.write_lease(Lease("", None, "", "", 1, taken.resource_version))
    assert second.read_lease() == released
    assert (released.holder, released.duration_seconds, released.renew_time) == ("", None, "")
    kept = real.bed.kubectl("-n", "kube-system", "get", "lease", NAME, "-o", "jsonpath={.metadata.labels.kept}")
    assert kept.stdout == "yes"


def test_what_the_rights_leave_out_is_said_with_verb_resource_and_namespace(real: Real) -> None:
    mine, other = real.servers[0], real.servers[1]
    cluster = real.cluster(mine)
    node = cluster.node(other.name)
    with pytest.raises(ports.Forbidden, match=rf"no permission to patch nodes \({other.name}\)"):
        cluster.change_node(other.name, NodeChange(labels={LABEL: "x"}), node.resource_version)
    with pytest.raises(ports.Forbidden, match="get leases in namespace kube-system"):
        real.cluster(mine, LEASE_NAME="another").read_lease()


@pytest.fixture
def clean_node(real: Real) -> Iterator[None]:
    yield
    name = real.servers[0].name
    real.bed.kubectl("uncordon", name)
    real.bed.kubectl("taint", "node", name, f"{LABEL}-", check=False)
    real.bed.kubectl("label", "node", name, f"{LABEL}-")
    real.bed.kubectl("annotate", "node", name, f"{MARK}-")


@pytest.mark.usefixtures("clean_node")
def test_one_write_cordons_taints_labels_and_marks_and_one_takes_it_all_back(real: Real) -> None:
    cluster, name = real.cluster(real.servers[0]), real.servers[0].name
    before = cluster.node(name)
    ours = Taint(LABEL, "etcd-only", "NoSchedule")
    changed = cluster.change_node(
        name,
        NodeChange({LABEL: "etcd-only"}, {MARK: "cordon,taint"}, (*before.taints, ours), True),
        before.resource_version,
    )
    assert changed.unschedulable and ours in changed.taints and changed.labels[LABEL] == "etcd-only"
    assert changed.cordoned_by == ("k3s-regrade",)
    with pytest.raises(ports.Conflict):
        cluster.change_node(name, NodeChange(annotations={MARK: "late"}), before.resource_version)
    assert cluster.node(name).annotations[MARK] == "cordon,taint"

    while True:  # the node controller adds its own taint for the cordon, and kubelet writes now and then
        seen = cluster.node(name)
        taints = tuple(taint for taint in seen.taints if taint.key != LABEL)
        try:
            back = cluster.change_node(
                name, NodeChange({LABEL: None}, {MARK: None}, taints, False), seen.resource_version
            )
            break
        except ports.Conflict:
            continue
    assert not back.unschedulable and LABEL not in back.labels and MARK not in back.annotations
    assert not [taint for taint in back.taints if taint.key == LABEL]
    assert back.uid == before.uid and back.created == before.created


@pytest.mark.usefixtures("clean_node")
def test_a_persons_cordon_is_known_by_who_set_it(real: Real) -> None:
    cluster, name = real.cluster(real.servers[0]), real.servers[0].name
    real.bed.kubectl("cordon", name)
    found = cluster.node(name)
    assert found.unschedulable and "k3s-regrade" not in found.cordoned_by and found.cordoned_by
    again = cluster.change_node(name, NodeChange(unschedulable=True), found.resource_version)
    assert "k3s-regrade" not in again.cordoned_by, "setting what is set takes nothing over"


def test_nodes_leases_endpoints_and_peers(real: Real) -> None:
    cluster = real.cluster(real.servers[0])
    names = {server.name for server in real.servers}
    nodes = cluster.nodes()
    assert {node.name for node in nodes} == names
    for node, server in zip(sorted(nodes), real.servers):
        assert node.addresses == (server.address,)
        assert node.ready is True and node.etcd_is_voter is True and node.ready_heartbeat
        assert "etcd.k3s.cattle.io/node-name" in node.annotations
    first = cluster.node_lease_renewals()
    assert names <= set(first)
    end = time.monotonic() + 40
    while any(cluster.node_lease_renewals()[name] == first[name] for name in names):
        assert time.monotonic() < end, "a node lease was not seen to change"
        time.sleep(1)
    assert set(cluster.api_addresses()) == {server.address for server in real.servers}
    assert cluster.k3s_etcd_lease().holder in names
    for server in real.servers[1:]:
        assert cluster.ask_peer(server.address) == ("", "")


def test_a_peer_that_is_paused_is_found_out_in_time(real: Real) -> None:
    """Its TCP connects, its TLS hangs, and its Node stays Ready."""
    mine, paused, other = real.servers
    cluster = real.cluster(mine, KUBE_SERVER=f"https://{paused.address}:6443,https://{other.address}:6443")
    paused.docker("pause", "k3s")
    try:
        begun = time.monotonic()
        answer = cluster.ask_peer(paused.address)
        assert time.monotonic() - begun < 7
        assert answer.readyz_etcd and answer.lease_read
        begun = time.monotonic()
        assert cluster.node(paused.name).ready is True
        assert time.monotonic() - begun < 5.2, "the other server is asked within the same time"
    finally:
        paused.docker("unpause", "k3s")
    real.bed.wait_ready(120)


POD = {
    "apiVersion": "v1", "kind": "Pod",
    "metadata": {"namespace": NAME, "labels": {"app": "sleeper"}},
    "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False,
             "containers": [{"name": "sleeper", "image": "local/sleeper:1", "imagePullPolicy": "Never"}]},
}  # fmt: skip


def test_eviction_a_budget_and_a_pod_that_is_gone(real: Real) -> None:
    server = real.servers[0]
    cluster = real.cluster(server)
    for name in ("one", "two"):
        pod = json.loads(json.dumps(POD))
        pod["metadata"]["name"], pod["spec"]["nodeName"] = name, server.name
        real.bed.kubectl("apply", "-f", "-", input=json.dumps(pod))
    try:
        real.bed.kubectl("-n", NAME, "wait", "pod/one", "pod/two", "--for=condition=Ready", "--timeout=60s", timeout=90)
        found = {pod.name: pod for pod in cluster.pods(server.name) if pod.namespace == NAME}
        assert found["one"].owner_kind == "" and not found["one"].terminating
        budget = {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep", "namespace": NAME},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "sleeper"}}},
        }  # fmt: skip
        real.bed.kubectl("apply", "-f", "-", input=json.dumps(budget))
        end = time.monotonic() + 20
        while (answer := cluster.evict(found["one"])).accepted or "keep" not in answer.reason:
            assert not answer.accepted and time.monotonic() < end, answer
            time.sleep(0.5)
        real.bed.kubectl("-n", NAME, "delete", "pdb", "keep")
        gone = found["one"]._replace(uid="00000000-0000-0000-0000-000000000000")
        answer = cluster.evict(gone)
        assert answer.accepted and "UID" in answer.reason, "another pod has that name: the one meant is gone"
        assert [pod.name for pod in cluster.pods(server.name) if pod.namespace == NAME and not pod.terminating]
        assert cluster.evict(found["one"]).accepted
        real.bed.kubectl("-n", NAME, "wait", "pod/one", "--for=delete", "--timeout=30s", check=False)
        assert cluster.evict(found["one"]).accepted
    finally:
        real.bed.kubectl("-n", NAME, "delete", "pod,pdb", "--all", "--wait=false")


def test_an_event_is_shown_with_its_node(real: Real) -> None:
    cluster, name = real.cluster(real.servers[0]), real.servers[0].name
    cluster.record_event(cluster.node(name), "Normal", "AdapterTest", "said by a test")
    described = real.bed.kubectl("describe", "node", name).stdout
    assert "AdapterTest" in described and "said by a test" in described
