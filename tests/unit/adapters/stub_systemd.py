# SPDX-License-Identifier: GPL-3.0-or-later
"""A systemd with one unit, behind a `systemctl` on PATH that speaks as the real one does (systemd 252).

The command hands its words to this process and gives back what is answered: exit code, stdout, stderr. k3s is
`stub_engine.FakeK3s`, and what of it only a host's own loopback shows: etcd's health and the balancer.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import (
    Reply,
    Request,
    StubApi,
    status,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_engine import FakeK3s

CLIENT = """#!{python} -SE
import json, socket, sys
with socket.socket(socket.AF_UNIX) as made:
    made.connect({path!r})
    made.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, output, errors = json.loads(made.makefile().read())
sys.stdout.write(output)
sys.stderr.write(errors)
raise SystemExit(code)
"""


class StubSystemd:
    """`faults` may answer instead, or do something first and return None."""

    def __init__(self, folder: Path, k3s: FakeK3s) -> None:
        self.k3s = k3s
        self.calls: list[str] = []
        self.faults: list[Callable[[str], tuple[int, str, str] | None]] = []
        self.starts = 0
        self.state = ("active", "running")
        self.restarts = 0
        self.ended = (0, 0)  # ExecMainCode, ExecMainStatus
        self.job = False
        self.shown = {
            "LoadState": "loaded",
            "Result": "success",
            "Restart": "always",
            "TimeoutStopUSec": "1min 30s",
            "ExecStart": f"{{ path=/usr/local/bin/k3s ; argv[]=/usr/local/bin/k3s server --config {k3s.config} "
            f"--node-ip=127.0.0.1 --https-listen-port={k3s.api_port} --data-dir={k3s.data} ; ignore_errors=no ; "
            "start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0 }",
            "Environment": "",
            "EnvironmentFiles": "/nowhere/k3s.service.env (ignore_errors=yes)",
        }
        path = str(folder / "systemd.sock")
        stub = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                words = json.loads(self.rfile.readline())
                self.wfile.write(json.dumps(stub.answer(words)).encode())

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Clients that give up are the point."""

        self._server = Server(path, Handler)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        command = folder / "bin" / "systemctl"
        command.write_text(CLIENT.format(python=sys.executable, path=path))
        command.chmod(0o755)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.k3s.stop()

    @property
    def invocation(self) -> str:
        return f"{self.starts:032x}"

    def boot(self) -> None:
        """A start that somebody asked for; one that ends at once is started again by the unit's own Restart. The
        count of those goes on, as systemd's does where the unit loops."""
        self.starts += 1
        self.state = ("active", "running")
        if not self.k3s.start():
            self.state, self.ended = ("activating", "auto-restart"), (1, 1)
            self._loop()

    def _loop(self) -> None:
        mine = self.starts

        def again() -> None:
            at = mine
            while self.starts == at and self.restarts < 20:
                time.sleep(0.05)
                if self.starts != at:
                    return
                self.restarts += 1
                self.starts += 1
                at = self.starts

        threading.Thread(target=again, daemon=True).start()

    def answer(self, words: list[str]) -> tuple[int, str, str]:
        verb = next(word for word in words if not word.startswith("-"))
        self.calls.append(verb)
        for fault in self.faults:
            found = fault(verb)
            if found is not None:
                return found
        assert words[-2:] == ["--", "k3s.service"]
        if verb == "show":
            asked = (
                next(word for word in words if word.startswith("--property=")).partition("=")[2].split(",")
            )
            active, sub = self.state
            alive = sub == "running"
            values = {
                "ActiveState": active,
                "SubState": sub,
                "InvocationID": self.invocation,
                "MainPID": "4711" if alive else "0",
                "NRestarts": str(self.restarts),
                "ExecMainCode": str(self.ended[0]),
                "ExecMainStatus": str(self.ended[1]),
                **({"Job": "77"} if self.job else {}),
                **self.shown,
            }
            return 0, "".join(f"{key}={values[key]}\n" for key in asked if key in values), ""
        if verb == "reset-failed":
            self.restarts = 0
        if verb == "restart" or (verb == "start" and self.state[1] != "running"):
            self.boot()
        return 0, "", ""


class Loopback:
    """etcd's /health and k3s's balancer, as FakeK3s's files have them."""

    def __init__(self, k3s: FakeK3s) -> None:
        answers = k3s.folder / "answers"

        def health(request: Request) -> Reply:
            file = answers / "health"
            if request.path != "/health" or not file.exists():
                return Reply(404, "404 page not found")
            return Reply(200 if '"true"' in file.read_text() else 503, file.read_text())

        def balancer(_request: Request) -> Reply:
            trapped = "apiserver disabled" in (answers / "6444_readyz").read_text()
            return status(503, "apiserver disabled") if trapped else status(401, "Unauthorized")

        self._stubs = (StubApi(None, health), StubApi(k3s.pem, balancer))
        self.health_port, self.balancer_port = (stub.port for stub in self._stubs)

    def close(self) -> None:
        for stub in self._stubs:
            stub.close()
