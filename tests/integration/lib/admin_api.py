# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster's API as its administrator sees it, or a server's own account, through whichever server answers.
Standard library only.

For checks and watches; nothing of the product is imported and none of its decisions are repeated here.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from bed import Bed, Server

PORT = 6443


class NoAnswer(Exception):
    """No server's API gave an answer, or not a good one; `status` is the HTTP status, 0 where there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotSent(NoAnswer):
    """No connection could be made: whatever was to be asked was not."""


class Connection:
    """A connection to one server's own API, made at its first call and again after one that failed."""

    def __init__(self, server: Server, context: ssl.SSLContext, timeout: float = 5, token: str = "") -> None:
        self.server = server
        self._token = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = http.client.HTTPSConnection(server.address, PORT, timeout=timeout, context=context)

    def close(self) -> None:
        self._http.close()

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
        """Raises NotSent, or NoAnswer."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            if self._http.sock is None:
                self._http.connect()
        except OSError as error:
            self._http.close()
            raise NotSent(f"{self.server.name}: {error or type(error).__name__}") from error
        try:
            self._http.request(
                method,
                path,
                json.dumps(body) if body is not None else None,
                {"Content-Type": kind, **self._token},
            )
            answer = self._http.getresponse()
            text = answer.read().decode()
            if answer.status >= 300:
                said = f"{self.server.name}: {method} {path}: {answer.status} {_said(text)}"
                raise NoAnswer(said, answer.status)
            document = json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._http.close()
            raise NoAnswer(f"{self.server.name}: {error or type(error).__name__}") from error
        assert isinstance(document, dict)
        return document


class AdminApi:
    """Calls that fall over from one server's API to the next."""

    def __init__(self, bed: Bed) -> None:
        self.servers = bed.servers
        self._context = _administrator(bed)

    def connection(self, server: Server, timeout: float = 5) -> Connection:
        """For many calls to one server."""
        return Connection(server, self._context, timeout)

    def through(
        self,
        server: Server,
        method: str,
        path: str,
        body: Optional[Mapping[str, Any]] = None,
        timeout: float = 5,
    ) -> dict[str, Any]:
        """One call to one server's own API. Raises NoAnswer."""
        connection = self.connection(server, timeout)
        try:
            return connection.call(method, path, body)
        finally:
            connection.close()

    def call(
        self,
        method: str,
        path: str,
        body: Optional[Mapping[str, Any]] = None,
        timeout: float = 5,
        servers: Optional[tuple[Server, ...]] = None,
    ) -> dict[str, Any]:
        """One call to the first server that gives a good answer, or says why it is not one (a 4xx)."""
        said = []
        for server in servers or self.servers:
            try:
                return self.through(server, method, path, body, timeout)
            except NoAnswer as error:
                if 400 <= error.status < 500:
                    raise
                said.append(str(error))
        raise NoAnswer("; ".join(said))

    def watch(
        self, server: Server, path: str, resource_version: str, seconds: int
    ) -> Iterator[dict[str, Any]]:
        """Events after the resourceVersion for about so many seconds, bookmarks included. Raises NoAnswer."""
        connection = http.client.HTTPSConnection(
            server.address, PORT, timeout=seconds + 5, context=self._context
        )
        sign = "&" if "?" in path else "?"
        try:
            connection.request(
                "GET",
                f"{path}{sign}watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={resource_version}",
            )
            answer = connection.getresponse()
            if answer.status >= 300:
                raise NoAnswer(
                    f"{server.name}: watch {path}: {answer.status} {answer.read(200)!r}", answer.status
                )
            while True:
                line = answer.readline()
                if not line:
                    return
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise NoAnswer(
                        f"{server.name}: {event['object'].get('message')}",
                        int(event["object"].get("code", 0)),
                    )
                yield event
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswer(f"{server.name}: {error or type(error).__name__}") from error
        finally:
            connection.close()

    # -- what the checks ask for

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["metadata"]["name"]: node for node in self.call("GET", "/api/v1/nodes")["items"]}

    def node(self, name: str) -> dict[str, Any]:
        return self.call("GET", f"/api/v1/nodes/{name}")


class AccountApi(AdminApi):
    """The same calls with what the role gave that server's service: its kubeconfig as it lies on the host."""

    def __init__(self, bed: Bed, server: Server) -> None:
        self.servers = bed.servers
        text = server.sh("cat /srv/cluster/regrade/kube/config").stdout
        (authority,) = re.findall(r"certificate-authority-data:\s*(\S+)", text)
        (self.token,) = re.findall(r"token:\s*(\S+)", text)
        self._context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())

    def connection(self, server: Server, timeout: float = 5) -> Connection:
        return Connection(server, self._context, timeout, self.token)


def _said(text: str) -> str:
    """The words of an answer that is not a good one: a Status has a message."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, TypeError, KeyError):
        return text[:200]


def _administrator(bed: Bed, seconds: float = 60) -> ssl.SSLContext:
    """The TLS context of k3s's own administrator, from the kubeconfig k3s writes."""
    until = time.monotonic() + seconds
    while True:
        for server in bed.servers:
            found = server.k3s_file("/etc/rancher/k3s/k3s.yaml", check=False)
            fields = dict(
                re.findall(
                    r"(certificate-authority-data|client-certificate-data|client-key-data):\s*(\S+)",
                    found.stdout,
                )
            )
            if found.returncode == 0 and len(fields) == 3:
                decoded = {key: base64.b64decode(value).decode() for key, value in fields.items()}
                context = ssl.create_default_context(cadata=decoded["certificate-authority-data"])
                with tempfile.TemporaryDirectory() as folder:
                    pair = Path(folder) / "pair.pem"
                    pair.touch(mode=0o600)
                    pair.write_text(
                        decoded["client-certificate-data"] + decoded["client-key-data"], encoding="ascii"
                    )
                    context.load_cert_chain(pair)
                return context
        if time.monotonic() > until:
            raise NoAnswer("no server of the bed has an administrator's kubeconfig: is the bed up?")
        time.sleep(1)
