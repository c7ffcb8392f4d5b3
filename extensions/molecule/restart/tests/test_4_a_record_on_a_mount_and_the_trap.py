# SPDX-License-Identifier: GPL-3.0-or-later
"""server1, the founding server, whose record lies in a mounted folder, and which leaves k3s its own port at etcd-only:
its step down locks it behind its own address, and cures it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import observer
import restarts
from admin_api import AdminApi
from bed import Bed, Server
from images import is_stand_in
from observer import wait_for
from restarts import OVERRIDE, away_and_back, steps_to
from scenario import told

WAYS = [restarts.docker_restart, restarts.recreate]
# A boot that takes longer than the peers need to take the address out of their list is not trapped; and on k3s itself
# chance decides.
TRIES = 6
BALANCER = "/var/lib/rancher/k3s/agent/etc/k3s-agent-load-balancer.json"


def test_the_trap_is_set_and_cured_in_the_step_down(
    bed: Bed, api: AdminApi, server1: Server, before: dict[str, Any]
) -> None:
    for _ in range(TRIES):
        wait_for(
            "server1 finds its own address in the list of API servers",
            lambda: server1.address in observer.listed_apis(bed.servers[1]),
            120,
        )
        steps_to(bed, api, server1, "control-plane", before)
        since = now(server1)
        steps_to(bed, api, server1, "etcd-only", before)
        record = server1.docker("exec", "k3s", "cat", restarts.RECORDS["server1"]).stdout
        assert "https-listen-port" not in record
        if restarts_asked(server1, since) == 2:  # the one for the level, and the one that cures
            return
        steps_to(bed, api, server1, "full", before)
    assert not stand_in(server1), f"server1 was trapped in none of {TRIES} steps"
    steps_to(bed, api, server1, "etcd-only", before)


def now(server: Server) -> str:
    return server.sh("date +%s").stdout.strip()


def restarts_asked(server: Server, since: str) -> int:
    """How often Docker was asked to restart k3s, by its own account."""
    filters = ("--filter=container=k3s", "--filter=event=restart", "--format={{.Action}}")
    found = server.docker("events", f"--since={since}", f"--until={now(server)}", *filters)
    return len(found.stdout.split())


def stand_in(server: Server) -> bool:
    return is_stand_in(server.docker("inspect", "--format={{.Config.Image}}", "k3s").stdout)


def test_it_is_free(server1: Server) -> None:
    """k3s's own balancer leads to another server's API, so that k3s does not end after 15 minutes."""
    leads_to = json.loads(server1.docker("exec", "k3s", "cat", BALANCER).stdout)["ServerURL"]
    assert server1.address not in leads_to
    assert server1.kubectl("get", "--raw", "/readyz", "--request-timeout=5s").stdout == "ok"
    report = told(server1)
    assert report["trap"] == {"trapped": False, "detail": ""}
    assert (report["level"], report["recorded"], report["label"]) == ("etcd-only",) * 3


@pytest.mark.parametrize("way", WAYS)
def test_at_etcd_only(
    bed: Bed, api: AdminApi, server1: Server, before: dict[str, Any], way: restarts.Way
) -> None:
    away_and_back(bed, api, server1, "etcd-only", way, before)


def test_up_to_control_plane(bed: Bed, api: AdminApi, server1: Server, before: dict[str, Any]) -> None:
    steps_to(bed, api, server1, "control-plane", before)


@pytest.mark.parametrize("way", WAYS)
def test_at_control_plane(
    bed: Bed, api: AdminApi, server1: Server, before: dict[str, Any], way: restarts.Way
) -> None:
    away_and_back(bed, api, server1, "control-plane", way, before)


def test_back_at_full_as_it_was_laid(
    bed: Bed, api: AdminApi, server1: Server, before: dict[str, Any]
) -> None:
    steps_to(bed, api, server1, "full", before)
    server1.sh(f"rm -f {OVERRIDE}")
    away_and_back(bed, api, server1, "full", restarts.recreate, before)
