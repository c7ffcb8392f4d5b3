# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What the core needs of the world, as Protocols; with the errors the world may answer with (`core.errors`).

No implementation belongs here: those are in `adapters`. Every call is bounded in time by its
adapter. An error carries one line a person can act on: what was found, what was expected, what to do.
"""

from __future__ import annotations

from typing import Dict, Optional, Protocol, Tuple

from .core.errors import (
    ApplyFailed,
    ClusterError,
    Conflict,
    Forbidden,
    HostBusy,
    LevelUnknown,
    Missing,
    RegradeError,
    SettingsWrong,
    StateLost,
    StepFailed,
    StepRefused,
    Unreachable,
)
from .core.model import Eviction, Lease, Member, Node, NodeChange, PeerAnswer, Pod

__all__ = (
    "Actuator",
    "ApplyFailed",
    "Clock",
    "Cluster",
    "ClusterError",
    "Conflict",
    "Forbidden",
    "HostBusy",
    "HostLock",
    "LevelUnknown",
    "LocalEtcd",
    "Maintenance",
    "Missing",
    "Platform",
    "RegradeError",
    "SettingsWrong",
    "StateLost",
    "StateStore",
    "StepFailed",
    "StepHooks",
    "StepRefused",
    "Unreachable",
    "VoteKeeper",
)


class Actuator(Protocol):
    """Applies levels on one platform. The core calls nothing else of a platform."""

    def levels(self) -> Tuple[str, ...]:
        """Names, highest first."""

    def current_level(self) -> str:
        """The level the server runs at now. Raises LevelUnknown."""

    def apply_level(self, name: str) -> None:
        """Return once the level is in effect: etcd serves and, where the level runs the agent, the Node
        is Ready on a heartbeat that differs from the one before the restart. Idempotent.

        Calls the hooks it was built with: `before_restart()` at most 5 s before each restart it asks for
        (it raises StepRefused to forbid it) and `note(facts)` to have facts flushed to the journal first.
        Raises ApplyFailed, StepRefused.
        """


class VoteKeeper(Protocol):
    """What an actuator may offer besides, where its platform can lose a vote behind the levels' back.

    Optional: an actuator without it is never trapped, starts nothing, and does not show its record.
    """

    def recorded_level(self) -> str:
        """The level on the server's storage; full where there is none. Raises RegradeError."""

    def trapped(self) -> bool:
        """Whether k3s at etcd-only is locked behind its own address (it would end after 15 minutes)."""

    def start_stopped(self) -> bool:
        """Start our own k3s where it is stopped; it only adds a voter, so it asks no hook. False if it
        ran."""

    def started(self) -> str:
        """Which start of k3s runs now: another text for each start, "" where that is not told. Raises
        RegradeError."""

    def preflight(self) -> None:
        """Try, without effect, all that a step will ask of the platform. Raises RegradeError."""

    def recover(self) -> None:
        """Remove the record and restart k3s, which then runs full; stopped, it is started. Asks neither
        cluster nor hook and waits for no etcd: for a person, where no API server is left. Returns once k3s was
        started anew. Raises ApplyFailed."""


class StepHooks(Protocol):
    """What an actuator may ask of the step that called it."""

    def may_start(self) -> bool:
        """Whether a step is open, so that a stopped k3s may be started; else somebody else stopped it."""

    def before_restart(self) -> None:
        """Ask the gate again. Raises StepRefused."""

    def note(self, facts: Dict[str, str]) -> None:
        """Add facts to the open journal and flush them to storage before returning."""


class LocalEtcd(Protocol):
    """This server's own etcd, asked on its loopback."""

    def members(self) -> Tuple[Member, ...]:
        """The member list. Raises LevelUnknown where k3s does not answer or has no quorum."""

    def healthy(self) -> bool:
        """Whether etcd serves with a quorum."""


class Platform(Actuator, VoteKeeper, LocalEtcd, Protocol):
    """What the adapter of a RUNTIME is: all that a step asks of the server it runs beside."""


class Cluster(Protocol):
    """The Kubernetes API, through KUBE_SERVER (other servers). Reads are quorum reads. Raises
    ClusterError."""

    def read_lease(self) -> Lease: ...

    def write_lease(self, lease: Lease) -> Lease:
        """Replace, conditional on `lease.resource_version`. Raises Conflict."""

    def nodes(self) -> Tuple[Node, ...]:
        """Every Node with the etcd role label, from one LIST."""

    def all_nodes(self) -> Tuple[Node, ...]:
        """Every Node, agents' too, from one LIST."""

    def node(self, name: str) -> Node: ...

    def change_node(self, name: str, change: NodeChange, resource_version: str) -> Node:
        """One write, conditional on the resourceVersion. Raises Conflict."""

    def node_lease_renewals(self) -> Dict[str, str]:
        """Node name -> renewTime of its `kube-node-lease`, as text."""

    def ask_peer(self, address: str) -> PeerAnswer:
        """Ask that peer's own API, by address: `/readyz/etcd` and a GET of our Lease. Never raises
        ClusterError."""

    def pods(self, node: str) -> Tuple[Pod, ...]: ...

    def evict(self, pod: Pod) -> Eviction: ...

    def record_event(self, node: Node, kind: str, reason: str, message: str) -> None:
        """kind: Normal or Warning."""

    def api_addresses(self) -> Tuple[str, ...]:
        """Addresses in the `kubernetes` EndpointSlice, as a peer's API tells them."""

    def k3s_etcd_lease(self) -> Lease:
        """Lease kube-system/k3s-etcd; its holder writes k3s's list of API servers."""


class Clock(Protocol):
    def monotonic(self) -> float:
        """CLOCK_MONOTONIC, seconds: stands still while the host sleeps."""

    def boottime(self) -> float:
        """CLOCK_BOOTTIME, seconds: counts sleep too."""

    def boot_id(self) -> str: ...

    def now_text(self) -> str:
        """UTC as the API wants it, with exactly six fractional digits. For show, never compared."""

    def sleep(self, seconds: float) -> None: ...


class StateStore(Protocol):
    """Small JSON documents on storage that outlives the container, each written whole or not at all."""

    def read(self, name: str) -> Optional[Dict[str, object]]:
        """None where absent. Raises StateLost where it cannot be read or parsed."""

    def write(self, name: str, document: Dict[str, object]) -> None:
        """Flushed to storage before it returns. Raises StateLost (disk full, read-only)."""

    def remove(self, name: str) -> None:
        """Gone once it returns, also where it was not there. Raises StateLost."""


class Maintenance(Protocol):
    """A person's command, run beside the Lease."""

    def start(self, words: Tuple[str, ...]) -> None:
        """With our terminal. Raises RegradeError where it cannot be started."""

    def ended(self, seconds: float) -> Optional[int]:
        """Its exit code (128 and more: a signal's number above that) as soon as it has ended; None where it still
        runs after so many seconds."""


class HostLock(Protocol):
    def acquire(self, purpose: str) -> None:
        """Take the host's lock at once, or raise HostBusy naming who holds it. Held until release or
        exit."""

    def release(self) -> None: ...
