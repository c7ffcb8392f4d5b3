"""The list of API servers: its etcd key, its order, and the balancer's file made of it.

The holder of Lease kube-system/k3s-etcd writes the key from the `kubernetes` endpoints (duties.py); each
server hands the list out in random order, and its first entry becomes the default of an etcd-only server's
own balancer (measured).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from .layout import Layout, write

KEY = "k3s/apiaddresses"


def from_slices(slices: Sequence[dict[str, Any]]) -> list[str]:
    """`address:port` of every endpoint of the `kubernetes` EndpointSlices, sorted."""
    found: set[str] = set()
    for endpoints in slices:
        ports = [port["port"] for port in endpoints.get("ports") or [] if port.get("port")]
        for endpoint in endpoints.get("endpoints") or []:
            found.update(f"{address}:{port}" for address in endpoint.get("addresses", []) for port in ports)
    return sorted(found)


def order(listed: Sequence[str], node_ip: str, how: str, shuffle: random.Random | None = None) -> list[str]:
    """The list in the order it is handed out.

    Random, as in k3s; `own-first` and `own-last` (BED_APISERVERS_ORDER) make one outcome of chance certain.
    """
    shuffled = list(listed)
    (shuffle or random.Random()).shuffle(shuffled)
    if how == "random":
        return shuffled
    own = [entry for entry in shuffled if entry.rpartition(":")[0] == node_ip]
    others = [entry for entry in shuffled if entry not in own]
    return own + others if how == "own-first" else others + own


def updated(default: str, listed: Sequence[str]) -> list[str]:
    """The servers once the API tells the endpoints: the default keeps its place while it is among them.

    One that is no longer an endpoint is left for last, in case nobody else can be reached.
    """
    others = [entry for entry in listed if entry != default]
    return [default, *others] if default in listed else [*others, default]


def save(layout: Layout, default: str, listed: Sequence[str]) -> None:
    """Write agent/etc/k3s-agent-load-balancer.json, whose ServerURL tells a trap (measured)."""
    content = {"ServerURL": f"https://{default}", "ServerAddresses": list(listed)}
    write(layout.balancer_file, json.dumps(content, indent=2) + "\n")
