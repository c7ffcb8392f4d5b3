"""The supervisor's own paths of the https-listen-port, served on a unix socket behind the front.

Who may ask what follows the k3s source, release-1.34, pkg/server/handlers/router.go. The front says whether
the client is on loopback; it serves everything else itself.
"""

from __future__ import annotations

import base64
import hmac
import json
import socketserver
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from . import addresses, https
from .etcdclient import EtcdClient
from .layout import Layout
from .member import JOIN_PATH
from .settings import Settings

LOOPBACK_HEADER = "X-Bed-Loopback"


class Supervisor:
    """The answers. Each is a status, a content type and a body."""

    def __init__(self, settings: Settings, layout: Layout, secret: str, etcd: EtcdClient) -> None:
        self._settings = settings
        self._layout = layout
        self._secret = secret
        self._etcd = etcd

    def _user(self, authorization: str) -> str:
        """`server` or `node` when the basic credentials hold the token, else nothing."""
        try:
            user, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        except ValueError:
            return ""
        right = hmac.compare_digest(password.encode(), self._secret.encode())
        return user if right and user in {"server", "node"} else ""

    def addresses(self) -> list[str]:
        """The list of API servers in the order it is handed out; https.Failure when etcd cannot be read."""
        kept = self._etcd.get(addresses.KEY)
        listed = json.loads(kept) if kept else []
        return addresses.order(listed, self._settings.node_ip, self._settings.order)

    def answer(
        self, method: str, path: str, authorization: str, loopback: bool, body: bytes
    ) -> tuple[int, Any]:
        """The status and the body: text as it is, anything else as JSON."""
        user = self._user(authorization)
        if path == "/ping":
            return 200, "pong"
        if path == "/cacerts":
            return 200, (self._layout.tls / "server-ca.crt").read_text()
        try:
            if path == "/db/info":
                if not loopback and user != "server":
                    return 403, "Forbidden\n"
                return 200, {"members": [member.as_db_info() for member in self._etcd.members()]}
            if path == "/v1-k3s/apiservers":
                return (200, self.addresses()) if user else (403, "Forbidden\n")
            if path == JOIN_PATH and method == "POST":
                if user != "server":
                    return 403, "Forbidden\n"
                self._etcd.add_learner(json.loads(body)["peerURL"])
                return 200, {}
        except https.Failure as failure:
            return 500, f"{failure}\n"
        return 404, "404 page not found\n"


def serve(supervisor: Supervisor, socket_path: Path) -> Callable[[], None]:
    """The loop that serves the socket, to be run in a thread; the socket is there on return."""

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "front"

        def log_message(self, *_: Any) -> None:
            """k3s logs no requests either."""

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = supervisor.answer(
                self.command,
                self.path.partition("?")[0],
                self.headers.get("Authorization", ""),
                self.headers.get(LOOPBACK_HEADER) == "true",
                body,
            )
            kind = "text/plain" if isinstance(content, str) else "application/json"
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _respond

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    socket_path.unlink(missing_ok=True)
    return Server(str(socket_path), Handler).serve_forever
