# SPDX-License-Identifier: GPL-3.0-or-later
"""Credentials lie where root alone reads them, and nothing prints or logs them, at any verbosity."""

from __future__ import annotations

import pytest

import plays
from admin_api import AccountApi
from bed import Bed, Server
from credentials import credentials, shown
from removal import service_runs

KUBECONFIG = "/srv/cluster/regrade/kube/config"
EVERYWHERE = "/srv /etc /usr/local /var/lib/regrade /var/log /tmp /run /root /home"


@pytest.fixture(scope="module")
def secrets(bed: Bed) -> dict[str, str]:
    return credentials(bed)


def test_the_search_finds_what_is_there(server1: Server, secrets: dict[str, str]) -> None:
    assert shown(secrets, server1.sh(f"cat {KUBECONFIG}").stdout) == ["server1's token"]


def test_a_run_of_the_role_tells_none(bed: Bed, server1: Server, secrets: dict[str, str]) -> None:
    """One that changes: the guards are made again, and a kubeconfig."""
    server1.sh(f"echo '# changed' >>{KUBECONFIG}")
    run = plays.playbook("enable", "-vvv", "--diff", "--limit=server1")
    assert run.code == 0, run.output
    assert run.hosts["server1"].changed >= 2, run.output
    assert "EXEC" in run.output, "that verbose it was"
    assert shown(secrets, run.output) == []
    run = plays.playbook("disable", "-vvv", "--diff", "--check", "--limit=server1")
    assert run.code == 0, run.output
    assert shown(secrets, run.output) == []
    assert all(service_runs(server) for server in bed.servers)


def test_the_modules_tell_none(secrets: dict[str, str]) -> None:
    for module, arguments in (("regrade_level_info", ""), ("regrade_level", "level=control-plane")):
        run = plays.ad_hoc("server1", module, arguments, "--become", "-vvv", "--check", "--diff")
        assert run.code == 0, run.output
        assert shown(secrets, run.output) == []


def test_the_command_and_the_service_tell_none(bed: Bed, secrets: dict[str, str]) -> None:
    for server in bed.servers:
        for verb in ("status", "settle"):
            done = server.sh(f"regrade {verb} --verbose --json", timeout=120)
            assert shown(secrets, done.stdout + done.stderr) == []
        for words in (("logs", "k3s-regrade"), ("inspect", "k3s-regrade")):
            done = server.docker(*words)
            assert done.stdout + done.stderr
            assert shown(secrets, done.stdout + done.stderr) == []


def test_a_token_lies_in_one_file_for_root_alone(bed: Bed) -> None:
    for server in bed.servers:
        token = AccountApi(bed, server).token
        holding = server.sh(f"grep -rlF -f - -s {EVERYWHERE} || true", input=f"{token}\n").stdout.split()
        assert holding == [KUBECONFIG]
        paths = f"{KUBECONFIG} {KUBECONFIG.rpartition('/')[0]} /var/lib/regrade"
        listed = server.sh(
            f"stat --format='%a %U %G %n' {paths}; find /var/lib/regrade -type f -perm /077"
        ).stdout
        assert listed.splitlines() == [
            f"600 root root {KUBECONFIG}",
            "700 root root /srv/cluster/regrade/kube",
            "700 root root /var/lib/regrade",
        ]
