# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker engine on a unix socket with one container, and a k3s that is no more than its sockets and files.

The engine speaks the real protocol (the SDK negotiates with it), and runs what is exec'd: the paths of the
container are paths below a temporary folder, so the scripts really run. `kubectl` and `wget` are stand-ins
found first on PATH. k3s takes the level its drop-in names when it is started, and answers over HTTPS.
"""

from __future__ import annotations

import http.server
import io
import json
import os
import re
import socketserver
import subprocess
import tarfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any, Callable

from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import (
    Reply,
    Request,
    StubApi,
    status,
)

FULL, ETCD_ONLY = "full", "etcd-only"
Fault = Callable[[str, str], "tuple[int, Any] | None"]


class FakeK3s:
    """One server: what it shows at the level its drop-in names."""

    def __init__(self, folder: Path, pem: Path, api_port: int) -> None:
        self.folder, self.pem, self.api_port = folder, pem, api_port
        self.config = folder / "etc" / "config.yaml"
        self.data = folder / "data"
        self.level = ""
        self.boots = 0
        self.boot_seconds = 0.0
        self.dies_at: set[str] = set()  # levels at which it ends at once
        self.trapped_boots = 0  # how many boots at etcd-only end up behind their own address
        self.health = '{"health":"true","reason":""}'
        self.members = [
            {
                "ID": 9372538179322589801,
                "name": "pi1-0a1b2c3d",
                "peerURLs": ["https://127.0.0.1:2380"],
                "clientURLs": ["https://127.0.0.1:2379"],
            },
            {"ID": 2, "name": "pi2-99999999", "peerURLs": ["https://10.0.0.12:2380"]},
        ]
        self.members_said = ""  # instead of the list
        self.own_first = False
        self._server: StubApi | None = None
        (folder / "etc").mkdir(parents=True)
        (self.data / "agent" / "etc").mkdir(parents=True)
        (folder / "bin").mkdir()
        self._tools()

    def _tools(self) -> None:
        """kubectl and wget: each prints what k3s would answer, from files kept by `_show`."""
        kubectl = f"""#!/bin/sh
for word; do case $word in /*) path=$word;; https://*) server=$word;; esac; done
echo "$server$path" >> {self.folder}/asked
file={self.folder}/answers/${{server##*:}}$(echo "$path" | tr / _)
cat "$file" 2>/dev/null || {{ echo "connection refused"; exit 1; }}
"""
        for name, text in (("kubectl", kubectl), ("wget", f"#!/bin/sh\ncat {self.folder}/answers/health\n")):
            tool = self.folder / "bin" / name
            tool.write_text(text)
            tool.chmod(0o755)

    def drop_in(self) -> str:
        """As k3s: every *.yaml of the folder in name order; a dangling link is fatal."""
        folder = Path(f"{self.config}.d")
        return "".join(path.read_text() for path in sorted(folder.glob("*.yaml"))) if folder.is_dir() else ""

    def start(self) -> bool:
        """False where it ends at once."""
        self.stop()
        text = self.drop_in()
        self.level = ETCD_ONLY if "disable-apiserver: true" in text else FULL
        if self.level in self.dies_at:
            return False
        self.boots += 1
        moved = re.search(r"^https-listen-port: (\d+)", text, re.MULTILINE)
        port = int(moved.group(1)) if moved else self.api_port
        ready = time.monotonic() + self.boot_seconds

        def answer(request: Request) -> Reply:
            if time.monotonic() < ready:
                return status(503, "starting")
            if request.path == "/db/info":
                return Reply(200, self.members_said or {"members": self.members})
            return status(401, "Unauthorized") if self.level == FULL else status(503, "apiserver disabled")

        self._server = StubApi(self.pem, answer, port)
        trapped = self.level == ETCD_ONLY and self.trapped_boots > 0
        if trapped:
            self.trapped_boots -= 1
        target = "127.0.0.1" if trapped or self.own_first else "10.0.0.12"
        balancer = self.data / "agent" / "etc" / "k3s-agent-load-balancer.json"
        balancer.write_text(json.dumps({"ServerURL": f"https://{target}:6443", "ServerAddresses": []}))
        self.show(port, trapped)
        return True

    def show(self, port: int, trapped: bool) -> None:
        answers = self.folder / "answers"
        answers.mkdir(exist_ok=True)
        for old in answers.iterdir():
            old.unlink()
        (answers / "health").write_text(self.health)
        (answers / f"{port}_db_info").write_text(self.members_said or json.dumps({"members": self.members}))
        (answers / f"{port}_readyz").write_text("ok" if self.level == FULL else "apiserver disabled")
        (answers / "6444_readyz").write_text(
            "Error from server (ServiceUnavailable): apiserver disabled"
            if trapped
            else "error: You must be logged in to the server (Unauthorized)"
        )

    def looks(self) -> int:
        """Requests to its HTTPS since it was last started."""
        return len(self._server.requests) if self._server else 0

    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().split() if path.exists() else []

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


class StubEngine:
    """The engine. `faults` may answer (status, body) instead, or do something first and return None."""

    def __init__(self, path: Path, k3s: FakeK3s) -> None:
        self.path, self.k3s = path, k3s
        self.calls: list[str] = []
        self.scripts: list[str] = []
        self.faults: list[Fault] = []
        self.id = "2" * 64
        self.starts = 0
        self.running = True
        self.restarting = False
        self.restarts = 0
        self.exit_code = 0
        self.inspected: dict[str, Any] = {
            "Args": [
                "server",
                "--config",
                str(k3s.config),
                "--node-ip=127.0.0.1",
                f"--https-listen-port={k3s.api_port}",
                "--data-dir",
                str(k3s.data),
            ],
            "Config": {"Env": ["PATH=/bin"], "Hostname": "host-of-pi1"},
            "HostConfig": {"NetworkMode": "bridge", "RestartPolicy": {"Name": "unless-stopped"}, "Tmpfs": {}},
            "Mounts": [
                {"Type": "volume", "Name": "k3s-data", "Destination": str(k3s.data), "RW": True},
                {"Type": "bind", "Source": "/srv/k3s", "Destination": str(k3s.config.parent), "RW": True},
            ],
            "NetworkSettings": {"Networks": {"net": {"IPAddress": "127.0.0.1", "GlobalIPv6Address": ""}}},
        }
        self.info: dict[str, Any] = {"SecurityOptions": ["name=seccomp"]}
        self.version = {"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Version": "20.10"}
        self._execs: dict[str, tuple[list[str], int, bytes]] = {}
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_: Any) -> None:
                """Quiet."""

            def serve(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urllib.parse.urlsplit(self.path)
                path = re.sub(r"^/v[\d.]+", "", parts.path)
                code, body = stub.answer(self.command, path, parts.query, raw)
                if isinstance(body, bytes):  # a stream: no length, ends with the connection
                    self.send_response(code)
                    self.send_header("Content-Type", "application/vnd.docker.raw-stream")
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.write(body)
                    self.close_connection = True
                    return
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                if code in (204, 304):
                    data = b""
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = serve

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Clients that give up are the point."""

        self._server = Server(str(path), Handler)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.k3s.stop()

    def boot(self) -> None:
        """Start k3s, as a start of the container does; one that ends at once is restarted by the policy."""
        self.starts += 1
        self.restarts = 0
        self.running, self.restarting = True, False
        if not self.k3s.start():
            self.restarting, self.exit_code = True, 1
            self._loop()

    def _loop(self) -> None:
        """The restart policy at work, until somebody starts it otherwise."""
        mine = self.starts

        def again() -> None:
            while self.starts == mine and self.restarts < 20:
                self.restarts += 1
                time.sleep(0.05)

        threading.Thread(target=again, daemon=True).start()

    def answer(self, method: str, path: str, query: str, raw: bytes) -> tuple[int, Any]:
        call = f"{method} {path}" + (f"?{query}" if query else "")
        self.calls.append(call)
        for fault in self.faults:
            found = fault(method, path)
            if found is not None:
                return found
        if path == "/version":
            return 200, self.version
        if path == "/info":
            return 200, self.info
        name = path.split("/")[2] if path.startswith("/containers/") else ""
        if name and name != "k3s":
            return 404, {"message": f"No such container: {name}"}
        if path == "/containers/k3s/json":
            return 200, {
                **self.inspected,
                "Id": self.id,
                "RestartCount": self.restarts,
                "State": {
                    "Status": "restarting" if self.restarting else "running" if self.running else "exited",
                    "Running": self.running,
                    "Restarting": self.restarting,
                    "ExitCode": self.exit_code,
                    "StartedAt": f"2026-09-20T10:39:{self.starts:02d}.{self.restarts:09d}Z",
                },
            }
        if path == "/containers/k3s/restart":
            self.boot()
            return 204, ""
        if path == "/containers/k3s/start":
            if self.running:
                return 304, ""
            self.boot()
            return 204, ""
        if path == "/containers/k3s/archive":
            with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
                archive.extractall(urllib.parse.parse_qs(query)["path"][0], filter="data")
            return 200, ""
        return self._exec(path, raw)

    def _exec(self, path: str, raw: bytes) -> tuple[int, Any]:
        if path == "/containers/k3s/exec":
            if not self.running or self.restarting:
                return 409, {"message": "Container k3s is restarting, wait until the container is running"}
            key = str(len(self._execs))
            self._execs[key] = (json.loads(raw)["Cmd"], 0, b"")
            return 201, {"Id": key}
        _, _, key, verb = path.split("/")
        command, code, frames = self._execs[key]
        if verb == "json":
            return 200, {"ExitCode": code, "Running": False}
        self.scripts.append(command[-1])
        environment = {**os.environ, "PATH": f"{self.k3s.folder}/bin:{os.environ['PATH']}"}
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        frames = b"".join(
            bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data
            for kind, data in ((1, done.stdout), (2, done.stderr))
            if data
        )
        self._execs[key] = (command, done.returncode, frames)
        return 200, frames
