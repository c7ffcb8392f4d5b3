"""What k3s writes about its own Node: labels, annotations, and the node password with its Secret.

The EtcdIsVoter condition and the removal of members are the cluster's duties, in duties.py.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Any

from . import https, log
from .election import micro_time
from .kubeapi import KubeAPI
from .layout import NODE_PASSWORD, write
from .settings import Settings

NODE_NAME = "etcd.k3s.cattle.io/node-name"
NODE_ADDRESS = "etcd.k3s.cattle.io/node-address"
ETCD_LABEL = "node-role.kubernetes.io/etcd"


def password(path: Path = NODE_PASSWORD) -> str:
    """The node's password, made at the first start of its agent."""
    if not path.exists():
        write(path, secrets.token_hex(16) + "\n")
    return path.read_text().strip()


def _scrypt(text: str, salt: bytes) -> bytes:
    return hashlib.scrypt(text.encode(), salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=64)


def hashed(text: str) -> str:
    """The hash as k3s keeps it: `$1:<salt>:15:8:1:<base64>` (k3s source, pkg/authenticator/hash)."""
    salt = secrets.token_bytes(8)
    encoded = base64.b64encode(_scrypt(text, salt)).decode().rstrip("=")
    return f"$1:{salt.hex()}:15:8:1:{encoded}"


def matches(kept: str, text: str) -> bool:
    """Whether the password is the one hashed."""
    parts = kept.split(":")
    if len(parts) != 6 or parts[0] != "$1":
        return False
    encoded = base64.b64encode(_scrypt(text, bytes.fromhex(parts[1]))).decode().rstrip("=")
    return hmac.compare_digest(encoded, parts[5])


def secret_path(name: str) -> str:
    return f"/api/v1/namespaces/kube-system/secrets/{name}.node-password.k3s"


def admit(api: KubeAPI, name: str, text: str) -> bool:
    """k3s's rule: the first password of a node's name counts for as long as its Secret is there."""
    found = api.find(secret_path(name))
    if found is None:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{name}.node-password.k3s"},
            "immutable": True,
            "data": {"hash": base64.b64encode(hashed(text).encode()).decode()},
        }
        api.post("/api/v1/namespaces/kube-system/secrets", body)
        return True
    return matches(base64.b64decode(found.get("data", {}).get("hash", "")).decode(), text)


def refuse(api: KubeAPI, name: str) -> None:
    """Say that the password did not match: in the log, and as k3s's event on the Node."""
    log.error(
        "Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match "
        "server node-passwd entry, try enabling a unique node name with the --with-node-id flag"
    )
    now = micro_time()
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name}.", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name},
        "reason": "NodePasswordValidationFailed",
        "message": f"Deferred node password secret validation failed for {name}: hash does not match",
        "type": "Warning",
        "source": {"component": "k3s-supervisor"},
        "firstTimestamp": now[:19] + "Z",
        "lastTimestamp": now[:19] + "Z",
        "count": 1,
    }
    try:
        api.post("/api/v1/namespaces/default/events", event)
    except https.Failure as failure:
        log.warning(f"no event about the node password: {failure}")


def metadata(settings: Settings, member_name: str, hostname: str) -> dict[str, Any]:
    """The labels and annotations of a Node with an agent and an etcd member, as a merge patch."""
    labels = {
        "node-role.kubernetes.io/control-plane": "true",
        ETCD_LABEL: "true",
        "node.kubernetes.io/instance-type": "k3s",
    }
    if not settings.apiserver:  # the label is only ever added, by a server with an API server
        del labels["node-role.kubernetes.io/control-plane"]
    for label in settings.node_labels:
        key, _, value = label.partition("=")
        labels[key] = value
    annotations = {
        NODE_NAME: member_name,
        NODE_ADDRESS: settings.node_ip,
        "k3s.io/hostname": hostname,
        "k3s.io/internal-ip": settings.node_ip,
        "k3s.io/node-args": settings.node_args,
        "k3s.io/node-config-hash": hashlib.sha256(settings.node_args.encode()).hexdigest()[:52].upper(),
        "k3s.io/node-env": "{}",
    }
    return {"metadata": {"labels": labels, "annotations": annotations}}
