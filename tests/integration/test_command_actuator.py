# SPDX-License-Identifier: GPL-3.0-or-later
"""What the adapter of executables believes of a real server: its loopback looks, and `check-actuator` beside k3s.

It is run where such an executable would be: in k3s's own network, here in a container of its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.lookup.core_archive import pack
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.tests.integration.real import Real

from bed import Server

FOLDER = "/srv/beside"
EXECUTABLE = """#!/bin/sh
case $1 in
  levels) printf 'full\\ncontrol-plane\\netcd-only\\n' ;;
  current_level) echo full ;;
  *) echo "no verb: $1" >&2; exit 2 ;;
esac
"""
LOOK = """
import json
from regrade.adapters.local_k3s import LocalK3s
k3s = LocalK3s("server2", 16443, 5.0)
print(json.dumps({
    "level": k3s.level()[0], "healthy": k3s.healthy(), "runs": k3s.runs(), "started": k3s.started(),
    "trapped": k3s.trapped(), "own": k3s.own_member().name, "members": sorted(m.name for m in k3s.members()),
}))
"""


@pytest.fixture(scope="module")
def server(real: Real) -> Iterator[Server]:
    found = real.servers[1]
    core = base64.b64encode(pack(Path(cli.__file__).parent)).decode()
    found.sh(f"mkdir -p {FOLDER}; base64 -d >{FOLDER}/core.zip", input=core)
    found.sh(f"cat >{FOLDER}/executable; chmod +x {FOLDER}/executable", input=EXECUTABLE)
    yield found
    found.sh(f"rm -r {FOLDER}")


def beside(server: Server, *words: str, check: bool = True) -> str:
    """Python, with the core, in k3s's own network."""
    given = (f"--volume={FOLDER}:{FOLDER}:ro", f"--env=PYTHONPATH={FOLDER}/core.zip")
    command = ("exadev/k3s-regrade:bed", "python3", *words)
    return server.docker("run", "--rm", "--network=container:k3s", *given, *command, check=check).stdout


def look(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(beside(server, "-c", LOOK))
    return found


def test_what_a_server_at_full_shows_on_its_loopback_without_credentials(real: Real, server: Server) -> None:
    found = look(server)
    assert found.pop("started")
    members = sorted(real.member_ids())
    own = next(name for name in members if name.startswith(f"{server.name}-"))
    assert found == {
        "level": "full", "healthy": True, "runs": True, "trapped": False, "own": own, "members": members,
    }  # fmt: skip


def test_an_executable_is_looked_at_beside_a_real_k3s(server: Server) -> None:
    out = beside(server, "-m", "regrade.cli", "check-actuator", f"{FOLDER}/executable", "--json")
    report = json.loads(out)
    assert [entry for entry in report["checks"] if not entry["ok"]] == []
    assert report["passed"] is True


def test_one_that_tells_another_level_than_k3s_shows_is_found_out(server: Server) -> None:
    server.sh(f"sed 's/echo full/echo etcd-only/' {FOLDER}/executable >{FOLDER}/liar; chmod +x {FOLDER}/liar")
    out = beside(server, "-m", "regrade.cli", "check-actuator", f"{FOLDER}/liar", check=False)
    assert "FAILED  current_level is what k3s shows: the executable says etcd-only, but k3s" in out


def test_a_restart_shows_in_when_its_process_was_started(real: Real, server: Server) -> None:
    before = look(server)["started"]
    assert look(server)["started"] == before
    server.docker("restart", "--time=60", "k3s", timeout=120)
    real.bed.wait_ready(180)
    assert look(server)["started"] != before
