# SPDX-License-Identifier: GPL-3.0-or-later
"""server3, where nothing k3s reads outlives the container: the record lies on the data volume, and a link leads to it.

A container that is made anew has lost the link. Its k3s runs full, and its server is brought back by a step.
"""

from __future__ import annotations

from typing import Any

import observer
import plays
import restarts
from admin_api import AdminApi
from bed import Bed, Server
from history import History, levels_of
from observer import wait_for
from restarts import Gone, away_and_back, is_at, steps_to
from scenario import told

BROUGHT_BACK_SECONDS = 150  # the watcher looks after a server below full once a minute, and then steps
LINK = "/etc/rancher/k3s/config.yaml.d/90-regrade.yaml"


def test_down_to_control_plane(bed: Bed, api: AdminApi, server3: Server, before: dict[str, Any]) -> None:
    steps_to(bed, api, server3, "control-plane", before)


def test_at_control_plane_after_a_reboot(
    bed: Bed, api: AdminApi, server3: Server, before: dict[str, Any]
) -> None:
    away_and_back(bed, api, server3, "control-plane", restarts.reboot, before)


def test_at_control_plane_in_a_new_container(
    bed: Bed, api: AdminApi, server3: Server, before: dict[str, Any]
) -> None:
    """It runs the same k3s as full, so nothing has to be brought back."""
    away_and_back(bed, api, server3, "control-plane", restarts.recreate, before)


def test_down_to_etcd_only(bed: Bed, api: AdminApi, server3: Server, before: dict[str, Any]) -> None:
    steps_to(bed, api, server3, "etcd-only", before)


def test_at_etcd_only_after_a_reboot(
    bed: Bed, api: AdminApi, server3: Server, before: dict[str, Any]
) -> None:
    away_and_back(bed, api, server3, "etcd-only", restarts.reboot, before)


def test_a_new_container_lost_the_link_and_is_stepped_down_again(
    bed: Bed, api: AdminApi, server3: Server, before: dict[str, Any], history: History
) -> None:
    assert server3.docker("exec", "k3s", "ls", LINK).stdout.strip() == LINK
    gone = Gone(api, server3)
    restarts.recreate(server3)
    gone.is_back("full", recreated=True)
    assert server3.docker("exec", "k3s", "ls", LINK, check=False).returncode != 0
    assert restarts.record(server3) == "etcd-only"
    wait_for(
        "the watcher has brought server3 back to etcd-only",
        lambda: observer.runs_at(server3) == "etcd-only" and not restarts.in_a_step(api, server3),
        BROUGHT_BACK_SECONDS,
    )
    is_at(bed, api, server3, "etcd-only", before)
    history.catch_up(api)
    # Through the level that runs the same k3s as full, by the whole gate; the label was never away.
    assert levels_of(history.lines(), "server3")[-3:] == ["etcd-only", "control-plane", "etcd-only"]


def test_the_role_changes_nothing_there(api: AdminApi, server3: Server) -> None:
    started = observer.started_at(server3)
    run = plays.playbook("enable", "--limit=server3", "--check", "--diff")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == {"server3": 0}, run.output
    assert observer.started_at(server3) == started
    report = told(server3)
    assert (report["level"], report["recorded"], report["label"]) == ("etcd-only",) * 3


def test_back_at_full(bed: Bed, api: AdminApi, server3: Server, before: dict[str, Any]) -> None:
    steps_to(bed, api, server3, "full", before)
