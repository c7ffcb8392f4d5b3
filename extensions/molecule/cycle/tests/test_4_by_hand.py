# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps by hand, with the modules ad hoc as a person runs them."""

from __future__ import annotations

import observer
import plays
from admin_api import AdminApi
from by_hand import SOMEONE, lease_held, level
from observer import wait_for


def test_check_mode_changes_nothing_and_shows_what_it_would(api: AdminApi) -> None:
    run = plays.ad_hoc("server1", "regrade_level", "level=etcd-only", "--become", "--check", "--diff")
    verdict, result = plays.answers(run)["server1"]
    assert verdict == "CHANGED", run.output
    assert result["level"] == "full"
    assert "-level: full\n-hold: false\n+level: etcd-only\n+hold: true\n" in run.output
    assert observer.label(api, "server1") == "full"


def test_a_step_is_made_once(api: AdminApi) -> None:
    verdict, result = level("server1", "control-plane")["server1"]
    assert verdict == "CHANGED", result
    assert (result["from"], result["level"]) == ("full", "control-plane")
    verdict, result = level("server1", "control-plane")["server1"]
    assert verdict == "SUCCESS", result
    assert result["changed"] is False
    assert observer.label(api, "server1") == "control-plane"


def test_info_reads_it() -> None:
    verdict, result = plays.answers(plays.ad_hoc("server1", "regrade_level_info", "", "--become"))["server1"]
    assert verdict == "SUCCESS", result
    assert (result["changed"], result["level"]) == (False, "control-plane")


def test_the_play_of_the_levels_runs() -> None:
    run = plays.playbook("status")
    assert run.code == 0, run.output
    assert all(result == (0, 0) for result in run.hosts.values()), run.output


def test_back_to_full(api: AdminApi) -> None:
    verdict, result = level("server1", "full")["server1"]
    assert verdict == "CHANGED", result
    wait_for("nothing of the step is left", lambda: observer.at_full_again(api, "server1"), 60)


def test_on_the_whole_group_exactly_one_steps_and_the_others_name_it(api: AdminApi) -> None:
    found = level("servers", "control-plane")
    assert set(found) == {"server1", "server2", "server3"}
    stepped = [host for host, (verdict, _result) in found.items() if verdict == "CHANGED"]
    assert len(stepped) == 1, found
    for host, (verdict, result) in found.items():
        if host not in stepped:
            assert verdict == "FAILED!", result
            assert stepped[0] in result["msg"]
            assert observer.label(api, host) == "full"
    verdict, result = level(stepped[0], "full")[stepped[0]]
    assert verdict == "CHANGED", result
    wait_for("nothing of the step is left", lambda: observer.at_full_again(api, stepped[0]), 60)


def test_a_lease_held_by_someone_else_refuses_and_names_the_holder(api: AdminApi) -> None:
    with lease_held(api):
        verdict, result = level("server1", "control-plane")["server1"]
        assert verdict == "FAILED!", result
        assert result["kind"] == "refused"
        assert SOMEONE in result["msg"]
        assert observer.label(api, "server1") == "full"
