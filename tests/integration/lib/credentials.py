# SPDX-License-Identifier: GPL-3.0-or-later
"""Every credential of a bed's cluster, to search for it where none may be seen. What is searched is the scenarios'."""

from __future__ import annotations

import base64
import re

from bed import Bed, Machine, Result, Server
from layout import TOKEN

KEYS = 'find /var/lib/rancher/k3s/server/tls -name \'*.key\' | while read -r f; do echo "== $f"; cat "$f"; done'


def kubeconfig(server: Server) -> str:
    """Where the role puts that of the service, on the host."""
    return f"{'/opt/regrade' if isinstance(server, Machine) else '/srv/cluster/regrade'}/kube/config"


def credentials(bed: Bed) -> dict[str, str]:
    """Name -> what must not be seen: the services' tokens, the cluster's token, node passwords, every private key."""
    found = {"the cluster's token": TOKEN}
    for server in bed.servers:
        (token,) = re.findall(r"token:\s*(\S+)", server.sh(f"cat {kubeconfig(server)}").stdout)
        found[f"{server.name}'s token"] = token
        found[f"{server.name}'s token, encoded"] = base64.b64encode(token.encode()).decode()
        found[f"{server.name}'s node password"] = server.k3s_file("/etc/rancher/node/password").stdout.strip()
        for name, key in re.findall(
            r"^== (\S+)\n-----BEGIN[^\n]*KEY-----\n(\S+)", _where_k3s_runs(server, KEYS).stdout, re.M
        ):
            found[f"{server.name}'s {name}"] = key
    assert sum(name.endswith(".key") for name in found) >= 3
    assert all(len(text) >= 16 for text in found.values())
    return found


def _where_k3s_runs(server: Server, script: str) -> Result:
    return server.sh(script) if isinstance(server, Machine) else server.docker("exec", "k3s", "sh", "-c", script)


def shown(secrets: dict[str, str], text: str) -> list[str]:
    """The names of those that the text holds."""
    return [name for name, secret in secrets.items() if secret in text]
