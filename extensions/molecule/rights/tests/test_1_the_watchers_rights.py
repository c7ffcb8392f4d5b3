# SPDX-License-Identifier: GPL-3.0-or-later
"""What the API answers to a watcher's own token. No request here leaves a trace: those that write are rehearsals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import pytest

from admin_api import AccountApi, AdminApi, NoAnswer
from bed import Bed, Server
from observer import wait_for
from removal import ADMISSION, LEASE, RBAC

LEASES = "/apis/coordination.k8s.io/v1/namespaces"
DRY = "?dryRun=All"
NODE = "/api/v1/nodes/server1"
OURS = {"metadata": {"annotations": {"github-runner.exadev.com/regrade-rights": "asked"}}}
MEMBER = "etcd.k3s.cattle.io"


class Asked(NamedTuple):
    method: str
    path: str
    body: Optional[Mapping[str, Any]] = None


def named(kind: str, version: str = "v1", **more: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "asked"}, **more}


def annotated(**values: Optional[str]) -> dict[str, Any]:
    return {
        "metadata": {
            "annotations": {f"{MEMBER}/{key.replace('_', '-')}": value for key, value in values.items()}
        }
    }


DENIED = {
    "delete its own Node": Asked("DELETE", NODE + DRY),
    "delete another Node": Asked("DELETE", "/api/v1/nodes/server2" + DRY),
    "delete all Nodes": Asked("DELETE", "/api/v1/nodes" + DRY),
    "change another server's Node": Asked("PATCH", "/api/v1/nodes/server2" + DRY, OURS),
    "change the status of its Node": Asked("PATCH", NODE + "/status" + DRY, OURS),
    "make a Node": Asked("POST", "/api/v1/nodes" + DRY, named("Node")),
    "list Secrets": Asked("GET", "/api/v1/secrets"),
    "read a node password": Asked("GET", "/api/v1/namespaces/kube-system/secrets/server2.node-password.k3s"),
    "read its own token's Secret": Asked("GET", "/api/v1/namespaces/k3s-regrade/secrets/server1-token"),
    "read another's token": Asked("GET", "/api/v1/namespaces/k3s-regrade/secrets/server2-token"),
    "have a token made": Asked(
        "POST", "/api/v1/namespaces/k3s-regrade/serviceaccounts/server2/token" + DRY,
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    ),
    "read ConfigMaps": Asked("GET", "/api/v1/namespaces/kube-system/configmaps"),
    "make a Lease": Asked("POST", f"{LEASES}/kube-system/leases{DRY}", named("Lease", "coordination.k8s.io/v1")),
    "make a node Lease": Asked(
        "POST", f"{LEASES}/kube-node-lease/leases{DRY}", named("Lease", "coordination.k8s.io/v1")
    ),
    "list Leases": Asked("GET", f"{LEASES}/kube-system/leases"),
    "delete the Lease": Asked("DELETE", LEASE + DRY),
    "delete a node Lease": Asked("DELETE", f"{LEASES}/kube-node-lease/leases/server2{DRY}"),
    "renew another's node Lease": Asked("PATCH", f"{LEASES}/kube-node-lease/leases/server2{DRY}", {"spec": {}}),
    "write the Lease of k3s": Asked("PATCH", f"{LEASES}/kube-system/leases/k3s-etcd{DRY}", {"spec": {}}),
    "read one pod": Asked("GET", "/api/v1/namespaces/default/pods/asked"),
    "delete a pod": Asked("DELETE", f"/api/v1/namespaces/default/pods/asked{DRY}"),
    "make a pod": Asked(
        "POST", f"/api/v1/namespaces/kube-system/pods{DRY}",
        named("Pod", spec={"containers": [{"name": "asked", "image": "asked"}]}),
    ),
    "run something in a pod": Asked("POST", "/api/v1/namespaces/default/pods/asked/exec?command=true"),
    "read the kubelet through the API": Asked("GET", NODE + "/proxy/pods"),
    "give itself rights": Asked(
        "POST", f"{RBAC}/clusterrolebindings{DRY}",
        named(
            "ClusterRoleBinding", "rbac.authorization.k8s.io/v1",
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        ),
    ),
    "take off a guard": Asked("DELETE", f"{ADMISSION}/validatingadmissionpolicies/k3s-regrade-keep-node{DRY}"),
}  # fmt: skip

ALLOWED = {
    "read a Node": Asked("GET", "/api/v1/nodes/server2"),
    "list Nodes": Asked("GET", "/api/v1/nodes"),
    "change its own Node": Asked("PATCH", NODE + DRY, OURS),
    "read the Lease": Asked("GET", LEASE),
    "read the Lease of k3s": Asked("GET", f"{LEASES}/kube-system/leases/k3s-etcd"),
    "list the node Leases": Asked("GET", f"{LEASES}/kube-node-lease/leases"),
    "list pods": Asked("GET", "/api/v1/pods"),
    "see which servers have an API": Asked(
        "GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
    ),
    "tell an Event": Asked(
        "POST", f"/api/v1/namespaces/default/events{DRY}",
        named("Event", involvedObject={"kind": "Node", "name": "server1", "namespace": "default"}),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def watcher(bed: Bed, server1: Server) -> AccountApi:
    return AccountApi(bed, server1)


def answer(api: AdminApi, asked: Asked) -> tuple[int, str]:
    """(200 or the status that it is not, what was said)"""
    try:
        api.call(*asked)
    except NoAnswer as error:
        return error.status, str(error)
    return 200, ""


@pytest.mark.parametrize("what", DENIED)
def test_it_cannot(watcher: AccountApi, what: str) -> None:
    status, said = answer(watcher, DENIED[what])
    assert status == 403, said
    assert "system:serviceaccount:k3s-regrade:server1" in said


@pytest.mark.parametrize("what", ALLOWED)
def test_it_can(watcher: AccountApi, what: str) -> None:
    assert answer(watcher, ALLOWED[what]) == (200, "")


def test_it_can_write_the_lease_it_read(watcher: AccountApi) -> None:
    assert answer(watcher, Asked("PUT", LEASE + DRY, watcher.call("GET", LEASE))) == (200, "")


def test_it_may_evict(watcher: AccountApi) -> None:
    eviction = named("Eviction", "policy/v1")
    status, said = answer(
        watcher, Asked("POST", f"/api/v1/namespaces/default/pods/asked/eviction{DRY}", eviction)
    )
    assert status == 404, said  # there is no such pod


def test_each_servers_token_is_for_its_own_node(bed: Bed) -> None:
    for server in bed.servers:
        own = AccountApi(bed, server)
        found = {
            node.name: answer(own, Asked("PATCH", f"/api/v1/nodes/{node.name}{DRY}", OURS))[0]
            for node in bed.servers
        }
        assert found == {node.name: 200 if node is server else 403 for node in bed.servers}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(annotated(remove="true"), id="remove the member"),
        pytest.param(annotated(removed_node_name="server1-1"), id="say that it was removed"),
        pytest.param(annotated(node_name="another"), id="name another member"),
        pytest.param(annotated(node_name=None), id="take the member's name off"),
    ],
)
def test_it_cannot_write_what_removes_a_member(
    watcher: AccountApi, api: AdminApi, change: Mapping[str, Any]
) -> None:
    asked = Asked("PATCH", NODE + DRY, change)

    def denied() -> Optional[str]:  # acts a few seconds after it was made
        status, said = answer(watcher, asked)
        return said if status == 403 else None

    said = wait_for("the guard acts", denied, 30)
    assert "k3s-regrade-keep-member" in said
    assert "annotations of etcd.k3s.cattle.io" in said
    assert answer(api, asked) == (200, ""), "an administrator may"
