# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The actuator of a k3s server in a container of the stock image: what `k3s_actuator` asks, asked of Docker.

What makes a step safe is there. Here is what a container is: its id and StartedAt, the policy that brings it
back, the exec through which its own loopback is asked, and the one call that restarts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from ..core.digits import whole
from ..core.levels import FULL
from ..ports import ApplyFailed, Cluster, StepHooks, StepRefused
from . import docker_probe as probe
from . import docker_record
from . import level_record as record
from .docker_client import Engine, EngineError
from .docker_record import Inspect
from .k3s_actuator import LOOK_SECONDS, POLL_SECONDS, K3sActuator, Result, Server, State
from .odd_json import mapping, mappings, number, text

if TYPE_CHECKING:
    from ..core.settings import Settings

DATABASE_SECONDS = 10.0  # kubectl in the container, 4 s of it for the request
BALANCER_PAUSE_SECONDS = 8.0  # between looks through kubectl
REFUSED_POLICIES = ("", "no", "on-failure")


class DockerActuator(K3sActuator):
    """Of the container that CONTAINER names, at DOCKER_HOST."""

    kind = "container"

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        hooks: StepHooks | None = None,
        known: Callable[[], dict[str, str]] = dict,
    ) -> None:
        super().__init__(settings, cluster, hooks, known)
        self.name = settings.container
        self.logs = f"docker logs {settings.container}"
        self._engine = Engine(settings.docker_host, settings.container, settings.call_timeout_seconds)

    def _inspect(self) -> Inspect:
        return self._engine.inspect()

    def _state_in(self, found: Inspect) -> State:
        return _state_of(found)

    def _config_files_in(self, found: Inspect) -> str:
        return docker_record.config_file(found)

    def _configured(self, config: str) -> str:
        try:
            return super()._configured(config)
        except EngineError as error:
            if error.status == 409:  # the container takes no exec now
                return ""
            raise

    def _server_in(self, found: Inspect, configured: dict[str, str]) -> Server:
        data = docker_record.data_folder(found, configured.get("data-dir", ""))
        node_ip = docker_record.flag(found, "--node-ip", "-i") or configured.get("node-ip", "")
        networks = mappings(list(mapping(found, "NetworkSettings", "Networks").values()))
        addresses = node_ip.split(",") if node_ip else [text(net.get("IPAddress")) for net in networks]
        port = whole(
            docker_record.flag(found, "--https-listen-port") or configured.get("https-listen-port", "")
        )
        return Server(
            of=text(found.get("Id")),
            place=docker_record.place(found, data),
            data=data,
            addresses=tuple(probe.plain_address(address.strip()) for address in addresses if address),
            api_port=port if port and port < 65536 else probe.API_PORT,
            near=mapping(found, "HostConfig").get("NetworkMode") == "host",
        )

    def _refuse_unfit(self) -> None:
        found = self._engine.inspect()
        policy = text(mapping(found, "HostConfig", "RestartPolicy").get("Name"))
        if policy in REFUSED_POLICIES:
            raise StepRefused(
                f"container {self.name} has restart policy {policy or 'no'!r}: k3s would stay away after it ends "
                "with code 0, and its vote with it; set `restart: unless-stopped` in Compose"
            )
        if any("name=rootless" in option for option in self._security_options()):
            raise StepRefused(
                f"the Docker engine at {self._engine.host} is rootless, where k3s is not supported as a server; "
                "use the engine of the system"
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

    def _may_restart(self) -> None:
        self._engine.may_change()

    def _run(self, script: str, seconds: float) -> Result:
        return self._engine.run(script, seconds)

    def _call_restart(self, stop_seconds: float, seconds: float) -> None:
        self._engine.restart(stop_seconds, seconds)

    def _start(self, seconds: float) -> None:
        self._engine.start(seconds)

    def _same(self, before: State, now: State) -> None:
        if now.id != before.id:
            raise ApplyFailed(
                f"container {self.name} was recreated during the step ({before.id[:12]} became {now.id[:12]}); "
                "who did it? `regrade settle` goes on from what runs",
                began=True,
            )
        if before.addresses and now.addresses and now.addresses != before.addresses:
            raise ApplyFailed(
                f"container {self.name} came back with the address {', '.join(now.addresses)}, it had "
                f"{', '.join(before.addresses)}: etcd refuses a member whose address changed; pin it in Compose "
                "(`ipv4_address` or the host's network) and restart",
                began=True,
            )

    def _crashes(self, before: State, now: State) -> int:
        # Docker counts from 0 after each start somebody asked for.
        if now.started == before.started:
            return 0
        return now.restarts - before.restarts if now.restarts > before.restarts else now.restarts

    def _lay_anyhow(self, server: Server, text: str | None) -> None:
        """A container that ends every few seconds may not take an exec: then the file is copied in. No file
        can be removed that way, so a record that names full stands for none; k3s reads nothing in it."""
        try:
            self._lay(server, text)
        except (EngineError, ApplyFailed):
            text = text if text is not None else f"{record.MARK}{FULL}\n"
            self._engine.put_file(server.place.folder, record.NAME, text)

    def _inside(self) -> tuple[str, str]:
        script = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null\necho ==\n" + _health_script()
        output = self._engine.run(script, self._light_seconds()).output
        tables, _sep, health = output.partition("\n==\n")
        return tables, health

    def _raw(self, port: int, path: str) -> str:
        """Through k3s's own kubectl: the image's wget has no TLS."""
        script = (
            f"kubectl get --raw '{path}' --server 'https://127.0.0.1:{port}' --insecure-skip-tls-verify "
            "--request-timeout=4s 2>&1 </dev/null"
        )
        try:
            return self._engine.run(script, DATABASE_SECONDS).output
        except EngineError as error:
            return str(error)

    def _balancer(self, server: Server) -> tuple[bool, str, float]:
        if server.near:
            seen = probe.look("127.0.0.1", probe.BALANCER_PORT, LOOK_SECONDS)
            if seen.status:
                return seen.level == FULL, str(seen), POLL_SECONDS
        said = self._raw(probe.BALANCER_PORT, "/readyz").strip()
        return said == "ok" or "Unauthorized" in said, said, BALANCER_PAUSE_SECONDS

    def _end_leftovers(self, server: Server) -> None:
        return  # a container that is restarted has none: all its processes end with it

    def _hostname(self) -> str:
        return text(mapping(self._engine.inspect(), "Config").get("Hostname"))


def _state_of(found: Inspect) -> State:
    """Of what `docker inspect` says."""
    state = mapping(found, "State")
    networks = mappings(list(mapping(found, "NetworkSettings", "Networks").values()))
    status, code = text(state.get("Status")), number(state.get("ExitCode")) or 0
    restarts = number(found.get("RestartCount")) or 0
    restarting = bool(state.get("Restarting"))
    running = bool(state.get("Running")) and not restarting
    why = ""
    if restarting:
        why = f"the container is restarting (exit code {code}, {restarts} times)"
    elif not running:
        why = f"the container is {status or 'not running'} (exit code {code})"
    elif status == "paused":
        why = "the container is paused; `docker unpause` it"
    return State(
        id=text(found.get("Id")),
        started=text(state.get("StartedAt")),
        running=running,
        restarting=restarting,
        restarts=restarts,
        why=why,
        end="" if running else f" with exit code {code}",  # Docker clears it once the container runs again
        addresses=tuple(
            net[key] for net in networks for key in ("IPAddress", "GlobalIPv6Address") if text(net.get(key))
        ),
    )


def _health_script() -> str:
    # No -T: wget of Debian's busybox 1.35 ends with a segmentation fault on it. etcd itself answers in time.
    return f"wget -q -O - {probe.HEALTH_URL} 2>&1\n"
