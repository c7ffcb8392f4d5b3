# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server and its cluster are, read without the product's help: members, Node, password, level.

Reads only. What must hold of it is for the tests to say.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional, TypeVar

from admin_api import AdminApi, NoAnswer
from bed import Bed, BedError, Server
from layout import TOKEN

LEVEL = "github-runner.exadev.com/regrade-level"
# As the bed's inventory leaves it at the role's default.
ETCD_ONLY_PORT = 16443

T = TypeVar("T")


def wait_for(what: str, probe: Callable[[], Optional[T]], seconds: float, pause: float = 1) -> T:
    """The probe's first answer that is neither None nor False. An answer that cannot be had is none yet."""
    until = time.monotonic() + seconds
    said = ""
    while True:
        try:
            found = probe()
            said = ""
        except (NoAnswer, BedError, OSError) as error:
            found, said = None, f" ({error})"
        if found is not None and found is not False:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds:.0f} s: {what}{said}")
        time.sleep(pause)


def etcd_healthy(server: Server) -> bool:
    said = server.etcd_says()
    return bool(said) and json.loads(said).get("health") == "true"


def members(bed: Bed) -> dict[str, dict[str, Any]]:
    """Member id -> name and peer URLs, from the first server whose etcd lists them."""
    for server in bed.servers:
        for port in (6443, ETCD_ONLY_PORT):
            found = server.kubectl(
                "get",
                "--raw",
                "/db/info",
                "--request-timeout=5s",
                f"--server=https://127.0.0.1:{port}",
                check=False,
                timeout=20,
            )
            if found.returncode == 0:
                return {
                    str(member["ID"]): {"name": member["name"], "peer_urls": member["peerURLs"]}
                    for member in json.loads(found.stdout)["members"]
                }
    raise NoAnswer("no server's etcd lists its members")


def runs_at(server: Server) -> Optional[str]:
    """`full`, `etcd-only` or None (booting, or away), by what its own ports say to a caller without credentials."""
    for port, status in (
        (6443, {401: "full", 200: "full", 503: "etcd-only"}),
        (ETCD_ONLY_PORT, {503: "etcd-only"}),
    ):
        # Who answers is told by the address; the bed's certificate authority is its own.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(server.address, port, timeout=3, context=context)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            text = answer.read(300).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
        if answer.status == 503 and "disabled" not in text:
            return None
        return status.get(answer.status)
    return None


def listed_apis(asked: Server) -> list[str]:
    """The addresses a booting server is given: the list in etcd, as this server's supervisor tells it to nodes."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(asked.address, 6443, timeout=5, context=context)
    credentials = base64.b64encode(f"node:{TOKEN}".encode()).decode()
    try:
        connection.request("GET", "/v1-k3s/apiservers", headers={"Authorization": f"Basic {credentials}"})
        return [entry.rpartition(":")[0] for entry in json.loads(connection.getresponse().read())]
    finally:
        connection.close()


def identity(bed: Bed, api: AdminApi, of: Optional[Sequence[Server]] = None) -> dict[str, Any]:
    """All that must never change: members, and of each server (or of those) its Node and its node password."""
    nodes = api.nodes()
    found: dict[str, Any] = {"members": members(bed)}
    for server in of or bed.servers:
        meta = nodes[server.name]["metadata"]
        secret = api.call("GET", f"/api/v1/namespaces/kube-system/secrets/{server.name}.node-password.k3s")
        password = server.k3s_file("/etc/rancher/node/password").stdout
        found[server.name] = {
            "uid": meta["uid"],
            "created": meta["creationTimestamp"],
            # Enough to compare, and nothing to read in a report.
            "password": hashlib.sha256(password.encode()).hexdigest(),
            "password_secret": hashlib.sha256(
                json.dumps(secret["data"], sort_keys=True).encode()
            ).hexdigest(),
            "password_secret_uid": secret["metadata"]["uid"],
        }
    return found


def started_at(server: Server, container: str = "k3s") -> str:
    """Of its last start: k3s's, whatever runs it, or a container's."""
    if container == "k3s":
        return server.k3s_started()
    return server.docker(
        "inspect", "--type=container", "--format={{.Id}} {{.State.StartedAt}}", container
    ).stdout.strip()


def label(api: AdminApi, name: str) -> str:
    """The level the Node's label names, `full` without one."""
    return str((api.node(name)["metadata"].get("labels") or {}).get(LEVEL, "full"))


def at_full_again(api: AdminApi, name: str) -> bool:
    """Whether nothing of a step is left on the Node, and it is Ready."""
    node = api.node(name)
    conditions = {item["type"]: item["status"] for item in node["status"]["conditions"]}
    ours = [
        key
        for key in node["metadata"].get("annotations") or {}
        if key.startswith("github-runner.exadev.com/")
    ]
    return (
        conditions.get("Ready") == "True"
        and LEVEL not in (node["metadata"].get("labels") or {})
        and not node["spec"].get("unschedulable")
        and not [
            taint
            for taint in node["spec"].get("taints") or []
            if taint["key"].startswith(("github-runner", "node.k"))
        ]
        and not ours
    )
