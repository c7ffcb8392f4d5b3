# SPDX-License-Identifier: GPL-3.0-or-later
"""An API server that answers by script over real HTTPS, and the certificates it needs.

It holds no objects: what a real API server does with a request is tested on the bed. Here it is what a
client must survive: refusals, nonsense, silence.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.timezone.utc)
DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority of one test."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stub CA")])
        self.certificate = self._sign(
            self.name, self.key.public_key(), True, None, start=NOW - DAY, end=NOW + DAY
        )

    def _sign(
        self, subject: x509.Name, public: Any, ca: bool, san: str | None, *, start: Any, end: Any
    ) -> Any:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        if san:
            names = [x509.IPAddress(ipaddress.ip_address(san))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def pem(self) -> str:
        return str(self.certificate.public_bytes(serialization.Encoding.PEM), "ascii")

    def server(
        self, folder: Path, address: str = "127.0.0.1", start: Any = NOW - DAY, end: Any = NOW + DAY
    ) -> Path:
        """A file with key and certificate of a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stub")])
        certificate = self._sign(subject, key.public_key(), False, address, start=start, end=end)
        path = folder / f"server-{time.monotonic_ns()}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        return path

    def context(self, ca: str) -> ssl.SSLContext:
        """As a client makes it of a PEM. Raises SSLError."""
        return ssl.create_default_context(cadata=ca)

    def kubeconfig(self, path: Path, token: str = "t0ken-of-ours") -> Path:
        """What the role writes; the server in it must never be used."""
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "regrade",
                    "contexts": [{"name": "regrade", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [
                        {
                            "name": "c",
                            "cluster": {
                                "server": "https://localhost:8080",
                                "certificate-authority-data": base64.b64encode(self.pem().encode()).decode(),
                            },
                        }
                    ],
                    "users": [{"name": "u", "user": {"token": token}}],
                }
            )
        )
        return path


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Reply(NamedTuple):
    """One answer. `trickle` seconds pass between the bytes of its body, `late` before it begins; `short` ends
    the connection half-way; `hang` never ends the body."""

    status: int = 200
    body: Any = None
    late: float = 0.0
    trickle: float = 0.0
    short: bool = False
    hang: bool = False
    drop: bool = False  # the connection, with no answer at all


def status(code: int, message: str, **more: Any) -> Reply:
    """What a real API server says with an error."""
    return Reply(code, {"kind": "Status", "status": "Failure", "message": message, "code": code, **more})


class StubApi:
    """Answers from `script`, a function of the request."""

    def __init__(
        self,
        pem: Path | None,
        script: Callable[[Request], Reply],
        port: int = 0,
        clients: str = "",
        *,
        host: str = "127.0.0.1",
    ) -> None:
        self.host = host
        self.requests: list[Request] = []
        self.closing = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or each body waits 40 ms for its headers to be acknowledged
            timeout = 10

            def log_message(self, *_: Any) -> None:
                """Quiet."""

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                request = Request(
                    self.command, self.path, dict(self.headers), json.loads(raw) if raw else None
                )
                stub.requests.append(request)
                reply = script(request)
                if stub.closing.wait(reply.late):
                    return
                if reply.drop:
                    self.close_connection = True
                    return
                body = (
                    reply.body.encode()
                    if isinstance(reply.body, str)
                    else json.dumps(reply.body or {}).encode()
                )
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if reply.short:
                    body = body[: len(body) // 2]
                    self.close_connection = True
                if reply.trickle:
                    for at in range(len(body)):
                        if stub.closing.wait(reply.trickle):
                            return
                        self.wfile.write(body[at : at + 1])
                elif reply.hang:
                    self.wfile.write(body[:1000])
                    self.wfile.flush()
                    stub.closing.wait(30)
                else:
                    self.wfile.write(body)

            do_GET = do_PUT = do_PATCH = do_POST = answer

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Clients that give up are the point."""

        self._server = Server((host, port), Handler)
        if pem is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem)
            if clients:  # only who shows a certificate of this authority is served
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(cadata=clients)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
