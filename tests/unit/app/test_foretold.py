# SPDX-License-Identifier: GPL-3.0-or-later
"""What `--check` tells is what is done: the same server, asked and then told, in every situation here.

Where a step is refused, the words are the same too. That nothing is written by asking is looked at each time.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import (
    hold,
    release,
    settle,
    step_to,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    RegradeError,
    StepFailed,
    StepRefused,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import LEVELS
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease, PeerAnswer
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster, pod, unreachable

S = "server1"
Prepare = Callable[[Cluster], object]


def at(level: str, held: bool) -> Prepare:
    """The server at that level, held or not."""

    def prepare(cluster: Cluster) -> None:
        step_to(cluster.process(S), level, held=held)

    return prepare


def held_by_another(cluster: Cluster) -> None:
    cluster.api.lease = Lease("server2/beef", 60, "", "", 3, "50")


def peer_not_ready(cluster: Cluster) -> None:
    cluster.api.set_node("server2", ready=False)


def peer_below_full(cluster: Cluster) -> None:
    step_to(cluster.process("server3"), "control-plane")


def peer_silent(cluster: Cluster) -> None:
    """Its Node is Ready, and its kubelet is gone."""
    cluster.api.silent["server3"] = 0.0


def peer_api_away(cluster: Cluster) -> None:
    address = cluster.node("server2").addresses[0]
    cluster.api.answers[address] = PeerAnswer("connection refused", "connection refused")


def pod_without_owner(cluster: Cluster) -> None:
    cluster.api.pods_by_node[S] = [pod("bare", owner="")]


def no_api(cluster: Cluster) -> None:
    def away(_call: str) -> None:
        raise unreachable()

    cluster.api.faults.append(away)


def no_lease(cluster: Cluster) -> None:
    cluster.api.lease = None


SITUATIONS: Dict[str, Tuple[Prepare, ...]] = {
    **{
        f"{level}, {'held' if held else 'not held'}": (at(level, held),)
        for level in LEVELS
        for held in (True, False)
    },
    "another holds the Lease": (held_by_another,),
    "another holds the Lease, below full": (at("etcd-only", True), held_by_another),
    "a peer is not Ready": (peer_not_ready,),
    "a peer is below full": (peer_below_full,),
    "a peer's kubelet is gone": (peer_silent,),
    "a peer's API is away": (peer_api_away,),
    "a pod without an owner": (pod_without_owner,),
    "no API answers": (no_api,),
    "no Lease": (no_lease,),
}
Told = Tuple[str, Dict[str, Any]]


def told(cluster: Cluster, where: str, held: Optional[bool], check: bool) -> Told:
    """(why it is refused or fails, what is reported)."""
    try:
        report = step_to(cluster.process(S), where, held=held, check=check)
    except RegradeError as error:
        return str(error), {}
    return "", {key: value for key, value in report.items() if key in ("changed", "from", "to", "hold")}


@pytest.mark.parametrize("held", [None, True, False])
@pytest.mark.parametrize("where", [*LEVELS, "up", "down"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_told_beforehand_is_what_is_done(situation: str, where: str, held: Optional[bool]) -> None:
    cluster = Cluster()
    for prepare in SITUATIONS[situation]:
        prepare(cluster)
    before = everything(cluster)
    foretold = told(cluster, where, held, check=True)
    assert everything(cluster) == before
    done = told(cluster, where, held, check=False)
    if situation == "a pod without an owner" and where == "etcd-only":
        assert (foretold[0], done[0]) == (foretold[0], foretold[0].replace(" would come ", " came "))
    else:
        assert foretold == done


def everything(cluster: Cluster) -> Any:
    """All that asking must leave alone."""
    host = cluster.hosts[S]
    return copy.deepcopy(
        (
            list(cluster.api.writes),
            dict(cluster.api.nodes_by_name),
            cluster.api.lease,
            host.disk,
            host.restarts,
        )
    )


def test_what_the_platform_would_deny_is_told_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()

    def denied() -> None:
        raise RegradeError("a socket proxy denies the restart")

    monkeypatch.setattr(cluster.hosts[S], "preflight", denied)
    assert told(cluster, "down", None, True) == told(cluster, "down", None, False)
    assert told(cluster, "down", None, True)[0] == "a socket proxy denies the restart"


@pytest.mark.parametrize("wait", [60.0, 600.0])
@pytest.mark.parametrize("others", [held_by_another, peer_below_full])
def test_who_waits_its_turn_is_told_what_for(others: Prepare, wait: float) -> None:
    cluster = Cluster()
    others(cluster)
    with pytest.raises(StepRefused, match=r"server2/beef|server3 is at control-plane"):
        step_to(cluster.process(S), "control-plane", check=True)
    before = everything(cluster)
    foretold = step_to(cluster.process(S), "control-plane", check=True, wait=wait)
    assert foretold["to"] == "control-plane"
    assert " once its turn comes (" in foretold["message"]
    assert everything(cluster) == before


def test_a_turn_comes_once_the_other_is_done_and_the_hosts_lock_is_free_meanwhile() -> None:
    """The other server comes from etcd-only to full in two steps, with the Lease let go between them."""
    cluster = Cluster()
    step_to(cluster.process("server3"), "etcd-only")
    looks: List[float] = []
    begun = cluster.time.seconds
    real = cluster.time.sleep

    def others_go_on(seconds: float) -> None:
        real(seconds)
        if cluster.hosts[S].locked or len(looks) > 12:
            return
        looks.append(seconds)
        if len(looks) in (6, 12):
            looks.append(0.0)
            step_to(cluster.process("server3"), "up")

    cluster.time.sleep = others_go_on  # type: ignore[method-assign]
    done = step_to(cluster.process(S), "control-plane", wait=600)
    assert done["level"] == "control-plane"
    assert len(looks) > 12
    assert cluster.time.seconds - begun < 600


def test_a_turn_that_does_not_come_is_waited_for_in_bounds_and_told() -> None:
    cluster = Cluster()
    peer_below_full(cluster)
    begun = cluster.time.seconds
    with pytest.raises(StepRefused, match="server3 is at control-plane"):
        step_to(cluster.process(S), "control-plane", wait=90)
    assert 90 <= cluster.time.seconds - begun < 100


@pytest.mark.parametrize("ails", [peer_not_ready, peer_silent, peer_api_away, no_lease])
def test_what_does_not_end_with_a_turn_is_refused_at_once(ails: Prepare) -> None:
    cluster = Cluster()
    ails(cluster)
    begun = cluster.time.seconds
    with pytest.raises(StepRefused):
        step_to(cluster.process(S), "control-plane", wait=600)
    assert cluster.time.seconds - begun < 60


def test_a_server_that_must_be_settled_first_is_not_foretold() -> None:
    """A person put k3s at another level by hand: what settling makes of it decides, and a run says what it did."""
    cluster = Cluster()
    host = cluster.hosts[S]
    host.running = host.record = "etcd-only"
    for where in LEVELS:
        with pytest.raises(StepRefused, match="k3s runs at etcd-only but the Node's marks say full"):
            step_to(cluster.process(S), where, check=True)
    assert cluster.api.writes == []
    done = step_to(cluster.process(S), "etcd-only")
    assert (done["changed"], done["steps"]) == (True, [])
    assert "the Node's marks are made those of the level k3s runs at" in done["message"]
    again = step_to(cluster.process(S), "etcd-only")
    assert again["changed"] is False


def test_a_return_that_a_step_would_end_is_told() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane", held=False)
    cluster.hosts[S].disk["bring-back"] = {"level": "etcd-only"}
    foretold = told(cluster, "control-plane", None, True)
    assert foretold == told(cluster, "control-plane", None, False)
    assert foretold[1]["hold"] == {"from": False, "to": True}


# ---- hold and release


@pytest.mark.parametrize("value", [None, "", "false", "true", "by hand"])
@pytest.mark.parametrize("switch", [hold, release])
def test_hold_and_release_do_what_they_tell_once(switch: Any, value: Optional[str]) -> None:
    cluster = Cluster()
    node = cluster.node(S)
    if value is not None:
        cluster.api.set_node(S, annotations={**node.annotations, marks.HOLD: value})
    was, wanted = marks.switch(cluster.node(S), marks.HOLD), switch is hold
    before = everything(cluster)
    foretold = switch(cluster.process(S), check=True)
    assert everything(cluster) == before
    done = switch(cluster.process(S))
    assert foretold["changed"] is done["changed"] is (was != wanted)
    assert foretold["hold"] is done["hold"] is wanted
    assert marks.switch(cluster.node(S), marks.HOLD) is wanted
    assert switch(cluster.process(S))["changed"] is False
    told_of = {"RegradeHeld": hold, "RegradeReleased": release}
    assert [told_of[event[2]] for event in cluster.api.events] == ([switch] if was != wanted else [])


def test_a_held_server_takes_no_automatic_step_until_it_is_released() -> None:
    cluster = Cluster()
    hold(cluster.process(S))
    with pytest.raises(StepRefused, match="is held"):
        step_to(cluster.process(S), "down", automatic=True)
    release(cluster.process(S))
    assert step_to(cluster.process(S), "down", automatic=True)["changed"]


@pytest.mark.parametrize("held", [True, False])
def test_at_no_moment_of_a_step_that_is_to_be_held_it_is_not(held: bool) -> None:
    """From one level below full to the next it stays as it was, or becomes what is asked for, and nothing between."""
    cluster = Cluster()
    step_to(cluster.process(S), "control-plane", held=held)
    seen = []
    real = cluster.api.change_node

    def noted(*words: Any, **named: Any) -> Any:
        done = real(*words, **named)
        seen.append(marks.switch(cluster.node(S), marks.HOLD))
        return done

    cluster.api.change_node = noted  # type: ignore[method-assign]
    step_to(cluster.process(S), "full", held=held)
    step_to(cluster.process(S), "etcd-only", held=held)
    assert set(seen) == {held}


def test_where_the_hold_fails_after_its_step_it_says_how_far_it_came() -> None:
    cluster = Cluster()
    step_to(cluster.process(S), "etcd-only", held=False)

    def fault(call: str) -> None:
        if call == "change_node" and marks.agrees(cluster.node(S), "full"):
            raise unreachable()

    cluster.api.faults.append(fault)
    with pytest.raises(StepFailed, match="server1 is at full, but: server1 could not be held: no API server"):
        step_to(cluster.process(S), "full", held=True)
    cluster.api.faults.remove(fault)
    assert settle(cluster.process(S))["level"] == "full"
