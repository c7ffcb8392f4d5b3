# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Levels of a k3s server by its drop-in and restarts (`ports.Platform`): what is the same on every platform.

The level is a k3s drop-in (`level_record`) and, between etcd-only and anything else, one restart. What decides
whether a step may be taken is not here, nor how a platform is asked; what makes a step safe on each is:

- What tells one start of k3s from the next (a container's id and StartedAt, a unit's InvocationID) is in the
  journal before the restart is asked for. Up to the request the old record is put back where something fails;
  after it the step only goes forward: a k3s that is found stopped is started, which only adds a voter.
- A crash loop is the exception: the old record is put back and k3s started with it, once.
- Nothing is believed from before the restart: k3s must be the same one, newly started, with the same address,
  the running level is probed, etcd must be healthy with the same member, and the Node's heartbeat must have
  changed.
- Nothing is judged by logs or arguments.
"""

from __future__ import annotations

import abc
import secrets
import shlex
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from ..core.cures import setting
from ..core.levels import CONTROL_PLANE, ETCD_ONLY, FULL, LEVELS
from ..core.model import Lease, Member
from ..core.settings import RESTART_GRACE_SECONDS
from ..ports import ApplyFailed, Cluster, ClusterError, LevelUnknown, RegradeError, StepHooks, StepRefused
from . import docker_probe as probe
from . import level_record as record
from . import reached

if TYPE_CHECKING:
    from ..core.settings import Settings

POLL_SECONDS = 1.0
WRITE_SECONDS = 30.0  # a `sync` on a card that is busy; the record must be whole before the restart
LOOK_SECONDS = 2.0  # of one HTTPS look at our own server
HEALTH_SECONDS = 4.0  # on top of a call's time: etcd without a quorum takes more than 5 s to say so
DATABASE_PAUSE_SECONDS = (
    5.0  # the database may be asked through kubectl, at 22 MiB for a moment: not every second
)
BALANCER_PATIENCE_SECONDS = 20.0  # 6444 says 503 for some seconds at every boot (measured)
DISABLED = "apiserver disabled"  # what k3s at etcd-only says, with 503
CRASHES = 2  # restarts nobody asked for, before the level was reached


class PlatformError(RegradeError):
    """The platform did not do what was asked. `sent` is False where it certainly did not begin to."""

    def __init__(self, message: str, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Result(NamedTuple):
    """Of a command where k3s runs; `output` is what it wrote to stdout, `errors` to stderr."""

    code: int
    output: str
    errors: str


class State(NamedTuple):
    """Of what runs k3s (a container, a unit), as its platform shows it."""

    id: str
    started: str  # another text, another start
    running: bool
    restarting: bool  # by its own policy, after it ended
    restarts: int  # by that policy, since a start that somebody asked for
    why: str  # in words why k3s does not run, "" where it does
    end: str  # " with exit code 1", how its last life ended, "" where that is not known
    addresses: tuple[str, ...] = ()  # the platform's own, where it gives any


class Server(NamedTuple):
    """What the settings of k3s say of it; read once for each container or start."""

    of: str  # whose they are
    place: record.Place
    data: str
    addresses: tuple[str, ...]  # the server's own, empty where only etcd's sockets tell them
    api_port: int
    near: bool  # whether its loopback is ours


class _Before(NamedTuple):
    """What is compared after a restart."""

    state: State
    member: Member | None
    heartbeat: str
    record: str | None


class K3sActuator(abc.ABC):
    """Built for one step or one look; `hooks` are the step's, None where nothing is to be applied.

    What a platform gives is below "What a platform gives"; each raises PlatformError where it is not had.
    """

    kind: str  # what runs k3s here, "container" or "unit"
    name: str  # its name
    logs: str  # the command that shows its log

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        hooks: StepHooks | None = None,
        known: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """`known` gives what was noted of the step so far, also by a process before this one."""
        self._settings = settings
        self._cluster = cluster
        self._hooks = hooks
        self._known = known
        self._server_of: Server | None = None
        self._began = False  # whether this apply_level may have begun a restart

    # --- ports.Actuator ---

    def levels(self) -> tuple[str, ...]:
        return LEVELS

    def current_level(self) -> str:
        try:
            found = self._inspect()
            state = self._state_in(found)
            _must_run(state)
            return self._level(self._server(found), state)
        except (PlatformError, record.RecordRefused) as error:
            raise LevelUnknown(str(error)) from None

    def apply_level(self, name: str) -> None:
        if name not in LEVELS:
            raise ApplyFailed(f"{name!r} is no level; levels are {', '.join(LEVELS)}", began=False)
        if self._hooks is None:
            raise ApplyFailed("this actuator was built to look only", began=False)
        self._began = False
        try:
            self._refuse_unfit()
            self._began = self._may_start() and self.start_stopped()
            running, booted = self._await_known(name)
            server = self._server()
            old = self._read_record(server)
            if name != running and ETCD_ONLY in (name, running):
                self._restart_into(server, name, old, self._hooks)
            else:
                if old != (record.text_for(name, self._port()) or None) or not self._linked(server, old):
                    self._write_record(server, name)
                # Where a process before this one asked for the restart, nobody has seen yet that it is good.
                known = self._known()
                resumed = known.get("restart") == "asked"
                end = time.monotonic() + self._settings.boot_timeout_seconds
                if resumed:
                    self._await_etcd(end)
                if name != ETCD_ONLY and (booted or resumed):
                    self._await_agent(known.get("heartbeat", "") if resumed else "", end)
            if name == ETCD_ONLY:
                self._end_leftovers(server)
                self._cure(server, self._hooks)
        except (PlatformError, LevelUnknown, record.RecordRefused) as error:
            raise ApplyFailed(str(error), began=self._began) from None

    # --- ports.VoteKeeper ---

    def recorded_level(self) -> str:
        try:
            server = self._server()
            text = self._read_record(server)
        except record.RecordRefused as error:
            raise RegradeError(str(error)) from None
        return self._level_recorded(server, text)

    def trapped(self) -> bool:
        """With one cheap look where the answer is no. Raises LevelUnknown where k3s cannot be asked."""
        try:
            _must_run(self._state())
            return self._trapped(self._server())
        except (PlatformError, record.RecordRefused) as error:
            raise LevelUnknown(str(error)) from None

    def start_stopped(self) -> bool:
        state = self._state()
        if state.running or state.restarting:
            return False
        self._start(self._settings.call_timeout_seconds + RESTART_GRACE_SECONDS)
        return True

    def started(self) -> str:
        state = self._state()
        _must_run(state)
        return f"{state.id} {state.started}"

    def preflight(self) -> None:
        """Everything a step will ask of the platform, tried without effect. Raises StepRefused or PlatformError,
        so that a restart that is denied is known before anything is drained."""
        self._refuse_unfit()
        self._may_restart()
        self._read_record(self._server())

    def recover(self) -> None:
        """The one restart that asks for no quorum and no hook: there is nobody left to ask."""
        try:
            found = self._inspect()
            server = self._server(found)
            before = self._state_in(found)
            old: str | None = None
            if before.running:
                old = self._read_record(server)
            self._lay_anyhow(server, None)
        except (PlatformError, LevelUnknown, ApplyFailed, record.RecordRefused) as error:
            raise ApplyFailed(f"{error}; k3s was not restarted", began=False) from None
        self._await_start(before, self._restart_or_put_back(server, old))

    def _await_start(self, before: State, doubt: str) -> None:
        """It runs, newly started. Raises ApplyFailed(began=True)."""
        end = time.monotonic() + self._settings.boot_timeout_seconds
        why = doubt
        while True:
            try:
                now = self._state()
                if now.started != before.started and (now.running or now.restarting):
                    return
                why = doubt or now.why or f"the {self.kind} was not started anew"
                if not (now.running or now.restarting):
                    self._try_start()
            except PlatformError as error:
                why = str(error)
            if time.monotonic() >= end:
                raise ApplyFailed(
                    f"the record is removed, but k3s was not started anew within "
                    f"{self._settings.boot_timeout_seconds:g} s: {why}",
                    began=True,
                )
            time.sleep(POLL_SECONDS)

    # --- ports.LocalEtcd ---

    def members(self) -> tuple[Member, ...]:
        try:
            server = self._server()
            port = self._https_port(server)
        except (PlatformError, record.RecordRefused) as error:
            raise LevelUnknown(f"etcd's member list cannot be read: {error}") from None
        said = self._raw(port, "/db/info")
        try:
            return probe.members(said)
        except ValueError:
            raise LevelUnknown(
                f"etcd's member list cannot be read: k3s answered /db/info on port {port} "
                "with "
                f"{said.strip()[:200]!r}"
            ) from None

    def healthy(self) -> bool:
        try:
            return probe.healthy(self._inside()[1])
        except PlatformError:
            return False

    # --- what a platform gives ---

    @abc.abstractmethod
    def _inspect(self) -> Any:
        """All that the platform knows of what runs k3s."""

    @abc.abstractmethod
    def _state_in(self, found: Any) -> State:
        """Of what `_inspect` found."""

    @abc.abstractmethod
    def _server_in(self, found: Any, configured: dict[str, str]) -> Server:
        """Of what `_inspect` found and k3s's configuration files say. Raises record.RecordRefused."""

    @abc.abstractmethod
    def _config_files_in(self, found: Any) -> str:
        """k3s's own configuration file; its drop-ins lie in the folder of that name and `.d`."""

    @abc.abstractmethod
    def _refuse_unfit(self) -> None:
        """Raises StepRefused for one whose vote a step could lose."""

    @abc.abstractmethod
    def _may_restart(self) -> None:
        """Tried without effect."""

    @abc.abstractmethod
    def _run(self, script: str, seconds: float) -> Result:
        """Run a shell script where k3s runs."""

    @abc.abstractmethod
    def _call_restart(self, stop_seconds: float, seconds: float) -> None:
        """One call: stop k3s with that time-out, and start it at once."""

    @abc.abstractmethod
    def _start(self, seconds: float) -> None:
        """Does nothing where it runs."""

    @abc.abstractmethod
    def _same(self, before: State, now: State) -> None:
        """Raises ApplyFailed where what runs k3s is another one now."""

    @abc.abstractmethod
    def _crashes(self, before: State, now: State) -> int:
        """Restarts by the policy since one of ours."""

    @abc.abstractmethod
    def _lay_anyhow(self, server: Server, text: str | None) -> None:
        """`_lay`, also where k3s ends every few seconds."""

    @abc.abstractmethod
    def _inside(self) -> tuple[str, str]:
        """The text of /proc/net/tcp and tcp6 where k3s runs, and what etcd answers on its /health."""

    @abc.abstractmethod
    def _raw(self, port: int, path: str) -> str:
        """What k3s answers on its loopback; its error text where it refuses."""

    @abc.abstractmethod
    def _balancer(self, server: Server) -> tuple[bool, str, float]:
        """Whether 6444 leads to an API server, what it said, and how soon it may be asked again."""

    @abc.abstractmethod
    def _hostname(self) -> str:
        """Where k3s runs: it names its holder of a Lease after it."""

    @abc.abstractmethod
    def _end_leftovers(self, server: Server) -> None:
        """At etcd-only: end what k3s left running of its agent's."""

    # --- what runs k3s ---

    @property
    def what(self) -> str:
        return f"{self.kind} {self.name}"

    def _state(self) -> State:
        return self._state_in(self._inspect())

    def _server(self, found: Any = None) -> Server:
        """Of what `_inspect` found, or finds now. Raises record.RecordRefused, PlatformError."""
        found = found or self._inspect()
        if self._server_of is not None and self._server_of.of == self._state_in(found).id:
            return self._server_of
        told = self._configured(self._config_files_in(found))
        server = self._server_in(found, probe.configuration(told))
        if told:
            self._server_of = server
        return server

    def _configured(self, config: str) -> str:
        """k3s's configuration files, "" where they cannot be read now."""
        return self._run(config_script(config), self._light_seconds()).output

    # --- the record ---

    def _read_record(self, server: Server) -> str | None:
        """Raises LevelUnknown where it cannot be read."""
        readable, text = record.shown(
            self._run(record.script_show(server.place.path), self._light_seconds()).output
        )
        if not readable:
            raise LevelUnknown(
                f"the record {server.place.path} cannot be read in {self.what}; look at the storage it lies on"
            )
        return text

    def _linked(self, server: Server, text: str | None) -> bool:
        """Whether k3s reads the record: a recreated container has lost the link to it."""
        if not server.place.link:
            return True
        output = self._run(record.script_show(server.place.link), self._light_seconds()).output
        return record.shown(output) == (True, text)

    def _level_recorded(self, server: Server, text: str | None) -> str:
        try:
            return record.level_of(text)
        except record.RecordWrong as error:
            raise LevelUnknown(f"{server.place.path} {error}") from None

    def _write_record(self, server: Server, level: str) -> None:
        """Raises ApplyFailed(began=False); what was there before may be gone then, see `_put_back`."""
        self._lay(server, record.text_for(level, self._port()) or None)

    def _lay(self, server: Server, text: str | None) -> None:
        token = secrets.token_hex(4)
        script = (
            record.script_remove(server.place)
            if text is None
            else record.script_write(server.place, text, token)
        )
        done = self._run(script, WRITE_SECONDS)
        if done.code != 0 or record.shown(done.output) != (True, text):
            why = " ".join(done.errors.split()) or f"it reads back {done.output[:60]!r}"
            raise ApplyFailed(
                f"the record {server.place.path} could not be written (full or read-only "
                f"disk?): {why}; "
                "k3s was not restarted",
                began=False,
            )

    def _put_back(self, server: Server, old: str | None) -> str:
        """Words on how it went, for the error that is on its way."""
        try:
            self._lay(server, old)
            return "the old record is back"
        except (PlatformError, ApplyFailed) as error:
            return f"THE OLD RECORD COULD NOT BE PUT BACK ({error}): a restart would follow the new one"

    def _port(self) -> int:
        return self._settings.etcd_only_https_port

    # --- looks ---

    def _light_seconds(self) -> float:
        return self._settings.call_timeout_seconds + HEALTH_SECONDS

    def _own_addresses(self, server: Server) -> tuple[str, ...]:
        if server.addresses:
            return server.addresses
        return probe.node_addresses(probe.listeners(self._inside()[0]))

    def _level(self, server: Server, state: State) -> str:
        """Raises LevelUnknown, PlatformError."""
        said: list[str] = []
        ports = _distinct(server.api_port, self._port())
        moved = 0
        while ports:
            for address in self._reached_at(server):
                for port in ports:
                    seen = probe.look(address, port, LOOK_SECONDS)
                    if seen.level:
                        return self._between(server) if seen.level == FULL else ETCD_ONLY
                    if seen.status:
                        said.append(str(seen))
            # The setting may have changed since the level was applied: the record knows the port of then.
            moved = 0 if said or moved else record.port_of(self._read_record(server))
            ports = tuple(port for port in (moved,) if port and port not in ports)
        if said:
            raise LevelUnknown(f"k3s is booting or not ready: its /readyz says {'; '.join(said)}")
        return self._level_inside(server, state, moved or self._port())

    def _reached_at(self, server: Server) -> tuple[str, ...]:
        """Where our own network may reach the server."""
        return server.addresses or (("127.0.0.1",) if server.near else ())

    def _between(self, server: Server) -> str:
        """full and control-plane run the same k3s: the record tells them apart."""
        recorded = self._level_recorded(server, self._read_record(server))
        return CONTROL_PLANE if recorded == CONTROL_PLANE else FULL

    def _level_inside(self, server: Server, state: State, moved: int) -> str:
        """Where our network does not reach the server: its sockets and etcd's health."""
        tables, health = self._inside()
        ports = {port for _address, port in probe.listeners(tables)}
        since = f"{self.kind} started {state.started}"
        if not probe.healthy(health):
            raise LevelUnknown(
                f"etcd in {self.what} is not healthy ({since}): "
                f"{' '.join(health.split())[:200] or 'no answer on 2381'}"
            )
        if {server.api_port, probe.KUBELET_PORT, probe.SCHEDULER_PORT} <= ports:
            return self._between(server)
        if moved and moved in ports and server.api_port not in ports:
            return ETCD_ONLY
        if server.api_port in ports and not {probe.KUBELET_PORT, probe.SCHEDULER_PORT} & ports:
            # Booting towards full looks the same here; only the server's own words tell.
            said = self._raw(server.api_port, "/readyz")
            if DISABLED in said:
                return ETCD_ONLY
        raise LevelUnknown(
            f"k3s in {self.what} is booting ({since}): listening on "
            f"{', '.join(str(port) for port in sorted(ports)) or 'nothing'}"
        )

    def _https_port(self, server: Server) -> int:
        """Where k3s's HTTPS listens now: the moved port at etcd-only, else its own.

        Before the restart that leads up the record is that of the level above already, and names none.
        """
        moved = record.port_of(self._read_record(server)) or self._port()
        if not moved:
            return server.api_port
        for address in self._reached_at(server):
            for port in (server.api_port, moved):
                if probe.look(address, port, LOOK_SECONDS).status:
                    return port
        tables, _health = self._inside()
        ports = {port for _address, port in probe.listeners(tables)}
        return moved if moved in ports and server.api_port not in ports else server.api_port

    # --- restarting ---

    def _may_start(self) -> bool:
        return self._hooks is not None and self._hooks.may_start()

    def _await_known(self, name: str) -> tuple[str, bool]:
        """The running level, waiting while k3s boots; and whether it was booting when we came."""
        end = time.monotonic() + self._settings.boot_timeout_seconds
        booted = self._began
        while True:
            found = self._inspect()
            state = self._state_in(found)
            try:
                _must_run(state)
                return self._level(self._server(found), state), booted
            except LevelUnknown as error:
                why = str(error)
            if not (state.running or state.restarting or self._may_start()):
                raise ApplyFailed(
                    f"{why}, and no step of ours is open: who stopped it starts it again", began=False
                )
            if time.monotonic() >= end:
                raise ApplyFailed(
                    f"the running level did not become known within "
                    f"{self._settings.boot_timeout_seconds:g} s: {why}",
                    began=self._began,
                )
            if state.restarting and state.restarts >= CRASHES and not self._began:
                # A step that was interrupted left it ending again and again: with the record of the level
                # that is wanted it is started once. It has no vote to lose now.
                self._lay_anyhow(self._server(found), record.text_for(name, self._port()) or None)
                self._restart()
            booted = True
            time.sleep(POLL_SECONDS)

    def _restart_into(self, server: Server, name: str, old: str | None, hooks: StepHooks) -> None:
        """The record, one restart, and all that must hold after it. Raises ApplyFailed, StepRefused."""
        first = self._known().get("record_before", "")
        if first in LEVELS and first != name:  # a process before this one may have written the record already
            old = record.text_for(first, self._port()) or None
        before = self._before(server, name, old)
        hooks.note(
            {
                "container": before.state.id,
                "started_at": before.state.started,
                "record_before": self._level_recorded(server, old),
                "member": before.member.id if before.member else "",
                "heartbeat": before.heartbeat,
            }
        )
        try:
            self._write_record(server, name)
        except (ApplyFailed, PlatformError) as error:
            raise ApplyFailed(f"{error}; {self._put_back(server, old)}", began=self._began) from None
        try:
            hooks.before_restart()
        except StepRefused as error:
            raise StepRefused(f"{error}; k3s was not restarted, {self._put_back(server, old)}") from None
        except RegradeError as error:
            raise ApplyFailed(
                f"{error}; k3s was not restarted, {self._put_back(server, old)}", began=self._began
            ) from None
        self._verify(server, name, before, self._restart_or_put_back(server, old))

    def _restart_or_put_back(self, server: Server, old: str | None) -> str:
        """Words of doubt where the restart may have begun though its call failed; the old record is put back where
        it certainly did not. Raises ApplyFailed."""
        try:
            self._restart()
        except PlatformError as error:
            if not error.sent:
                raise ApplyFailed(
                    f"{error}; k3s was not restarted, {self._put_back(server, old)}", began=self._began
                ) from None
            return f"the restart call failed ({error})"
        return ""

    def _restart(self) -> None:
        stop = self._settings.restart_timeout_seconds
        already, self._began = self._began, True
        try:
            self._call_restart(stop, stop + RESTART_GRACE_SECONDS)
        except PlatformError as error:
            self._began = already or error.sent
            raise

    def _before(self, server: Server, name: str, old: str | None) -> _Before:
        """Raises ApplyFailed(began=False) where something cannot be read that is to be compared."""
        try:
            member = probe.own_member(self.members(), self._settings.node_name, self._own_addresses(server))
            heartbeat = (
                "" if name == ETCD_ONLY else self._cluster.node(self._settings.node_name).ready_heartbeat
            )
        except (LevelUnknown, ClusterError) as error:
            raise ApplyFailed(f"{error}; k3s was not restarted", began=False) from None
        if member is None:
            raise ApplyFailed(
                f"no etcd member has the address ({', '.join(self._own_addresses(server))}) or "
                "the name of "
                f"Node {self._settings.node_name}; k3s was not restarted",
                began=False,
            )
        return _Before(self._state(), member, heartbeat, old)

    def _verify(self, server: Server, name: str, before: _Before, doubt: str) -> None:
        """Wait for every condition in turn. Raises ApplyFailed(began=True)."""
        end = time.monotonic() + self._settings.boot_timeout_seconds
        waiting = doubt or f"the {self.kind} is starting"
        revived = False
        while time.monotonic() < end:
            try:
                state = self._state()
            except PlatformError as error:
                waiting = str(error)
                time.sleep(POLL_SECONDS)
                continue
            self._same(before.state, state)
            if self._crashes(before.state, state) >= CRASHES:
                self._back_from_crash_loop(server, name, before, state)
            if not state.running and not state.restarting:
                # It only adds a voter, so it needs no gate; a restart call that failed half-way ends here.
                if not revived:
                    waiting = f"the {self.kind} was found stopped{state.end} and started"
                revived = True
                self._try_start()
            elif state.started == before.state.started:
                waiting = doubt or f"the {self.kind} has not been restarted"
            elif state.running:
                lacking = self._lacking(server, name, state)
                if not lacking:
                    self._await_member(server, before, end)
                    if name != ETCD_ONLY:
                        self._await_agent(before.heartbeat, end)
                    return
                waiting = lacking
            time.sleep(POLL_SECONDS)
        raise ApplyFailed(
            f"{name} was not reached within {self._settings.boot_timeout_seconds:g} s of the "
            "restart: "
            f"{waiting}",
            began=True,
        )

    def _lacking(self, server: Server, name: str, state: State) -> str:
        """What the running k3s still lacks of the level, "" for nothing."""
        try:
            level = self._level(server, state)
        except (LevelUnknown, PlatformError) as error:
            return str(error)
        if level != name:
            return f"k3s runs at {level}, expected {name}"
        return "" if self.healthy() else "etcd is not healthy"

    def _try_start(self) -> None:
        try:
            self._start(self._settings.call_timeout_seconds + RESTART_GRACE_SECONDS)
        except PlatformError:
            time.sleep(POLL_SECONDS)  # the next look at it says what is wrong

    def _await_member(self, server: Server, before: _Before, end: float) -> None:
        def own() -> Member | None:
            try:
                return probe.own_member(self.members(), self._settings.node_name, self._own_addresses(server))
            except PlatformError as error:
                raise LevelUnknown(str(error)) from None

        reached.await_member(own, before.member.id if before.member else "", end, DATABASE_PAUSE_SECONDS)

    def _await_etcd(self, end: float) -> None:
        reached.await_etcd(self.healthy, end, POLL_SECONDS)

    def _await_agent(self, heartbeat: str, end: float) -> None:
        reached.await_agent(self._cluster, self._settings.node_name, heartbeat, end, POLL_SECONDS)

    def _back_from_crash_loop(self, server: Server, name: str, before: _Before, state: State) -> None:
        """Put the old record back and start k3s with it, once. Always raises ApplyFailed."""
        what = f"k3s ended {state.restarts} times at {name}{state.end} (`{self.logs}` says why)"
        old = FULL if before.record is None else self._level_recorded(server, before.record)
        try:
            self._lay_anyhow(server, before.record)
            self._restart()
        except (PlatformError, ApplyFailed) as error:
            raise ApplyFailed(
                f"{what}, and the old record ({old}) could not be put back: {error}; the step "
                "stays open, "
                "its vote is away",
                began=True,
            ) from None
        end = time.monotonic() + self._settings.boot_timeout_seconds
        why = "it did not come up in time"
        while time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            try:
                now = self._state()
                self._same(before.state, now)
                if self._crashes(state, now) >= CRASHES:
                    why = f"it ends there too{now.end}"
                    break
                if now.running and not self._lacking(server, old, now):
                    raise ApplyFailed(
                        f"{what}; the old record was put back and k3s runs at {old} again",
                        began=True,
                        back=True,
                    )
            except PlatformError as error:
                why = str(error)
        raise ApplyFailed(
            f"{what}; the old record ({old}) was put back and k3s started once, but {why}: the "
            "step stays "
            "open, its vote is away",
            began=True,
        )

    # --- the own-address trap ---

    def _trapped(self, server: Server) -> bool:
        """Whether k3s at etcd-only is locked behind its own address (seen on k3s 1.34.10).

        Only k3s's own words say so: a call that fails, as where memory is short, is no reason for a restart.
        Raises LevelUnknown.
        """
        path = f"{server.data}/agent/etc/k3s-agent-load-balancer.json"
        target = probe.balancer_target(self._run(record.script_show(path), self._light_seconds()).output)
        own = self._own_addresses(server)
        if target and target not in own and target != "127.0.0.1":
            return False
        # The file alone is no proof: where the HTTPS port is moved, its own address refuses and the balancer
        # goes on to the next. And 6444 says 503 for some seconds at every boot, so one early look is none.
        end = time.monotonic() + BALANCER_PATIENCE_SECONDS
        while True:
            good, said, pause = self._balancer(server)
            if good:
                return False
            if time.monotonic() >= end:
                if DISABLED in said:
                    return True
                raise LevelUnknown(
                    f"whether k3s is locked behind its own address cannot be told: its {probe.BALANCER_PORT} "
                    f"answers {' '.join(said.split())[:200] or 'nothing'}"
                )
            time.sleep(pause)

    def _cure(self, server: Server, hooks: StepHooks) -> None:
        """At etcd-only: look, and where trapped restart once more when it helps. Raises ApplyFailed."""
        if not self._trapped(server):
            return
        seen = self._state()
        baseline = self._k3s_etcd()
        end = time.monotonic() + self._settings.trap_wait_seconds
        why = self._incurable_yet(server, baseline)
        while why:
            if time.monotonic() >= end:
                raise ApplyFailed(
                    "k3s at etcd-only is locked behind its own address and would end after 15 "
                    "minutes; a "
                    f"restart would not cure it yet after {self._settings.trap_wait_seconds:g} "
                    f"s: {why}; "
                    "take the step again, or step up",
                    began=self._began,
                    trapped=True,
                )
            time.sleep(POLL_SECONDS)
            if baseline is None:
                baseline = self._k3s_etcd()
            why = self._incurable_yet(server, baseline)
        hooks.note({"container": seen.id, "started_at": seen.started, "cure": "own-address trap"})
        try:
            hooks.before_restart()
        except RegradeError as error:
            raise ApplyFailed(
                "k3s at etcd-only is locked behind its own address, and the restart that "
                "cures it is "
                f"refused: {error}",
                began=self._began,
                trapped=True,
            ) from None
        before = _Before(seen, self._member_now(server), "", self._read_record(server))
        doubt = ""
        try:
            self._restart()
        except PlatformError as error:
            doubt = f"the restart call failed ({error})"
        self._verify(server, ETCD_ONLY, before, doubt)
        if self._trapped(server):
            raise ApplyFailed(
                "k3s at etcd-only is still locked behind its own address after one more "
                f"restart, and would end after 15 minutes: step up, or set {setting('ETCD_ONLY_HTTPS_PORT')} to "
                "a free port",
                began=True,
                stuck=True,
            )

    def _member_now(self, server: Server) -> Member | None:
        try:
            return probe.own_member(self.members(), self._settings.node_name, self._own_addresses(server))
        except LevelUnknown:
            return None

    def _k3s_etcd(self) -> Lease | None:
        try:
            return self._cluster.k3s_etcd_lease()
        except ClusterError:
            return None

    def _incurable_yet(self, server: Server, baseline: Lease | None) -> str:
        """Which of the three conditions still lacks, "" for none: only all three together cured."""
        try:
            listed = {probe.plain_address(address) for address in self._cluster.api_addresses()}
            lease = self._cluster.k3s_etcd_lease()
        except ClusterError as error:
            return str(error)
        if listed & set(self._own_addresses(server)):
            return "a peer's `kubernetes` EndpointSlice still holds our address"
        ours = (self._settings.node_name, self._hostname())
        if not lease.holder or any(
            lease.holder == name or lease.holder.startswith(f"{name}_") for name in ours if name
        ):
            return f"Lease kube-system/k3s-etcd is held by {lease.holder or 'nobody'}, not by another server"
        if baseline is None or lease.renew_time == baseline.renew_time:
            return "Lease kube-system/k3s-etcd was not renewed since"
        return ""


def _must_run(state: State) -> None:
    if state.why:
        raise LevelUnknown(state.why)


def _distinct(*ports: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(port for port in ports if port))


def config_script(config: str) -> str:
    """Prints k3s's configuration files in the order k3s merges them, without our own drop-in."""
    quoted = shlex.quote(config)
    return f"""for file in {quoted} {quoted}.d/*.yaml {quoted}.d/*.yml; do
case $file in */{record.NAME}) continue;; esac
[ -f "$file" ] && cat "$file" && echo && echo '{probe.NEXT_FILE}'
done
echo '{probe.NEXT_FILE}'
"""
