# SPDX-License-Identifier: GPL-3.0-or-later
"""Turned off server by server, with one that is dead; nothing of ours is left and no k3s was restarted."""

from __future__ import annotations

import plays
import removal
from admin_api import AdminApi
from bed import Bed, Server
from observer import identity, wait_for

DEAD = {"github_runner_cluster_regrade_dead_servers": ["server3"]}


def test_with_a_limit_only_that_servers_goes(bed: Bed, api: AdminApi, server1: Server) -> None:
    # As an earlier run leaves it that was cut off: its holder is silent, and is waited for as long as it said.
    held = {"holderIdentity": "turning-off/0a1b2c3d", "leaseDurationSeconds": 4}
    api.call("PATCH", removal.LEASE, {"spec": held})
    k3s, before = removal.k3s_started(bed), identity(bed, api)
    run = plays.playbook("disable", "--limit=server1")
    assert run.code == 0, run.output
    assert removal.on_host(server1) == []
    assert removal.in_cluster(api, removal.own(server1)) == []
    assert removal.in_cluster(api, removal.SHARED) == list(removal.SHARED)
    assert all(removal.service_runs(server) for server in bed.servers[1:])
    assert not api.call("GET", removal.LEASE)["spec"].get("holderIdentity")
    assert removal.k3s_started(bed) == k3s
    assert identity(bed, api) == before


def test_a_server_that_lives_is_not_taken_for_dead(server2: Server) -> None:
    run = plays.playbook("disable", variables=DEAD)
    assert run.code != 0, run.output
    assert "server3: it is named in github_runner_cluster_regrade_dead_servers, but its k3s runs at full" in run.output
    assert removal.service_runs(server2)


def test_a_server_that_cannot_be_reached_refuses_it(server2: Server, server3: Server) -> None:
    server3.stop_host()
    run = plays.playbook("disable")
    assert run.code != 0, run.output
    assert "server3: it cannot be reached, so at which level it runs cannot be told" in run.output, run.output
    assert "or name it in github_runner_cluster_regrade_dead_servers if it is gone for good" in run.output
    assert removal.service_runs(server2)


def test_one_that_is_named_dead_does_not(bed: Bed, api: AdminApi, server3: Server) -> None:
    wait_for("the cluster takes server3 for gone", lambda: not ready(api, "server3"), 90)
    run = plays.playbook("disable", variables=DEAD)
    assert run.code == 0, run.output
    assert [name for server in bed.servers[:2] for name in removal.on_host(server)] == []
    objects = (*removal.SHARED, *(path for server in bed.servers for path in removal.own(server)))
    assert removal.in_cluster(api, objects) == []


def ready(api: AdminApi, name: str) -> bool:
    conditions = api.node(name)["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_once_it_is_back_the_next_run_finishes_it(bed: Bed, api: AdminApi, server3: Server) -> None:
    server3.start_host()
    bed.wait_ready()
    assert removal.on_host(server3) != []
    run = plays.playbook("disable")
    assert run.code == 0, run.output
    assert removal.left_behind(bed, api) == []


def test_off_a_second_time_does_nothing_at_all() -> None:
    run = plays.playbook("disable")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(
        ("server1", "server2", "server3"), 0
    ), run.output
