# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold, pause and dry-run stop automatic steps and nothing else; a release lets them come again."""

from __future__ import annotations

from typing import Any

import by_hand
import observer
import plays
import pressure
from admin_api import AdminApi
from bed import Bed, Server
from observer import wait_for

SWITCHES = {"server1": "hold", "server2": "pause", "server3": "dry-run"}


def test_a_hold_is_foretold_made_once_and_shown_as_a_difference(api: AdminApi) -> None:
    run = plays.ad_hoc("server1", "regrade_level", "hold=true", "--become", "--check", "--diff")
    verdict, result = plays.answers(run)["server1"]
    assert (verdict, result["hold"], result["message"]) == ("CHANGED", True, "server1 would be held"), (
        run.output
    )
    assert "-hold: false\n+hold: true\n" in run.output
    assert not by_hand.is_on(api, "server1", "hold")
    assert by_hand.task("server1", "hold=true")[0] == "CHANGED"
    assert by_hand.is_on(api, "server1", "hold")
    assert by_hand.task("server1", "hold=true")[0] == "SUCCESS"
    assert by_hand.task("server1", "hold=true", "--check")[0] == "SUCCESS"
    assert observer.label(api, "server1") == "full"


def test_only_the_hosts_of_the_limit_are_held(api: AdminApi) -> None:
    others = ("server2", "server3")
    for play, on in (("hold", True), ("release", False)):
        run = plays.playbook(play, "--limit=server2,server3")
        assert (run.code, set(run.hosts)) == (0, set(others)), run.output
        assert all(result == (1, 0) for result in run.hosts.values()), run.output
        assert {by_hand.is_on(api, name, "hold") for name in others} == {on}
    assert by_hand.is_on(api, "server1", "hold")


def stilled(server: Server, word: str) -> Any:
    """What its watcher says of the step that is due, once it names that switch."""

    def look() -> Any:
        blocked = by_hand.status(server)["blocked"]
        return blocked if blocked and blocked["reason"] == word else None

    return wait_for(f"the watcher of {server.name} says {word}", look, 90)


def test_each_stops_the_automatic_step_that_is_due_and_writes_nothing(bed: Bed, api: AdminApi) -> None:
    for name in ("server2", "server3"):
        by_hand.switch(api, name, SWITCHES[name], "true")
    for server in bed.servers:
        pressure.put(server, pressure.OVER)
    for server in bed.servers:
        word = SWITCHES[server.name]
        blocked = stilled(server, word)
        assert blocked["move"] == "down"
        assert f"annotation {by_hand.PREFIX}{word}" in blocked["message"]
        would = "it would step down to control-plane now"
        assert (would in blocked["message"]) is (word == "dry-run")
    assert {name: observer.label(api, name) for name in SWITCHES} == dict.fromkeys(SWITCHES, "full")
    assert all(not by_hand.is_on(api, name, "step") for name in SWITCHES)
    assert by_hand.holder_of(api) == ""


def test_info_tells_the_hold_and_how_it_ends() -> None:
    (result,) = [
        result
        for _verdict, result in plays.answers(
            plays.ad_hoc("server1", "regrade_level_info", "", "--become")
        ).values()
    ]
    assert (result["level"], result["hold"], result["changed"]) == ("full", True, False)
    status: Any = result["status"]
    assert status["next"] == "no automatic step: this server is held: `regrade release` ends it"


def test_the_roles_run_leaves_switches_and_levels_alone(api: AdminApi) -> None:
    for more in (("--check", "--diff", "--limit=server2,server3"), ("--limit=server1",)):
        run = plays.playbook("enable", *more)
        assert run.code == 0, run.output
        assert all(result == (0, 0) for result in run.hosts.values()), run.output
    for name, word in SWITCHES.items():
        assert by_hand.is_on(api, name, word)
        assert observer.label(api, name) == "full"


def test_a_step_by_hand_is_not_held_up(api: AdminApi) -> None:
    """Of the paused server, and not held there: what keeps it at control-plane is the pause alone."""
    arguments = "level=control-plane hold=false"
    foretold = by_hand.task("server2", arguments, "--check")[1]
    verdict, result = by_hand.task("server2", arguments)
    assert verdict == "CHANGED", result
    assert (foretold["from"], foretold["to"], foretold["hold"]) == ("full", "control-plane", False)
    assert (result["from"], result["to"], result["hold"]) == ("full", "control-plane", False)
    assert by_hand.task("server2", arguments)[0] == "SUCCESS"
    verdict, result = by_hand.task("server2", "level=full hold=true")
    assert (verdict, result["level"], result["hold"]) == ("CHANGED", "full", True), result
    assert by_hand.is_on(api, "server2", "hold")
    assert by_hand.task("server2", "hold=false")[0] == "CHANGED"


def test_a_release_lets_automatic_steps_come_again(server1: Server, api: AdminApi) -> None:
    done = by_hand.on_host(server1, "release --check")
    assert (done.returncode, done.stdout) == (0, "the hold of server1 would be ended\n")
    assert by_hand.is_on(api, "server1", "hold")
    done = by_hand.on_host(server1, "release")
    assert (done.returncode, done.stdout) == (0, "the hold of server1 is ended\n")
    done = by_hand.on_host(server1, "release")
    assert (done.returncode, done.stdout) == (0, "server1 is not held\n")
    # What was refused is tried again later and later; memory that was calm between makes it a new step.
    pressure.put(server1, pressure.CALM)
    wait_for("nothing is due", lambda: by_hand.status(server1)["blocked"] is None, 30)
    pressure.put(server1, pressure.OVER)
    wait_for("server1 steps down by itself", lambda: observer.label(api, "server1") != "full", 120)
    assert not by_hand.is_on(api, "server1", "hold"), "the watcher's own step sets no hold"
