# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What a host shows of its k3s server before regrading is turned on, whatever runs it: pressure, addresses, limits,
and which other servers' APIs it reaches.

Runs on the target, with the standard library alone, and only reads. Nothing is judged here (`plugin_utils` does), and
nothing that may hold a secret is read: no arguments, no environment, no configuration of k3s.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import ipaddress
import os
import posixpath
import re
import socket
import ssl
from typing import Any, Callable, Dict, List, Tuple
from urllib.parse import urlsplit

API_PORT = 6443
CGROUPS = "/sys/fs/cgroup"
UNITS = "/etc/systemd/system"
# OpenSSL's codes for a certificate that is good and another one's: of a name, of an address.
OTHER_NAME = (62, 64)
# Of an authority that is not the cluster's.
OTHER_AUTHORITY = (2, 18, 19, 20, 21)


def read_text(path: str) -> Tuple[str, str]:
    """A file's text and why it could not be read, one of them empty."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(), ""
    except OSError as error:
        return "", f"{path}: {error.strerror or error}"


def pressure(path: str) -> Dict[str, Any]:
    """What the service will read."""
    text, error = read_text(path)
    return {"pressure": text, "pressure_error": error}


def memory_total(meminfo: str) -> int:
    """Bytes, 0 where it is not told."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.M)
    return int(found.group(1)) << 10 if found else 0


def local_addresses(fib_trie: str, if_inet6: str) -> List[str]:
    """The addresses of a network, but for loopback and link-local ones, from the kernel's own tables."""
    found = set()
    address = ""
    for line in fib_trie.splitlines():
        leaf = re.search(r"\|-- ([0-9.]+)$", line)
        if leaf:
            address = leaf.group(1)
        elif line.strip() == "/32 host LOCAL" and address:
            found.add(address)
    for line in if_inet6.splitlines():
        digits = line.split(" ", 1)[0]
        if re.fullmatch(r"[0-9a-f]{32}", digits):
            found.add(str(ipaddress.IPv6Address(bytes.fromhex(digits))))
    return sorted(text for text in found if not _at_home(text))


def _at_home(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return address.is_loopback or address.is_link_local


def addresses(pid: int) -> List[str]:
    """Those of the network that process is in."""
    return local_addresses(*(read_text(f"/proc/{pid}/net/{name}")[0] for name in ("fib_trie", "if_inet6")))


def cgroup_of(text: str) -> str:
    """The cgroup (version 2) in the text of /proc/PID/cgroup, "" where there is none."""
    found = re.search(r"^0::(/.*)$", text, re.M)
    return found.group(1) if found else ""


def version_2(root: str = CGROUPS) -> bool:
    """Whether memory is counted by version 2. Where version 1 counts it, a process may have a cgroup of version 2 too
    (systemd's hybrid hierarchy), with neither limits nor a pressure."""
    return os.path.exists(posixpath.join(root, "cgroup.controllers"))


def memory_limits(cgroup: str, read: Callable[[str], Tuple[str, str]] = read_text) -> List[Dict[str, Any]]:
    """The limits on a cgroup and on those above it, the innermost first: {"cgroup": ..., "bytes": ...}."""
    found = []
    while cgroup not in ("", "/"):
        numbers = [
            int(text)
            for name in ("memory.max", "memory.high")
            for text in [read(f"{CGROUPS}{cgroup}/{name}")[0].strip()]
            if text.isdigit()
        ]
        if numbers:
            found.append({"cgroup": cgroup, "bytes": min(numbers)})
        cgroup = posixpath.dirname(cgroup)
    return found


def of_process(pid: int) -> Dict[str, Any]:
    """What the kernel tells of a server by one of its processes; pid 0: it does not run."""
    cgroup = cgroup_of(read_text(f"/proc/{pid}/cgroup")[0]) if pid and version_2() else ""
    return {
        "addresses": addresses(pid) if pid else [],
        "cgroup": cgroup,
        "memory_limits": memory_limits(cgroup),
    }


def regrade_units(folder: str = UNITS) -> List[str]:
    """Every unit of systemd with regrading in its name, whoever made it; none where there is no systemd."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(".service") and "regrade" in name)


def compose_folder(path: str) -> str:
    """That folder where a Compose service is defined in it, else ""."""
    return path if path and os.path.exists(posixpath.join(path, "compose.yaml")) else ""


# --- Other servers' APIs, as the service will call them: from this host's network. ---


def reach(urls: List[str], authority: str, timeout: float) -> List[Dict[str, Any]]:
    """Each URL with what came of it: the addresses it leads to, a problem in one word ("" for none) and its words."""
    if not urls:
        return []
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(urls)) as pool:
        return list(pool.map(lambda url: _reach(url, authority, timeout), urls))


def _reach(url: str, authority: str, timeout: float) -> Dict[str, Any]:
    found: Dict[str, Any] = {"url": url, "addresses": [], "problem": "", "words": ""}
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or API_PORT
        found["addresses"] = sorted(
            {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        )
    except (socket.gaierror, ValueError) as error:
        return {**found, "problem": "name", "words": str(getattr(error, "strerror", None) or error)}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # which checks the certificate and whose it is
    try:
        context.load_verify_locations(cadata=authority)
    except (ssl.SSLError, ValueError):
        return {**found, "problem": "authority", "words": "the cluster names no certificate authority"}
    connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    try:
        connection.request("GET", "/readyz", headers={"Connection": "close"})
        answer = connection.getresponse()
        said = " ".join(answer.read(4096).decode("utf-8", "replace").split())
    except ssl.SSLCertVerificationError as error:
        return {**found, "problem": _certificate_problem(error.verify_code), "words": error.verify_message}
    except socket.timeout:
        return {**found, "problem": "network", "words": f"no answer within {timeout:g} s"}
    except (OSError, http.client.HTTPException) as error:
        return {
            **found,
            "problem": "network",
            "words": str(getattr(error, "strerror", None) or error or repr(error)),
        }
    finally:
        connection.close()
    # Without credentials: 401, or 200 and 403 where the anonymous may ask.
    if answer.status not in (200, 401, 403):
        return {**found, "problem": "answer", "words": f"{answer.status} {said[:120]}".strip()}
    return found


def _certificate_problem(code: int) -> str:
    if code in OTHER_NAME:
        return "certificate"
    return "authority" if code in OTHER_AUTHORITY else "validity"
