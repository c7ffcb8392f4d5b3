# SPDX-License-Identifier: GPL-3.0-or-later
"""What of regrading is on the hosts and in the cluster, told without the product's help. Reads only."""

from __future__ import annotations

from typing import Any

import observer
from admin_api import AdminApi, NoAnswer
from bed import Bed, Server

FOLDERS = "/srv/cluster/regrade /usr/local/bin/regrade /var/lib/regrade"
# The name of an image that the role built; one that was given has the tag `bed`.
BUILT = "exadev/k3s-regrade"
GIVEN = f"{BUILT}:bed"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/k3s-regrade"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
GUARDS = ("k3s-regrade-keep-node", "k3s-regrade-keep-member")
SHARED = (
    "/api/v1/namespaces/k3s-regrade",
    LEASE,
    *(f"{RBAC}/clusterrole{kind}s/k3s-regrade" for kind in ("", "binding")),
    *(
        f"{RBAC}/namespaces/{place}/role{kind}s/k3s-regrade"
        for place in ("default", "kube-system", "kube-node-lease")
        for kind in ("", "binding")
    ),
    *(f"{ADMISSION}/validatingadmissionpolic{kind}/{name}" for name in GUARDS for kind in ("ies", "ybindings")),
)  # fmt: skip


def own(server: Server) -> tuple[str, ...]:
    """What the cluster has of this one server."""
    place = "/api/v1/namespaces/k3s-regrade"
    return (
        f"{place}/serviceaccounts/{server.name}",
        f"{place}/secrets/{server.name}-token",
        *(f"{RBAC}/clusterrole{kind}s/k3s-regrade-{server.name}" for kind in ("", "binding")),
    )


def on_host(server: Server) -> list[str]:
    """Containers, images and files of ours on this host, by name."""
    containers = server.docker("ps", "--all", "--format={{.Names}}", "--filter=name=regrade").stdout.split()
    images = server.docker("image", "ls", "--format={{.Repository}}:{{.Tag}}", BUILT).stdout.split()
    files = server.sh(f"find {FOLDERS}", check=False).stdout.split()
    return [f"{server.name}: {name}" for name in (*containers, *(set(images) - {GIVEN}), *sorted(files))]


def in_cluster(api: AdminApi, paths: tuple[str, ...]) -> list[str]:
    """Those of the objects that are there."""
    found = []
    for path in paths:
        try:
            api.call("GET", path)
        except NoAnswer as error:
            assert error.status == 404, error
        else:
            found.append(path)
    return found


def left_behind(bed: Bed, api: AdminApi) -> list[str]:
    """All of ours that is anywhere."""
    found = [name for server in bed.servers for name in on_host(server)]
    return found + in_cluster(api, (*SHARED, *(path for server in bed.servers for path in own(server))))


def k3s_started(bed: Bed) -> dict[str, str]:
    return {server.name: observer.started_at(server) for server in bed.servers}


def service_runs(server: Server) -> bool:
    state = server.docker(
        "inspect", "--type=container", "--format={{.State.Running}}", "k3s-regrade", check=False
    )
    return state.stdout.strip() == "true"


def marks(node: dict[str, Any]) -> list[str]:
    """What a step leaves on a Node until it is back at full."""
    meta, spec = node["metadata"], node["spec"]
    named = [*(meta.get("labels") or {}), *(meta.get("annotations") or {})]
    named += [taint["key"] for taint in spec.get("taints") or []]
    found = [key for key in named if key.startswith("github-runner.exadev.com/")]
    return found + (["cordon"] if spec.get("unschedulable") else [])
