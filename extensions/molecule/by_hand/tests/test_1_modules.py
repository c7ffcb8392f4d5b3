# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps by the modules: several levels as single steps, foretold, made once; and hosts that are not ready."""

from __future__ import annotations

from typing import Any

import by_hand
import observer
import plays
from admin_api import AdminApi
from bed import Bed, Server
from observer import wait_for

WAYS = [
    ("etcd-only", ["full", "control-plane", "etcd-only"]),
    ("full", ["etcd-only", "control-plane", "full"]),
]


def test_several_levels_are_single_steps_as_foretold_and_no_second_run_changes(
    bed: Bed, api: AdminApi
) -> None:
    identity = observer.identity(bed, api)
    for wanted, way in WAYS:
        verdict, foretold = by_hand.task("server2", f"level={wanted}", "--check")
        assert verdict == "CHANGED", foretold
        verdict, result = by_hand.task("server2", f"level={wanted}", "--diff")
        assert verdict == "CHANGED", result
        assert [(step["from"], step["to"]) for step in result["steps"]] == list(zip(way, way[1:]))
        assert {key: foretold[key] for key in ("from", "to", "hold")} == {
            key: result[key] for key in ("from", "to", "hold")
        }
        assert result["message"].startswith(foretold["message"].replace("would step", "stepped"))
        assert observer.label(api, "server2") == wanted
        restarted = next(step for step in result["steps"] if "etcd-only" in step.values())
        assert restarted["etcd_away_seconds"] is not None
        again = by_hand.task("server2", f"level={wanted}")
        assert (again[0], again[1]["steps"]) == ("SUCCESS", []), again
    wait_for("nothing of it is left", lambda: observer.at_full_again(api, "server2"), 60)
    assert observer.identity(bed, api) == identity


def test_the_play_steps_those_of_its_limit_and_tells_the_truth_before(api: AdminApi) -> None:
    given = {"regrade_level": "control-plane"}
    for more in (("--check", "--diff"), ()):
        assert observer.label(api, "server2") == "full"
        run = plays.playbook("step", "--limit=server2", *more, variables=given)
        assert (run.code, run.hosts) == (0, {"server2": (1, 0)}), run.output
    assert observer.label(api, "server2") == "control-plane"
    run = plays.playbook("step", "--limit=server2", variables=given)
    assert (run.code, run.hosts) == (0, {"server2": (0, 0)}), run.output
    run = plays.playbook("step", "--limit=server2", variables={"regrade_level": "full"})
    assert (run.code, run.hosts) == (0, {"server2": (1, 0)}), run.output
    wait_for("nothing of it is left", lambda: observer.at_full_again(api, "server2"), 60)


def fails(host: str, arguments: str = "", *more: str) -> dict[str, Any]:
    verdict, result = plays.answers(plays.ad_hoc(host, "regrade_level_info", arguments, *more))[host]
    assert verdict == "FAILED!", result
    assert "Traceback" not in str(result)
    return result


def test_who_may_not_use_docker_is_told_what_to_do(server1: Server) -> None:
    server1.sh("useradd --create-home --password='*' somebody")
    somebody = '{"ansible_user": "somebody", "ansible_remote_tmp": "~/.ansible/tmp"}'
    try:
        server1.sh("cp -r /root/.ssh ~somebody && chown -R somebody: ~somebody")
        result = fails("server1", "", f"--extra-vars={somebody}")
    finally:
        server1.sh("userdel --remove --force somebody", check=False)
    assert result["kind"] == "permission"
    assert "needs become: true, or the user in the group docker" in str(result["msg"])


def test_a_command_that_is_not_there_is_told_with_the_cure() -> None:
    result = fails("server1", "command=/usr/local/bin/regrade-of-another", "--become")
    assert result["kind"] == "missing"
    assert "run the role github_runner_cluster" in str(result["msg"])


def test_a_service_that_is_paused_is_told_and_one_that_is_stopped_is_done_without(server1: Server) -> None:
    server1.docker("pause", "k3s-regrade")
    try:
        result = fails("server1", "", "--become")
    finally:
        server1.docker("unpause", "k3s-regrade")
    assert (result["kind"], "docker unpause" in str(result["msg"])) == ("service", True), result
    server1.docker("stop", "--time=40", "k3s-regrade", timeout=60)
    for wanted in ("control-plane", "full"):
        assert by_hand.task("server1", f"level={wanted}")[0] == "CHANGED"


def test_the_role_starts_a_service_that_was_stopped_and_nothing_else(server1: Server) -> None:
    before = observer.started_at(server1, "k3s-regrade").split()[0]
    run = plays.playbook("enable", "--limit=server1")
    assert run.code == 0, run.output
    assert {host: result.changed for host, result in run.hosts.items()} == {"server1": 1}, run.output
    service = observer.started_at(server1, "k3s-regrade").split()[0]
    assert service == before, "its container was made anew"
    assert server1.docker("inspect", "--format={{.State.Running}}", "k3s-regrade").stdout.strip() == "true"
