# SPDX-License-Identifier: GPL-3.0-or-later
"""Turned off with every server at full: all of ours is gone, and no node was restarted."""

from __future__ import annotations

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
    for server in bed.servers:
        assert server.docker("ps", "--all", "--quiet", "--filter=name=regrade").stdout == ""
        left = server.sh("ls -d /srv/cluster/regrade /usr/local/bin/regrade /var/lib/regrade", check=False)
        assert left.stdout == ""
    for path in (
        "/api/v1/namespaces/k3s-regrade/serviceaccounts/server1",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/k3s-regrade",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/k3s-regrade",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/k3s-regrade-server1",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/k3s-regrade",
    ):
        try:
            api.call("GET", path)
        except NoAnswer as error:
            assert error.status == 404
        else:
            raise AssertionError(f"{path} is still there")


def test_off_a_second_time_does_nothing_at_all() -> None:
    run = plays.playbook("disable")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output
