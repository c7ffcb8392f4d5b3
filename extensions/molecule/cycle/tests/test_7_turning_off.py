# SPDX-License-Identifier: GPL-3.0-or-later
"""Turned off with every server at full: all of ours is gone, no node restarted. More is in the scenario `removal`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import observer
import plays
from admin_api import AdminApi
from bed import Bed
from removal import k3s_started, left_behind

HOSTS = {"server1", "server2", "server3"}


def test_turning_off_removes_all_and_restarts_nothing(bed: Bed, api: AdminApi) -> None:
    k3s = k3s_started(bed)
    identity = observer.identity(bed, api)
    run = plays.playbook("disable")
    assert run.code == 0, run.output
    assert k3s_started(bed) == k3s
    assert observer.identity(bed, api) == identity
    assert left_behind(bed, api) == []


def test_off_a_second_time_does_nothing_at_all() -> None:
    run = plays.playbook("disable")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output


def test_a_rehearsal_where_nothing_is_yet_tells_what_it_would_do_and_does_nothing(
    bed: Bed, api: AdminApi
) -> None:
    run = plays.playbook("enable", "--check", "--diff")
    assert run.code == 0, run.output
    assert set(run.hosts) == HOSTS
    assert all(result.changed for result in run.hosts.values()), run.output
    assert "+NODE_NAME=server1" in run.output
    assert re.search(r"Warn of what may go wrong\] \**\nskipping: ", run.output), "there is nothing to warn of"
    assert left_behind(bed, api) == []


def test_an_agent_is_refused_for_the_whole_play_before_anything_is_changed(bed: Bed, api: AdminApi) -> None:
    image = bed.servers[2].docker("inspect", "--format={{.Config.Image}}", "k3s").stdout.strip()
    bed.servers[2].docker("create", "--name=an-agent", image, "agent")
    try:
        container = "{{ 'an-agent' if inventory_hostname == 'server3' else 'k3s' }}"
        run = plays.playbook("enable", variables={"github_runner_cluster_container_name": container})
    finally:
        bed.servers[2].docker("rm", "an-agent")
    assert_refused(run, "server3: its container runs `k3s agent`")
    assert left_behind(bed, api) == []


def test_fewer_than_three_servers_are_refused(bed: Bed, api: AdminApi, tmp_path: Path) -> None:
    pair = tmp_path / "pair.yml"
    pair.write_text("pair: {hosts: {server1: , server2: }}\n")
    run = plays.playbook(
        "enable",
        f"--inventory={pair}",
        variables={"github_runner_cluster_group": "pair", "regrade_servers": "pair"},
    )
    assert_refused(run, "has 2 host(s) (server1, server2) and at least 3 are needed")
    assert left_behind(bed, api) == []


def test_an_image_comes_from_a_file_where_the_host_has_none(bed: Bed, api: AdminApi, tmp_path: Path) -> None:
    """On server1 alone; one that does not hold the image is refused before anything is changed."""
    shipped, named, file = "exadev/k3s-regrade:bed", "fleet/regrade:1", tmp_path / "regrade.tar"
    for words in (["tag", shipped, named], ["save", "--output", str(file), named], ["rmi", named]):
        subprocess.run(["docker", *words], capture_output=True, check=True)

    def enable(image: str) -> plays.Run:
        return plays.playbook(
            "enable",
            "--limit=server1",
            variables={
                "github_runner_cluster_regrade_image": image,
                "github_runner_cluster_regrade_image_file": str(file),
            },
        )

    server1 = bed.servers[0]
    try:
        assert_refused(enable("fleet/regrade:2"), f"server1: {file} holds {named}, and it has to hold fleet/regrade:2")
        assert left_behind(bed, api) == []
        run = enable(named)
        assert run.code == 0, run.output
        assert server1.docker("inspect", "--format={{.Config.Image}}", "k3s-regrade").stdout.strip() == named
        assert server1.sh("ls /srv/cluster/regrade/image").stdout == ""  # what brought it there is gone
        assert {host.changed for host in enable(named).hosts.values()} == {0}
    finally:
        plays.playbook("disable", "--limit=server1")
        server1.docker("rmi", named, check=False)
    assert left_behind(bed, api) == []


def assert_refused(run: plays.Run, why: str) -> None:
    assert run.code != 0
    assert why in run.output
    assert all(result.changed == 0 for result in run.hosts.values()), run.output
