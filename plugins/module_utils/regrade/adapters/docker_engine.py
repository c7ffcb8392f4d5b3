# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Levels of a k3s server in a container of the stock image (`ports.Actuator`, `VoteKeeper`, `LocalEtcd`).

The level is a k3s drop-in (`docker_record`) and, between etcd-only and anything else, one restart of the
container. What decides whether a step may be taken is not here; what makes one safe on Docker is:

- The container's id and StartedAt are in the journal before the restart is asked for. Up to the request
  the old record is put back where something fails; after it the step only goes forward: a container that
  is found stopped is started, which only adds a voter.
- A crash loop is the exception: the old record is put back and k3s started with it, once.
- Nothing is believed from before the restart: the container must be the same with a new StartedAt and the
  same address, the running level is probed, etcd must be healthy with the same member, and the Node's
  heartbeat must have changed.
- Nothing is judged by logs or arguments.
"""

from __future__ import annotations

import secrets
import shlex
import time
from typing import TYPE_CHECKING, Callable, NamedTuple

from ..core.digits import whole
from ..core.levels import CONTROL_PLANE, ETCD_ONLY, FULL, LEVELS
from ..core.model import Lease, Member
from ..core.settings import RESTART_GRACE_SECONDS
from ..ports import ApplyFailed, Cluster, ClusterError, LevelUnknown, RegradeError, StepHooks, StepRefused
from . import docker_probe as probe
from . import docker_record as record
from .docker_client import Engine, EngineError
from .docker_record import Inspect
from .odd_json import mapping, mappings, number, text

if TYPE_CHECKING:
    from ..core.settings import Settings

POLL_SECONDS = 1.0
WRITE_SECONDS = 30.0  # a `sync` on a card that is busy; the record must be whole before the restart
LOOK_SECONDS = 2.0  # of one HTTPS look at our own server
HEALTH_SECONDS = 4.0  # on top of a call's time: etcd without a quorum takes more than 5 s to say so
DATABASE_SECONDS = 10.0  # kubectl in the container, 4 s of it for the request
DATABASE_PAUSE_SECONDS = 5.0  # kubectl takes 22 MiB for a moment: not every second
BALANCER_PATIENCE_SECONDS = 20.0  # 6444 says 503 for some seconds at every boot (measured)
BALANCER_PAUSE_SECONDS = 8.0  # between looks through kubectl
DISABLED = "apiserver disabled"  # what k3s at etcd-only says, with 503
CRASHES = 2  # restarts nobody asked for, before the level was reached
REFUSED_POLICIES = ("", "no", "on-failure")


class _State(NamedTuple):
    """Of the container, from `docker inspect`."""

    id: str
    started: str
    status: str
    running: bool
    restarting: bool
    restarts: int
    exit_code: int
    addresses: tuple[str, ...]  # Docker's own; none with the host's network


class _Server(NamedTuple):
    """What the container's settings say of its k3s; read once for each container."""

    container: str
    place: record.Place
    data: str
    addresses: tuple[str, ...]  # the server's own, empty where only etcd's sockets tell them
    api_port: int
    host_network: bool


class _Before(NamedTuple):
    """What is compared after a restart."""

    state: _State
    member: Member | None
    heartbeat: str
    record: str | None


class DockerActuator:
    """Built for one step or one look; `hooks` are the step's, None where nothing is to be applied."""

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
        self._engine = Engine(settings.docker_host, settings.container, settings.call_timeout_seconds)
        self._server_of: _Server | None = None
        self._began = False  # whether this apply_level may have begun a restart

    # --- ports.Actuator ---

    def levels(self) -> tuple[str, ...]:
        return LEVELS

    def current_level(self) -> str:
        try:
            found = self._engine.inspect()
            state = _state_of(found)
            _must_run(state)
            return self._level(self._server(found), state)
        except EngineError as error:
            raise LevelUnknown(str(error)) from None
        except record.RecordRefused as error:
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
                self._cure(server, self._hooks)
        except (EngineError, LevelUnknown, record.RecordRefused) as error:
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
        except (EngineError, record.RecordRefused) as error:
            raise LevelUnknown(str(error)) from None

    def start_stopped(self) -> bool:
        state = self._state()
        if state.running or state.restarting:
            return False
        self._engine.start(self._settings.call_timeout_seconds + RESTART_GRACE_SECONDS)
        return True

    def preflight(self) -> None:
        """Everything a step will ask of Docker, tried without effect. Raises StepRefused or EngineError, so
        that a socket proxy that denies the restart is known before anything is drained."""
        self._refuse_unfit()
        self._engine.may_restart()
        self._read_record(self._server())

    def recover(self) -> None:
        """The one restart that asks for no quorum and no hook: there is nobody left to ask."""
        try:
            found = self._engine.inspect()
            server = self._server(found)
            before = _state_of(found)
            old: str | None = None
            if before.running:
                old = self._read_record(server)
            self._lay_anyhow(server, None)
        except (EngineError, LevelUnknown, ApplyFailed, record.RecordRefused) as error:
            raise ApplyFailed(f"{error}; k3s was not restarted", began=False) from None
        self._await_start(before, self._restart_or_put_back(server, old))

    def _await_start(self, before: _State, doubt: str) -> None:
        """The container runs with a new StartedAt. Raises ApplyFailed(began=True)."""
        end = time.monotonic() + self._settings.boot_timeout_seconds
        why = doubt
        while True:
            try:
                now = self._state()
                if now.started != before.started and (now.running or now.restarting):
                    return
                why = doubt or f"the container is {now.status or 'not running'}"
                if not (now.running or now.restarting):
                    self._try_start()
            except EngineError as error:
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
        except (EngineError, record.RecordRefused) as error:
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
            return probe.healthy(self._engine.run(_health_script(), self._light_seconds()).output)
        except EngineError:
            return False

    # --- the container ---

    def _state(self) -> _State:
        return _state_of(self._engine.inspect())

    def _server(self, found: Inspect | None = None) -> _Server:
        """Of what `docker inspect` found, or finds now. Raises record.RecordRefused, EngineError."""
        found = found or self._engine.inspect()
        if self._server_of is not None and self._server_of.container == found.get("Id"):
            return self._server_of
        config = record.config_file(found)
        told = self._configured(config)
        values = probe.configuration(told)
        data = record.data_folder(found, values.get("data-dir", ""))
        node_ip = record.flag(found, "--node-ip", "-i") or values.get("node-ip", "")
        host_network = mapping(found, "HostConfig").get("NetworkMode") == "host"
        networks = mappings(list(mapping(found, "NetworkSettings", "Networks").values()))
        addresses = node_ip.split(",") if node_ip else [text(net.get("IPAddress")) for net in networks]
        port = whole(record.flag(found, "--https-listen-port") or values.get("https-listen-port", ""))
        server = _Server(
            container=text(found.get("Id")),
            place=record.place(found, data),
            data=data,
            addresses=tuple(probe.plain_address(address.strip()) for address in addresses if address),
            api_port=port if port and port < 65536 else probe.API_PORT,
            host_network=host_network,
        )
        if told:
            self._server_of = server
        return server

    def _configured(self, config: str) -> str:
        """k3s's configuration files, "" where the container takes no exec now."""
        try:
            return self._engine.run(_config_script(config), self._light_seconds()).output
        except EngineError as error:
            if error.status == 409:
                return ""
            raise

    def _refuse_unfit(self) -> None:
        """Raises StepRefused for a container whose vote a step could lose."""
        found = self._engine.inspect()
        policy = text(mapping(found, "HostConfig", "RestartPolicy").get("Name"))
        if policy in REFUSED_POLICIES:
            raise StepRefused(
                f"container {self._settings.container} has restart policy {policy or 'no'!r}: k3s would stay "
                "away after "
                "it ends with code 0, and its vote with it; set `restart: unless-stopped` in Compose"
            )
        if any("name=rootless" in option for option in self._security_options()):
            raise StepRefused(
                f"the Docker engine at {self._settings.docker_host} is rootless, where k3s is "
                "not "
                "supported as a server; use the engine of the system"
            )
        try:
            self._server(found)
        except record.RecordRefused as error:
            raise StepRefused(str(error)) from None

    def _security_options(self) -> tuple[str, ...]:
        try:
            return self._engine.security_options()
        except EngineError as error:
            if error.status == 403:  # a socket proxy need not allow `info`
                return ()
            raise

    # --- the record ---

    def _read_record(self, server: _Server) -> str | None:
        """Raises LevelUnknown where it cannot be read."""
        readable, text = record.shown(
            self._engine.run(record.script_show(server.place.path), self._light_seconds()).output
        )
        if not readable:
            raise LevelUnknown(
                f"the record {server.place.path} cannot be read in container "
                f"{self._settings.container}; look at its data volume"
            )
        return text

    def _linked(self, server: _Server, text: str | None) -> bool:
        """Whether k3s reads the record: a recreated container has lost the link to it."""
        if not server.place.link:
            return True
        output = self._engine.run(record.script_show(server.place.link), self._light_seconds()).output
        return record.shown(output) == (True, text)

    def _level_recorded(self, server: _Server, text: str | None) -> str:
        try:
            return record.level_of(text)
        except record.RecordWrong as error:
            raise LevelUnknown(f"{server.place.path} {error}") from None

    def _write_record(self, server: _Server, level: str) -> None:
        """Raises ApplyFailed(began=False); what was there before may be gone then, see `_put_back`."""
        self._lay(server, record.text_for(level, self._port()) or None)

    def _lay(self, server: _Server, text: str | None) -> None:
        token = secrets.token_hex(4)
        script = (
            record.script_remove(server.place)
            if text is None
            else record.script_write(server.place, text, token)
        )
        done = self._engine.run(script, WRITE_SECONDS)
        if done.code != 0 or record.shown(done.output) != (True, text):
            why = " ".join(done.errors.split()) or f"it reads back {done.output[:60]!r}"
            raise ApplyFailed(
                f"the record {server.place.path} could not be written (full or read-only "
                f"disk?): {why}; "
                "k3s was not restarted",
                began=False,
            )

    def _put_back(self, server: _Server, old: str | None) -> str:
        """Words on how it went, for the error that is on its way."""
        try:
            self._lay(server, old)
            return "the old record is back"
        except (EngineError, ApplyFailed) as error:
            return f"THE OLD RECORD COULD NOT BE PUT BACK ({error}): a restart would follow the new one"

    def _port(self) -> int:
        return self._settings.etcd_only_https_port

    # --- looks ---

    def _light_seconds(self) -> float:
        return self._settings.call_timeout_seconds + HEALTH_SECONDS

    def _own_addresses(self, server: _Server) -> tuple[str, ...]:
        if server.addresses:
            return server.addresses
        tables = self._engine.run(
            "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null", self._light_seconds()
        ).output
        return probe.node_addresses(probe.listeners(tables))

    def _level(self, server: _Server, state: _State) -> str:
        """Raises LevelUnknown, EngineError."""
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

    def _reached_at(self, server: _Server) -> tuple[str, ...]:
        """Where our own network may reach the server."""
        return server.addresses or (("127.0.0.1",) if server.host_network else ())

    def _between(self, server: _Server) -> str:
        """full and control-plane run the same k3s: the record tells them apart."""
        recorded = self._level_recorded(server, self._read_record(server))
        return CONTROL_PLANE if recorded == CONTROL_PLANE else FULL

    def _level_inside(self, server: _Server, state: _State, moved: int) -> str:
        """Where our network does not reach the server: its sockets and etcd's health, in one exec."""
        script = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null\necho ==\n" + _health_script()
        output = self._engine.run(script, self._light_seconds()).output
        tables, _sep, health = output.partition("\n==\n")
        ports = {port for _address, port in probe.listeners(tables)}
        since = f"container started {state.started}"
        if not probe.healthy(health):
            raise LevelUnknown(
                f"etcd in container {self._settings.container} is not healthy ({since}): "
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
            f"k3s in container {self._settings.container} is booting ({since}): listening on "
            f"{', '.join(str(port) for port in sorted(ports)) or 'nothing'}"
        )

    def _https_port(self, server: _Server) -> int:
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
        tables = self._engine.run(
            "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null", self._light_seconds()
        ).output
        ports = {port for _address, port in probe.listeners(tables)}
        return moved if moved in ports and server.api_port not in ports else server.api_port

    def _raw(self, port: int, path: str) -> str:
        """What k3s answers on its loopback, through its own kubectl; its error text where it refuses."""
        script = (
            f"kubectl get --raw '{path}' --server 'https://127.0.0.1:{port}' "
            "--insecure-skip-tls-verify "
            "--request-timeout=4s 2>&1 </dev/null"
        )
        try:
            return self._engine.run(script, DATABASE_SECONDS).output
        except EngineError as error:
            return str(error)

    # --- restarting ---

    def _may_start(self) -> bool:
        return self._hooks is not None and self._hooks.may_start()

    def _await_known(self, name: str) -> tuple[str, bool]:
        """The running level, waiting while k3s boots; and whether it was booting when we came."""
        end = time.monotonic() + self._settings.boot_timeout_seconds
        booted = self._began
        while True:
            found = self._engine.inspect()
            state = _state_of(found)
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

    def _restart_into(self, server: _Server, name: str, old: str | None, hooks: StepHooks) -> None:
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
        except (ApplyFailed, EngineError) as error:
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

    def _restart_or_put_back(self, server: _Server, old: str | None) -> str:
        """Words of doubt where Docker may have begun the restart though its call failed; the old record is put
        back where it certainly did not. Raises ApplyFailed."""
        try:
            self._restart()
        except EngineError as error:
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
            self._engine.restart(stop, stop + RESTART_GRACE_SECONDS)
        except EngineError as error:
            self._began = already or error.sent
            raise

    def _before(self, server: _Server, name: str, old: str | None) -> _Before:
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

    def _verify(self, server: _Server, name: str, before: _Before, doubt: str) -> None:
        """Wait for every condition in turn. Raises ApplyFailed(began=True)."""
        end = time.monotonic() + self._settings.boot_timeout_seconds
        waiting = doubt or "the container is starting"
        revived = False
        while time.monotonic() < end:
            try:
                state = self._state()
            except EngineError as error:
                waiting = str(error)
                time.sleep(POLL_SECONDS)
                continue
            self._same_container(before.state, state)
            if _crashes(before.state, state) >= CRASHES:
                self._back_from_crash_loop(server, name, before, state)
            if not state.running and not state.restarting:
                # It only adds a voter, so it needs no gate; a restart call that failed half-way ends here.
                if not revived:
                    waiting = f"the container was found stopped (exit code {state.exit_code}) and started"
                revived = True
                self._try_start()
            elif state.started == before.state.started:
                waiting = doubt or "the container has not been restarted"
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

    def _lacking(self, server: _Server, name: str, state: _State) -> str:
        """What the running k3s still lacks of the level, "" for nothing."""
        try:
            level = self._level(server, state)
        except (LevelUnknown, EngineError) as error:
            return str(error)
        if level != name:
            return f"k3s runs at {level}, expected {name}"
        return "" if self.healthy() else "etcd is not healthy"

    def _same_container(self, before: _State, now: _State) -> None:
        if now.id != before.id:
            raise ApplyFailed(
                f"container {self._settings.container} was recreated during the step "
                f"({before.id[:12]} "
                f"became {now.id[:12]}); who did it? `regrade settle` goes on from what "
                "runs",
                began=True,
            )
        if now.running and before.addresses and now.addresses and now.addresses != before.addresses:
            raise ApplyFailed(
                f"container {self._settings.container} came back with the address "
                f"{', '.join(now.addresses)}, it had {', '.join(before.addresses)}: etcd "
                "refuses a member "
                "whose address changed; pin it in Compose (`ipv4_address` or the host's "
                "network) and "
                "restart",
                began=True,
            )

    def _try_start(self) -> None:
        try:
            self._engine.start(self._settings.call_timeout_seconds + RESTART_GRACE_SECONDS)
        except EngineError:
            time.sleep(POLL_SECONDS)  # the next look at the container says what is wrong

    def _await_member(self, server: _Server, before: _Before, end: float) -> None:
        """Our etcd member is a voter with the id it had."""
        while True:
            try:
                now = probe.own_member(self.members(), self._settings.node_name, self._own_addresses(server))
                why = (
                    "our member is not in etcd's list"
                    if now is None
                    else "it is a learner"
                    if now.learner
                    else ""
                )
                if now is not None and before.member is not None and now.id != before.member.id:
                    raise ApplyFailed(
                        f"the etcd member id changed from {before.member.id} to {now.id}: the "
                        "member was "
                        "removed and joined anew; stop, and find out what removed "
                        "it",
                        began=True,
                    )
            except (LevelUnknown, EngineError) as error:
                why = str(error)
            if not why:
                return
            if time.monotonic() >= end:
                raise ApplyFailed(f"etcd serves, but {why}", began=True)
            time.sleep(DATABASE_PAUSE_SECONDS)

    def _await_etcd(self, end: float) -> None:
        while not self.healthy():
            if time.monotonic() >= end:
                raise ApplyFailed("k3s runs, but etcd is not healthy", began=True)
            time.sleep(POLL_SECONDS)

    def _await_agent(self, heartbeat: str, end: float) -> None:
        """The Node is Ready on a heartbeat other than `heartbeat`."""
        why = ""
        while True:
            try:
                node = self._cluster.node(self._settings.node_name)
                if node.ready and node.ready_heartbeat != heartbeat:
                    return
                why = (
                    "is Ready only on its heartbeat from before the restart" if node.ready else "is not Ready"
                )
            except ClusterError as error:
                why = f"cannot be read: {error}"
            if time.monotonic() >= end:
                raise ApplyFailed(f"k3s runs, but Node {self._settings.node_name} {why}", began=True)
            time.sleep(POLL_SECONDS)

    def _back_from_crash_loop(self, server: _Server, name: str, before: _Before, state: _State) -> None:
        """Put the old record back and start k3s with it, once. Always raises ApplyFailed."""
        what = (
            f"k3s ended {state.restarts} times at {name}{_code(state)} (`docker logs {self._settings.container}` "
            "says why)"
        )
        old = FULL if before.record is None else self._level_recorded(server, before.record)
        try:
            self._lay_anyhow(server, before.record)
            self._restart()
        except (EngineError, ApplyFailed) as error:
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
                if _crashes(state, now) >= CRASHES:
                    why = f"it ends there too{_code(now)}"
                    break
                if now.running and not self._lacking(server, old, now):
                    raise ApplyFailed(
                        f"{what}; the old record was put back and k3s runs at {old} again",
                        began=True,
                        back=True,
                    )
            except EngineError as error:
                why = str(error)
        raise ApplyFailed(
            f"{what}; the old record ({old}) was put back and k3s started once, but {why}: the "
            "step stays "
            "open, its vote is away",
            began=True,
        )

    def _lay_anyhow(self, server: _Server, text: str | None) -> None:
        """A container that ends every few seconds may not take an exec: then the file is copied in. No file
        can be removed that way, so a record that names full stands for none; k3s reads nothing in it."""
        try:
            self._lay(server, text)
        except (EngineError, ApplyFailed):
            text = text if text is not None else f"{record.MARK}{FULL}\n"
            self._engine.put_file(server.place.folder, record.NAME, text)

    # --- the own-address trap ---

    def _trapped(self, server: _Server) -> bool:
        """Whether k3s at etcd-only is locked behind its own address (seen on k3s 1.34.10).

        Only k3s's own words say so: a call that fails, as where memory is short, is no reason for a restart.
        Raises LevelUnknown.
        """
        path = f"{server.data}/agent/etc/k3s-agent-load-balancer.json"
        target = probe.balancer_target(
            self._engine.run(record.script_show(path), self._light_seconds()).output
        )
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

    def _balancer(self, server: _Server) -> tuple[bool, str, float]:
        """Whether 6444 leads to an API server, what it said, and how soon it may be asked again."""
        if server.host_network:
            seen = probe.look("127.0.0.1", probe.BALANCER_PORT, LOOK_SECONDS)
            if seen.status:
                return seen.level == FULL, str(seen), POLL_SECONDS
        said = self._raw(probe.BALANCER_PORT, "/readyz").strip()
        return said == "ok" or "Unauthorized" in said, said, BALANCER_PAUSE_SECONDS

    def _cure(self, server: _Server, hooks: StepHooks) -> None:
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
        except EngineError as error:
            doubt = f"the restart call failed ({error})"
        self._verify(server, ETCD_ONLY, before, doubt)
        if self._trapped(server):
            raise ApplyFailed(
                "k3s at etcd-only is still locked behind its own address after one more "
                "restart, and would "
                "end after 15 minutes: step up, or set ETCD_ONLY_HTTPS_PORT to a free "
                "port",
                began=True,
                stuck=True,
            )

    def _member_now(self, server: _Server) -> Member | None:
        try:
            return probe.own_member(self.members(), self._settings.node_name, self._own_addresses(server))
        except LevelUnknown:
            return None

    def _k3s_etcd(self) -> Lease | None:
        try:
            return self._cluster.k3s_etcd_lease()
        except ClusterError:
            return None

    def _incurable_yet(self, server: _Server, baseline: Lease | None) -> str:
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

    def _hostname(self) -> str:
        return str((self._engine.inspect().get("Config") or {}).get("Hostname") or "")


def _state_of(found: Inspect) -> _State:
    """Of what `docker inspect` says."""
    state = mapping(found, "State")
    networks = mappings(list(mapping(found, "NetworkSettings", "Networks").values()))
    return _State(
        id=text(found.get("Id")),
        started=text(state.get("StartedAt")),
        status=text(state.get("Status")),
        running=bool(state.get("Running")) and not state.get("Restarting"),
        restarting=bool(state.get("Restarting")),
        restarts=number(found.get("RestartCount")) or 0,
        exit_code=number(state.get("ExitCode")) or 0,
        addresses=tuple(
            net[key] for net in networks for key in ("IPAddress", "GlobalIPv6Address") if text(net.get(key))
        ),
    )


def _crashes(before: _State, now: _State) -> int:
    """Restarts by the policy since one of ours: Docker counts from 0 after each start somebody asked for."""
    if now.started == before.started:
        return 0
    return now.restarts - before.restarts if now.restarts > before.restarts else now.restarts


def _code(state: _State) -> str:
    """Docker clears the exit code once the container runs again."""
    return f" with exit code {state.exit_code}" if state.restarting or not state.running else ""


def _must_run(state: _State) -> None:
    if state.restarting:
        raise LevelUnknown(
            f"the container is restarting (exit code {state.exit_code}, {state.restarts} times)"
        )
    if not state.running:
        raise LevelUnknown(f"the container is {state.status or 'not running'} (exit code {state.exit_code})")
    if state.status == "paused":
        raise LevelUnknown("the container is paused; `docker unpause` it")


def _distinct(*ports: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(port for port in ports if port))


def _health_script() -> str:
    # No -T: wget of Debian's busybox 1.35 ends with a segmentation fault on it. etcd itself answers in time.
    return f"wget -q -O - {probe.HEALTH_URL} 2>&1\n"


def _config_script(config: str) -> str:
    """Prints k3s's configuration files in the order k3s merges them, without our own drop-in."""
    quoted = shlex.quote(config)
    return f"""for file in {quoted} {quoted}.d/*.yaml {quoted}.d/*.yml; do
case $file in */{record.NAME}) continue;; esac
[ -f "$file" ] && cat "$file" && echo && echo '{probe.NEXT_FILE}'
done
echo '{probe.NEXT_FILE}'
"""
