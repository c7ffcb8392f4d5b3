# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole steps with an executable as the actuator: what goes wrong in it leaves no vote away and no step half done.

The cluster is the simulation's; the executable is a real process, and k3s its loopback ports.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import command, local_k3s
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import operations
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import Server
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.step import JOURNAL
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import (
    LevelUnknown,
    StepFailed,
    StepRefused,
)
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Authority
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_local_k3s import LocalStub, Script

OWN = "server1"


class Fleet:
    """Three servers, of which the first is stepped by an executable."""

    def __init__(self, folder: Path) -> None:
        self.script = Script(folder)
        self.k3s = LocalStub(folder, Authority().server(folder), self.script.level)
        self.cluster = Cluster()
        self.k3s.members = [
            {"ID": int(member.id), "name": member.name, "peerURLs": list(member.peer_urls)}
            for member in self.cluster.etcd
        ]
        start = self.k3s.start

        def boot() -> None:
            start()
            if self.k3s.level != "etcd-only":  # the agent runs, and its Node beats anew
                self.cluster.api.set_node(OWN, ready_heartbeat=f"of boot {self.k3s.boots}")

        self.k3s.start = boot  # type: ignore[method-assign]
        self.k3s.start()

    def process(self) -> Server:
        made = self.cluster.process(OWN)
        settings = made.world.settings._replace(
            runtime="command", actuator_command=str(self.script.path), etcd_only_https_port=self.k3s.moved,
            restart_timeout_seconds=10.0, boot_timeout_seconds=1.5,
        )  # fmt: skip
        actuator = command.CommandActuator(
            settings, self.cluster.api, self.cluster.hosts[OWN], made.hooks, made.hooks.known, self.k3s.looks(OWN)
        )
        world = made.world._replace(settings=settings, actuator=actuator, vote=actuator, etcd=actuator, beside=actuator)
        return made._replace(world=world)

    def at(self) -> tuple[str, str, str, Any]:
        """What runs, the Node's label, who has the Lease, the journal."""
        lease = self.cluster.api.lease
        try:
            level = self.process().world.actuator.current_level()
        except LevelUnknown:
            level = ""
        return (
            level, marks.level_of(self.cluster.node(OWN)), lease.holder if lease else "?",
            self.cluster.hosts[OWN].disk.get(JOURNAL),
        )  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    for module in (command, local_k3s):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(local_k3s, "BALANCER_PATIENCE_SECONDS", 0.3)
    made = Fleet(tmp_path)
    yield made
    made.k3s.close()


def test_down_and_up(fleet: Fleet) -> None:
    done = operations.step_to(fleet.process(), "etcd-only")
    assert [(step["from"], step["to"]) for step in done["steps"]] == [
        ("full", "control-plane"), ("control-plane", "etcd-only"),
    ]  # fmt: skip
    assert fleet.at() == ("etcd-only", "etcd-only", "", None)
    operations.step_to(fleet.process(), "full")
    assert fleet.at() == ("full", "full", "", None)
    assert fleet.k3s.boots == 3


def test_one_that_breaks_the_contract_is_refused_before_anything(fleet: Fleet) -> None:
    fleet.script.write(levels="echo full")
    with pytest.raises(StepRefused, match="the executable's levels are full"):
        operations.step_to(fleet.process(), "control-plane")
    assert fleet.cluster.api.writes == []


def test_a_refusal_of_its_own_undoes_the_step(fleet: Fleet) -> None:
    operations.step_to(fleet.process(), "control-plane")
    fleet.script.write(apply_level="[ $1 = control-plane ] || { echo 'no specialisation' >&2; exit 3; }")
    with pytest.raises(StepFailed, match=r"was undone: apply_level etcd-only: exit status 3: no specialisation"):
        operations.step_to(fleet.process(), "etcd-only")
    assert fleet.at() == ("control-plane", "control-plane", "", None)
    assert fleet.k3s.boots == 1


def test_a_peer_that_falls_keeps_it_from_being_called(fleet: Fleet) -> None:
    operations.step_to(fleet.process(), "control-plane")
    calls = len(fleet.script.called("apply_level"))
    fleet.cluster.api.set_node("server2", ready=False)
    with pytest.raises(StepRefused, match="server2"):
        operations.step_to(fleet.process(), "etcd-only")
    assert len(fleet.script.called("apply_level")) == calls


def test_a_level_at_which_k3s_does_not_come_up_is_left_and_the_step_undone(fleet: Fleet) -> None:
    operations.step_to(fleet.process(), "control-plane")
    fleet.k3s.dies_at = {"etcd-only"}
    with pytest.raises(StepFailed, match="was undone"):
        operations.step_to(fleet.process(), "etcd-only")
    assert fleet.at() == ("control-plane", "control-plane", "", None)


def test_a_k3s_that_it_left_stopped_is_started_by_the_next_settling_and_the_step_goes_on(fleet: Fleet) -> None:
    operations.step_to(fleet.process(), "control-plane")
    stop = f": >{fleet.script.folder}/stop; while [ -e {fleet.script.folder}/stop ]; do sleep 0.02; done"
    fleet.script.write(apply_level=f"{stop}; echo 'unit k3s failed' >&2; exit 4")
    with pytest.raises(StepFailed, match="stays open"):
        operations.step_to(fleet.process(), "etcd-only")
    level, label, holder, journal = fleet.at()
    # It has the Lease still, so no other server may step meanwhile.
    assert (level, label, holder.split("/")[0], journal["to"]) == ("", "etcd-only", OWN, "etcd-only")

    record = fleet.script.record  # set right, as its unit's owner would
    fleet.script.write(apply_level=f"echo $1 >{record}; restart")
    settled = operations.settle(fleet.process())
    assert (settled["action"], settled["level"]) == ("resumed", "etcd-only")
    assert fleet.at() == ("etcd-only", "etcd-only", "", None)


def test_a_trap_is_told_and_the_step_closed(fleet: Fleet) -> None:
    fleet.k3s.trapped = True
    with pytest.raises(StepFailed, match="locked behind its own address"):
        operations.step_to(fleet.process(), "etcd-only")
    assert fleet.at() == ("etcd-only", "etcd-only", "", None)  # an open step would hold the cluster up
    boots = fleet.k3s.boots
    with pytest.raises(StepFailed, match="no verb that restarts it there: step up"):
        operations.settle(fleet.process())
    operations.step_to(fleet.process(), "full")
    assert (fleet.at(), fleet.k3s.boots) == (("full", "full", "", None), boots + 1)


def test_a_restart_that_was_not_to_be_is_logged_and_the_step_goes_on(fleet: Fleet) -> None:
    fleet.script.write(apply_level=f"echo $1 >{fleet.script.record}; restart")
    operations.step_to(fleet.process(), "control-plane")
    assert fleet.at() == ("control-plane", "control-plane", "", None)
    assert any("restarted k3s, and no check had allowed it" in line for line in fleet.cluster.hosts[OWN].logged)
    assert fleet.k3s.boots == 2
