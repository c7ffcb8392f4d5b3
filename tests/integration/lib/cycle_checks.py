# SPDX-License-Identifier: GPL-3.0-or-later
"""What is checked the same way whichever server steps. What is done to the bed is scenario.py's."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import observer
import pressure
import scenario
from admin_api import AdminApi
from bed import Bed, Server
from history import History, Line, in_order
from history import outages as recorded_outages
from observer import wait_for
from operations import ACKNOWLEDGED
from writers import Writers

WITHOUT_QUORUM_SECONDS = 10
STALL_SECONDS = 10  # an election, on a machine that does much else
LATE_SECONDS = 0.5  # a watch sees a write some milliseconds late, one write more than another


def reaches_etcd_only(server: Server, api: AdminApi) -> None:
    wait_for(
        f"{server.name} is at etcd-only",
        lambda: observer.label(api, server.name) == "etcd-only",
        scenario.STEP_SECONDS,
    )
    wait_for(f"{server.name} runs at etcd-only", lambda: observer.runs_at(server) == "etcd-only", 60)
    wait_for(
        f"{server.name} closed its step",
        lambda: (
            "github-runner.exadev.com/regrade-step" not in api.node(server.name)["metadata"]["annotations"]
        ),
        60,
    )


def cooldowns_kept(history: History, name: str) -> None:
    """Between any two steps of a server at least the cooldown of the second, by when the marks were seen."""
    lines = [line for line in in_order(history.lines()) if line["kind"] == "node" and line["name"] == name]
    turns = list(pairwise(lines))
    begun = [
        (after["time"], after["step"]) for before, after in turns if not before["step"] and after["step"]
    ]
    ended = [after["time"] for before, after in turns if before["step"] and not after["step"]]
    assert len(ended) >= 2
    for end, (begin, step) in zip(ended, begun[1:]):
        down = json.loads(step)["to"] == "etcd-only"
        cooldown = pressure.COOLDOWN_DOWN_SECONDS if down else pressure.COOLDOWN_UP_SECONDS
        assert begin - end >= cooldown - LATE_SECONDS, (name, step)


def over_and_refused(peer: Server, stepped: str) -> bool:
    """Whether that server is at full, finds memory short, and was refused a step for the one that is below full."""
    report = scenario.told(peer)
    return (
        report["level"] == "full"
        and report["reading"]["verdict"] == "over"
        and stepped in report["watcher"].get("blocked", "")
    )


def assert_marked(node: dict[str, Any], level: str = "etcd-only") -> None:
    assert node["spec"]["unschedulable"] is True
    taints = {(taint["key"], taint.get("value"), taint["effect"]) for taint in node["spec"]["taints"]}
    assert ("github-runner.exadev.com/regrade-level", level, "NoSchedule") in taints


def still_counts(
    bed: Bed, api: AdminApi, history: History, writers: Writers, stepped: Server, third: Server, left: Server
) -> None:
    """With a third stopped the cluster takes writes, with the stepped one stopped as well it does not."""
    third.stop_k3s()
    assert_taken(writers, f"with {third.name} stopped")
    history.mark(outage=True)
    stepped.stop_k3s()
    stopped = time.monotonic()
    time.sleep(WITHOUT_QUORUM_SECONDS)
    answers = writers.answers(stopped)
    assert answers.total() and not answers[ACKNOWLEDGED], answers
    stepped.start_k3s()
    third.start_k3s()
    assert_taken(writers, "with all back", 120)
    wait_for("the other two serve", lambda: left.api_answers() and third.api_answers(), 120)
    wait_for(f"{stepped.name} is at its recorded level", lambda: observer.runs_at(stepped) == "etcd-only", 60)
    wait_for(
        "etcd is healthy on all", lambda: all(observer.etcd_healthy(server) for server in bed.servers), 60
    )
    history.catch_up(api)
    history.mark(outage=False)
    assert observer.identity(bed, api) == scenario.before()["identity"]
    assert observer.label(api, stepped.name) == "etcd-only"


def assert_taken(writers: Writers, when: str, seconds: float = 30) -> None:
    """An append that is sent from now on is acknowledged."""
    now = time.monotonic()
    wait_for(f"a write is taken {when}", lambda: writers.taken(now) or None, seconds)


def no_write_was_lost(writers: Writers, whole: list[Line], outages: int) -> None:
    """Of all appends since before the first step, and none waited long but where the test stopped two servers."""
    assert writers.running()
    report = writers.verdict()
    print(report.line())
    assert report.problems == ()
    assert report.acknowledged > 100
    # Two were stopped at once by the test, and that is seen.
    made = recorded_outages(whole)
    assert len(made) == outages
    assert report.longest_stall.seconds > WITHOUT_QUORUM_SECONDS
    assert report.stalled_outside(*made) < STALL_SECONDS, report.stalls
