# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated cluster as it truly is: hosts with their k3s and clocks, etcd's members, and what etcd holds.

Only the rules of the world (k3s, Kubernetes, the host; shared facts with their source in the docs), nothing
of the product's: no check of the gate, no order of a step. What becomes of Nodes with time (Ready, node leases) is
worked out from when things happened, so that an idle cluster costs nothing. Delays and errors are `process`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import (
    CONTROL_PLANE,
    ETCD_ONLY,
    FULL,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Lease,
    Member,
    Node,
    NodeChange,
    Pod,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import Conflict, Missing

from .world import changed

if TYPE_CHECKING:
    from .process import Process
    from .scheduler import Scheduler

NOT_READY_SECONDS = 43.0  # after the last heartbeat (measured)
RENEWAL_SECONDS = 10.0  # kubelet renews its node lease about this often
TOTAL = 1 << 30  # MemTotal of each host

RUNNING, STOPPED, LOOPING = "running", "stopped", "crash loop"


class Host:
    """One server: host, disk, clocks and its k3s."""

    def __init__(self, cluster: Cluster, name: str, address: str, member: str) -> None:
        self.cluster, self.name, self.address = cluster, name, address
        self.member = member  # id of its etcd member, "" once it was removed
        random = cluster.random
        # clocks
        self.rate = random.uniform(0.8, 1.25)  # seconds of its clocks to one true second
        self.boots = 1
        self.booted = -random.uniform(100.0, 5000.0)
        self.slept = 0.0  # its own seconds, since the boot
        self.asleep_until = 0.0
        self.wall = random.uniform(-1e5, 1e5)  # how wrong its wall clock is
        # k3s
        self.powered = True
        self.k3s = RUNNING
        self.running = FULL  # the level k3s booted at: control-plane runs as full does
        self.starts = 1
        self.etcd_at = self.api_at = self.ready_at = -1.0  # when each is up, once k3s runs
        self.hung_until = 0.0  # its kubelet does nothing
        self.down_at = -1e9  # when its etcd last ceased to take part
        self.away_since = -1.0  # kubelet renews nothing since, where it does not
        self.trapped = False
        self.incurable = False  # each boot at etcd-only ends in the trap
        self.loops_at = ""  # the level at which k3s ends again and again
        self.docker_down_until = 0.0
        self.unseen_until = 0.0  # it is so busy that each look at the level comes to nothing
        self.recovery_ends = False  # who recovers it dies between the record and the restart
        self.denied_until = 0.0  # a socket proxy denies the restart
        self.isolated_until = 0.0  # its network is gone
        # disk
        self.record = FULL
        self.linked = True  # k3s reads the record
        self.state: Dict[str, Dict[str, Any]] = {}
        self.noted: Dict[str, str] = {}
        self.memory: Dict[str, str] = {}
        self.full_disk_until = 0.0
        # processes
        self.lock: Optional[Process] = None
        self.processes: List[Process] = []
        # memory: the stall's total so far, and how it goes on
        self._stall, self._stall_at, self.share, self.available = 0.0, 0.0, 0.0, int(0.6 * TOTAL)

    # -- clocks

    def boottime(self) -> float:
        return (self.cluster.now - self.booted) * self.rate

    def monotonic(self) -> float:
        return self.boottime() - self.slept

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boots}"

    def now_text(self) -> str:
        seconds = int(self.cluster.now + self.wall) % 86400
        return f"2026-01-01T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.000000Z"

    # -- memory

    def press(self, share: float, available: float) -> None:
        """From now on tasks stall for this share of the time, with this share of memory available."""
        self._stall, self._stall_at = self.stall(), self.cluster.now
        self.share, self.available = share, int(available * TOTAL)

    def stall(self) -> float:
        """PSI `some total`, microseconds."""
        return self._stall + self.share * (self.cluster.now - self._stall_at) * self.rate * 1e6

    # -- k3s

    def up(self) -> bool:
        """Whether its etcd takes part."""
        now = self.cluster.now
        return (
            self.powered
            and self.k3s == RUNNING
            and now >= self.etcd_at
            and self.asleep_until <= now
            and self.isolated_until <= now
            and bool(self.member)
        )

    def serves_api(self) -> bool:
        return self.running != ETCD_ONLY and self.cluster.now >= self.api_at and self.up() and self.cluster.quorum()

    def agent_up(self) -> bool:
        now = self.cluster.now
        return self.running != ETCD_ONLY and now >= self.ready_at and self.hung_until <= now and self.up()

    def at(self) -> str:
        """The level it runs at, as a look from outside tells it; "" while that is not known."""
        if not self.powered or self.k3s != RUNNING or self.cluster.now < self.etcd_at:
            return ""
        if self.running == ETCD_ONLY:
            return ETCD_ONLY
        if self.cluster.now < self.api_at:
            return ""
        return CONTROL_PLANE if self.record == CONTROL_PLANE else FULL

    def seen_at(self) -> str:
        """The level as a process of ours sees it; "" where it cannot be told."""
        return self.at() if self.unseen_until <= self.cluster.now else ""

    def _goes_away(self) -> None:
        """Before anything that takes k3s away: when it was last there."""
        if self.up():
            self.down_at = self.cluster.now
        if self.agent_up():
            self.away_since = self.cluster.now

    def stop(self) -> None:
        """k3s stops and stays stopped."""
        self._goes_away()
        self.k3s = STOPPED

    def start(self) -> None:
        """k3s boots, at the level of the record it reads."""
        random, now = self.cluster.random, self.cluster.now
        self._goes_away()
        self.starts += 1
        self.running = ETCD_ONLY if self.record == ETCD_ONLY and self.linked else FULL
        level = self.record if self.linked else FULL
        self.k3s = LOOPING if self.loops_at and self.loops_at in (level, "every") else RUNNING
        self.etcd_at = now + random.uniform(1.5, 6.0)
        self.api_at = self.etcd_at + random.uniform(1.0, 6.0)
        self.ready_at = self.api_at + random.uniform(1.0, 6.0)
        self.trapped = self.running == ETCD_ONLY and (self.incurable or random.random() < 0.05)
        if self.away_since < 0:
            self.away_since = now

    def restart(self) -> None:
        self._goes_away()
        self.start()

    def kill_processes(self) -> None:
        for process in tuple(self.processes):
            process.die()

    def power_off(self) -> None:
        self._goes_away()
        self.kill_processes()
        self.powered = False

    def power_on(self) -> None:
        """The host boots; a k3s that was not stopped by hand comes back by its restart policy."""
        self.powered = True
        self.boots += 1
        self.booted = self.cluster.now
        self.asleep_until = min(self.asleep_until, self.cluster.now)
        self.slept = 0.0
        self._stall, self._stall_at = 0.0, self.cluster.now
        self.full_disk_until = self.docker_down_until = self.isolated_until = self.unseen_until = 0.0
        if self.k3s != STOPPED:
            self.start()

    def sleep(self, seconds: float) -> None:
        """The host is suspended."""
        self._goes_away()
        self.asleep_until = self.cluster.now + seconds
        self.slept += seconds * self.rate
        self._stall = self.stall() - self.share * seconds * self.rate * 1e6  # nothing stalls in its sleep
        self._stall_at = self.cluster.now
        self._woken(self.asleep_until)

    def wake(self) -> None:
        """Before its time is over."""
        left = max(0.0, self.asleep_until - self.cluster.now)
        self.asleep_until -= left
        self.slept -= left * self.rate
        self._stall += self.share * left * self.rate * 1e6

    def isolate(self, seconds: float) -> None:
        """Nobody reaches it, and it nobody."""
        self._goes_away()
        self.isolated_until = self.cluster.now + seconds
        self._woken(self.isolated_until)

    def hang_agent(self, seconds: float) -> None:
        """kubelet renews nothing for so long; etcd and the API go on."""
        if self.agent_up():
            self.away_since = self.cluster.now
        self.hung_until = self.cluster.now + seconds

    def _woken(self, at: float) -> None:
        self.ready_at = max(self.ready_at, at + self.cluster.random.uniform(1.0, 4.0))


class Cluster:
    """Hosts, etcd's members and objects, and the rules by which they change."""

    def __init__(self, scheduler: Scheduler, count: int) -> None:
        self.scheduler = scheduler
        self.random = scheduler.random
        self._version = 100
        self.hosts: Dict[str, Host] = {}
        self.by_address: Dict[str, Host] = {}
        self.members: List[Member] = []
        self.joined_at: Dict[str, float] = {}  # of members that came later, by id
        self.objects: Dict[str, Node] = {}  # Nodes as stored; what changes by itself is added when read
        self.lease: Optional[Lease] = Lease("", None, "", "", 0, "1")
        self.controller_stalled_from = self.controller_stalled_until = 0.0  # no Node becomes unready between
        self.pods: Dict[str, List[Pod]] = {}
        self.stuck: Dict[str, str] = {}  # pod name -> why the Eviction API refuses it; "" ends never
        self.events: List[Tuple[str, str]] = []  # Node, reason
        for number in range(1, count + 1):
            name, address = f"server{number}", f"10.0.0.{number}"
            member = Member(
                str(1000 + number), f"{name}-0a1b2c3d", (f"https://{address}:2380",),
                (f"https://{address}:2379",), False,
            )  # fmt: skip
            self.members.append(member)
            host = Host(self, name, address, member.id)
            self.hosts[name] = self.by_address[address] = host
            self.pods[name] = []
            self.objects[name] = Node(
                name=name, uid=f"uid-{name}", resource_version=str(number), created="2026-01-01T00:00:00Z",
                addresses=(address,), labels={"node-role.kubernetes.io/etcd": "true"},
                annotations={marks.MEMBER_NAME: member.name, marks.MEMBER_ADDRESS: address},
                taints=(), unschedulable=False, cordoned_by=(), ready=True, ready_heartbeat="",
                etcd_is_voter=True,
            )  # fmt: skip

    @property
    def now(self) -> float:
        return self.scheduler.now

    def quorum(self) -> bool:
        voters = sum(not member.learner for member in self.members)
        return 2 * sum(host.up() for host in self.hosts.values()) > voters

    def next_version(self) -> str:
        self._version += 1
        return str(self._version)

    # -- Nodes

    def node(self, name: str) -> Node:
        """As the API answers now. Raises Missing."""
        stored = self.objects.get(name)
        if stored is None:
            raise Missing(f"nodes {name} not found")
        host, now = self.hosts[name], self.now
        if host.agent_up():
            return stored._replace(ready=True, ready_heartbeat=f"start {host.starts}")
        seen = min(now, self.controller_stalled_from) if now < self.controller_stalled_until else now
        ready = True if seen - host.away_since < NOT_READY_SECONDS else None
        return stored._replace(ready=ready, ready_heartbeat=f"start {host.starts - (now < host.ready_at)}")

    def renewals(self) -> Dict[str, str]:
        found = {}
        for name in self.objects:
            host = self.hosts[name]
            at = self.now if host.agent_up() else host.away_since
            found[name] = f"renewal {int(at / RENEWAL_SECONDS)}"
        return found

    def set_node(self, name: str, **changes: Any) -> None:
        """Somebody writes the Node, not the product."""
        self.objects[name] = self.objects[name]._replace(resource_version=self.next_version(), **changes)

    def annotate(self, name: str, key: str, value: Optional[str]) -> None:
        annotations = dict(self.objects[name].annotations)
        annotations.pop(key, None)
        if value is not None:
            annotations[key] = value
        self.set_node(name, annotations=annotations)

    def change_node(self, name: str, change: NodeChange, version: str) -> Tuple[Node, Node]:
        """The product's write: (before, after). Raises Conflict, Missing."""
        before = self.objects.get(name)
        if before is None:
            raise Missing(f"nodes {name} not found")
        if version and version != before.resource_version:  # without one the API writes unconditionally
            raise Conflict(f"Node {name} was changed meanwhile")
        self.objects[name] = changed(before, change)._replace(resource_version=self.next_version())
        return before, self.objects[name]

    # -- the Lease

    def read_lease(self) -> Lease:
        if self.lease is None:
            raise Missing("leases.coordination.k8s.io kube-system/k3s-regrade not found")
        return self.lease

    def write_lease(self, lease: Lease) -> Tuple[Lease, Lease]:
        """The product's write: (before, after). Raises Conflict, Missing."""
        before = self.read_lease()
        if lease.resource_version and lease.resource_version != before.resource_version:
            raise Conflict("the Lease was changed meanwhile")
        self.lease = lease._replace(resource_version=self.next_version())
        return before, self.lease

    def set_lease(self, lease: Optional[Lease]) -> None:
        """Somebody writes it, not the product."""
        self.lease = lease._replace(resource_version=self.next_version()) if lease else None

    # -- people's irreversible deeds

    def delete_node(self, name: str) -> None:
        """k3s removes the member of a Node that is deleted; the Node comes back by itself while k3s runs."""
        host = self.hosts[name]
        self.objects.pop(name, None)
        self.members = [member for member in self.members if member.id != host.member]
        host.member = ""
