# SPDX-License-Identifier: GPL-3.0-or-later
"""Pressure takes the --cluster-init server to etcd-only, its pods are gone, and calm brings it back by itself."""

from __future__ import annotations

import observer
import plays
import scenario
from admin_api import AdminApi
from bed import Bed, Machine
from credentials import credentials, kubeconfig, shown
from cycle_checks import assert_marked, cooldowns_kept, reaches_etcd_only, still_counts
from history import History, levels_of
from observer import wait_for
from writers import Writers

DOWN = ["full", "control-plane", "etcd-only"]
HOSTS = {"server1", "server2", "server3"}
SHIMS = (
    "for exe in /proc/[0-9]*/exe; do readlink $exe || true; done | "
    "grep -c '^/var/lib/rancher/k3s/data/.*/bin/containerd-shim' || true"
)
PODS = "grep -ls kubepods /proc/[0-9]*/cgroup | wc -l"


def counted(machine: Machine, what: str) -> int:
    return int(machine.sh(what).stdout)


def test_one_level_at_a_time_with_the_cooldown_between(
    machines: tuple[Machine, ...], api: AdminApi, history: History
) -> None:
    reaches_etcd_only(machines[0], api)
    wait_for("the watch has seen it", lambda: levels_of(history.lines(), "server1") == DOWN, 30)
    cooldowns_kept(history, "server1")


def test_f57_the_pods_that_a_restart_leaves_are_gone_there_and_nowhere_else(
    machines: tuple[Machine, ...],
) -> None:
    stepped, *others = machines
    assert (counted(stepped, SHIMS), counted(stepped, PODS)) == (0, 0)
    for machine in others:
        assert counted(machine, SHIMS) > 0
        assert counted(machine, PODS) > 0


def test_etcd_serves_and_nothing_of_its_identity_changed(
    machines: tuple[Machine, ...], bed: Bed, api: AdminApi
) -> None:
    assert observer.etcd_healthy(machines[0])
    assert not machines[0].api_answers()
    assert observer.identity(bed, api) == scenario.before()["identity"]
    assert_marked(api.node("server1"))


def test_the_roles_second_run_and_a_rehearsal_with_a_limit_change_nothing_and_tell_no_secret(
    machines: tuple[Machine, ...], bed: Bed, api: AdminApi
) -> None:
    secrets = credentials(bed)
    assert shown(secrets, machines[0].sh(f"cat {kubeconfig(machines[0])}").stdout) == ["server1's token"]
    for given, hosts in ((("-vvv", "--diff"), HOSTS), (("--check", "--diff", "--limit=server1"), {"server1"})):
        run = plays.playbook("enable", *given)
        # Before the output is put into a message.
        assert shown(secrets, run.output) == []
        assert run.code == 0, run.output
        assert ("EXEC" in run.output) == ("-vvv" in given), "that verbose it was"
        assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(hosts, 0), (
            run.output
        )
    assert observer.label(api, "server1") == "etcd-only"


def test_turning_off_is_refused_for_every_host_at_once(machines: tuple[Machine, ...]) -> None:
    run = plays.playbook("disable")
    assert run.code != 0
    assert "server1: its record says etcd-only" in run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output
    for machine in machines:
        assert machine.systemctl("is-active", "regrade.service").stdout.strip() == "active"


def test_another_servers_step_is_refused_and_names_it(api: AdminApi) -> None:
    run = plays.ad_hoc("server2", "regrade_level", "level=control-plane", "--become")
    ((verdict, result),) = plays.answers(run).values()
    assert verdict == "FAILED!", run.output
    assert "server1" in str(result["msg"])


def test_the_stepped_server_still_counts(bed: Bed, api: AdminApi, history: History, writers: Writers) -> None:
    server1, server2, server3 = bed.servers
    still_counts(bed, api, history, writers, stepped=server1, third=server3, left=server2)


def test_calm_brings_it_back_to_full_by_itself(bed: Bed, api: AdminApi) -> None:
    scenario.calm(bed)
    wait_for("server1 is at full", lambda: observer.at_full_again(api, "server1"), 2 * scenario.STEP_SECONDS)
    assert observer.identity(bed, api) == scenario.before()["identity"]


def test_it_runs_pods_again(machines: tuple[Machine, ...], api: AdminApi) -> None:
    scenario.runs_a_pod(api, machines[0], "after-the-cycle")
    wait_for("its DaemonSet's pod runs", lambda: counted(machines[0], PODS) > 0, 60)
