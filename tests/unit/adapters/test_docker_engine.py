# SPDX-License-Identifier: GPL-3.0-or-later
"""The Docker actuator against a stub engine that speaks the real protocol. Numbers: the field cases.

What people met in the field is in `field_cases/test_e_docker.py`, and what only a real k3s can show (the trap, members
over restarts, the Node) in tests/integration.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import ports
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import docker_client
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    level_record as record,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_docker import (
    NODE,
    OWN_MEMBER,
    SHORT,
    Cluster,
    World,
    fault,
    worlds,
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield from worlds(tmp_path, monkeypatch)


# --- the running level ---


def test_the_running_level_and_the_record_between_full_and_control_plane(world: World) -> None:
    actuator = world.actuator()
    assert actuator.levels() == ("full", "control-plane", "etcd-only")
    assert (actuator.current_level(), actuator.recorded_level()) == ("full", "full")
    for level in ("control-plane", "etcd-only", "full"):
        world.at(level)
        assert (actuator.current_level(), actuator.recorded_level()) == (level, level)


def test_what_runs_is_reported_and_not_what_was_recorded(world: World) -> None:
    Path(world.place.folder).mkdir(parents=True)
    Path(world.place.path).write_text(record.text_for("etcd-only", world.moved))
    assert world.actuator().current_level() == "full"
    assert world.actuator().recorded_level() == "etcd-only"


def test_etcd_only_on_k3ss_own_port(world: World) -> None:
    world.at("full")
    Path(world.place.path).write_text(record.text_for("etcd-only", 0))
    world.engine.boot()
    assert world.actuator(ETCD_ONLY_HTTPS_PORT="0").current_level() == "etcd-only"


def test_the_port_of_the_record_is_looked_at_where_the_setting_has_changed(world: World) -> None:
    world.at("etcd-only")
    assert world.actuator(ETCD_ONLY_HTTPS_PORT="17443").current_level() == "etcd-only"


def test_booting_is_unknown_and_never_full(world: World) -> None:
    world.k3s.boot_seconds = 60
    world.engine.boot()
    with pytest.raises(ports.LevelUnknown, match=r"booting or not ready.*503.*starting"):
        world.actuator().current_level()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"running": False, "exit_code": 137}, r"the container is exited \(exit code 137\)"),
        ({"restarting": True, "restarts": 4, "exit_code": 1}, r"restarting \(exit code 1, 4 times\)"),
    ],
)
def test_a_container_that_does_not_run_is_unknown(world: World, state: dict[str, Any], words: str) -> None:
    for name, value in state.items():
        setattr(world.engine, name, value)
    with pytest.raises(ports.LevelUnknown, match=words):
        world.actuator().current_level()


def test_a_file_of_somebody_else_in_the_records_place_is_unknown(world: World) -> None:
    world.at("full")
    Path(world.place.path).write_text("disable-apiserver: true\n")
    with pytest.raises(ports.LevelUnknown, match=r"expected '# regrade-level: '"):
        world.actuator().current_level()


# --- steps that restart nothing ---


def test_between_full_and_control_plane_nothing_is_restarted(world: World) -> None:
    actuator = world.actuator()
    actuator.apply_level("control-plane")
    assert world.recorded() == "# regrade-level: control-plane\n"
    actuator.apply_level("full")
    assert world.recorded() is None
    assert world.restarts() == 0 and "gate" not in world.engine.calls


@pytest.mark.parametrize("level", ["full", "control-plane", "etcd-only"])
def test_a_level_that_is_there_already_writes_nothing(world: World, level: str) -> None:
    world.at(level)
    world.actuator().apply_level(level)
    assert world.restarts() == 0
    assert not [script for script in world.engine.scripts if "mv -f" in script or "rm -f" in script]


def test_a_full_disk_is_said_before_anything_else(world: World) -> None:
    Path(f"{world.k3s.config}.d").mkdir(parents=True)
    (world.k3s.folder / "bin" / "mv").write_text(
        "#!/bin/sh\necho 'mv: No space left on device' >&2\nexit 1\n"
    )
    (world.k3s.folder / "bin" / "mv").chmod(0o755)
    for level in ("control-plane", "etcd-only"):
        with pytest.raises(ports.ApplyFailed, match=r"could not be written.*No space left") as caught:
            world.actuator().apply_level(level)
        assert caught.value.began is False
    assert world.restarts() == 0 and world.recorded() is None


# --- steps that restart k3s ---


def test_down_and_up_with_one_restart_each(world: World) -> None:
    world.at("control-plane")
    world.actuator().apply_level("etcd-only")
    assert world.recorded() == record.text_for("etcd-only", world.moved)
    calls = world.engine.calls
    gate = calls.index("gate")
    assert calls.index("note") < gate
    assert calls[gate + 1] == "POST /containers/k3s/restart?t=60", (
        "at once after the gate, with its own stop time-out"
    )
    assert world.restarts() == 1 and not [call for call in calls if "/stop" in call or "/kill" in call]
    assert world.hooks.facts == [
        {
            "container": world.engine.id,
            "started_at": "2026-09-20T10:39:02.000000000Z",
            "record_before": "control-plane",
            "member": OWN_MEMBER,
            "heartbeat": "",
        }
    ]
    writing = next(at for at, script in enumerate(world.engine.scripts) if "mv -f" in script)
    assert "disable-agent: true" in world.engine.scripts[writing]

    world.engine.calls.clear()
    world.actuator().apply_level("control-plane")
    assert world.recorded() == "# regrade-level: control-plane\n"
    assert world.restarts() == 1 and world.k3s.level == "full"
    assert world.hooks.facts[1]["heartbeat"] == "10:00:03"


def test_the_level_is_not_reached_on_the_heartbeat_from_before(world: World) -> None:
    world.at("etcd-only")
    world.cluster.node_after = [
        NODE._replace(ready_heartbeat="10:00:02"),
        NODE._replace(ready_heartbeat="10:00:02"),
        NODE._replace(ready=None, ready_heartbeat="10:00:09"),
        NODE._replace(ready_heartbeat="10:00:09"),
    ]
    world.cluster.node_after.insert(0, world.cluster.node_after[0])
    world.actuator().apply_level("control-plane")
    assert len(world.cluster.node_after) == 1

    world.patience = SHORT
    world.at("etcd-only")
    world.cluster.node_after = [NODE._replace(ready_heartbeat="10:00:02")]
    with pytest.raises(ports.ApplyFailed, match=r"Ready only on its heartbeat from before") as caught:
        world.actuator().apply_level("control-plane")
    assert caught.value.began is True


def test_a_resumed_step_up_waits_for_etcd_and_for_a_new_heartbeat(world: World) -> None:
    """A process before this one asked for the restart: that k3s is good was seen by nobody."""
    world.at("control-plane")
    known = {"restart": "asked", "heartbeat": "10:00:02"}
    world.cluster.node_after = [
        NODE._replace(ready_heartbeat="10:00:02"),
        NODE._replace(ready=None, ready_heartbeat="10:00:09"),
        NODE._replace(ready_heartbeat="10:00:09"),
    ]
    world.actuator(known=known).apply_level("control-plane")
    assert len(world.cluster.node_after) == 1 and world.restarts() == 0

    world.patience = SHORT
    world.cluster.node_after = [NODE._replace(ready_heartbeat="10:00:02")]
    with pytest.raises(ports.ApplyFailed, match="Ready only on its heartbeat from before") as caught:
        world.actuator(known=known).apply_level("control-plane")
    assert caught.value.began is True

    world.k3s.health = '{"health":"false"}'
    for level in ("control-plane", "etcd-only"):
        world.at(level)
        with pytest.raises(ports.ApplyFailed, match="etcd is not healthy"):
            world.actuator(known=known).apply_level(level)


def test_nothing_is_restarted_while_the_node_cannot_be_read(world: World) -> None:
    world.at("etcd-only")
    world.cluster.fails = ports.Unreachable("no API server answered")
    with pytest.raises(ports.ApplyFailed, match=r"no API server answered; k3s was not restarted") as caught:
        world.actuator().apply_level("control-plane")
    assert caught.value.began is False and world.restarts() == 0
    assert world.recorded() == record.text_for("etcd-only", world.moved)


@pytest.mark.parametrize("old", ["full", "control-plane"])
def test_a_gate_that_refuses_puts_the_old_record_back(world: World, old: str) -> None:
    world.at(old)
    before = world.recorded()
    world.hooks.refuse = ports.StepRefused("pi2 is not Ready")
    with pytest.raises(
        ports.StepRefused,
        match=r"pi2 is not Ready; k3s was not restarted, the old record is "
        r"back",
    ):
        world.actuator().apply_level("etcd-only")
    assert world.recorded() == before and world.restarts() == 0


def test_17_a_gate_that_cannot_be_asked_does_so_too(world: World) -> None:
    world.hooks.refuse = ports.Unreachable("no API server answered")
    with pytest.raises(ports.ApplyFailed) as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is False and world.recorded() is None and world.restarts() == 0


def test_20_an_unasked_restart_during_the_boot_is_no_done_step(world: World) -> None:
    """It ends once and comes back: the level counts only once it holds."""
    ended = []

    def end() -> None:
        if world.k3s.boots == 2 and not ended:
            ended.append(1)
            world.engine.restarts = 1
            world.k3s.stop()
            threading.Timer(0.3, world.k3s.start).start()

    fault(world, "json", None, end)
    world.actuator().apply_level("etcd-only")
    assert ended and world.k3s.level == "etcd-only"


def test_a_container_recreated_during_the_step(world: World) -> None:
    fault(world, "k3s/restart", None, lambda: setattr(world.engine, "id", "3" * 64))
    with pytest.raises(ports.ApplyFailed, match=r"was recreated during the step") as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is True


def test_another_member_id_after_the_restart_is_said(world: World) -> None:
    fault(world, "k3s/restart", None, lambda: world.k3s.members[0].update(ID=77))
    with pytest.raises(ports.ApplyFailed, match=f"member id changed from {OWN_MEMBER} to 77"):
        world.actuator().apply_level("etcd-only")


def test_etcd_must_be_healthy_again(world: World) -> None:
    world.patience = SHORT
    fault(world, "k3s/restart", None, lambda: setattr(world.k3s, "health", '{"health":"false"}'))
    with pytest.raises(ports.ApplyFailed, match=r"etcd is not healthy"):
        world.actuator().apply_level("etcd-only")


def test_a_data_volume_without_a_name_is_refused_before_anything(world: World) -> None:
    world.engine.inspected["Mounts"] = [
        {"Type": "volume", "Name": "b" * 64, "Destination": str(world.k3s.data), "RW": True}
    ]
    with pytest.raises(ports.StepRefused, match=r"a volume without a name.*k3s-data"):
        world.actuator().apply_level("etcd-only")
    assert world.restarts() == 0


# --- recovery by hand, with nobody left to ask ---


@pytest.mark.parametrize("level", ["etcd-only", "control-plane"])
def test_recovered_without_quorum_api_or_gate(world: World, level: str) -> None:
    world.k3s.members_said, world.k3s.health = "etcdserver: no leader", '{"health":"false"}'
    world.cluster.fails = ports.Unreachable("nobody answers")
    world.at(level)
    world.actuator().recover()
    assert world.recorded() is None and world.restarts() == 1
    assert world.k3s.level == "full" and world.actuator().current_level() == "full"
    assert world.hooks.facts == [] and "gate" not in world.engine.calls


def test_a_container_that_somebody_else_stopped_is_left_stopped(world: World) -> None:
    """A repair of the record has no step open: rule zero is not for it."""
    world.at("etcd-only")
    world.engine.running = False
    world.k3s.stop()
    world.hooks.open = False
    with pytest.raises(ports.ApplyFailed, match="no step of ours is open") as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is False
    assert "POST /containers/k3s/start" not in world.engine.calls


def test_a_stopped_or_looping_container_is_recovered(world: World) -> None:
    world.at("etcd-only")
    world.engine.running = False
    world.k3s.stop()
    world.actuator().recover()
    assert world.k3s.level == "full" and world.actuator().recorded_level() == "full"
    world.k3s.dies_at = {"etcd-only"}
    world.at("etcd-only")
    world.actuator().recover()
    assert world.k3s.level == "full" and world.restarts() == 1
    assert world.actuator().current_level() == "full"


def test_a_recovery_that_docker_denies_puts_the_record_back(world: World) -> None:
    world.at("etcd-only")
    before = world.recorded()
    fault(world, "k3s/restart", (403, {"message": "denied"}))
    with pytest.raises(ports.ApplyFailed, match=r"forbidden.*the old record is back") as caught:
        world.actuator().recover()
    assert caught.value.began is False
    assert world.recorded() == before and world.k3s.level == "etcd-only"


def test_a_recovery_whose_restart_failed_half_way_starts_what_it_finds_stopped(world: World) -> None:
    world.at("etcd-only")

    def stops() -> None:
        world.engine.running = False
        world.k3s.stop()

    fault(world, "k3s/restart", (500, {"message": "cannot start: device busy"}), stops, times=1)
    world.actuator().recover()
    assert world.k3s.level == "full" and world.recorded() is None


def test_a_recovery_that_was_asked_for_and_not_seen_has_begun(world: World) -> None:
    world.patience = SHORT
    world.at("etcd-only")
    fault(world, "k3s/restart", (500, {"message": "cannot stop: device busy"}))
    with pytest.raises(ports.ApplyFailed, match=r"not started anew within .*device busy") as caught:
        world.actuator().recover()
    assert caught.value.began is True and world.recorded() is None


def test_a_record_that_cannot_be_removed_stops_the_recovery(world: World) -> None:
    world.at("etcd-only")
    fault(world, "/exec", (500, {"message": "no exec"}))
    with pytest.raises(ports.ApplyFailed, match=r"k3s was not restarted") as caught:
        world.actuator().recover()
    assert caught.value.began is False and world.restarts() == 0


# --- the record behind a link ---


def test_a_recreated_container_has_lost_the_link_and_a_step_brings_it_back(world: World) -> None:
    del world.engine.inspected["Mounts"][1]
    world.place = record.Place(f"{world.k3s.data}/regrade", f"{world.k3s.config}.d")
    world.actuator().apply_level("control-plane")
    world.actuator().apply_level("etcd-only")
    link = Path(world.place.link)
    assert link.is_symlink() and world.recorded() == record.text_for("etcd-only", world.moved)
    link.unlink()
    world.engine.boot()
    actuator = world.actuator()
    assert (actuator.current_level(), actuator.recorded_level()) == ("full", "etcd-only")
    actuator.apply_level("etcd-only")
    assert world.k3s.level == "etcd-only" and link.is_symlink()
    actuator.apply_level("control-plane")
    link.unlink()
    actuator.apply_level("control-plane")
    assert link.is_symlink() and actuator.current_level() == "control-plane"
    actuator.apply_level("full")
    assert not os.path.lexists(link) and world.recorded() is None


# --- the trap ---


def test_a_good_boot_is_told_by_one_cat(world: World) -> None:
    world.actuator().apply_level("etcd-only")
    assert not [asked for asked in world.k3s.asked() if ":6444" in asked]
    assert world.actuator().trapped() is False


def test_its_own_address_first_is_no_trap_where_6444_is_good(world: World) -> None:
    world.k3s.own_first = True
    world.actuator().apply_level("etcd-only")
    assert [asked for asked in world.k3s.asked() if ":6444" in asked]
    assert world.restarts() == 1


def test_a_trapped_boot_is_restarted_once_more_after_the_gate(world: World) -> None:
    world.k3s.trapped_boots = 1
    world.actuator(ETCD_ONLY_HTTPS_PORT="0").apply_level("etcd-only")
    calls = [call for call in world.engine.calls if call in ("gate", "note") or "restart" in call]
    assert calls == ["note", "gate", "POST /containers/k3s/restart?t=60"] * 2
    assert world.hooks.facts[1]["cure"] == "own-address trap"
    assert world.actuator(ETCD_ONLY_HTTPS_PORT="0").trapped() is False


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ({"addresses": ("10.0.0.12", "127.0.0.1")}, "still holds our address"),
        ({"holder": "pi1"}, "is held by pi1"),
        ({"holder": "host-of-pi1_3c0f"}, "is held by host-of-pi1"),
        ({"holder": ""}, "is held by nobody"),
        ({"renews": False}, "was not renewed since"),
    ],
)
def test_the_cure_waits_for_all_three_conditions(world: World, lacks: dict[str, Any], words: str) -> None:
    world.k3s.trapped_boots = 1
    for name, value in lacks.items():
        setattr(world.cluster, name, value)
    good = Cluster(world.k3s)
    actuator = world.actuator(ETCD_ONLY_HTTPS_PORT="0")

    def cure() -> None:
        end = time.monotonic() + 20
        while world.cluster.asked < 3 and time.monotonic() < end:
            time.sleep(0.01)
        restarts.append(world.restarts())
        for name in lacks:
            setattr(world.cluster, name, getattr(good, name))

    restarts: list[int] = []
    thread = threading.Thread(target=cure)
    thread.start()
    actuator.apply_level("etcd-only")
    thread.join()
    assert restarts == [1] and world.restarts() == 2

    world.k3s.trapped_boots = 1
    world.at("etcd-only")
    for name, value in lacks.items():
        setattr(world.cluster, name, value)
    world.patience = SHORT
    actuator = world.actuator(ETCD_ONLY_HTTPS_PORT="0")
    assert actuator.trapped() is True
    with pytest.raises(ports.ApplyFailed, match=words) as caught:
        actuator.apply_level("etcd-only")
    assert caught.value.began is False and world.restarts() == 0


def test_a_cure_the_gate_refuses_is_told_apart_from_one_that_did_not_help(world: World) -> None:
    world.k3s.trapped_boots = 1
    fault(
        world,
        "k3s/restart",
        None,
        lambda: setattr(world.hooks, "refuse", ports.StepRefused("pi2 is not Ready")),
    )
    with pytest.raises(ports.ApplyFailed, match=r"locked behind its own address.*pi2 is not Ready") as caught:
        world.actuator(ETCD_ONLY_HTTPS_PORT="0").apply_level("etcd-only")
    assert caught.value.began is True and world.restarts() == 1
    assert caught.value.trapped is True and caught.value.stuck is False


def test_a_cure_that_does_not_help_is_tried_once(world: World) -> None:
    world.k3s.trapped_boots = 2
    with pytest.raises(ports.ApplyFailed, match=r"still locked.*ETCD_ONLY_HTTPS_PORT") as caught:
        world.actuator(ETCD_ONLY_HTTPS_PORT="0").apply_level("etcd-only")
    assert caught.value.began is True and world.restarts() == 2
    assert caught.value.stuck is True


@pytest.mark.parametrize(
    "said",
    [
        'error: Get "https://127.0.0.1:6444/readyz": net/http: TLS handshake timeout',
        "sh: kubectl: Cannot allocate memory",
        "",
    ],
)
def test_a_kubectl_that_fails_is_no_trap(world: World, said: str) -> None:
    world.k3s.trapped_boots = 1
    world.at("etcd-only")
    (world.k3s.folder / "answers" / "6444_readyz").write_text(said)
    with pytest.raises(ports.LevelUnknown, match="cannot be told"):
        world.actuator().trapped()


# --- etcd ---


def test_members_are_asked_where_k3s_listens(world: World) -> None:
    actuator = world.actuator()
    assert [member.id for member in actuator.members()] == [OWN_MEMBER, "2"]
    assert actuator.healthy() is True
    world.at("etcd-only")
    assert [member.id for member in actuator.members()] == [OWN_MEMBER, "2"]
    assert world.k3s.asked()[-1] == f"https://127.0.0.1:{world.moved}/db/info"
    assert world.hooks.facts == []


@pytest.mark.parametrize(
    "said", ["Error from server (InternalError): etcdserver: no leader", "Forbidden", "{}"]
)
def test_no_quorum_is_unknown(world: World, said: str) -> None:
    world.k3s.members_said, world.k3s.health = said, '{"health":"false"}'
    world.at("full")
    with pytest.raises(ports.LevelUnknown, match=r"member list cannot be read"):
        world.actuator().members()
    assert world.actuator().healthy() is False
    with pytest.raises(ports.ApplyFailed, match=r"member list cannot be read.*not restarted"):
        world.actuator().apply_level("etcd-only")
    assert world.restarts() == 0 and world.recorded() is None


def test_what_the_configuration_files_say_counts_in_their_order(world: World) -> None:
    world.k3s.config.write_text('{"token": "hush", "node-ip": "10.0.0.1"}')
    folder = Path(world.place.folder)
    folder.mkdir()
    (folder / "10-own.yaml").write_text(f"node-ip: 127.0.0.1\nhttps-listen-port: {world.api_port}")
    Path(world.place.path).write_text("# regrade-level: control-plane\nhttps-listen-port: 1\n")
    world.engine.inspected["Args"] = [
        "server",
        "--config",
        str(world.k3s.config),
        "--data-dir",
        str(world.k3s.data),
    ]
    server = world.actuator()._server()
    assert (server.addresses, server.api_port) == (("127.0.0.1",), world.api_port)
    assert world.actuator().current_level() == "control-plane"


def test_built_to_look_it_applies_nothing(world: World) -> None:
    actuator = world.actuator()
    actuator._hooks = None
    with pytest.raises(ports.ApplyFailed, match=r"to look only"):
        actuator.apply_level("etcd-only")
    with pytest.raises(ports.ApplyFailed, match=r"'half' is no level"):
        world.actuator().apply_level("half")


# --- the engine's own words ---


def test_no_container_of_that_name(world: World) -> None:
    with pytest.raises(ports.LevelUnknown, match=r"no container named other.*set CONTAINER"):
        world.actuator(CONTAINER="other").current_level()
    with pytest.raises(ports.ApplyFailed, match=r"no container named other"):
        world.actuator(CONTAINER="other").apply_level("full")


def test_a_name_that_fits_more_than_one_container_is_no_name(world: World) -> None:
    said = "Multiple IDs found with provided prefix: 0f"
    fault(world, "GET /containers", (400, {"message": said}))
    with pytest.raises(ports.LevelUnknown, match=r"more than one's id; set CONTAINER .* to the name"):
        world.actuator(CONTAINER="0f").current_level()


def test_an_engine_that_the_library_takes_no_more_is_too_old(world: World) -> None:
    world.engine.version = {"ApiVersion": "1.23", "MinAPIVersion": "1.12", "Version": "1.11"}
    with pytest.raises(ports.LevelUnknown, match=r"is too old for this service \(.*1\.24.*\): update Docker"):
        world.actuator().current_level()



def test_nobody_listens_at_the_socket(world: World) -> None:
    world.engine._server.shutdown()
    world.engine._server.server_close()
    with pytest.raises(ports.LevelUnknown, match=r"connection refused"):
        world.actuator().current_level()
    with pytest.raises(ports.ApplyFailed) as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is False


def test_an_engine_that_hangs_has_an_end(world: World) -> None:
    fault(world, "json", (200, {}), lambda: time.sleep(20))
    begun = time.monotonic()
    with pytest.raises(ports.LevelUnknown, match=r"gave no answer to inspect.*1 s"):
        world.actuator(CALL_TIMEOUT_SECONDS="1").current_level()
    assert time.monotonic() - begun < 15


def test_an_exec_that_hangs_has_an_end(world: World) -> None:
    begun = time.monotonic()
    with pytest.raises(
        docker_client.EngineError, match=r"gave no answer to exec of container k3s within 0.5 s"
    ):
        world.actuator()._engine.run("sleep 20", 0.5)
    assert time.monotonic() - begun < 15


def test_the_exit_code_and_both_streams_of_a_command(world: World) -> None:
    engine = world.actuator()._engine
    assert engine.run("echo out; echo err >&2; exit 3", 2) == (3, "out\n", "err\n")
    assert engine.run("true", 2) == (0, "", "")
