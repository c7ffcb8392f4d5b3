# SPDX-License-Identifier: GPL-3.0-or-later
"""Pressure takes the --cluster-init server to etcd-only, the others stay, and calm brings it back by itself."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

import observer
import plays
import pressure
import scenario
from admin_api import AdminApi, NoAnswer
from bed import Bed, Server
from history import History, in_order, levels_of
from observer import wait_for

DOWN = ["full", "control-plane", "etcd-only"]
HOSTS = {"server1", "server2", "server3"}


def reaches_etcd_only(server: Server, api: AdminApi) -> None:
    wait_for(
        f"{server.name} is at etcd-only",
        lambda: observer.label(api, server.name) == "etcd-only",
        scenario.STEP_SECONDS,
    )
    wait_for(f"{server.name} runs at etcd-only", lambda: observer.runs_at(server) == "etcd-only", 60)
    wait_for(
        f"{server.name} closed its step",
        lambda: (
            "github-runner.exadev.com/regrade-step" not in api.node(server.name)["metadata"]["annotations"]
        ),
        60,
    )


def cooldown_kept(history: History, name: str) -> None:
    """One level at a time, and between the steps at least the cooldown, by when the marks were seen."""
    lines = [line for line in in_order(history.lines()) if line["kind"] == "node" and line["name"] == name]
    ends = [
        after["time"]
        for before, after in pairwise(lines)
        if before["step"] and not after["step"]  # a step's last write takes its intent
    ]
    begins = [after["time"] for before, after in pairwise(lines) if not before["step"] and after["step"]]
    assert len(ends) >= 2
    # A watch sees a write some milliseconds late, one write more than another.
    assert begins[1] - ends[0] >= pressure.COOLDOWN_DOWN_SECONDS - 0.5


def test_one_level_at_a_time_with_the_cooldown_between(
    server1: Server, api: AdminApi, history: History
) -> None:
    reaches_etcd_only(server1, api)
    wait_for("the watch has seen it", lambda: levels_of(history.lines(), "server1") == DOWN, 30)
    cooldown_kept(history, "server1")


def test_the_others_see_the_same_pressure_and_stay(server2: Server, server3: Server, api: AdminApi) -> None:
    for peer in (server2, server3):
        report = json.loads(peer.sh("regrade status --json").stdout)
        assert report["level"] == "full"
        assert report["reading"]["mem_available"] < 600 * 2**20
        assert observer.label(api, peer.name) == "full"


def test_etcd_serves_on_the_stepped_server(server1: Server) -> None:
    assert observer.etcd_healthy(server1)
    assert not server1.api_answers()


def test_nothing_of_its_identity_changed_down(bed: Bed, api: AdminApi) -> None:
    assert observer.identity(bed, api) == scenario.before()["identity"]


def test_its_node_is_marked(api: AdminApi) -> None:
    node = api.node("server1")
    assert node["spec"]["unschedulable"] is True
    taints = {(taint["key"], taint.get("value"), taint["effect"]) for taint in node["spec"]["taints"]}
    assert ("github-runner.exadev.com/regrade-level", "etcd-only", "NoSchedule") in taints


def test_writes_go_on(api: AdminApi) -> None:
    api.write_config_map("written-meanwhile", "while server1 was at etcd-only")


def test_the_roles_second_run_changes_nothing_at_etcd_only(api: AdminApi) -> None:
    run = plays.playbook("enable")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output
    assert observer.label(api, "server1") == "etcd-only"


def test_a_rehearsal_tells_the_truth_at_etcd_only() -> None:
    run = plays.playbook("enable", "--check", "--diff")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output


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


def test_the_stepped_server_still_counts(bed: Bed, api: AdminApi, history: History) -> None:
    """With a third stopped the cluster takes writes, with the stepped one stopped as well it does not."""
    server1, server2, server3 = bed.servers
    server3.docker("stop", "k3s", timeout=120)
    wait_for(
        "a write is taken by two of three",
        lambda: api.write_config_map("with-one-stopped", "yes") or True,
        30,
    )
    history.mark(outage=True)
    server1.docker("stop", "k3s", timeout=120)
    for attempt in range(3):
        with pytest.raises(NoAnswer):
            api.write_config_map("with-two-stopped", f"attempt {attempt}", timeout=8, servers=(server2,))
    server1.docker("start", "k3s")
    server3.docker("start", "k3s")
    wait_for("writes are taken again", lambda: api.write_config_map("with-all-back", "yes") or True, 120)
    wait_for("server2 and server3 serve", lambda: server2.api_answers() and server3.api_answers(), 120)
    wait_for("server1 is at its recorded level", lambda: observer.runs_at(server1) == "etcd-only", 60)
    wait_for(
        "etcd is healthy on all", lambda: all(observer.etcd_healthy(server) for server in bed.servers), 60
    )
    history.catch_up(api)
    history.mark(outage=False)
    assert observer.identity(bed, api) == scenario.before()["identity"]
    assert observer.label(api, "server1") == "etcd-only"


def test_calm_brings_it_back_to_full_by_itself(bed: Bed, api: AdminApi, history: History) -> None:
    scenario.calm(bed)
    wait_for("server1 is at full", lambda: observer.at_full_again(api, "server1"), 2 * scenario.STEP_SECONDS)
    assert observer.runs_at(bed.servers[0]) == "full"
    wait_for("the watch has seen it", lambda: levels_of(history.lines(), "server1")[-1] == "full", 30)
    assert levels_of(history.lines(), "server1") == [*DOWN, "control-plane", "full"]


def test_pods_run_there_again(server1: Server, api: AdminApi) -> None:
    scenario.runs_a_pod(api, server1, "after-the-cycle-of-server1")


def test_what_was_written_is_there(bed: Bed, api: AdminApi) -> None:
    assert api.config_map(scenario.WRITTEN_BEFORE) == "before any step"
    assert api.config_map("written-meanwhile") == "while server1 was at etcd-only"
    assert api.config_map("with-one-stopped") == "yes"
    assert observer.identity(bed, api) == scenario.before()["identity"]
