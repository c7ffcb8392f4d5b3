# SPDX-License-Identifier: GPL-3.0-or-later
"""Turned off while a watcher wants to step: refused with a server below full, or removed with all at full."""

from __future__ import annotations

import os
import threading

import pytest

import observer
import plays
import pressure
import removal
from admin_api import AdminApi
from bed import Bed, Server
from observer import wait_for

RACES = int(os.environ.get("REGRADE_REMOVAL_RACES") or 1)
# When memory gets short, from so many seconds before the play begins to so many after: a watcher steps some seconds
# later, before the first look, between the two, or too late.
FROM, UNTIL = -4.0, 8.0


@pytest.mark.parametrize("race", range(RACES))
def test_never_a_mix(bed: Bed, api: AdminApi, server2: Server, race: int) -> None:
    k3s = removal.k3s_started(bed)
    before = {server.name: kept(server) for server in bed.servers}
    begin = FROM + (UNTIL - FROM) * (race + 0.5) / RACES
    short = threading.Timer(max(begin, 0), pressure.put, (server2, pressure.OVER))
    short.start()
    if begin < 0:
        threading.Event().wait(-begin)
    run = plays.playbook("disable")
    short.join()
    try:
        if run.code == 0:
            assert removal.left_behind(bed, api) == []
            for name, node in api.nodes().items():
                assert removal.marks(node) == [], name
            assert {server.name: observer.runs_at(server) for server in bed.servers} == {
                server.name: "full" for server in bed.servers
            }
        else:
            assert "server2" in run.output
            assert {server.name: kept(server) for server in bed.servers} == before
            assert all(removal.service_runs(server) for server in bed.servers)
            wait_for("server2 is below full", lambda: observer.label(api, "server2") != "full", 60)
            assert not str(api.call("GET", removal.LEASE)["spec"].get("holderIdentity")).startswith("turning")
        # Where it was refused, memory is short on: by now the watcher of server2 may have gone on to etcd-only.
        steps = [] if run.code == 0 else ["server2"]
        started = removal.k3s_started(bed)
        assert {name: started[name] for name in k3s if name not in steps} == {
            name: at for name, at in k3s.items() if name not in steps
        }
    finally:
        pressure.put(server2, pressure.CALM)
    if run.code == 0:
        again = plays.playbook("enable")
        assert again.code == 0, again.output
    wait_for("server2 is at full", lambda: observer.at_full_again(api, "server2"), 240)


def kept(server: Server) -> list[str]:
    """What is there whether its watcher steps or not."""
    return [name for name in removal.on_host(server) if "/var/lib/regrade/" not in name]
