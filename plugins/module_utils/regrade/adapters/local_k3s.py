# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What a k3s on this very host shows on its loopback, without credentials (`ports.LocalEtcd`, and a few looks).

For the adapters that run beside k3s in its own network; Docker's asks inside the container. Nothing is changed and
nothing decided here. How to read the answers is `docker_probe`'s.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import time

from ..core.levels import ETCD_ONLY, FULL
from ..core.model import Member
from ..ports import LevelUnknown
from . import docker_probe as probe
from .bounded import OutOfTime, within

LOOPBACK = "127.0.0.1"
METRICS_PORT = 2381  # of etcd: /health and /metrics
LOOK_SECONDS = 2.0  # of one HTTPS look
HEALTH_SECONDS = 4.0  # on top of a call's time: etcd without a quorum takes more than 5 s to say so
BALANCER_PATIENCE_SECONDS = 20.0  # 6444 says 503 for some seconds at every boot (measured)
POLL_SECONDS = 1.0
ANSWER_BYTES = 4 << 20  # etcd's metrics are some 200 KiB
STARTED = re.compile(r"^process_start_time_seconds (\S+)$", re.MULTILINE)


class LocalK3s:
    """`moved` is the port of k3s's HTTPS at etcd-only, 0 where it stays; `timeout` of a call, in seconds."""

    def __init__(
        self,
        node_name: str,
        moved: int,
        timeout: float,
        api_port: int = probe.API_PORT,
        metrics_port: int = METRICS_PORT,
        balancer_port: int = probe.BALANCER_PORT,
    ) -> None:
        self._node_name, self._timeout = node_name, timeout
        self._ports = tuple(dict.fromkeys(port for port in (api_port, moved) if port))
        self._metrics_port, self._balancer_port = metrics_port, balancer_port

    # --- ports.LocalEtcd ---

    def healthy(self) -> bool:
        status, said = get(self._metrics_port, "/health", False, self._timeout + HEALTH_SECONDS)
        return status == 200 and probe.healthy(said)

    def members(self) -> tuple[Member, ...]:
        why = ""
        for port in self._ports:
            status, said = get(port, "/db/info", True, self._timeout + HEALTH_SECONDS)
            if not status:  # at etcd-only nothing listens on its own port
                why = why or f"nothing answers on port {port} ({said})"
                continue
            try:
                return probe.members(said)
            except ValueError:
                why = f"k3s answered /db/info on port {port} with {' '.join(said.split())[:200]!r}"
        raise LevelUnknown(f"etcd's member list cannot be read: {why}")

    # --- looks ---

    def own_member(self) -> Member | None:
        """This server's member, None where etcd lists none. Raises LevelUnknown."""
        return probe.own_member(self.members(), self._node_name, self._addresses())

    def level(self) -> tuple[str, str]:
        """(FULL or ETCD_ONLY where k3s's HTTPS speaks for one, else "", what was said). FULL says no more than that
        an API server runs: control-plane looks the same."""
        said = []
        for port in self._ports:
            seen = probe.look(LOOPBACK, port, LOOK_SECONDS)
            if seen.level:
                return seen.level, str(seen)
            said.append(f"port {port}: {seen}")
        return "", "; ".join(said)

    def runs(self) -> bool:
        """Whether anything of k3s listens: it may be booting still."""
        return bool(get(self._metrics_port, "/health", False, self._timeout + HEALTH_SECONDS)[0]) or any(
            probe.look(LOOPBACK, port, LOOK_SECONDS).status for port in self._ports
        )

    def started(self) -> str:
        """When the process that serves etcd was started, as its metrics tell it: another text, another start. ""
        where that cannot be read."""
        found = STARTED.search(get(self._metrics_port, "/metrics", False, self._timeout)[1])
        return found.group(1) if found else ""

    def trapped(self) -> bool:
        """Whether k3s at etcd-only is locked behind its own address: its load balancer then leads to itself. Only
        k3s's own words say so. Raises LevelUnknown."""
        end = time.monotonic() + BALANCER_PATIENCE_SECONDS
        while True:
            seen = probe.look(LOOPBACK, self._balancer_port, LOOK_SECONDS)
            if seen.level == FULL:
                return False
            if time.monotonic() >= end:
                if seen.level == ETCD_ONLY:
                    return True
                raise LevelUnknown(
                    f"whether k3s is locked behind its own address cannot be told: its {self._balancer_port} "
                    f"answers {seen}"
                )
            time.sleep(POLL_SECONDS)

    # --- how ---

    def _addresses(self) -> tuple[str, ...]:
        """Those etcd listens on for its peers."""
        return probe.node_addresses(probe.listeners(socket_tables()))


def socket_tables() -> str:
    """The text of /proc/net/tcp and tcp6."""
    tables = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{name}", encoding="ascii") as file:
            tables.append(file.read())
    return "".join(tables)


def get(port: int, path: str, tls: bool, seconds: float) -> tuple[int, str]:
    """(status, body) of a GET on loopback; (0, why) where there was no answer."""

    def call() -> tuple[int, str]:
        connection: http.client.HTTPConnection
        if tls:  # whose certificate it is does not matter: nothing is sent, and only our own host is asked
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=seconds, context=context)
        else:
            connection = http.client.HTTPConnection(LOOPBACK, port, timeout=seconds)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES).decode("utf-8", "replace")
        finally:
            connection.close()

    try:
        return within(seconds, call)
    except (OSError, OutOfTime, http.client.HTTPException) as error:
        return 0, str(error) or repr(error)
