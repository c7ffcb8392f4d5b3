# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Runs the core's generators on the ports: one request, one call. No decision belongs here.

The Lease's renewal is a thread of its own, as a restart blocks the step for longer than a short Lease; so
is the meter.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Dict, Generator, NamedTuple, Optional, Protocol, Tuple, Type

from ..core import requests as ask
from ..core.renewal import Held
from ..core.settings import RENEW_SECONDS, Settings
from ..ports import (
    Actuator,
    Clock,
    Cluster,
    HostLock,
    LocalEtcd,
    Maintenance,
    RegradeError,
    StateStore,
    StepRefused,
    VoteKeeper,
)
from .meter import Beside, Meter

Drive = Callable[[Generator[Any, Any, None]], None]  # runs a generator of requests to its end


def _nobody_to_ask(text: str) -> None:
    raise StepRefused(f"not confirmed, and there is nobody to ask: {text}")


class World(NamedTuple):
    """The ports of one server, composed by `cli`."""

    settings: Settings
    cluster: Cluster
    actuator: Actuator
    vote: Optional[VoteKeeper]  # None where the platform has no such ways to lose a vote
    etcd: LocalEtcd
    beside: Beside  # this server through a connection of its own, for looks beside the step
    clock: Clock
    store: StateStore
    lock: HostLock
    note_step: Callable[[Dict[str, str]], None]
    read_note: Callable[[], Dict[str, str]]
    log: Callable[[str], None]
    say: Callable[[str], None] = lambda text: None  # to the person who waits, if any
    confirm: Callable[[str], None] = _nobody_to_ask
    maintenance: Optional[Maintenance] = None  # None where no command is to be run


class Hooks:
    """What an actuator is built with (`ports.StepHooks`); the driver binds it to the step that applies."""

    def __init__(self) -> None:
        self._drive: Optional[Drive] = None
        self._apply: Optional[ask.Apply] = None

    def bind(self, drive: Drive, apply: ask.Apply) -> None:
        self._drive, self._apply = drive, apply

    def unbind(self) -> None:
        self._drive = self._apply = None

    def known(self) -> Dict[str, str]:
        """What was noted of the step so far, also by a process before this one."""
        return self._apply.facts if self._apply else {}

    def may_start(self) -> bool:
        return self._apply is not None and self._apply.may_start

    def before_restart(self) -> None:
        if self._drive is None or self._apply is None:
            raise StepRefused("a restart was asked for outside a step: this is a bug, nothing was restarted")
        self._drive(self._apply.before_restart())

    def note(self, facts: Dict[str, str]) -> None:
        if self._drive is not None and self._apply is not None:
            self._drive(self._apply.note(facts))


class RenewalLike(Protocol):
    def lost(self) -> str: ...

    def end(self) -> None: ...


class Renewal:
    """Renews the Lease every RENEW_SECONDS (`core.renewal`) until it is ended."""

    def __init__(
        self,
        world: World,
        holder: str,
        drive: Drive,
        every: float = RENEW_SECONDS,
    ) -> None:
        self._world, self._drive, self._every = world, drive, every
        self._held = Held(holder, world.settings.lease_seconds, world.clock.boottime())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-renewal", daemon=True)
        self._thread.start()

    def lost(self) -> str:
        """Why a renewal was lost, "" while none was."""
        return self._held.lost(self._world.clock.boottime())

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self._drive(self._held.renew())
            except Exception as error:  # the thread must not die in silence
                self._held.lose(f"{type(error).__name__}: {error}")


class Driver:
    """Answers requests from a World."""

    def __init__(
        self,
        world: World,
        hooks: Hooks,
        renewal: Callable[[World, str, Drive], RenewalLike] = Renewal,
    ) -> None:
        self.world, self.hooks = world, hooks
        self._start_renewal = renewal
        self._renewal: Optional[RenewalLike] = None
        self._meter: Optional[Meter] = None
        w, c = world, world.cluster
        self._answers: Dict[Type[Any], Callable[[Any], Any]] = {
            ask.TakeLock: lambda r: w.lock.acquire(r.purpose),
            ask.FreeLock: lambda r: w.lock.release(),
            ask.Now: lambda r: ask.Instant(w.clock.boottime(), w.clock.boot_id(), w.clock.now_text()),
            ask.NewId: lambda r: os.urandom(8).hex(),
            ask.Sleep: lambda r: w.clock.sleep(r.seconds),
            ask.Log: lambda r: w.log(r.text),
            ask.Say: lambda r: w.say(r.text),
            ask.Confirm: lambda r: w.confirm(r.text),
            ask.ReadState: lambda r: w.store.read(r.name),
            ask.WriteState: lambda r: w.store.write(r.name, r.document),
            ask.RemoveState: lambda r: w.store.remove(r.name),
            ask.ReadNote: lambda r: w.read_note(),
            ask.NoteStep: lambda r: w.note_step(r.pairs),
            ask.CurrentLevel: lambda r: w.actuator.current_level(),
            ask.Apply: self._apply,
            ask.Preflight: lambda r: w.vote.preflight() if w.vote else None,
            ask.RecordedLevel: lambda r: w.vote.recorded_level() if w.vote else "",
            ask.Trapped: lambda r: w.vote.trapped() if w.vote else False,
            ask.StartStopped: lambda r: w.vote.start_stopped() if w.vote else False,
            ask.Started: lambda r: w.vote.started() if w.vote else "",
            ask.ReadMembers: lambda r: w.etcd.members(),
            ask.Recover: self._recover,
            ask.StartCommand: lambda r: self._maintenance().start(r.words),
            ask.CommandEnded: lambda r: self._maintenance().ended(r.seconds),
            ask.BeginMeter: self._begin_meter,
            ask.EndMeter: self._end_meter,
            ask.ReadLease: lambda r: c.read_lease(),
            ask.WriteLease: lambda r: c.write_lease(r.lease),
            ask.BeginRenewal: self._begin_renewal,
            ask.RenewalLost: lambda r: self._renewal.lost() if self._renewal else "",
            ask.EndRenewal: self._end_renewal,
            ask.ReadNodes: lambda r: c.nodes(),
            ask.ReadNode: lambda r: c.node(r.name),
            ask.ChangeNode: lambda r: c.change_node(r.name, r.change, r.resource_version),
            ask.ReadRenewals: lambda r: c.node_lease_renewals(),
            ask.AskPeer: lambda r: c.ask_peer(r.address),
            ask.ListPods: lambda r: c.pods(r.node),
            ask.Evict: lambda r: c.evict(r.pod),
            ask.RecordEvent: lambda r: c.record_event(r.node, r.kind, r.reason, r.message),
        }

    def run(self, steps: Generator[Any, Any, ask.T]) -> ask.T:
        """Runs `steps` to its end and returns what it returns, or raises what it raises."""
        try:
            return self._drive(steps)
        finally:
            self._end_renewal(None)
            self._end_meter(None)

    def _drive(self, steps: Generator[Any, Any, ask.T]) -> ask.T:
        answer: Any = None
        error: Optional[RegradeError] = None
        while True:
            try:
                request = steps.throw(error) if error else steps.send(answer)
            except StopIteration as done:
                result: ask.T = done.value
                return result
            answer, error = None, None
            try:
                answer = self._answers[type(request)](request)
            except RegradeError as found:
                error = found

    def _apply(self, request: ask.Apply) -> None:
        self.hooks.bind(self._drive, request)
        try:
            self.world.actuator.apply_level(request.level)
        finally:
            self.hooks.unbind()

    def _recover(self, _request: object) -> None:
        if self.world.vote is None:
            raise StepRefused(
                "this platform cannot be recovered by us: remove the record and restart k3s by hand"
            )
        self.world.vote.recover()

    def _maintenance(self) -> Maintenance:
        if self.world.maintenance is None:
            raise StepRefused("no command can be run here: this is a bug, nothing was run")
        return self.world.maintenance

    def _begin_renewal(self, request: ask.BeginRenewal) -> None:
        self._renewal = self._start_renewal(self.world, request.holder, self._drive)

    def _end_renewal(self, _request: object) -> None:
        if self._renewal:
            self._renewal.end()
            self._renewal = None

    def _begin_meter(self, request: ask.BeginMeter) -> None:
        self._meter = Meter(self.world.beside, self.world.clock, request.start, request.target)

    def _end_meter(self, _request: object) -> Tuple[Optional[float], Optional[float]]:
        meter, self._meter = self._meter, None
        if meter is None:
            return None, None
        meter.end()
        return meter.etcd_away, meter.api_away
