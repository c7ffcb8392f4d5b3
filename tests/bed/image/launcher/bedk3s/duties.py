"""What a server does for the cluster while it runs: one pass of each duty per call, no loops, no threads.

Who runs them, and when: the holder of Lease kube-system/k3s-etcd writes the address list and removes members
whose Node is deleted; the server whose member leads etcd promotes learners and keeps EtcdIsVoter (k3s
source, release-1.34, pkg/etcd/etcd.go, member_controller.go, endpoints). Loops are in server.py.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from . import addresses, https, log
from .etcdclient import EtcdClient, Member
from .kubeapi import STRATEGIC, KubeAPI
from .node import ETCD_LABEL, NODE_ADDRESS, NODE_NAME, secret_path

FINALIZER = "wrangler.cattle.io/managed-etcd-controller"
REMOVE = "etcd.k3s.cattle.io/remove"
REMOVED = "etcd.k3s.cattle.io/removed-node-name"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
OF_KUBERNETES = "?labelSelector=kubernetes.io/service-name%3Dkubernetes"
VOTER_REFRESH_SECONDS = 300.0
UTC = datetime.timezone.utc


def endpoints(api: KubeAPI) -> list[str]:
    """The API servers' addresses by the `kubernetes` endpoints."""
    return addresses.from_slices(api.get(SLICES + OF_KUBERNETES)["items"])


def write_addresses(api: KubeAPI, etcd: EtcdClient, last: Sequence[str]) -> list[str]:
    """Write the list to etcd when it is another than `last`; the list. An empty one is never written."""
    now = endpoints(api)
    if now and now != list(last):
        etcd.put(addresses.KEY, json.dumps(now, separators=(",", ":")))
        log.info(f"Set the addresses of the API servers to {now}")
    return now or list(last)


def member_of_node(node: dict[str, Any], members: Sequence[Member]) -> Member | None:
    """The member of a Node, by its annotations: the name and the address must both fit."""
    annotations = node["metadata"].get("annotations", {})
    name, address = annotations.get(NODE_NAME), annotations.get(NODE_ADDRESS)
    for member in members:
        if member.name and member.name == name and f"https://{address}:2380" in member.peer_urls:
            return member
    return None


def _remove(etcd: EtcdClient, node: dict[str, Any]) -> None:
    member = member_of_node(node, etcd.members())
    if member is not None:
        log.info(f"Removing name={member.name} id={member.id} from etcd")
        etcd.remove(member.id)


def care_for_members(api: KubeAPI, etcd: EtcdClient) -> None:
    """Remove the members of deleted Nodes and of Nodes annotated for it; both act within one pass."""
    for node in api.nodes():
        metadata = node["metadata"]
        path = f"/api/v1/nodes/{metadata['name']}"
        annotations = metadata.get("annotations", {})
        finalizers = metadata.get("finalizers", [])
        if metadata.get("deletionTimestamp"):
            if FINALIZER in finalizers:
                _remove(etcd, node)
                if api.find(secret_path(metadata["name"])) is not None:
                    api.delete(secret_path(metadata["name"]))
                left = [name for name in finalizers if name != FINALIZER]
                version = metadata["resourceVersion"]
                api.patch(path, {"metadata": {"finalizers": left or None, "resourceVersion": version}})
        elif annotations.get(REMOVE) == "true":
            _remove(etcd, node)
            changed = {REMOVE: None, REMOVED: annotations.get(NODE_NAME)}
            api.patch(path, {"metadata": {"annotations": changed}})
        elif FINALIZER not in finalizers and metadata.get("labels", {}).get(ETCD_LABEL) == "true":
            wanted = {"finalizers": [*finalizers, FINALIZER], "resourceVersion": metadata["resourceVersion"]}
            api.patch(path, {"metadata": wanted})


def promote(etcd: EtcdClient) -> None:
    """Make voters of learners that have caught up; etcd refuses those that have not."""
    for member in etcd.members():
        if member.learner and member.name:
            try:
                etcd.promote(member.id)
                log.info(f"Learner {member.name} promoted to a voting member")
            except https.Failure as failure:
                log.info(f"Learner {member.name} is not promoted yet: {failure}")


def voter_condition(
    node: dict[str, Any], members: Sequence[Member], now: datetime.datetime
) -> dict[str, Any] | None:
    """The EtcdIsVoter condition to write; None while the one there is right and younger than five minutes."""
    member = member_of_node(node, members)
    if member is None:
        status, reason, message = "False", "NotAMember", "Node is not a member of the etcd cluster"
    elif member.learner:
        status, reason = "False", "MemberIsLearner"
        message = "Node has not been promoted to voting member of the etcd cluster"
    else:
        status, reason = "True", "MemberNotLearner"
        message = "Node is a voting member of the etcd cluster"
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    changed = stamp
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "EtcdIsVoter" and (condition["status"], condition["reason"]) == (
            status,
            reason,
        ):
            changed = condition["lastTransitionTime"]
            beat = datetime.datetime.strptime(condition["lastHeartbeatTime"], "%Y-%m-%dT%H:%M:%SZ")
            if (now - beat.replace(tzinfo=UTC)).total_seconds() < VOTER_REFRESH_SECONDS:
                return None
    return {
        "type": "EtcdIsVoter",
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": changed,
    }


def mark_voters(api: KubeAPI, etcd: EtcdClient) -> None:
    """Keep the condition EtcdIsVoter of every etcd Node; it says what etcd's list says, not who is alive."""
    members = etcd.members()
    for node in api.nodes():
        if node["metadata"].get("labels", {}).get(ETCD_LABEL) != "true":
            continue
        condition = voter_condition(node, members, datetime.datetime.now(UTC))
        if condition is not None:
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            api.patch(path, {"status": {"conditions": [condition]}}, STRATEGIC)
