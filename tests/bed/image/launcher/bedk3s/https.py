"""One JSON request over TLS or plain HTTP. No retries and no meaning: callers decide what an answer says."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Failure(Exception):
    """The request was not answered, or not well. `status` is 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def context(ca: Path, client: Path | None = None) -> ssl.SSLContext:
    """TLS that trusts one authority and, with `client`, shows that certificate."""
    made = ssl.create_default_context(cafile=str(ca))
    if client is not None:
        made.load_cert_chain(client.with_suffix(".crt"), client.with_suffix(".key"))
    return made


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def request(
    method: str,
    url: str,
    *,
    tls: ssl.SSLContext | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 5.0,
) -> Any:
    """The answer's JSON (its text where it is none); Failure on anything but a 2xx. Time-out in seconds."""
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(host, port, context=tls, timeout=timeout)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    sent = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise Failure(f"{method} {url}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if not 200 <= response.status < 300:
        raise Failure(f"{method} {url}: {response.status}: {text.strip()[:300]}", response.status)
    try:
        return json.loads(text)
    except ValueError:
        return text
