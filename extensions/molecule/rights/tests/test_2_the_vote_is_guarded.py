# SPDX-License-Identifier: GPL-3.0-or-later
"""An administrator's delete of a stepped-down server's Node is refused, and of one at full is not. By rehearsals: a
Node that is deleted takes its etcd member with it."""

from __future__ import annotations

from typing import Optional

import pytest

import plays
import removal
from admin_api import AdminApi, NoAnswer
from bed import Bed, Server
from observer import LEVEL, at_full_again, wait_for
from scenario import step

GHOST = "/api/v1/nodes/ghost"


def refused(bed: Bed, node: str) -> Optional[str]:
    """What kubectl says where it is refused, None where it is not."""
    done = bed.kubectl("delete", "node", node, "--dry-run=server", check=False)
    assert done.returncode == 0 or "is forbidden" in done.stderr, done.stderr
    return done.stderr if done.returncode else None


def test_a_stepped_down_servers_node_cannot_be_deleted(bed: Bed, api: AdminApi, server2: Server) -> None:
    assert refused(bed, "server2") is None
    step(server2, "control-plane")
    try:
        said = wait_for("the guard acts", lambda: refused(bed, "server2"), 30)
        assert "server2 is stepped down on purpose (control-plane)" in said
        assert "kubectl label node server2 github-runner.exadev.com/regrade-level-" in said
        assert refused(bed, "server1") is None
        with pytest.raises(NoAnswer, match="stepped down on purpose"):
            api.call("DELETE", f"/api/v1/nodes?dryRun=All&labelSelector={LEVEL}")
        api.call("DELETE", "/api/v1/nodes?dryRun=All&labelSelector=kubernetes.io/hostname=server1")
    finally:
        step(server2, "full")
    wait_for("server2 is at full", lambda: at_full_again(api, "server2"), 60)
    assert refused(bed, "server2") is None


def test_the_way_round_it_is_the_one_that_the_message_names(bed: Bed, api: AdminApi) -> None:
    metadata = {"name": "ghost", "labels": {LEVEL: "etcd-only"}}
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    try:
        done = bed.kubectl("delete", "node", "ghost", check=False)
        assert done.returncode != 0
        assert "ghost is stepped down on purpose (etcd-only)" in done.stderr
        _before, _sign, words = done.stderr.partition("delete it then: kubectl ")
        bed.kubectl(*words.split()[:4])
        bed.kubectl("delete", "node", "ghost")
    finally:
        if "ghost" in api.nodes():
            api.call("PATCH", GHOST, {"metadata": {"labels": {LEVEL: None}}})
            api.call("DELETE", GHOST)


def test_a_setting_leaves_the_guards_out(bed: Bed, api: AdminApi) -> None:
    off = {"github_runner_cluster_regrade_guard": False}
    guards = tuple(path for path in removal.SHARED if path.startswith(removal.ADMISSION))
    assert removal.in_cluster(api, guards) == list(guards)
    # With a limit, as what is in the cluster is made and taken off by whichever host the run has first.
    run = plays.playbook("enable", "--limit=server2", variables=off)
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == {"server2": 1}, run.output
    assert removal.in_cluster(api, guards) == []
    run = plays.playbook("enable", "--limit=server1", variables=off)
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == {"server1": 0}, run.output
    assert removal.in_cluster(api, guards) == []
