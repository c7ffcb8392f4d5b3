# SPDX-License-Identifier: GPL-3.0-or-later
"""The same with a server that joined: what stepped does not depend on who founded the cluster."""

from __future__ import annotations

from functools import partial

import observer
import plays
import scenario
from admin_api import AdminApi
from bed import Bed, Server
from cycle_checks import (
    assert_marked,
    cooldowns_kept,
    over_and_refused,
    reaches_etcd_only,
    still_counts,
)
from history import History, levels_of
from observer import wait_for
from writers import Writers

CYCLE = ["full", "control-plane", "etcd-only", "control-plane", "full"]


def test_pressure_takes_it_down(bed: Bed, server2: Server, api: AdminApi, history: History) -> None:
    scenario.press(bed, api, server2)
    reaches_etcd_only(server2, api)
    wait_for("etcd serves there", lambda: observer.etcd_healthy(server2), 60)
    assert_marked(api.node("server2"))
    for peer in (bed.servers[0], bed.servers[2]):
        wait_for(
            f"{peer.name} wants to step down and is refused for server2",
            partial(over_and_refused, peer, "server2"),
            60,
        )
        assert observer.label(api, peer.name) == "full"


def test_nothing_of_its_identity_changed_down(bed: Bed, api: AdminApi) -> None:
    assert observer.identity(bed, api) == scenario.before()["identity"]


def test_the_roles_second_run_changes_nothing_at_etcd_only(api: AdminApi) -> None:
    run = plays.playbook("enable", "--limit=server2")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == {"server2": 0}, run.output
    assert observer.label(api, "server2") == "etcd-only"


def test_the_stepped_server_still_counts(bed: Bed, api: AdminApi, history: History, writers: Writers) -> None:
    server1, server2, server3 = bed.servers
    still_counts(bed, api, history, writers, stepped=server2, third=server1, left=server3)


def test_calm_brings_it_back(bed: Bed, server2: Server, api: AdminApi, history: History) -> None:
    scenario.calm(bed)
    wait_for("server2 is at full", lambda: observer.at_full_again(api, "server2"), 2 * scenario.STEP_SECONDS)
    assert observer.runs_at(server2) == "full"
    wait_for("the watch has seen it", lambda: levels_of(history.lines(), "server2") == CYCLE, 30)
    cooldowns_kept(history, "server2")


def test_pods_run_there_again_and_all_is_as_it_was(bed: Bed, server2: Server, api: AdminApi) -> None:
    scenario.runs_a_pod(api, server2, "after-the-cycle-of-server2")
    assert observer.identity(bed, api) == scenario.before()["identity"]
