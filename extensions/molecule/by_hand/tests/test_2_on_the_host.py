# SPDX-License-Identifier: GPL-3.0-or-later
"""The command on the host: steps, holds, and maintenance during which no server steps."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import by_hand
import observer
from admin_api import AdminApi
from bed import Server
from observer import wait_for

MARK = "/tmp/maintenance"


def test_a_step_down_and_up_with_and_without_a_hold(server3: Server, api: AdminApi) -> None:
    done = by_hand.on_host(server3, "step down --check")
    assert (done.returncode, done.stdout) == (0, "server3 would step from full to control-plane\n"), (
        done.stderr
    )
    done = by_hand.on_host(server3, "step down --hold=no --json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["level"], report["hold"]["to"]) == (0, "control-plane", False), (
        done.stderr
    )
    assert by_hand.on_host(server3, "hold").stdout == "server3 is held\n"
    done = by_hand.on_host(server3, "step up --hold=keep --json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["level"], report["hold"]) == (0, "full", {"from": True, "to": True})
    assert (
        by_hand.on_host(server3, "step to full").stdout == "server3 is at full already; its hold is ended\n"
    )
    wait_for("nothing of it is left", lambda: observer.at_full_again(api, "server3"), 60)
    wrong = by_hand.on_host(server3, "step to half")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1), wrong.stderr


def test_maintenance_holds_the_lease_and_who_waits_comes_after_it(
    server1: Server, server2: Server, api: AdminApi
) -> None:
    script = f"echo begun >{MARK}; while [ -e {MARK} ]; do sleep 0.2; done; exit 7"
    server1.sh(f"rm -f {MARK}")
    with ThreadPoolExecutor(max_workers=1) as pool:
        maintenance = pool.submit(by_hand.on_host, server1, f"with-lease -- sh -c '{script}'")
        try:
            wait_for(
                "it runs on the host", lambda: server1.sh(f"test -s {MARK}", check=False).returncode == 0, 30
            )
            assert by_hand.holder_of(api).startswith("server1/")
            refused = by_hand.on_host(server2, "step down")
            assert refused.returncode == 3
            assert "the Lease is held by server1/" in refused.stderr
            with by_hand.meanwhile("server2", "level=control-plane wait=true wait_timeout=120") as waiting:
                try:
                    waiting.result(timeout=6)
                except TimeoutError:
                    assert observer.label(api, "server2") == "full"
                else:
                    raise AssertionError(f"it did not wait: {waiting.result()}")
                server1.sh(f"rm {MARK}")
                verdict, result = waiting.result(timeout=120)
        finally:
            server1.sh(f"rm -f {MARK}")
        ended = maintenance.result(timeout=60)
    assert ended.returncode == 7, ended.stderr
    assert (verdict, result["level"]) == ("CHANGED", "control-plane"), result
    events = api.call("GET", "/api/v1/namespaces/default/events")["items"]
    assert {"RegradeMaintenance", "RegradeMaintenanceEnded"} <= {event["reason"] for event in events}
    assert by_hand.task("server2", "level=full")[0] == "CHANGED"
    wait_for("nothing of it is left", lambda: observer.at_full_again(api, "server2"), 60)
