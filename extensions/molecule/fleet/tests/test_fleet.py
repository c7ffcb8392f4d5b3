# SPDX-License-Identifier: GPL-3.0-or-later
"""One server is stepped down by hand and another one is stopped, and comes back with another node password.

What waits, heals and alerts must tell the two apart. The story goes on from test to test.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import observer
import plays
from admin_api import AdminApi, NoAnswer
from bed import Server
from observer import wait_for
from plays import Run
from scenario import step

FOLDER = Path(__file__).resolve().parents[1]
SECRETS = "/api/v1/namespaces/kube-system/secrets"
EVENTS = "/api/v1/namespaces/default/events"
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}


def play(name: str, *arguments: str) -> Run:
    """One of this scenario's own plays."""
    return plays.command("ansible-playbook", str(FOLDER / f"{name}.yml"), *arguments)


def waits(seconds: int) -> str:
    return f"--extra-vars=github_runner_cluster_regrade_wait_for_nodes_seconds={seconds}"


def ready(api: AdminApi, name: str) -> str:
    conditions = api.node(name)["status"]["conditions"]
    return str(next(item["status"] for item in conditions if item["type"] == "Ready"))


def is_unknown(api: AdminApi, name: str) -> bool:
    """Its kubelet has fallen silent."""
    return ready(api, name) == "Unknown"


def secret_uid(api: AdminApi, server: Server) -> str:
    try:
        return str(api.call("GET", f"{SECRETS}/{server.name}.node-password.k3s")["metadata"]["uid"])
    except NoAnswer as error:
        if error.status != 404:
            raise
        return ""


def say_refused(api: AdminApi, server: Server) -> None:
    """The Event of a refused password, as k3s makes it, whatever became of it."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = (
        f"Deferred node password secret validation failed: unable to verify hash for node '{server.name}': "
    )
    api.call(
        "POST",
        EVENTS,
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{server.name}."},
            "involvedObject": {"kind": "Node", "name": server.name, "uid": server.name},
            "reason": "NodePasswordValidationFailed",
            "message": f"{text}hash does not match",
            "type": "Warning",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        },
    )


def heartbeat(server: Server) -> dict[str, dict[str, Any]]:
    """Node name -> what the command on that server tells of it."""
    report = json.loads(server.sh("regrade heartbeat").stdout)
    assert (report["version"], report["server"]) == (1, server.name)
    return {node["name"]: node for node in report["nodes"]}


def refused(server: Server) -> bool:
    said = server.docker("logs", "--tail=200", "k3s")
    return "Node password rejected" in said.stdout + said.stderr


UIDS: dict[str, str] = {}  # the Secret of each node's password, as it was before


def test_one_server_is_stepped_down_and_another_one_stopped(
    api: AdminApi, server1: Server, server2: Server, server3: Server
) -> None:
    for server in (server1, server2, server3):
        UIDS[server.name] = secret_uid(api, server)
        assert UIDS[server.name]
    step(server3, "etcd-only")
    server2.docker("stop", "--time=60", "k3s", timeout=90)
    server2.sh("rm /srv/cluster/node/password")
    for server in (server2, server3):
        wait_for(f"{server.name} is not Ready", partial(is_unknown, api, server.name), 90)


def test_the_heartbeat_names_the_level_and_since_when(server3: Server) -> None:
    told = heartbeat(server3)  # server1's is the only API, and each server asks the others'
    names = ("server1", "server2", "server3")
    assert [told[name]["ready"] for name in names] == [True, False, False]
    assert [told[name]["regrade_level"] for name in names] == [None, None, "etcd-only"]
    assert told["server3"]["below_full_since"] < told["server3"]["ready_since"]
    assert told["server3"]["hold"] is True
    assert told["server2"]["below_full_since"] is None


def test_the_alert_is_of_the_stopped_server_alone() -> None:
    run = plays.playbook("fleet_alert")
    assert run.code == 2, run.output
    assert "server2 is not Ready since" in run.output
    assert "server3" not in run.output.partition("fatal:")[2].partition("PLAY RECAP")[0]


def test_the_wait_gives_up_on_the_stopped_server_and_names_it() -> None:
    run = play("wait", waits(5), "--limit=server1")
    assert run.code == 2, run.output
    assert "Not Ready after 5 s: server2 (not Ready since" in run.output
    assert "server2: neither its own log nor an Event tells that its password was refused" in run.output
    assert "server3: it is stepped down to etcd-only" in run.output


def test_a_password_that_is_really_refused_is_told_and_left_in_check_mode(
    api: AdminApi, server1: Server, server2: Server, server3: Server
) -> None:
    server2.docker("start", "k3s")
    wait_for("server2's password is refused", lambda: refused(server2), 90)
    # The other two of the field: k3s says the same of a server without an agent, and of one that is well.
    say_refused(api, server1)
    say_refused(api, server3)
    run = play("heal", "--check", "--diff", "--limit=server1")
    assert run.code == 0, run.output
    assert "server2: its password was refused at" in run.output
    assert "server1:" not in run.output
    assert run.hosts["server1"].changed == 1, run.output
    assert secret_uid(api, server2) == UIDS["server2"]


def test_the_wait_heals_it_and_passes_while_the_stepped_down_server_is_not_ready(
    api: AdminApi, server1: Server, server2: Server, server3: Server
) -> None:
    run = play("wait", waits(30), "-v")
    assert run.code == 0, run.output
    assert "JDE6" not in run.output, "the hash of a password, which begins with $1: in base64"
    assert "Wait for server2 (not Ready since" in run.output
    assert ready(api, "server2") == "True"
    assert ready(api, "server3") == "Unknown"
    assert secret_uid(api, server2) not in ("", UIDS["server2"])
    assert [secret_uid(api, server) for server in (server1, server3)] == [UIDS["server1"], UIDS["server3"]]


def test_a_second_run_changes_nothing_and_leaves_the_stepped_down_server_alone(
    api: AdminApi, server3: Server
) -> None:
    for name in ("wait", "heal"):
        run = play(name, waits(5), "--limit=server1")
        assert run.code == 0, run.output
        assert all(result.changed == 0 for result in run.hosts.values()), run.output
    assert "server3: it is stepped down to etcd-only" in run.output
    assert secret_uid(api, server3) == UIDS["server3"]


def test_the_alert_is_silent_until_it_has_been_below_full_for_too_long() -> None:
    run = plays.playbook("fleet_alert")
    assert run.code == 0, run.output
    assert "3 Nodes, no alert" in run.output
    run = plays.playbook("fleet_alert", variables={"regrade_below_full_seconds": 60})
    assert run.code == 2, run.output
    assert "server3 is at etcd-only, below full for" in run.output


def test_the_cluster_is_read_by_a_module() -> None:
    verdict, result = plays.answers(
        plays.ad_hoc("server3", "regrade_cluster_info", "", "--become", "--check")
    )["server3"]
    assert verdict == "SUCCESS", result
    cluster = result["cluster"]
    assert isinstance(cluster, dict)
    assert [node["regrade_level"] for node in cluster["nodes"]] == [None, None, "etcd-only"]


def test_back_at_full_a_taint_that_keeps_its_pods_away_is_named(api: AdminApi, server3: Server) -> None:
    taints = api.node("server3")["spec"]["taints"]
    api.call("PATCH", "/api/v1/nodes/server3", {"spec": {"taints": [*taints, OUT_OF_SERVICE]}})
    words = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    try:
        assert words in json.loads(step(server3, "full").stdout)["message"]
        assert heartbeat(server3)["server3"]["foreign_taints"] == [words]
    finally:
        kept = [
            taint for taint in api.node("server3")["spec"]["taints"] if taint["key"] != OUT_OF_SERVICE["key"]
        ]
        api.call("PATCH", "/api/v1/nodes/server3", {"spec": {"taints": kept or None}})
    wait_for("nothing of the step is left", lambda: observer.at_full_again(api, "server3"), 60)
