# SPDX-License-Identifier: GPL-3.0-or-later
"""The same with a server that joined: what stepped does not depend on who founded the cluster."""

from __future__ import annotations

import observer
import scenario
from admin_api import AdminApi
from bed import Bed, Server
from history import History, levels_of
from observer import wait_for

CYCLE = ["full", "control-plane", "etcd-only", "control-plane", "full"]


def test_pressure_takes_it_down(bed: Bed, server2: Server, api: AdminApi, history: History) -> None:
    scenario.press(bed, api, server2)
    wait_for(
        "server2 is at etcd-only",
        lambda: observer.label(api, "server2") == "etcd-only",
        scenario.STEP_SECONDS,
    )
    wait_for("server2 runs at etcd-only", lambda: observer.runs_at(server2) == "etcd-only", 60)
    wait_for("etcd serves there", lambda: observer.etcd_healthy(server2), 60)
    assert [observer.label(api, name) for name in ("server1", "server3")] == ["full", "full"]


def test_nothing_of_its_identity_changed_down(bed: Bed, api: AdminApi) -> None:
    assert observer.identity(bed, api) == scenario.before()["identity"]
    api.write_config_map("written-meanwhile-2", "while server2 was at etcd-only")


def test_calm_brings_it_back(bed: Bed, server2: Server, api: AdminApi, history: History) -> None:
    scenario.calm(bed)
    wait_for("server2 is at full", lambda: observer.at_full_again(api, "server2"), 2 * scenario.STEP_SECONDS)
    assert observer.runs_at(server2) == "full"
    wait_for("the watch has seen it", lambda: levels_of(history.lines(), "server2") == CYCLE, 30)


def test_pods_run_there_again_and_all_is_as_it_was(bed: Bed, server2: Server, api: AdminApi) -> None:
    scenario.runs_a_pod(api, server2, "after-the-cycle-of-server2")
    assert api.config_map("written-meanwhile-2") == "while server2 was at etcd-only"
    assert api.config_map(scenario.WRITTEN_BEFORE) == "before any step"
    assert observer.identity(bed, api) == scenario.before()["identity"]
