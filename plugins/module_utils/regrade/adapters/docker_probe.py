# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What a running k3s shows of itself without credentials, and how to read it (measured on k3s 1.34.10).

The HTTPS look from our own network, and readers of what the light probes inside the container print.
Nothing here knows Docker, and nothing decides what to do.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from ..core.levels import ETCD_ONLY, FULL
from ..core.model import Member
from .odd_json import mapping, number, parsed, text, texts

API_PORT = 6443
BALANCER_PORT = 6444  # k3s's own load balancer, on loopback
PEER_PORT = 2380  # etcd listens there on the node's address at every level
HEALTH_URL = "http://127.0.0.1:2381/health"
KUBELET_PORT = 10250
SCHEDULER_PORT = 10259
BOOTING = ""
# of /proc/net/tcp and tcp6: number, address and port here, address and port there, state (0A: listening)
LISTENING = re.compile(r"\s*[0-9]+: ([0-9A-F]{8}(?:[0-9A-F]{24})?):([0-9A-F]{4}) \S+ 0A(?:\s|$)")
NEXT_FILE = "# end of one file of the configuration"


class Look(NamedTuple):
    """One answer of `/readyz`; status 0 where there was none, and `text` says why."""

    status: int
    text: str

    @property
    def level(self) -> str:
        """The level it speaks for, BOOTING where it speaks for none."""
        if self.status in (200, 401):
            return FULL
        if self.status == 503 and "apiserver disabled" in self.text:
            return ETCD_ONLY
        return BOOTING

    def __str__(self) -> str:
        return f"{self.status} {self.text}".strip() if self.status else self.text


def look(address: str, port: int, timeout: float) -> Look:
    """GET https://address:port/readyz with no credentials; whose certificate it is does not matter here, as
    nothing is sent and only our own server's address is asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loads no authorities, which costs more than the look
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(address, port, timeout=timeout, context=context)
    try:
        connection.request("GET", "/readyz", headers={"Connection": "close"})
        answer = connection.getresponse()
        return Look(answer.status, " ".join(answer.read(4096).decode("utf-8", "replace").split()))
    except (OSError, http.client.HTTPException) as error:
        return Look(
            0, "no answer in time" if isinstance(error, socket.timeout) else str(error) or repr(error)
        )
    finally:
        connection.close()


def listeners(tables: str) -> frozenset[tuple[str, int]]:
    """(address, port) of the listening sockets in the text of /proc/net/tcp and tcp6."""
    found = set()
    for line in tables.splitlines():
        match = LISTENING.match(line)  # what is cut off or garbled is passed over
        if match:
            found.add((_address(match.group(1)), int(match.group(2), 16)))
    return frozenset(found)


def _address(text: str) -> str:
    """The kernel writes an address as 32-bit words in the machine's order, little endian where k3s runs."""
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return plain_address(str(ipaddress.ip_address(raw)))


def plain_address(text: str) -> str:
    """One spelling for an address: IPv4 mapped into IPv6 is IPv4."""
    try:
        found = ipaddress.ip_address(text.strip("[]").split("%")[0])
    except ValueError:
        return text
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def node_addresses(sockets: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """The addresses etcd listens on for its peers: this server's own."""
    return tuple(
        sorted(
            address
            for address, port in sockets
            if port == PEER_PORT
            and not ipaddress.ip_address(address).is_loopback
            and not ipaddress.ip_address(address).is_unspecified
        )
    )


def healthy(said: str) -> bool:
    """Of etcd's /health."""
    try:
        return str(mapping(parsed(said)).get("health")).lower() == "true"
    except ValueError:
        return False


def members(said: str) -> tuple[Member, ...]:
    """Of k3s's /db/info. Raises ValueError for anything else: half a list would count too few voters."""
    listed = mapping(parsed(said)).get("members")
    if not isinstance(listed, list) or not listed:
        raise ValueError("no member list")
    return tuple(_member(entry) for entry in listed)


def _member(entry: object) -> Member:
    found = mapping(entry)
    known = number(found.get("ID"))
    peers = tuple(url for url in texts(found.get("peerURLs")) if url)
    if not known or not peers:
        raise ValueError("a member without an id or a peer URL")
    for url in peers:
        urlsplit(url)  # raises ValueError: who is a peer is told by its host
    return Member(
        id=str(known),
        name=text(found.get("name")),
        peer_urls=peers,
        client_urls=texts(found.get("clientURLs")),
        learner=bool(found.get("isLearner")),
    )


def own_member(found: Iterable[Member], node_name: str, addresses: Iterable[str]) -> Member | None:
    """This server's member: by its peer address, else by its name (k3s: the node's and eight hex digits)."""
    own = {plain_address(address) for address in addresses}
    listed = tuple(found)
    for member in listed:
        if any(plain_address(urlsplit(url).hostname or "") in own for url in member.peer_urls):
            return member
    named = [member for member in listed if re.fullmatch(re.escape(node_name) + r"-[0-9a-f]{8}", member.name)]
    return named[0] if len(named) == 1 else None


def balancer_target(said: str) -> str:
    """The address a k3s load balancer's file names first, "" where it names none."""
    try:
        return plain_address(urlsplit(text(mapping(parsed(said)).get("ServerURL"))).hostname or "")
    except ValueError:
        return ""


def configuration(files: str) -> dict[str, str]:
    """Plain values of k3s's configuration files, each ended by a line NEXT_FILE; the last file wins, as in k3s,
    and a list is joined by commas. What is no mapping is passed over: k3s would not have started with it."""
    import yaml

    merged: dict[str, str] = {}
    for part in files.split(NEXT_FILE + "\n"):
        try:
            document = yaml.safe_load(part)
        except (ValueError, RecursionError, yaml.YAMLError):
            continue
        for key, value in (document if isinstance(document, dict) else {}).items():
            merged[str(key)] = (
                ",".join(str(entry) for entry in value) if isinstance(value, list) else str(value)
            )
    return merged
