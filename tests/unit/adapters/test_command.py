# SPDX-License-Identifier: GPL-3.0-or-later
"""The actuator that is an executable of somebody else's: what is believed of it, asked of it, and told of it."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import ports
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import command, local_k3s
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.state_files import (
    StateFiles,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings as settings_of
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Node
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Authority
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_local_k3s import (
    OWN_MEMBER,
    LocalStub,
    Script,
)

NODE = Node("pi1", "uid", "7", "", ("10.0.0.11",), {}, {}, (), False, (), True, "10:00:00", True)
SHORT = 1.5


class Hooks:
    """What the actuator asked of its step, in order."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[str] = []
        self.facts: dict[str, str] = {}
        self.refuse: ports.RegradeError | None = None
        self.open = True

    def may_start(self) -> bool:
        return self.open

    def before_restart(self) -> None:
        self.asked.append(f"gate after {len(self.script.called('apply_level'))} calls")
        if self.refuse:
            raise self.refuse

    def note(self, facts: dict[str, str]) -> None:
        self.asked.append("note")
        self.facts.update(facts)


class Cluster:
    """The Node, with a heartbeat of its own for each boot."""

    def __init__(self, k3s: LocalStub) -> None:
        self.k3s = k3s
        self.stale = False

    def node(self, name: str) -> Node:
        return NODE._replace(ready_heartbeat="10:00:00" if self.stale else f"10:00:0{self.k3s.boots}")


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = Script(folder)
        self.k3s = LocalStub(folder, Authority().server(folder), self.script.level)
        self.k3s.start()
        self.hooks = Hooks(self.script)
        self.cluster = Cluster(self.k3s)
        self.store = StateFiles(str(folder / "state"))
        self.known: dict[str, str] = {}

    def actuator(self, patience: float = 20.0, **given: str) -> command.CommandActuator:
        lines = {
            "NODE_NAME": "pi1",
            "RUNTIME": "command",
            "ACTUATOR_COMMAND": str(self.script.path),
            "CALL_TIMEOUT_SECONDS": "5",
            "RESTART_TIMEOUT_SECONDS": "10",
            "ETCD_ONLY_HTTPS_PORT": str(self.k3s.moved),
            **given,
        }
        loaded = settings_of.load("\n".join(f"{key}={value}" for key, value in lines.items()), {})
        return command.CommandActuator(
            loaded._replace(boot_timeout_seconds=patience),
            self.cluster,  # type: ignore[arg-type]  # the cluster here answers what an actuator asks, and no more
            self.store,
            self.hooks,
            lambda: self.known,
            self.k3s.looks(),
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(command, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(local_k3s, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(local_k3s, "BALANCER_PATIENCE_SECONDS", 0.3)
    made = World(tmp_path)
    yield made
    made.k3s.close()


def test_the_ladder_down_and_up(world: World) -> None:
    actuator = world.actuator()
    assert actuator.levels() == ("full", "control-plane", "etcd-only")
    assert actuator.current_level() == "full"
    actuator.apply_level("control-plane")
    assert (actuator.current_level(), world.k3s.boots) == ("control-plane", 1)
    assert world.hooks.asked == []  # nothing restarts, so nothing is asked
    actuator.apply_level("etcd-only")
    assert (actuator.current_level(), world.k3s.boots) == ("etcd-only", 2)
    assert world.hooks.asked == ["note", "gate after 1 calls"]  # noted and asked before the call
    assert world.hooks.facts == {
        "started_at": "1.790001e+09", "record_before": "control-plane", "member": OWN_MEMBER, "heartbeat": "",
    }  # fmt: skip
    actuator.apply_level("control-plane")
    assert world.hooks.facts["heartbeat"] == "10:00:02"
    actuator.apply_level("full")
    assert (actuator.current_level(), world.k3s.boots) == ("full", 3)
    assert world.store.read(command.ASKED) is None


def test_a_level_that_runs_already_needs_no_call(world: World) -> None:
    world.actuator().apply_level("full")
    assert world.script.called("apply_level") == []


def test_it_is_told_the_port_and_the_node(world: World) -> None:
    world.script.write(current_level='echo "$NODE_NAME $ETCD_ONLY_HTTPS_PORT" >&2; exit 5')
    with pytest.raises(ports.LevelUnknown, match=f"exit status 5: pi1 {world.k3s.moved}$"):
        world.actuator().current_level()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("echo half-full", "says 'half-full', expected one of full, control-plane, etcd-only"),
        ("printf 'full\\nfull\\n'", r"says 'full\\nfull'"),
        ("exit 0", "says ''"),
        ("echo full; echo 'k3s boots' >&2; exit 5", "exit status 5: k3s boots"),
        ("echo full; exit 1", "exit status 1: no word on stderr"),
        ("kill -9 $$", "exit status -9"),
    ],
)
def test_what_is_no_level_is_unknown(world: World, words: str, told: str) -> None:
    world.script.write(current_level=words)
    with pytest.raises(ports.LevelUnknown, match=told):
        world.actuator().current_level()


def test_a_level_that_k3s_itself_contradicts_is_unknown(world: World) -> None:
    world.script.write(current_level="echo etcd-only")
    with pytest.raises(ports.LevelUnknown, match=r"says etcd-only, but k3s on this host answers as one at full \(401"):
        world.actuator().current_level()
    world.script.write()
    world.k3s.speaks = "etcd-only"
    with pytest.raises(ports.LevelUnknown, match=r"says full, but k3s .* at etcd-only \(503"):
        world.actuator().current_level()


def test_a_k3s_that_is_away_has_no_level(world: World) -> None:
    world.k3s.stop()
    with pytest.raises(ports.LevelUnknown, match="says full, but k3s is booting or away"):
        world.actuator().current_level()


def test_an_executable_that_hangs_is_ended_in_its_time(world: World) -> None:
    world.script.write(current_level="echo deep >&2; sleep 60 & wait")
    begun = time.monotonic()
    with pytest.raises(ports.LevelUnknown, match=r"did not end within 1 s, and was ended \(its last word: deep\)"):
        world.actuator(CALL_TIMEOUT_SECONDS="1").current_level()
    assert time.monotonic() - begun < 30


def test_a_process_it_leaves_behind_with_its_output_is_not_waited_for(world: World) -> None:
    world.script.write(current_level="sleep 30 >&2 & echo full; exec >&-")
    begun = time.monotonic()
    assert world.actuator().current_level() == "full"
    assert time.monotonic() - begun < 25


@pytest.mark.parametrize("what", ["absent", "no program", "not executable"])
def test_one_that_cannot_be_run_began_nothing(world: World, what: str) -> None:
    actuator = world.actuator()
    if what == "absent":
        world.script.path.unlink()
    elif what == "no program":
        world.script.path.write_bytes(b"\x7fELF")
    else:
        world.script.path.chmod(stat.S_IRUSR)
    with pytest.raises(ports.LevelUnknown, match=f"{world.script.path} cannot be run: "):
        actuator.current_level()
    with pytest.raises(ports.StepRefused, match="cannot be run"):
        actuator.preflight()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("printf 'full\\netcd-only\\n'", "levels are full etcd-only, expected full control-plane etcd-only"),
        ("exit 0", "levels are none"),
        ("echo broken >&2; exit 1", "exit status 1: broken"),
    ],
)
def test_preflight_refuses_another_ladder(world: World, words: str, told: str) -> None:
    world.script.write(levels=words)
    with pytest.raises(ports.StepRefused, match=told):
        world.actuator().preflight()


def test_preflight_refuses_where_the_level_is_unknown(world: World) -> None:
    world.actuator().preflight()
    world.script.write(current_level="exit 5")
    with pytest.raises(ports.StepRefused, match="exit status 5"):
        world.actuator().preflight()


def test_a_gate_that_refuses_keeps_the_call_from_being_made(world: World) -> None:
    world.hooks.refuse = ports.StepRefused("pi2 is not Ready", "ready")
    with pytest.raises(ports.StepRefused, match="pi2 is not Ready; the executable was not called") as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.reason == "ready"
    assert (world.script.called("apply_level"), world.store.read(command.ASKED)) == ([], None)


@pytest.mark.parametrize("code", [2, 3])
def test_a_refusal_of_its_own_touched_nothing(world: World, code: int) -> None:
    world.script.write(apply_level=f"echo 'no specialisation' >&2; exit {code}")
    with pytest.raises(ports.ApplyFailed, match="no specialisation; k3s was not touched") as caught:
        world.actuator().apply_level("etcd-only")
    assert not caught.value.began
    assert world.store.read(command.ASKED) is None


def test_one_that_says_it_failed_and_did_nothing_is_told_at_once(world: World) -> None:
    world.script.write(apply_level="echo 'unit k3s failed' >&2; exit 4")
    begun = time.monotonic()
    with pytest.raises(ports.ApplyFailed, match="exit status 4: unit k3s failed; k3s was not restarted") as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began  # whether something began cannot be seen, so it is asked again rather than undone
    assert time.monotonic() - begun < 20
    assert world.store.read(command.ASKED) == {"level": "etcd-only"}


def test_one_that_says_it_failed_and_did_all_is_taken_at_what_runs(world: World) -> None:
    world.script.write(apply_level=f"echo $1 >{world.script.record}; restart; exit 1")
    world.actuator().apply_level("etcd-only")
    assert world.actuator().current_level() == "etcd-only"


def test_one_that_says_it_did_all_and_did_nothing_is_not_believed(world: World) -> None:
    world.script.write(apply_level="exit 0")
    with pytest.raises(ports.ApplyFailed, match=r"not reached within 1\.5 s: k3s was not restarted") as caught:
        world.actuator(SHORT).apply_level("etcd-only")
    assert caught.value.began


def test_evidence_from_before_the_restart_does_not_count(world: World) -> None:
    actuator = world.actuator()
    actuator.apply_level("etcd-only")
    world.cluster.stale = True
    with pytest.raises(ports.ApplyFailed, match="is Ready only on its heartbeat from before the restart"):
        world.actuator(SHORT).apply_level("control-plane")


def test_a_k3s_whose_start_cannot_be_read_is_still_stepped(world: World) -> None:
    world.k3s.tells_start = False
    world.actuator().apply_level("etcd-only")
    assert (world.hooks.facts["started_at"], world.k3s.boots) == ("", 2)


def test_a_member_that_joined_anew_stops_the_step(world: World) -> None:
    world.script.write(apply_level=f"echo $1 >{world.script.record}; restart")
    real = world.k3s.start

    def joined_anew() -> None:
        world.k3s.members[0]["ID"] = 77
        real()

    world.k3s.start = joined_anew  # type: ignore[method-assign]
    with pytest.raises(ports.ApplyFailed, match=f"member id changed from {OWN_MEMBER} to 77"):
        world.actuator().apply_level("etcd-only")


def test_a_restart_that_no_check_had_allowed_is_told_and_not_asked_for_again(world: World) -> None:
    world.script.write(apply_level=f"echo $1 >{world.script.record}; restart")
    with pytest.raises(ports.ApplyFailed, match="apply_level control-plane restarted k3s, and no check") as caught:
        world.actuator().apply_level("control-plane")
    assert caught.value.began
    world.actuator().apply_level("control-plane")  # as the step does: the level runs by now
    assert len(world.script.called("apply_level")) == 1


def test_a_call_that_was_cut_off_is_made_again_where_its_level_runs(world: World) -> None:
    """Undone before its restart: what it may have recorded is put right, without a restart."""
    world.store.write(command.ASKED, {"level": "etcd-only"})
    world.actuator().apply_level("full")
    assert world.script.called("apply_level") == ["apply_level full"]
    assert (world.k3s.boots, world.store.read(command.ASKED)) == (1, None)


def test_a_k3s_that_was_left_stopped_is_started_by_the_same_call(world: World) -> None:
    actuator = world.actuator()
    world.k3s.stop()
    assert not actuator.start_stopped()  # nothing of ours was asked: somebody else stopped it
    world.store.write(command.ASKED, {"level": "etcd-only"})
    assert actuator.start_stopped()
    assert (actuator.current_level(), world.hooks.asked) == ("etcd-only", [])
    assert not actuator.start_stopped()  # it runs


def test_a_k3s_that_cannot_be_started_is_told(world: World) -> None:
    world.store.write(command.ASKED, {"level": "etcd-only"})
    world.k3s.stop()
    world.script.write(apply_level="echo 'unit k3s failed' >&2; exit 4")
    with pytest.raises(ports.RegradeError, match=r"k3s is stopped, and .* unit k3s failed"):
        world.actuator().start_stopped()


def test_a_level_at_which_k3s_ends_is_left_again(world: World) -> None:
    world.k3s.dies_at = {"etcd-only"}
    with pytest.raises(ports.ApplyFailed, match="apply_level full brought k3s back to it") as caught:
        world.actuator(SHORT).apply_level("etcd-only")
    assert caught.value.back
    assert (world.actuator().current_level(), world.store.read(command.ASKED)) == ("full", None)


def test_where_it_ends_at_both_the_step_stays_open(world: World) -> None:
    world.k3s.dies_at = {"etcd-only", "full"}
    with pytest.raises(ports.ApplyFailed, match="the step stays open, its vote is away") as caught:
        world.actuator(SHORT).apply_level("etcd-only")
    assert (caught.value.began, caught.value.back) == (True, False)


def test_a_trapped_k3s_is_told_and_not_restarted(world: World) -> None:
    world.k3s.trapped = True
    with pytest.raises(ports.ApplyFailed, match="locked behind its own address") as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.stuck
    assert world.actuator().trapped()
    assert world.k3s.boots == 2


def test_a_restart_asked_for_by_a_process_before_this_one_is_seen_to_be_good(world: World) -> None:
    world.actuator().apply_level("etcd-only")
    world.actuator().apply_level("full")
    world.known = {"restart": "asked", "heartbeat": "10:00:00"}
    world.cluster.stale = True
    with pytest.raises(ports.ApplyFailed, match="heartbeat from before the restart"):
        world.actuator(SHORT).apply_level("full")
    world.cluster.stale = False
    world.actuator().apply_level("full")


def test_recover_asks_for_full_and_waits_for_a_start(world: World) -> None:
    actuator = world.actuator()
    actuator.apply_level("etcd-only")
    world.k3s.healthy = False  # no quorum: nobody waits for etcd
    actuator.recover()
    assert (world.k3s.level, world.k3s.boots) == ("full", 3)
    world.script.write(apply_level="exit 3")
    with pytest.raises(ports.ApplyFailed, match="k3s was not restarted") as caught:
        actuator.recover()
    assert not caught.value.began


def test_a_quorum_that_is_away_is_no_reason_to_call_it_again(world: World) -> None:
    real = world.k3s.start

    def start() -> None:
        real()
        world.k3s.healthy = False

    world.k3s.start = start  # type: ignore[method-assign]
    with pytest.raises(ports.ApplyFailed, match="etcd is not healthy"):
        world.actuator(SHORT).apply_level("etcd-only")
    assert world.k3s.boots == 2


def test_only_a_step_may_apply(world: World) -> None:
    actuator: Any = world.actuator()
    with pytest.raises(ports.ApplyFailed, match="'half' is no level"):
        actuator.apply_level("half")
    actuator._hooks = None
    with pytest.raises(ports.ApplyFailed, match="built to look only"):
        actuator.apply_level("full")
