# SPDX-License-Identifier: GPL-3.0-or-later
"""A k3s on this host that is no more than its loopback ports, and executables that flip it.

It is restarted by a file: who writes `restart` into its folder finds it gone once k3s was started anew (a shell can
do that). What level it comes up at is asked of `level_of`.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from pathlib import Path
from typing import Any, Callable

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.local_k3s import LocalK3s
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import ETCD_ONLY, FULL
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import (
    Reply,
    Request,
    StubApi,
    status,
)

OWN_MEMBER = "9372538179322589801"


def free_port() -> int:
    """Below those the kernel gives away by itself: it is to be free again after each stop of its server."""
    while True:
        port = random.randrange(18000, 32000)
        with socket.socket() as made, contextlib.suppress(OSError):
            made.bind(("127.0.0.1", port))
            return port


class LocalStub:
    """One server; `folder` holds the file that restarts it."""

    def __init__(self, folder: Path, pem: Path, level_of: Callable[[], str]) -> None:
        self.folder, self.pem, self.level_of = folder, pem, level_of
        self.api_port, self.moved, self.metrics_port, self.balancer_port = (free_port() for _ in range(4))
        self.level = ""
        self.boots = 0
        self.healthy = True
        self.trapped = False
        self.speaks = ""  # at this level its HTTPS answers, whatever it runs at; "" for the level it runs at
        self.tells_start = True  # whether its metrics have the process's start
        self.dies_at: set[str] = set()
        self.members: list[dict[str, Any]] = [
            {"ID": int(OWN_MEMBER), "name": "pi1-0a1b2c3d", "peerURLs": ["https://10.0.0.11:2380"]},
            {"ID": 2, "name": "pi2-99999999", "peerURLs": ["https://10.0.0.12:2380"]},
        ]
        self._servers: list[StubApi] = []
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def looks(self, node_name: str = "pi1") -> LocalK3s:
        return LocalK3s(node_name, self.moved, 2.0, self.api_port, self.metrics_port, self.balancer_port)

    def start(self) -> None:
        self.stop()
        self.level = self.level_of()
        self.boots += 1
        if self.level in self.dies_at:
            return
        port = self.moved if self.level == ETCD_ONLY else self.api_port
        self._servers = [
            StubApi(self.pem, self._https, port),
            StubApi(None, self._etcd, self.metrics_port),
            StubApi(self.pem, self._balancer, self.balancer_port),
        ]

    def stop(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []

    def close(self) -> None:
        self._closing.set()
        self._watcher.join()
        self.stop()

    def _watch(self) -> None:
        while not self._closing.wait(0.01):
            for name, do in (("restart", self.start), ("stop", self.stop)):
                if (self.folder / name).exists():
                    do()
                    with contextlib.suppress(FileNotFoundError):
                        (self.folder / name).unlink()

    def _https(self, request: Request) -> Reply:
        if request.path == "/db/info":
            return Reply(200, {"members": self.members})
        speaks = self.speaks or (ETCD_ONLY if self.level == ETCD_ONLY else FULL)
        return status(401, "Unauthorized") if speaks == FULL else status(503, "apiserver disabled")

    def _etcd(self, request: Request) -> Reply:
        if request.path == "/metrics":
            line = f"process_start_time_seconds 1.79{self.boots:04d}e+09\n" if self.tells_start else ""
            return Reply(200, f"# HELP etcd_server_has_leader\n{line}process_open_fds 9\n")
        if not self.healthy:
            return Reply(503, json.dumps({"health": "false", "reason": "RAFT NO LEADER"}))
        return Reply(200, json.dumps({"health": "true", "reason": ""}))

    def _balancer(self, request: Request) -> Reply:
        return status(503, "apiserver disabled") if self.trapped else status(401, "Unauthorized")


class Script:
    """An executable that keeps the contract, as short as one can be: its record is a file, its restart a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "actuator"
        self.record, self.calls = folder / "record", folder / "calls"
        self.record.write_text(f"{FULL}\n")
        self.write()

    def level(self) -> str:
        return self.record.read_text().strip()

    def write(self, **verbs: str) -> None:
        """With other shell words for a verb than those that keep the contract."""
        kept = {
            "levels": "printf 'full\\ncontrol-plane\\netcd-only\\n'",
            "current_level": f"cat {self.record}",
            "apply_level": f"""[ $# -eq 1 ] || {{ echo "apply_level takes a level" >&2; exit 2; }}
case $1 in full | control-plane | etcd-only) ;; *) echo "no level: $1" >&2; exit 2 ;; esac
was=$(cat {self.record})
echo "$1" >{self.record}
case "$was $1" in
  *etcd-only) [ "$was" = "$1" ] || restart ;;
  etcd-only*) restart ;;
esac""",
        }
        kept.update(verbs)
        cases = "\n".join(f"{verb})\nshift\n{words}\n;;" for verb, words in kept.items())
        self.path.write_text(f"""#!/bin/sh
echo "$*" >>{self.calls}
restart() {{
  : >{self.folder}/restart
  while [ -e {self.folder}/restart ]; do sleep 0.02; done
}}
case ${{1-}} in
{cases}
*) echo "no verb: ${{1-}}" >&2; exit 2 ;;
esac
""")
        self.path.chmod(0o755)

    def called(self, verb: str) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line.startswith(verb)]
