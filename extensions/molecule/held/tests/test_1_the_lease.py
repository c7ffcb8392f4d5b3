# SPDX-License-Identifier: GPL-3.0-or-later
"""A Lease that someone else holds refuses every step, names its holder, and lets who waits have their turn."""

from __future__ import annotations

import json
import re

import by_hand
import observer
import plays
import pressure
from admin_api import AdminApi
from bed import Server
from observer import wait_for


def without_age(message: object) -> str:
    return re.sub(r"for \d+ s", "for N s", str(message))


def test_a_step_down_is_refused_in_check_mode_and_for_real_in_the_same_words(api: AdminApi) -> None:
    with by_hand.lease_held(api):
        told = [by_hand.task("server1", "level=etcd-only", *more) for more in (("--check", "--diff"), ())]
    for verdict, result in told:
        assert (verdict, result["kind"]) == ("FAILED!", "refused"), result
        assert f"the Lease is held by {by_hand.SOMEONE}" in result["msg"]
    assert without_age(told[0][1]["msg"]) == without_age(told[1][1]["msg"])
    assert observer.label(api, "server1") == "full"


def test_the_command_on_the_host_says_the_same_with_its_exit_code(api: AdminApi, server2: Server) -> None:
    with by_hand.lease_held(api):
        done = by_hand.on_host(server2, "step down")
        report = by_hand.on_host(server2, "step down --json")
        seen = by_hand.status(server2)
    assert (done.returncode, report.returncode) == (3, 3), done.stderr
    assert f"the Lease is held by {by_hand.SOMEONE}" in done.stderr
    assert json.loads(report.stdout)["error"]["kind"] == "refused"
    assert seen["lease"]["holder"] == by_hand.SOMEONE
    assert any(by_hand.SOMEONE in need for need in seen["down"]["needs"])
    assert by_hand.holder_of(api) == ""


def test_who_waits_steps_once_the_lease_is_let_go(api: AdminApi) -> None:
    with by_hand.lease_held(api):
        verdict, told = by_hand.task("server1", "level=control-plane wait=true wait_timeout=90", "--check")
        assert (verdict, told["level"], told["to"]) == ("CHANGED", "full", "control-plane"), told
        assert f"once its turn comes (the Lease is held by {by_hand.SOMEONE}" in told["message"]
        with by_hand.meanwhile("server1", "level=control-plane wait=true wait_timeout=90") as waiting:
            try:
                waiting.result(timeout=6)
            except TimeoutError:
                assert observer.label(api, "server1") == "full"
            else:
                raise AssertionError(f"it did not wait: {waiting.result()}")
            api.call("PATCH", by_hand.LEASE, {"spec": {"holderIdentity": ""}})
            verdict, result = waiting.result(timeout=120)
    assert (verdict, result["level"], result["hold"]) == ("CHANGED", "control-plane", True), result


def test_who_waits_in_vain_is_told_within_the_time_it_gave(api: AdminApi) -> None:
    with by_hand.lease_held(api):
        run = plays.ad_hoc("server1", "regrade_level", "level=full wait=true wait_timeout=5", "--become")
    verdict, result = plays.answers(run)["server1"]
    assert verdict == "FAILED!", result
    assert by_hand.SOMEONE in str(result["msg"])
    assert 5 <= run.seconds < 60


def test_a_step_up_is_refused_as_well_and_comes_after(api: AdminApi) -> None:
    with by_hand.lease_held(api):
        verdict, result = by_hand.task("server1", "level=full")
        assert (verdict, result["kind"]) == ("FAILED!", "refused"), result
        assert by_hand.SOMEONE in result["msg"]
        assert observer.label(api, "server1") == "control-plane"
    verdict, result = by_hand.task("server1", "level=full")
    assert (verdict, result["level"], result["hold"]) == ("CHANGED", "full", False), result


def test_the_watcher_is_refused_too_says_by_whom_and_steps_after(api: AdminApi, server3: Server) -> None:
    with by_hand.lease_held(api):
        pressure.put(server3, pressure.OVER)
        blocked = wait_for(
            "the watcher of server3 is refused", lambda: by_hand.status(server3)["blocked"] or None, 60
        )
        assert (blocked["move"], blocked["reason"]) == ("down", "lease")
        assert by_hand.SOMEONE in blocked["message"]
        assert "wait until the holder's step has ended" in blocked["cure"]
        assert observer.label(api, "server3") == "full"
    wait_for("server3 steps down", lambda: observer.label(api, "server3") != "full", 90)
    pressure.put(server3, pressure.CALM)
    wait_for("server3 is back", lambda: observer.at_full_again(api, "server3"), 120)
