# SPDX-License-Identifier: GPL-3.0-or-later
"""One simulated process of the product: it runs the real generators, and answers what they ask of the world.

Every request takes time, may fail in the ways of `faults`, and may be where the process is killed or stopped for a
while. What the world is stands in `cluster`; the platform's part of a step in `actuator`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable, Dict, Generator, Optional, Set, Type

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks, step
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import requests as ask
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Eviction,
    Lease,
    PeerAnswer,
    Pod,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.renewal import Held
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import (
    LATE_SECONDS,
    RENEW_SECONDS,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.step import Plan
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import (
    ClusterError,
    Forbidden,
    HostBusy,
    LevelUnknown,
    RegradeError,
    StateLost,
    Unreachable,
)

from . import actuator
from .cluster import ETCD_ONLY, RUNNING, STOPPED, Host
from .scheduler import Actor, Killed, Waits

if TYPE_CHECKING:
    from .history import History

Answers = Generator[float, None, Any]


class Process:
    """`alive` False: it was killed, or has ended."""

    def __init__(self, history: History, host: Host, plan: Plan, kind: str = "step") -> None:
        """`kind`: "step", or "people" for what only a person may do."""
        self.history, self.host, self.plan, self.kind = history, host, plan, kind
        self.cluster, self.faults, self.checks = history.cluster, history.faults, history.checks
        self.random = history.random
        self.alive = True
        self.began = history.now
        self.found_open = False  # whether there was a step to end when it last took the host's lock
        self._stopped_until = 0.0
        self.paused = 0.0  # true seconds it was stopped or starved so far
        self.restart_began = False  # by the apply_level under way, or a stopped k3s was started
        self.restarted = False  # by it; a mere start needs no Lease (rule zero)
        self.paused_at_gate = 0.0  # `paused` when it last asked a peer
        self.answered = False  # whether any API call of it was
        self.heard: Set[str] = set()  # peers that answered it
        self.disabled: Set[str] = set()  # those of them that run at etcd-only
        self.looked = history.now  # when it last read the node leases
        self._command_ends = 0.0  # when the maintenance it started does
        self._held: Optional[Held] = None
        self._renewal: Optional[Actor] = None
        self._renewing = False
        host.processes.append(self)

    def run(
        self,
        steps: Generator[Any, Any, Any],
        ended: Callable[[Any, Optional[BaseException]], None],
        after: float = 0.0,
    ) -> None:
        """Starts it; `ended` is told what it returned or raised, and nothing where it is killed."""

        def main() -> Waits:
            try:
                result = yield from self.drive(steps)
            except RegradeError as error:
                self.checks.raised(self, error)
                self.die()
                ended(None, error)
                return
            except Killed:
                self.die()
                return
            self.die()
            ended(result, None)

        self._actor = self.history.scheduler.spawn(main(), self.host, after)

    def die(self) -> None:
        """Its lock ends with it, and its threads."""
        if not self.alive:
            return
        self.alive = False
        if self.host.lock is self:
            self.host.lock = None
        if self._renewal:
            self._renewal.alive = False
        self._actor.alive = False
        self.host.processes.remove(self)

    # -- time

    def wait(self, low: float, high: float) -> Answers:
        """Passes time; here the process may be killed, or stopped for a while."""
        yield self.random.uniform(low, high)
        if self.faults.active:
            if self.faults.kills(self):
                raise Killed
            if self._held and self.faults.ambushes():
                self.history.ambush(self.host)
                if not self.alive:
                    raise Killed
            pause = self.faults.pause(self)
            if pause:
                yield from self.stopped_for(pause)

    def stopped_for(self, seconds: float) -> Answers:
        """It is stopped, or gets no CPU: so with all its threads."""
        self.paused += seconds
        self._stopped_until = self.history.now + seconds
        yield seconds

    def drive(self, steps: Generator[Any, Any, Any]) -> Answers:
        """Runs the generator of requests to its end."""
        answer: Any = None
        error: Optional[RegradeError] = None
        while True:
            try:
                request = steps.throw(error) if error is not None else steps.send(answer)
            except StopIteration as done:
                return done.value
            kind = type(request)
            answer = error = None
            if kind is ask.Now:
                answer = ask.Instant(self.host.boottime(), self.host.boot_id, self.host.now_text())
                continue
            if kind is ask.Log:
                self.history.told(self, request.text)
                continue
            try:
                answer = yield from ANSWERS[kind](self, request)
            except RegradeError as found:
                error = found

    # -- this host

    def _take_lock(self, _request: ask.TakeLock) -> Answers:
        yield from self.wait(0.0005, 0.002)
        if self.host.lock is not None and self.host.lock is not self:
            self.history.count("fault: two processes on one host")
            raise HostBusy("this host is busy with another process (lock /run/lock/regrade.lock)")
        self.host.lock = self
        self.found_open = "journal" in self.host.state

    def _free_lock(self, _request: ask.FreeLock) -> Answers:
        yield from self.wait(0.0005, 0.002)
        self.host.lock = None

    def _new_id(self, _request: ask.NewId) -> Answers:
        yield from ()
        return f"{self.random.getrandbits(64):016x}"

    def _sleep(self, request: ask.Sleep) -> Answers:
        seconds = request.seconds / self.host.rate
        yield from self.wait(seconds, seconds + 0.01)

    def _read_state(self, request: ask.ReadState) -> Answers:
        yield from ()
        found = self.host.state.get(request.name)
        return dict(found) if found is not None else None

    def _write_state(self, request: ask.WriteState) -> Answers:
        yield from self.wait(0.002, 0.05)
        if self.host.full_disk_until > self.cluster.now:
            self.history.count("fault: disk full")
            raise StateLost(f"{request.name}.json cannot be written: No space left on device")
        self.host.state[request.name] = dict(request.document)
        restart = request.name == step.JOURNAL and request.document["phase"] == step.RESTART
        if restart and self.faults.active and self.faults.at_a_mark():
            self.history.count("fault: disk slow just before the restart")
            self.history.lose_a_peer(self.host)
            yield from self.wait(12.0, 25.0)
        yield from self.wait(0.0005, 0.002)

    def _remove_state(self, request: ask.RemoveState) -> Answers:
        yield from self.wait(0.002, 0.02)
        self.host.state.pop(request.name, None)

    def _read_note(self, _request: ask.ReadNote) -> Answers:
        yield from ()
        return dict(self.host.noted)

    def _note_step(self, request: ask.NoteStep) -> Answers:
        yield from self.wait(0.002, 0.05)
        if self.host.full_disk_until > self.cluster.now:
            self.history.count("fault: disk full")
            self.checks.note_lost(self)
            raise StateLost("last-step cannot be written: No space left on device")
        self.host.noted = dict(request.pairs)
        self.checks.noted(self)

    # -- this server

    def engine(self) -> Answers:
        """One call of the Docker Engine. Raises LevelUnknown."""
        yield from self.wait(0.005, 0.05)
        if self.host.docker_down_until > self.cluster.now:
            self.history.count("fault: Docker does not answer")
            raise LevelUnknown("the Docker engine does not answer")

    def _current_level(self, _request: ask.CurrentLevel) -> Answers:
        yield from self.engine()
        level = self.host.seen_at()
        if not level:
            raise LevelUnknown(f"k3s does not tell its level ({self.host.k3s})")
        return level

    def _preflight(self, _request: ask.Preflight) -> Answers:
        yield from self.engine()
        if self.host.denied_until > self.cluster.now:
            self.history.count("fault: Docker denies the restart")
            raise RegradeError("Docker denies POST /containers/k3s/restart (403)")

    def _recorded(self, _request: ask.RecordedLevel) -> Answers:
        yield from self.engine()
        return self.host.record

    def _trapped(self, _request: ask.Trapped) -> Answers:
        yield from self.engine()
        if not self.host.seen_at():
            raise LevelUnknown("k3s does not answer")
        return self.host.trapped and self.host.running == ETCD_ONLY

    def _start_stopped(self, _request: ask.StartStopped) -> Answers:
        yield from self.engine()
        if self.host.k3s != STOPPED:
            return False
        self.checks.started(self)
        self.host.start()
        return True

    def _started(self, _request: ask.Started) -> Answers:
        yield from self.engine()
        if not self.host.seen_at():
            raise LevelUnknown("k3s does not answer")
        return f"start {self.host.starts}"

    def _members(self, _request: ask.ReadMembers) -> Answers:
        yield from self.engine()
        if not (self.host.k3s == RUNNING and self.cluster.now >= self.host.etcd_at):
            raise LevelUnknown("etcd's member list cannot be read: k3s does not answer")
        if not (self.host.up() and self.cluster.quorum()):
            yield from self.wait(2.0, 4.0)
            raise LevelUnknown("etcd's member list cannot be read: no quorum")
        return tuple(self.cluster.members)

    # -- the cluster

    def call(self, what: str, effect: Callable[[], Any], write: bool = False, big: bool = False) -> Answers:
        """One call through KUBE_SERVER, a quorum read or a write. Raises ClusterError."""
        host, faults, history = self.host, self.faults, self.history
        yield from self.wait(0.004, 0.04)
        if faults.cut(host) or not any(
            peer is not host and peer.serves_api() for peer in self.cluster.hosts.values()
        ):
            history.count("fault: no API server answers")
            yield from self.wait(0.1, 5.0)
            raise Unreachable("no API server of KUBE_SERVER answered")
        if faults.expired_until.get(host.name, 0.0) > history.now:
            history.count("fault: certificate expired")
            raise Forbidden("401 Unauthorized: the credentials of KUBECONFIG have expired")
        if (
            faults.forbidden.get(host.name, ("", 0.0))[1] > history.now
            and faults.forbidden[host.name][0] == what
        ):
            history.count("fault: 403")
            raise Forbidden(f"403: {what} is forbidden")
        if big and faults.large_hangs_until.get(host.name, 0.0) > history.now:
            history.count("fault: large answers hang")
            yield from self.wait(5.0, 5.5)
            raise Unreachable(f"{what}: no answer within 5 s")
        fate = faults.fate(write) if faults.active else ""
        if fate:
            history.count(f"fault: {fate}")
            if fate in ("500", "429"):
                raise Unreachable(f"{what}: {fate} etcdserver: request timed out")
            if fate == "answer lost":
                with contextlib.suppress(ClusterError):
                    effect()
            elif fate == "write arrives late":
                history.later(self.random.uniform(0.5, LATE_SECONDS - 10.0) / host.rate, effect)
                if self.random.random() < 0.3:
                    faults.cut_until[host.name] = history.now + self.random.uniform(10.0, 80.0)
            yield from self.wait(5.0, 5.5)
            raise Unreachable(f"{what}: no answer within 5 s")
        if faults.slow_until.get(host.name, 0.0) > history.now:
            history.count("fault: API slow")
            yield from self.wait(0.5, 4.5)
        answer = effect()
        self.answered = True
        yield from self.wait(0.004, 0.04)
        return answer

    def _read_lease(self, _request: ask.ReadLease) -> Answers:
        return (yield from self.call("get leases", self.cluster.read_lease))

    def _write_lease(self, request: ask.WriteLease) -> Answers:
        def effect() -> Any:
            before, after = self.cluster.write_lease(request.lease)
            self.checks.lease_written(self, before, after)
            return after

        if self.faults.troubles and self._takes(request.lease) and self.faults.at_a_mark():
            self.history.on_quicker(self.host)
            yield from self.stopped_for(self.random.uniform(20.0, 60.0))
        return (yield from self.call("update leases", effect, write=True))

    def _takes(self, wanted: Lease) -> bool:
        """Whether that is the write by which a step takes the Lease, and nobody has it."""
        found = self.cluster.lease
        return self.kind == "step" and wanted.holder == self.plan.holder and found is not None and not found.holder

    def _read_nodes(self, _request: ask.ReadNodes) -> Answers:
        cluster = self.cluster
        return (
            yield from self.call(
                "list nodes", lambda: tuple(cluster.node(name) for name in cluster.objects), big=True
            )
        )

    def _read_node(self, request: ask.ReadNode) -> Answers:
        return (yield from self.call("get nodes", lambda: self.cluster.node(request.name)))

    def _change_node(self, request: ask.ChangeNode) -> Answers:
        def effect() -> Any:
            before, after = self.cluster.change_node(request.name, request.change, request.resource_version)
            self.checks.node_written(self, before, after)
            if marks.INTENT in after.annotations and marks.INTENT not in before.annotations:
                self.history.step_begins(self.host)
            return self.cluster.node(request.name)

        if self.faults.active and marks.INTENT in request.change.annotations and self.faults.at_a_mark():
            yield from self._upset(request, effect)
        return (yield from self.call("patch nodes", effect, write=True))

    def _upset(self, request: ask.ChangeNode, effect: Callable[[], Any]) -> Answers:
        """What can come between what a process saw and the mark it writes."""
        bare = request.change.taints is None and request.change.annotations[marks.INTENT]
        lates = ("late",) * 4
        what = self.random.choice(("stopped", "rival", *lates)) if bare else "stopped"
        if what == "late":
            self.history.count("fault: the intent arrives after its step was taken back")
            self.history.later(self.random.uniform(60.0, LATE_SECONDS - 10.0) / self.host.rate, effect)
            self.faults.cut_until[self.host.name] = self.history.now + self.random.uniform(30.0, 45.0)
            yield from self.wait(5.0, 5.5)
            raise Unreachable("patch nodes: no answer within 5 s")
        self.history.count("fault: process stopped just before a mark")
        if what == "rival":
            self.history.on_rival(self.host)
            yield from self.stopped_for(self.random.uniform(12.0, 25.0))
        else:
            yield from self.stopped_for(self.random.uniform(30.0, 300.0))

    def _read_renewals(self, _request: ask.ReadRenewals) -> Answers:
        self.looked = self.history.now
        return (yield from self.call("list leases", self.cluster.renewals, big=True))

    def _ask_peer(self, request: ask.AskPeer) -> Answers:
        self.paused_at_gate = self.paused
        yield from self.wait(0.004, 0.04)
        peer = self.cluster.by_address.get(request.address)
        reached = peer is not None and not self.faults.cut(self.host)
        if peer is not None and reached and peer.running == ETCD_ONLY and peer.up():
            self.heard.add(peer.name)
            self.disabled.add(peer.name)
            return PeerAnswer("503 apiserver disabled", "503 apiserver disabled")
        if peer is None or not reached or not peer.serves_api():
            yield from self.wait(0.01, 5.0)
            return PeerAnswer("no answer", "no answer")
        if self.faults.slow_until.get(peer.name, 0.0) > self.cluster.now:
            self.history.count("fault: peer slow")
            yield from self.wait(1.0, 4.5)
            if not peer.serves_api():
                return PeerAnswer("no answer", "no answer")
        self.heard.add(peer.name)
        return PeerAnswer("", "")

    def _list_pods(self, request: ask.ListPods) -> Answers:
        return (yield from self.call("list pods", lambda: tuple(self.cluster.pods[request.node]), big=True))

    def _evict(self, request: ask.Evict) -> Answers:
        return (yield from self.call("create pods/eviction", lambda: self._evicted(request.pod), write=True))

    def _evicted(self, pod: Pod) -> Eviction:
        pods = self.cluster.pods[self.host.name]
        if pod not in pods:
            return Eviction(True)
        self.checks.evicted(self, pod)
        why = self.cluster.stuck.get(pod.name)
        if why is None:
            pods.remove(pod)
        elif why:
            self.history.count("fault: PodDisruptionBudget")
            return Eviction(False, why)
        else:
            self.history.count("fault: pod never ends")
            pods[pods.index(pod)] = pod._replace(terminating=True)
        return Eviction(True)

    def _event(self, request: ask.RecordEvent) -> Answers:
        def effect() -> None:
            self.cluster.events.append((request.node.name, request.reason))

        yield from self.call("create events", effect, write=True)

    # -- the person who waits

    def _say(self, request: ask.Say) -> Answers:
        yield from ()
        self.history.told(self, request.text)

    def _confirm(self, request: ask.Confirm) -> Answers:
        """People read for a while, and agree."""
        self.history.told(self, f"asks: {request.text}")
        yield from self.wait(1.0, 30.0)

    def _start_command(self, _request: ask.StartCommand) -> Answers:
        yield from self.wait(0.01, 0.1)
        self._command_ends = self.history.now + self.random.uniform(1.0, 150.0)

    def _command_ended(self, request: ask.CommandEnded) -> Answers:
        yield from self._sleep(ask.Sleep(request.seconds))
        return 0 if self.history.now >= self._command_ends else None

    # -- the Lease's renewal, a thread of its own

    def _begin_renewal(self, request: ask.BeginRenewal) -> Answers:
        yield from ()
        held = Held(request.holder, self.plan.settings.lease_seconds, self.host.boottime())
        self._held = held

        def renews() -> Waits:
            while True:
                yield RENEW_SECONDS / self.host.rate
                if self._stopped_until > self.history.now:
                    yield self._stopped_until - self.history.now
                self._renewing = True
                try:
                    yield from self.drive(held.renew())
                except Killed:
                    self.die()
                    return
                self._renewing = False

        self._renewal = self.history.scheduler.spawn(renews(), self.host)

    def _renewal_lost(self, _request: ask.RenewalLost) -> Answers:
        yield from ()
        return self._held.lost(self.host.boottime()) if self._held else ""

    def _end_renewal(self, _request: ask.EndRenewal) -> Answers:
        while self._renewing:
            yield 0.05
        if self._renewal:
            self._renewal.alive = False
        self._renewal = self._held = None

    def _nothing(self, _request: object) -> Answers:
        yield from ()
        return None, None


ANSWERS: Dict[Type[Any], Callable[[Process, Any], Answers]] = {
    ask.TakeLock: Process._take_lock,
    ask.FreeLock: Process._free_lock,
    ask.NewId: Process._new_id,
    ask.Sleep: Process._sleep,
    ask.ReadState: Process._read_state,
    ask.WriteState: Process._write_state,
    ask.RemoveState: Process._remove_state,
    ask.ReadNote: Process._read_note,
    ask.NoteStep: Process._note_step,
    ask.CurrentLevel: Process._current_level,
    ask.Apply: actuator.apply,
    ask.Preflight: Process._preflight,
    ask.RecordedLevel: Process._recorded,
    ask.Trapped: Process._trapped,
    ask.StartStopped: Process._start_stopped,
    ask.Started: Process._started,
    ask.ReadMembers: Process._members,
    ask.BeginMeter: Process._nothing,
    ask.EndMeter: Process._nothing,
    ask.ReadLease: Process._read_lease,
    ask.WriteLease: Process._write_lease,
    ask.BeginRenewal: Process._begin_renewal,
    ask.RenewalLost: Process._renewal_lost,
    ask.EndRenewal: Process._end_renewal,
    ask.ReadNodes: Process._read_nodes,
    ask.ReadNode: Process._read_node,
    ask.ChangeNode: Process._change_node,
    ask.ReadRenewals: Process._read_renewals,
    ask.AskPeer: Process._ask_peer,
    ask.ListPods: Process._list_pods,
    ask.Evict: Process._evict,
    ask.RecordEvent: Process._event,
    ask.Say: Process._say,
    ask.Confirm: Process._confirm,
    ask.Recover: actuator.recover,
    ask.StartCommand: Process._start_command,
    ask.CommandEnded: Process._command_ended,
}
