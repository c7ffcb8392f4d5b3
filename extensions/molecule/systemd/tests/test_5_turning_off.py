# SPDX-License-Identifier: GPL-3.0-or-later
"""Turned off with every server at full: all of ours is gone, and no k3s was restarted."""

from __future__ import annotations

import observer
import plays
from admin_api import AdminApi
from bed import Bed, Machine

HOSTS = {"server1", "server2", "server3"}


def test_a_rehearsal_removes_nothing(machines: tuple[Machine, ...]) -> None:
    run = plays.playbook("disable", "--check", "--diff")
    assert run.code == 0, run.output
    assert all(result.changed for result in run.hosts.values()), run.output
    for machine in machines:
        machine.sh("regrade levels && systemctl is-active regrade.service")


def test_turning_off_removes_all_and_restarts_nothing(
    machines: tuple[Machine, ...], bed: Bed, api: AdminApi
) -> None:
    k3s = {machine.name: machine.k3s_started() for machine in machines}
    identity = observer.identity(bed, api)
    run = plays.playbook("disable")
    assert run.code == 0, run.output
    assert {machine.name: machine.k3s_started() for machine in machines} == k3s
    assert observer.identity(bed, api) == identity
    assert left_behind(machines) == []


def test_off_a_second_time_does_nothing_at_all() -> None:
    run = plays.playbook("disable")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output


def test_a_unit_that_no_step_could_be_made_with_is_refused(machines: tuple[Machine, ...]) -> None:
    """With both lines, for the machine that has it, and before anything is changed. The next run shows it put right."""
    folder = "/etc/systemd/system/k3s.service.d"
    k3s = {machine.name: machine.k3s_started() for machine in machines}
    machines[1].sh(
        f"mkdir -p {folder} && cat >{folder}/50-unfit.conf && systemctl daemon-reload",
        input="[Service]\nRestart=no\nTimeoutStopSec=5\n",
    )
    try:
        run = plays.playbook("enable")
    finally:
        machines[1].sh(
            f"rm {folder}/50-unfit.conf && rmdir --ignore-fail-on-non-empty {folder} && systemctl daemon-reload"
        )
    assert run.code != 0, run.output
    assert "server2: its k3s unit has Restart=no: k3s would stay away" in run.output, run.output
    assert "server2: its k3s unit has a stop time-out of 5s, after which systemd kills k3s" in run.output, run.output
    assert "server1: " not in run.output and "server3: " not in run.output, "the others' units are as they should be"
    assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(HOSTS, 0), run.output
    assert {machine.name: machine.k3s_started() for machine in machines} == k3s
    assert left_behind(machines) == []


def test_a_rehearsal_where_nothing_is_yet_tells_what_it_would_do_and_does_nothing(
    machines: tuple[Machine, ...],
) -> None:
    """Of one machine: `default` has it of all."""
    run = plays.playbook("enable", "--check", "--diff", "--limit=server1")
    assert run.code == 0, run.output
    assert run.hosts["server1"].changed, run.output
    assert "+RUNTIME=systemd" in run.output
    assert left_behind(machines) == []


def left_behind(machines: tuple[Machine, ...]) -> list[str]:
    """What of regrading is on a host."""
    files = (
        "ls -d /opt/regrade /usr/local/bin/regrade /var/lib/regrade /etc/systemd/system/regrade.service "
        "/etc/systemd/system/*/regrade.service"
    )
    found = []
    for machine in machines:
        units = machine.sh("systemctl list-units --all --plain --no-legend 'regrade*'").stdout
        found += [
            f"{machine.name}: {line}"
            for line in (*units.splitlines(), *machine.sh(files, check=False).stdout.split())
        ]
    return found
