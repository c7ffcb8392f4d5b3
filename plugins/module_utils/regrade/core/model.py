# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The facts a step is decided on, as plain immutable values.

Shapes only: no decision and no I/O belongs here, and nothing the idle loop imports (`reading` and
`policy` carry their own light types). Times of the API are kept as the text they came in, because
they are only ever compared for *change*, never with a clock.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Dict, Mapping, NamedTuple, Optional, Tuple


class Member(NamedTuple):
    """One etcd member as etcd itself lists it (k3s `/db/info`)."""

    id: str  # as etcd prints it, an unsigned number in decimal
    name: str  # "" while the member was added but never started
    peer_urls: Tuple[str, ...]
    client_urls: Tuple[str, ...]
    learner: bool


class Taint(NamedTuple):
    key: str
    value: str
    effect: str
    time_added: Optional[str] = None


class Node(NamedTuple):
    """What this project reads of a Node; `labels` and `annotations` are read-only by agreement."""

    name: str
    uid: str
    resource_version: str
    created: str
    addresses: Tuple[str, ...]  # InternalIP, in the Node's own order
    labels: Dict[str, str]
    annotations: Dict[str, str]
    taints: Tuple[Taint, ...]
    unschedulable: bool
    cordoned_by: Tuple[str, ...]  # managers that managedFields names for spec.unschedulable
    ready: Optional[bool]  # None where the condition is Unknown or absent
    ready_heartbeat: str  # lastHeartbeatTime of Ready, "" where absent
    etcd_is_voter: Optional[bool]  # None where the condition is not published
    provider_id: str = ""
    ready_since: str = ""  # lastTransitionTime of Ready, "" where absent


class NodeChange(NamedTuple):
    """One conditional write to a Node. None for a key removes it; None for a whole field leaves it."""

    labels: Mapping[str, Optional[str]] = MappingProxyType({})
    annotations: Mapping[str, Optional[str]] = MappingProxyType({})
    taints: Optional[Tuple[Taint, ...]] = (
        None  # the whole list, as a strategic patch cannot be trusted with it
    )
    unschedulable: Optional[bool] = None


class Lease(NamedTuple):
    """A `coordination.k8s.io/v1` Lease. An empty holder is free."""

    holder: str
    duration_seconds: Optional[int]
    acquire_time: str
    renew_time: str
    transitions: int
    resource_version: str


class Pod(NamedTuple):
    namespace: str
    name: str
    uid: str
    owner_kind: str  # "" for a pod that nothing would make again
    mirror: bool
    finished: bool
    terminating: bool


class Eviction(NamedTuple):
    """The answer to one request of the Eviction API."""

    accepted: bool  # also where the pod was already gone
    reason: str = ""  # the API's message otherwise, naming the PodDisruptionBudget where it says


class PeerAnswer(NamedTuple):
    """What a peer's own API said when asked directly at its address; "" means well, else what was wrong."""

    readyz_etcd: str
    lease_read: str
