# SPDX-License-Identifier: GPL-3.0-or-later
"""The adapters pointed at a real bed: rights as small as the product's, and each host's own Docker engine.

Everything made here carries NAME and goes again; the product's own Lease and accounts are not touched.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    docker_engine,
    kubernetes_api,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings as settings_of
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import RegradeError

from bed import Bed, Server

NAME = "adapters-test"
COORDINATION = "coordination.k8s.io"


def _binding(kind: str, role: str, subject: dict[str, str], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": role, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", **subject}],
    }


def _role(kind: str, name: str, rules: list[dict[str, Any]], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": rules}


def manifest(servers: tuple[Server, ...]) -> list[dict[str, Any]]:
    """The rights that were found to be enough, and no more."""
    everyone = {"kind": "Group", "name": f"system:serviceaccounts:{NAME}"}
    objects: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}},
        {"apiVersion": f"{COORDINATION}/v1", "kind": "Lease",
         "metadata": {"name": NAME, "namespace": "kube-system", "labels": {"kept": "yes"}}, "spec": {}},
    ]  # fmt: skip
    rules = [
        ("ClusterRole", "", [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
            {"nonResourceURLs": ["/readyz", "/readyz/etcd"], "verbs": ["get"]},
        ]),
        ("Role", "kube-system", [
            {"apiGroups": [COORDINATION], "resources": ["leases"], "resourceNames": [NAME], "verbs": ["get", "update"]},
            {"apiGroups": [COORDINATION], "resources": ["leases"], "resourceNames": ["k3s-etcd"], "verbs": ["get"]},
        ]),
        ("Role", "kube-node-lease", [{"apiGroups": [COORDINATION], "resources": ["leases"], "verbs": ["get", "list"]}]),
        ("Role", "default", [
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "resourceNames": ["kubernetes"],
             "verbs": ["get"]},
        ]),
    ]  # fmt: skip
    for kind, namespace, allowed in rules:
        objects += [_role(kind, NAME, allowed, namespace), _binding(kind, NAME, everyone, namespace)]
    for server in servers:
        own = f"{NAME}-{server.name}"
        account = {"apiGroup": "", "kind": "ServiceAccount", "name": server.name, "namespace": NAME}
        objects += [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": server.name, "namespace": NAME}},
            {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
             "metadata": {"name": server.name, "namespace": NAME,
                          "annotations": {"kubernetes.io/service-account.name": server.name}}},
            _role("ClusterRole", own, [
                {"apiGroups": [""], "resources": ["nodes"], "resourceNames": [server.name], "verbs": ["patch"]}]),
            _binding("ClusterRole", own, account),
        ]  # fmt: skip
    return objects


class Real:
    """The bed, the accounts, and what is built on them."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed, self.folder = bed, folder
        self.servers = bed.servers
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifest(self.servers)})
        bed.kubectl("apply", "-f", "-", input=text)
        for server in self.servers:
            self._kubeconfig(server)

    def remove(self) -> None:
        kinds = "clusterrolebinding,clusterrole"
        names = [NAME, *(f"{NAME}-{server.name}" for server in self.servers)]
        self.bed.kubectl("delete", kinds, "--ignore-not-found", *names)
        for namespace in ("kube-system", "kube-node-lease", "default"):
            self.bed.kubectl("-n", namespace, "delete", "rolebinding,role", NAME, "--ignore-not-found")
        self.bed.kubectl("-n", "kube-system", "delete", "lease", NAME, "--ignore-not-found")
        # Waited for: a run that follows at once would make its accounts in a namespace that is ending.
        self.bed.kubectl("delete", "namespace", NAME, "--ignore-not-found", timeout=120)

    def _kubeconfig(self, server: Server) -> None:
        end = time.monotonic() + 60
        while True:
            secret = json.loads(self.bed.kubectl("-n", NAME, "get", "secret", server.name, "-o", "json").stdout)
            data = secret.get("data") or {}
            if data.get("token"):
                break
            assert time.monotonic() < end, "the token Secret was not filled in"
            time.sleep(0.5)
        (self.folder / server.name).write_text(json.dumps({
            "clusters": [{"name": "c", "cluster": {"certificate-authority-data": data["ca.crt"]}}],
            "users": [{"name": "u", "user": {"token": base64.b64decode(data["token"]).decode()}}],
        }))  # fmt: skip

    def settings(self, server: Server, **given: str) -> settings_of.Settings:
        """Settings of that server's service, as the role would write them."""
        peers = ",".join(f"https://{peer.address}:6443" for peer in self.servers if peer.name != server.name)
        # A host is a container here: its engine's socket is reached through its root folder.
        state = subprocess.run(["docker", "inspect", "-f", "{{.State.Pid}}", server.host_container],
                               capture_output=True, text=True, check=True)  # fmt: skip
        values = {
            "NODE_NAME": server.name, "KUBE_SERVER": peers, "KUBECONFIG": str(self.folder / server.name),
            "LEASE_NAME": NAME, "DOCKER_HOST": f"unix:///proc/{state.stdout.strip()}/root/run/docker.sock", **given,
        }  # fmt: skip
        return settings_of.load("\n".join(f"{key}={value}" for key, value in values.items()), {})

    def cluster(self, server: Server, **given: str) -> kubernetes_api.KubernetesCluster:
        return kubernetes_api.KubernetesCluster(self.settings(server, **given))

    def actuator(self, server: Server, hooks: Any = None, **given: str) -> docker_engine.DockerActuator:
        settings = self.settings(server, **given)
        return docker_engine.DockerActuator(settings, kubernetes_api.KubernetesCluster(settings), hooks)

    def member_ids(self) -> dict[str, str]:
        """Member name -> id, as the first server that answers lists them."""
        for server in self.servers:
            try:
                return {member.name: member.id for member in self.actuator(server).members()}
            except RegradeError:  # the next one is asked
                continue
        raise AssertionError("no server lists etcd's members")
