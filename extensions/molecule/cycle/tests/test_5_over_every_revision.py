# SPDX-License-Identifier: GPL-3.0-or-later
"""What must hold over every revision of the Nodes and the Lease since before the first step; and that it can fail."""

from __future__ import annotations

import json

import pytest

import history as recorded
import observer
from admin_api import AdminApi
from bed import Bed, Server
from cycle_checks import no_write_was_lost
from history import History
from observer import wait_for
from scenario import FOLDER, step
from writers import Writers

# The gate taken out, for the control run alone: put beside the core in the service's memory, never in the product.
WITHOUT_GATE = """
import regrade.core.gate as gate
asked = gate.check
gate.check = lambda facts: tuple(check._replace(ok=True) for check in asked(facts))
gate.busy = lambda *_facts: ""
"""


@pytest.fixture(scope="module")
def whole(history: History, api: AdminApi) -> list[recorded.Line]:
    """All that the watch saw, up to now. It must have run through."""
    assert history.running()
    history.catch_up(api)
    history.stop()
    return history.lines()


def test_no_revision_was_missed(whole: list[recorded.Line]) -> None:
    assert recorded.gaps(whole) == []
    assert len(recorded.in_order(whole)) > 50


def test_at_no_moment_two_servers_are_below_full_or_in_a_step(whole: list[recorded.Line]) -> None:
    assert recorded.two_at_once(whole) == []


def test_the_label_is_there_the_whole_time_below_full(whole: list[recorded.Line]) -> None:
    assert recorded.unlabelled_below_full(whole) == []


def test_the_lease_is_held_in_every_step(whole: list[recorded.Line]) -> None:
    assert recorded.steps_without_lease(whole) == []


def test_no_node_was_made_anew(whole: list[recorded.Line]) -> None:
    uids = {(line["name"], line["uid"]) for line in whole if line["kind"] == "node"}
    assert len(uids) == 3


def test_no_write_was_lost_and_none_waited_long(writers: Writers, whole: list[recorded.Line]) -> None:
    no_write_was_lost(writers, whole, outages=2)


def test_a_run_with_the_gate_taken_out_fails_the_check(bed: Bed, api: AdminApi) -> None:
    server1, server2, _ = bed.servers
    control = History(FOLDER / "without-gate")
    control.start()
    try:
        step(server1, "control-plane")
        refused = step(server2, "control-plane", check=False)
        assert refused.returncode == 3, refused.stdout + refused.stderr
        assert "server1" in json.loads(refused.stdout)["error"]["message"]
        without_gate(server2, "control-plane")
        assert observer.label(api, "server2") == "control-plane"
        without_gate(server2, "full")
        step(server1, "full")
        wait_for(
            "both are back",
            lambda: all(observer.at_full_again(api, server.name) for server in (server1, server2)),
            60,
        )
        control.catch_up(api)
    finally:
        control.stop()
    found = recorded.two_at_once(control.lines())
    assert found
    assert any("server1" in line and "server2" in line for line in found)


def without_gate(server: Server, level: str) -> None:
    server.docker(
        "exec",
        "-i",
        "k3s-regrade",
        "sh",
        "-c",
        "mkdir -p /tmp/without-gate && cat >/tmp/without-gate/sitecustomize.py",
        input=WITHOUT_GATE,
    )
    words = (
        "--env=PYTHONPATH=/tmp/without-gate:/opt/regrade/lib",
        "k3s-regrade",
        "python3",
        "-m",
        "regrade.cli",
    )
    done = server.docker("exec", *words, "step", "to", level, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    server.docker("exec", "k3s-regrade", "rm", "-r", "/tmp/without-gate")
