# SPDX-License-Identifier: GPL-3.0-or-later
"""Pressure takes the --cluster-init server to etcd-only, the others stay, and calm brings it back by itself."""

from __future__ import annotations

from functools import partial

import observer
import plays
import scenario
from admin_api import AdminApi
from bed import Bed, Server
from cycle_checks import (
    assert_marked,
    assert_taken,
    cooldowns_kept,
    over_and_refused,
    reaches_etcd_only,
    still_counts,
)
from history import History, levels_of
from observer import wait_for
from writers import Writers

DOWN = ["full", "control-plane", "etcd-only"]
HOSTS = {"server1", "server2", "server3"}


def test_one_level_at_a_time_with_the_cooldown_between(
    server1: Server, api: AdminApi, history: History
) -> None:
    reaches_etcd_only(server1, api)
    wait_for("the watch has seen it", lambda: levels_of(history.lines(), "server1") == DOWN, 30)
    cooldowns_kept(history, "server1")


def test_the_others_see_the_same_pressure_and_stay(server2: Server, server3: Server, api: AdminApi) -> None:
    for peer in (server2, server3):
        wait_for(
            f"{peer.name} wants to step down and is refused for server1",
            partial(over_and_refused, peer, "server1"),
            60,
        )
        assert observer.label(api, peer.name) == "full"


def test_etcd_serves_on_the_stepped_server(server1: Server) -> None:
    assert observer.etcd_healthy(server1)
    assert not server1.api_answers()


def test_nothing_of_its_identity_changed_down(bed: Bed, api: AdminApi) -> None:
    assert observer.identity(bed, api) == scenario.before()["identity"]


def test_its_node_is_marked(api: AdminApi) -> None:
    assert_marked(api.node("server1"))


def test_writes_go_on(writers: Writers) -> None:
    assert_taken(writers, "while server1 is at etcd-only")


def test_the_roles_second_run_changes_nothing_at_etcd_only(api: AdminApi) -> None:
    run = plays.playbook("enable")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output
    assert observer.label(api, "server1") == "etcd-only"


def test_a_rehearsal_tells_the_truth_at_etcd_only() -> None:
    """With a limit to the very server that has no API of its own now."""
    run = plays.playbook("enable", "--check", "--diff", "--limit=server1")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == {"server1": 0}, run.output


def test_turning_off_is_refused_for_every_host_at_once(bed: Bed) -> None:
    services = {server.name: observer.started_at(server, "k3s-regrade") for server in bed.servers}
    run = plays.playbook("disable")
    assert run.code != 0
    assert "server1: its record says etcd-only" in run.output
    # The refusal is one, and ends the play for all: none came as far as the removal.
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output
    assert "Stop the service" not in run.output
    assert {server.name: observer.started_at(server, "k3s-regrade") for server in bed.servers} == services


def test_another_servers_step_is_refused_and_names_it(api: AdminApi) -> None:
    run = plays.ad_hoc("server2", "regrade_level", "level=control-plane", "--become")
    ((verdict, result),) = plays.answers(run).values()
    assert verdict == "FAILED!", run.output
    assert "server1" in str(result["msg"])
    assert observer.label(api, "server2") == "full"


def test_the_stepped_server_still_counts(bed: Bed, api: AdminApi, history: History, writers: Writers) -> None:
    server1, server2, server3 = bed.servers
    still_counts(bed, api, history, writers, stepped=server1, third=server3, left=server2)


def test_calm_brings_it_back_to_full_by_itself(bed: Bed, api: AdminApi, history: History) -> None:
    scenario.calm(bed)
    wait_for("server1 is at full", lambda: observer.at_full_again(api, "server1"), 2 * scenario.STEP_SECONDS)
    assert observer.runs_at(bed.servers[0]) == "full"
    wait_for("the watch has seen it", lambda: levels_of(history.lines(), "server1")[-1] == "full", 30)
    assert levels_of(history.lines(), "server1") == [*DOWN, "control-plane", "full"]
    cooldowns_kept(history, "server1")


def test_pods_run_there_again(server1: Server, api: AdminApi) -> None:
    scenario.runs_a_pod(api, server1, "after-the-cycle-of-server1")


def test_nothing_of_its_identity_changed(bed: Bed, api: AdminApi) -> None:
    assert observer.identity(bed, api) == scenario.before()["identity"]
