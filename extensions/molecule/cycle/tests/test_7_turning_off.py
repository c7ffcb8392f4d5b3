# SPDX-License-Identifier: GPL-3.0-or-later
"""Turned off with every server at full: all of ours is gone, and no node was restarted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import images
import observer
import plays
from admin_api import AdminApi, NoAnswer
from bed import Bed

HOSTS = {"server1", "server2", "server3"}


def test_the_roles_second_run_changes_nothing_at_full() -> None:
    run = plays.playbook("enable")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output


def test_a_rehearsal_of_turning_off_removes_nothing(bed: Bed) -> None:
    run = plays.playbook("disable", "--check", "--diff")
    assert run.code == 0, run.output
    assert all(result.changed for result in run.hosts.values()), run.output
    for server in bed.servers:
        server.sh("regrade levels")


def test_turning_off_removes_all_and_restarts_nothing(bed: Bed, api: AdminApi) -> None:
    k3s = {server.name: observer.started_at(server) for server in bed.servers}
    identity = observer.identity(bed, api)
    run = plays.playbook("disable")
    assert run.code == 0, run.output
    assert {server.name: observer.started_at(server) for server in bed.servers} == k3s
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


def test_where_no_image_is_named_the_shipped_one_is_built_on_the_host(bed: Bed, api: AdminApi) -> None:
    """On server1 alone, and on the bed's own base: the default base comes from a registry."""
    shipped = "exadev/k3s-regrade:bed"
    label = f'--format={{{{index .Config.Labels "{images.BASE_LABEL}"}}}}'
    base = subprocess.run(
        ["docker", "image", "inspect", label, shipped], capture_output=True, text=True, check=True
    ).stdout.strip()
    bed.load(base)
    run = plays.playbook(
        "enable",
        variables={
            "github_runner_cluster_regrade_image": f"{{{{ '' if inventory_hostname == 'server1' else '{shipped}' }}}}",
            "github_runner_cluster_regrade_image_base": base,
        },
    )
    assert run.code == 0, run.output
    server1 = bed.servers[0]
    image = server1.docker("inspect", "--format={{.Config.Image}}", "k3s-regrade").stdout.strip()
    assert image != shipped
    assert "etcd-only" in server1.sh("regrade levels").stdout
    run = plays.playbook("disable")
    assert run.code == 0, run.output
    assert left_behind(bed, api) == []


def assert_refused(run: plays.Run, why: str) -> None:
    assert run.code != 0
    assert why in run.output
    assert all(result.changed == 0 for result in run.hosts.values()), run.output


def left_behind(bed: Bed, api: AdminApi) -> list[str]:
    """What of regrading is on a host or in the cluster."""
    found = []
    for server in bed.servers:
        containers = server.docker("ps", "--all", "--format={{.Names}}", "--filter=name=regrade").stdout
        files = "ls -d /srv/cluster/regrade /usr/local/bin/regrade /var/lib/regrade"
        found += [
            f"{server.name}: {name}"
            for name in (*containers.split(), *server.sh(files, check=False).stdout.split())
        ]
    own = [
        f"clusterrole{kind}s/k3s-regrade-{server.name}" for server in bed.servers for kind in ("", "binding")
    ]
    for path in (
        "/api/v1/namespaces/k3s-regrade",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/k3s-regrade",
        *(f"/apis/rbac.authorization.k8s.io/v1/{name}" for name in ("clusterroles/k3s-regrade", *own)),
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/k3s-regrade",
    ):
        try:
            api.call("GET", path)
        except NoAnswer as error:
            assert error.status == 404
        else:
            found.append(path)
    return found
