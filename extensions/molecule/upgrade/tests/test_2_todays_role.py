# SPDX-License-Identifier: GPL-3.0-or-later
"""Today's role on that fleet: no k3s is touched, what was known is known, and the server comes up by itself."""

from __future__ import annotations

from typing import Any

import history as recorded
import observer
import plays
import pressure
import scenario
from admin_api import AdminApi
from bed import Bed, Server
from cycle_checks import assert_marked
from history import History
from observer import wait_for
from scenario import told

HOSTS = {"server1", "server2", "server3"}


def test_a_rehearsal_on_one_host_says_what_it_would_change_and_changes_nothing(server2: Server) -> None:
    service = observer.started_at(server2, "k3s-regrade")
    run = plays.playbook("enable", "--limit=server2", "--check", "--diff")
    assert run.code == 0, run.output
    assert set(run.hosts) == {"server2"} and run.hosts["server2"].changed, run.output
    assert observer.started_at(server2, "k3s-regrade") == service


def test_it_changes_the_service_and_restarts_no_k3s(
    bed: Bed, api: AdminApi, server2: Server, before: dict[str, Any]
) -> None:
    k3s = {server.name: observer.started_at(server) for server in bed.servers}
    services = {server.name: observer.started_at(server, "k3s-regrade") for server in bed.servers}
    known = what_is_known(server2)
    run = plays.playbook("enable")
    assert run.code == 0, run.output
    assert set(run.hosts) == HOSTS and all(result.changed for result in run.hosts.values()), run.output
    assert {server.name: observer.started_at(server) for server in bed.servers} == k3s
    for server in bed.servers:
        assert observer.started_at(server, "k3s-regrade") != services[server.name]
    assert_marked(api.node("server2"))
    assert observer.identity(bed, api) == before
    assert what_is_known(server2) == known


def what_is_known(server: Server) -> str:
    """The last step, for the cooldowns, and what the server stepped down as, for a change of either to be noticed."""
    return server.sh("cd /var/lib/regrade && tail -n +1 last-step identity.json").stdout


def test_what_the_old_service_knew_is_read(server2: Server) -> None:
    report = told(server2)
    assert (report["level"], report["recorded"], report["label"]) == ("etcd-only",) * 3
    assert (report["journal"], report["journal_error"]) == (None, "")
    assert report["cooldown"]["up"] is not None
    wait_for("its watcher is well", lambda: server2.sh("regrade health", check=False).returncode == 0, 60)


def test_servers_at_full_stay_there(api: AdminApi, server1: Server, server3: Server) -> None:
    for server in (server1, server3):
        report = told(server)
        assert (report["level"], report["recorded"], report["label"]) == ("full",) * 3
        assert observer.at_full_again(api, server.name)


def test_a_second_run_changes_nothing() -> None:
    run = plays.playbook("enable")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output


def test_it_steps_up_by_itself(
    bed: Bed, api: AdminApi, server2: Server, before: dict[str, Any], history: History
) -> None:
    pressure.put(server2, pressure.CALM)
    wait_for("server2 is at full", lambda: observer.at_full_again(api, "server2"), 2 * scenario.STEP_SECONDS)
    assert observer.identity(bed, api) == before
    history.catch_up(api)
    history.stop()
    lines = history.lines()
    assert recorded.levels_of(lines, "server2") == [
        "full",
        "control-plane",
        "etcd-only",
        "control-plane",
        "full",
    ]
    assert recorded.levels_of(lines, "server1") == recorded.levels_of(lines, "server3") == ["full"]
    assert recorded.unlabelled_below_full(lines) == recorded.two_at_once(lines) == []
