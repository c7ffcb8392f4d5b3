# SPDX-License-Identifier: GPL-3.0-or-later
"""A joined server is stepped by hand, on the host and by the module; at each level its k3s is killed and its host
restarted, and it comes back at that level."""

from __future__ import annotations

import json

import pytest

import observer
import plays
import pressure
import restarts
import scenario
from admin_api import AdminApi
from bed import Bed, Machine
from observer import wait_for

WAYS = pytest.mark.parametrize("way", [restarts.kill, restarts.reboot])


@WAYS
def test_a_server_at_full_comes_back_at_full(
    machines: tuple[Machine, ...], bed: Bed, api: AdminApi, way: restarts.Way
) -> None:
    restarts.away_and_back(bed, api, machines[1], "full", way, scenario.before()["identity"])


def test_by_the_command_on_the_host(machines: tuple[Machine, ...], api: AdminApi) -> None:
    done = scenario.step(machines[1], "etcd-only")
    assert [step["to"] for step in json.loads(done.stdout)["steps"]] == ["control-plane", "etcd-only"]
    assert observer.label(api, "server2") == "etcd-only"
    status = json.loads(machines[1].sh("regrade status --json").stdout)
    assert (status["level"], status["recorded"]) == ("etcd-only", "etcd-only")


def test_a_k3s_that_is_killed_there_comes_back_at_its_level(
    machines: tuple[Machine, ...], bed: Bed, api: AdminApi
) -> None:
    before = machines[1].k3s_started()
    machines[1].systemctl("kill", "--signal=SIGKILL", "--kill-who=main", "k3s.service")
    wait_for("systemd started it anew", lambda: machines[1].k3s_started() != before, 60)
    wait_for("it runs at etcd-only", lambda: observer.runs_at(machines[1]) == "etcd-only", 60)
    wait_for("its etcd is healthy", lambda: observer.etcd_healthy(machines[1]), 60)
    assert observer.identity(bed, api) == scenario.before()["identity"]


def test_a_host_that_is_started_anew_is_at_the_level_it_had(
    machines: tuple[Machine, ...], bed: Bed, api: AdminApi
) -> None:
    # Stepped by hand it is held there, whatever memory looks like while the fixture is away with its host.
    machines[1].stop_host()
    machines[1].start_host()
    wait_for("it runs at etcd-only", lambda: observer.runs_at(machines[1]) == "etcd-only", 90)
    wait_for("its etcd is healthy", lambda: observer.etcd_healthy(machines[1]), 60)
    assert machines[1].systemctl("is-active", "regrade.service").stdout.strip() == "active"
    assert observer.identity(bed, api) == scenario.before()["identity"]
    assert observer.label(api, "server2") == "etcd-only"
    pressure.begin(machines[1])


def test_by_the_module(api: AdminApi) -> None:
    run = plays.ad_hoc("server2", "regrade_level", "level=full", "--become", "--check", "--diff")
    verdict, result = plays.answers(run)["server2"]
    assert (verdict, result["level"]) == ("CHANGED", "etcd-only"), run.output
    for expected in ("CHANGED", "SUCCESS"):
        verdict, result = plays.answers(plays.ad_hoc("server2", "regrade_level", "level=full", "--become"))[
            "server2"
        ]
        assert (verdict, result["level"]) == (expected, "full"), result
    wait_for("nothing of the step is left", lambda: observer.at_full_again(api, "server2"), 60)


@WAYS
def test_a_server_at_control_plane_comes_back_at_control_plane(
    machines: tuple[Machine, ...], bed: Bed, api: AdminApi, way: restarts.Way
) -> None:
    scenario.step(machines[1], "control-plane")  # the second time it is there
    restarts.away_and_back(bed, api, machines[1], "control-plane", way, scenario.before()["identity"])


def test_from_there_the_command_brings_it_to_full(machines: tuple[Machine, ...], api: AdminApi) -> None:
    scenario.step(machines[1], "full")
    wait_for("nothing of the step is left", lambda: observer.at_full_again(api, "server2"), 60)


def test_a_persons_command_runs_beside_the_lease_as_that_person(machines: tuple[Machine, ...]) -> None:
    done = machines[1].sh(
        "KUBECONFIG=/home/me regrade with-lease -- sh -c 'echo $KUBECONFIG; exit 7'", check=False
    )
    assert (done.returncode, done.stdout) == (7, "/home/me\n"), done.stderr
