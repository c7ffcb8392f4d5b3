# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster in memory: an API with resourceVersions and compare-and-swap, servers, a clock that only sleeps.

It holds the rules of the world (k3s, Kubernetes, the host) and none of the product's: no check of the
gate, no order of a step. Tests break it by setting its fields, or with `faults`: functions that are
called with the name of each call and may raise.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.driver import (
    Drive,
    Driver,
    Hooks,
    World,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import Server
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Eviction,
    Lease,
    Member,
    Node,
    NodeChange,
    PeerAnswer,
    Pod,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import load
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import (
    ApplyFailed,
    Conflict,
    HostBusy,
    LevelUnknown,
    Missing,
    RegradeError,
    Unreachable,
)

Fault = Callable[[str], None]
NODE_LEASE_SECONDS = 10.0  # kubelet renews its Lease about this often


class Crash(BaseException):
    """The process is killed here. Not an Exception: nothing of the product may catch it."""


class Time:
    """Seconds of CLOCK_BOOTTIME and CLOCK_MONOTONIC; they pass only in `sleep`."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.boot = "boot-1"

    def monotonic(self) -> float:
        return self.seconds

    def boottime(self) -> float:
        return self.seconds

    def boot_id(self) -> str:
        return self.boot

    def now_text(self) -> str:
        whole = int(self.seconds)
        return f"2026-01-01T{whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.000000Z"

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def changed(node: Node, change: NodeChange) -> Node:
    """The Node after a merge patch of ours, but for its resourceVersion."""
    labels, annotations = dict(node.labels), dict(node.annotations)
    for kept, wanted in ((labels, change.labels), (annotations, change.annotations)):
        for key, value in wanted.items():
            if value is None:
                kept.pop(key, None)
            else:
                kept[key] = value
    changes: Dict[str, Any] = {"labels": labels, "annotations": annotations}
    if change.taints is not None:
        changes["taints"] = change.taints
    if change.unschedulable is not None:
        if change.unschedulable and not node.unschedulable:
            changes["cordoned_by"] = ("k3s-regrade",)
        elif not change.unschedulable:
            changes["cordoned_by"] = ()
        changes["unschedulable"] = change.unschedulable
    return node._replace(**changes)


class Api:
    """What etcd holds of a cluster, and the rules by which it changes (`ports.Cluster` of every server)."""

    def __init__(self, time: Time, names: Tuple[str, ...]) -> None:
        self.time = time
        self.version = 100
        self.nodes_by_name: Dict[str, Node] = {}
        self.silent: Dict[str, float] = {}  # Node name -> since when its kubelet renews nothing
        self.answers: Dict[str, PeerAnswer] = {}  # address -> what that peer's API says
        self.pods_by_node: Dict[str, List[Pod]] = {}
        self.stuck: Dict[str, str] = {}  # pod name -> why the Eviction API refuses it
        self.events: List[Tuple[str, str, str, str]] = []
        self.writes: List[str] = []
        self.faults: List[Fault] = []
        self.lease: Optional[Lease] = Lease("", None, "", "", 0, "1")
        for index, name in enumerate(names, 1):
            self.nodes_by_name[name] = Node(
                name=name, uid=f"uid-{name}", resource_version=str(index), created="2026-01-01T00:00:00Z",
                addresses=(f"10.0.0.{index}",),
                labels={"node-role.kubernetes.io/etcd": "true"},
                annotations={"etcd.k3s.cattle.io/node-name": f"{name}-0a1b2c3d",
                             "etcd.k3s.cattle.io/node-address": f"10.0.0.{index}"},
                taints=(), unschedulable=False, cordoned_by=(), ready=True, ready_heartbeat="h1", etcd_is_voter=True,
            )  # fmt: skip

    def _call(self, name: str) -> None:
        for fault in tuple(self.faults):
            fault(name)

    def _next(self) -> str:
        self.version += 1
        return str(self.version)

    def set_node(self, name: str, **changes: Any) -> None:
        """Somebody else changes a Node."""
        node = self.nodes_by_name[name]
        self.nodes_by_name[name] = node._replace(resource_version=self._next(), **changes)

    # ports.Cluster

    def read_lease(self) -> Lease:
        self._call("read_lease")
        if self.lease is None:
            raise Missing("leases.coordination.k8s.io kube-system/k3s-regrade not found")
        return self.lease

    def write_lease(self, lease: Lease) -> Lease:
        self._call("write_lease")
        if self.lease is None or lease.resource_version != self.lease.resource_version:
            raise Conflict("the Lease was changed meanwhile")
        self.lease = lease._replace(resource_version=self._next())
        self.writes.append(f"lease {lease.holder}")
        self._call("after write_lease")
        return self.lease

    def nodes(self) -> Tuple[Node, ...]:
        self._call("nodes")
        return tuple(self.nodes_by_name.values())

    def all_nodes(self) -> Tuple[Node, ...]:
        return self.nodes()

    def node(self, name: str) -> Node:
        self._call("node")
        if name not in self.nodes_by_name:
            raise Missing(f"nodes {name} not found")
        return self.nodes_by_name[name]

    def change_node(self, name: str, change: NodeChange, resource_version: str) -> Node:
        self._call("change_node")
        node = self.nodes_by_name[name]
        if resource_version != node.resource_version:
            raise Conflict(f"Node {name} was changed meanwhile")
        self.nodes_by_name[name] = changed(node, change)._replace(resource_version=self._next())
        self.writes.append(f"node {name}")
        self._call("after change_node")
        return self.nodes_by_name[name]

    def node_lease_renewals(self) -> Dict[str, str]:
        self._call("node_lease_renewals")
        found = {}
        for name in self.nodes_by_name:
            until = min(self.time.seconds, self.silent.get(name, self.time.seconds))
            found[name] = f"renewal {int(until / NODE_LEASE_SECONDS)}"
        return found

    def ask_peer(self, address: str) -> PeerAnswer:
        return self.answers.get(address, PeerAnswer("", ""))

    def pods(self, node: str) -> Tuple[Pod, ...]:
        self._call("pods")
        return tuple(self.pods_by_node.get(node, ()))

    def evict(self, pod: Pod) -> Eviction:
        self._call("evict")
        if pod.name in self.stuck:
            return Eviction(False, self.stuck[pod.name])
        for pods in self.pods_by_node.values():
            pods[:] = [other for other in pods if other.uid != pod.uid]
        self.writes.append(f"evict {pod.name}")
        return Eviction(True)

    def record_event(self, node: Node, kind: str, reason: str, message: str) -> None:
        self._call("record_event")
        self.events.append((node.name, kind, reason, message))

    def api_addresses(self) -> Tuple[str, ...]:
        return tuple(node.addresses[0] for node in self.nodes_by_name.values())

    def k3s_etcd_lease(self) -> Lease:
        return Lease("server3", 45, "", "", 0, "7")


class Host:
    """One server: its k3s, disk and lock. Actuator, VoteKeeper, LocalEtcd, StateStore and HostLock at once."""

    def __init__(self, api: Api, etcd: List[Member], name: str) -> None:
        self.api, self.etcd, self.name = api, etcd, name
        self.running = "full"  # "" while it is stopped or boots
        self.record = "full"
        self.stopped = False
        self.is_trapped = False
        self.incurable = False  # a restart at etcd-only ends behind its own address, each time
        self.disk: Dict[str, Dict[str, object]] = {}
        self.noted: Dict[str, str] = {}
        self.locked = ""
        self.hooks: Optional[Hooks] = None
        self.restarts: List[str] = []  # the level of each restart
        self.starts = 1  # by none of ours
        self.lease_at_restart: List[str] = []
        self.fail: List[Callable[[str], None]] = []  # called with the level before each apply
        self.logged: List[str] = []

    # Actuator

    def levels(self) -> Tuple[str, ...]:
        return ("full", "control-plane", "etcd-only")

    def current_level(self) -> str:
        if self.stopped or not self.running:
            raise LevelUnknown("k3s does not answer")
        if self.running == "etcd-only":
            return "etcd-only"
        # full and control-plane run the same k3s: only the record tells them apart
        return "control-plane" if self.record == "control-plane" else "full"

    def apply_level(self, name: str) -> None:
        began = len(self.restarts)
        for fail in tuple(self.fail):
            fail(name)
        if self.stopped and self.hooks and self.hooks.may_start():
            self.start_stopped()
        if self.stopped:
            raise ApplyFailed("k3s is stopped", False)
        if "etcd-only" in (name, self.running) and name != self.running:
            self._restart(name)
        self.record = self.running = name
        if name == "etcd-only" and self.is_trapped:
            restarts = len(self.restarts)
            try:
                self._restart(name)
            except RegradeError as error:
                raise ApplyFailed(f"k3s is trapped: {error}", restarts > began, trapped=True) from None
            if self.is_trapped:
                raise ApplyFailed("k3s at etcd-only is still locked behind its own address", True, stuck=True)

    def _restart(self, name: str) -> None:
        if self.hooks is None:
            return
        before = self.record
        self.hooks.note({"container": "c1", "started_at": str(len(self.restarts))})
        self.record = name  # a process killed from here on leaves a record that k3s does not run at
        try:
            self.hooks.before_restart()
        except RegradeError:
            self.record = before
            raise
        self.restarts.append(name)
        self.lease_at_restart.append(self.api.lease.holder if self.api.lease else "")
        self.is_trapped = self.incurable and name == "etcd-only"
        self.api.time.sleep(5)

    # VoteKeeper

    def recorded_level(self) -> str:
        return self.record

    def trapped(self) -> bool:
        return self.is_trapped

    def start_stopped(self) -> bool:
        if self.stopped:
            self.stopped, self.running = False, self.record
            return True
        return False

    def started(self) -> str:
        return f"start {self.starts + len(self.restarts)}"

    def preflight(self) -> None:
        return

    def recover(self) -> None:
        for fail in tuple(self.fail):
            fail("full")
        self.record = self.running = "full"
        self.stopped = False
        self.restarts.append("full")
        self.api.time.sleep(5)

    # LocalEtcd

    def members(self) -> Tuple[Member, ...]:
        if self.stopped:
            raise LevelUnknown("etcd does not answer")
        return tuple(self.etcd)

    def healthy(self) -> bool:
        return not self.stopped

    # StateStore

    def read(self, name: str) -> Optional[Dict[str, object]]:
        found = self.disk.get(name)
        return dict(found) if found is not None else None

    def write(self, name: str, document: Dict[str, object]) -> None:
        self.disk[name] = dict(document)

    def remove(self, name: str) -> None:
        self.disk.pop(name, None)

    # HostLock

    def acquire(self, purpose: str) -> None:
        if self.locked:
            raise HostBusy(f"this host is busy with {self.locked}")
        self.locked = purpose

    def release(self) -> None:
        self.locked = ""


class SteadyRenewal:
    """Never lost unless told: the tests' time passes only in sleeps, so no thread may wait for it."""

    why = ""

    def __init__(self, world: World, holder: str, drive: Drive) -> None:
        self._world, self._holder, self._drive = world, holder, drive

    def lost(self) -> str:
        return self.why

    def end(self) -> None:
        return


class CountingDriver(Driver):
    """Counts requests, and kills the process at the one named: before it is carried out, or just after."""

    def __init__(self, world: World, hooks: Hooks, kill_at: int = 0, after: bool = False) -> None:
        super().__init__(world, hooks, SteadyRenewal)
        self.count = 0
        for kind, answer in list(self._answers.items()):
            self._answers[kind] = self._counted(answer, kill_at, after)

    def _counted(self, answer: Callable[[Any], Any], kill_at: int, after: bool) -> Callable[[Any], Any]:
        def counted(request: Any) -> Any:
            self.count += 1
            mine = self.count
            if mine == kill_at and not after:
                raise Crash
            result = answer(request)
            if mine == kill_at and after:
                raise Crash
            return result

        return counted


class Cluster:
    """Servers over one API."""

    def __init__(self, count: int = 3, **settings: str) -> None:
        self.time = Time()
        names = tuple(f"server{number}" for number in range(1, count + 1))
        self.api = Api(self.time, names)
        self.etcd = [
            Member(str(1000 + number), f"server{number}-0a1b2c3d", (f"https://10.0.0.{number}:2380",),
                   (f"https://10.0.0.{number}:2379",), False)
            for number in range(1, count + 1)
        ]  # fmt: skip
        self.hosts = {name: Host(self.api, self.etcd, name) for name in names}
        self.settings = settings
        self._processes = 0

    def process(self, name: str, kill_at: int = 0, after: bool = False) -> Server:
        """A new process on that server, as the CLI composes one."""
        self._processes += 1
        host = self.hosts[name]
        host.locked = ""  # a lock ends with its process
        hooks = host.hooks = Hooks()
        pairs = {"NODE_NAME": name, "KUBE_SERVER": "https://10.0.0.2:6443", **self.settings}
        world = World(
            settings=load("", pairs), cluster=self.api, actuator=host, vote=host, etcd=host, beside=host,
            clock=self.time, store=host, lock=host, note_step=host.noted.update, read_note=host.noted.copy,
            log=host.logged.append,
        )  # fmt: skip

        def driver(of: World, with_hooks: Hooks) -> Driver:
            return CountingDriver(of, with_hooks, kill_at, after)

        return Server(world, hooks, f"{name}/{self._processes:04x}", driver)

    def node(self, name: str) -> Node:
        return self.api.nodes_by_name[name]


def pod(name: str, owner: str = "ReplicaSet", **changes: Any) -> Pod:
    return Pod("default", name, f"uid-{name}", owner, False, False, False)._replace(**changes)


def fails(call: str, error: Exception, times: int = 1) -> Fault:
    """A fault that raises `error` the first `times` times `call` is made."""
    left = [times]

    def fault(name: str) -> None:
        if name == call and left[0]:
            left[0] -= 1
            raise error

    return fault


def unreachable() -> Unreachable:
    return Unreachable("no API server of KUBE_SERVER answered within 5 s")


def apply_failed(began: bool, times: int = 1) -> Callable[[str], None]:
    left = [times]

    def fail(_level: str) -> None:
        if left[0]:
            left[0] -= 1
            raise ApplyFailed("docker did not answer", began)

    return fail
