# SPDX-License-Identifier: GPL-3.0-or-later
"""The actuator of a unit against a stub `systemctl`. Numbers: the field cases.

What is the same on every platform is tested with Docker's (`test_docker_engine`); here is what a unit has of its
own, with one step in each direction. A real systemd is the scenario `systemd`'s.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import ports
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    docker_probe,
    k3s_actuator,
    systemd_unit,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    level_record as record,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings as settings_of
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Authority
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_docker import Cluster, Hooks
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_engine import FakeK3s
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_systemd import Loopback, StubSystemd

SHORT = 1.5


class World:
    def __init__(self, folder: Path) -> None:
        with socket.socket() as made, socket.socket() as other:
            made.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.api_port, self.moved = made.getsockname()[1], other.getsockname()[1]
        self.k3s = FakeK3s(folder, Authority().server(folder), self.api_port)
        self.systemd = StubSystemd(folder, self.k3s)
        self.systemd.boot()
        self.loopback = Loopback(self.k3s)
        self.member = self.k3s.data / "server" / "db" / "etcd" / "member"
        self.member.mkdir(parents=True)
        self.hooks = Hooks(self.systemd)  # type: ignore[arg-type]
        self.cluster = Cluster(self.k3s)
        self.drop_in = Path(f"{self.k3s.config}.d") / record.NAME
        self.patience = 30.0

    def actuator(
        self, known: dict[str, str] | None = None, proc: str = "/proc", **given: str
    ) -> systemd_unit.SystemdActuator:
        values = {
            "NODE_NAME": "pi1",
            "RUNTIME": "systemd",
            "ETCD_ONLY_HTTPS_PORT": str(self.moved),
            "CALL_TIMEOUT_SECONDS": "10",
            **given,
        }
        loaded = settings_of.load("\n".join(f"{key}={value}" for key, value in values.items()), {})
        return systemd_unit.SystemdActuator(
            loaded._replace(boot_timeout_seconds=self.patience, trap_wait_seconds=self.patience),
            self.cluster,  # type: ignore[arg-type]
            self.hooks,
            lambda: known or {},
            proc,
        )

    def at(self, level: str) -> None:
        """Put the server at a level, as after a step."""
        text = record.text_for(level, self.moved)
        self.drop_in.parent.mkdir(parents=True, exist_ok=True)
        self.drop_in.unlink(missing_ok=True)
        if text:
            self.drop_in.write_text(text)
        self.systemd.boot()
        self.systemd.calls.clear()

    def recorded(self) -> str | None:
        return self.drop_in.read_text() if self.drop_in.exists() else None

    def deeds(self) -> list[str]:
        """What was asked of systemd and of the step, without the looks."""
        return [call for call in self.systemd.calls if call != "show"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for module in (k3s_actuator, systemd_unit):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(k3s_actuator, "DATABASE_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(k3s_actuator, "BALANCER_PATIENCE_SECONDS", 0.3)
    made = World(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd_unit, "METRICS_PORT", made.loopback.health_port)
    monkeypatch.setattr(docker_probe, "BALANCER_PORT", made.loopback.balancer_port)
    yield made
    made.systemd.close()
    made.loopback.close()


def fault(
    world: World, verb: str, answer: tuple[int, str, str] | None, then: Callable[[], object] | None = None
) -> None:
    """Calls of this verb do `then` and get `answer` (None: the usual one)."""

    def act(called: str) -> tuple[int, str, str] | None:
        if called != verb:
            return None
        if then:
            then()
        return answer

    world.systemd.faults.append(act)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text and "\n" not in text
    return text


# --- the running level ---


def test_the_running_level_and_the_record_between_full_and_control_plane(world: World) -> None:
    actuator = world.actuator()
    for level in ("full", "control-plane", "etcd-only", "full"):
        world.at(level)
        assert (actuator.current_level(), actuator.recorded_level()) == (level, level)


@pytest.mark.parametrize(
    ("state", "restarts", "words"),
    [
        (("inactive", "dead"), 0, r"the unit is inactive \(dead, exit code 1\)"),
        (("failed", "failed"), 0, r"the unit is failed \(failed, exit code 1\)"),
        (("activating", "auto-restart"), 4, r"the unit is restarting \(exit code 1, 4 times\)"),
        (("activating", "start-pre"), 0, r"the unit is activating \(start-pre, exit code 1\)"),
        (("deactivating", "stop-sigterm"), 0, r"the unit is deactivating"),
    ],
)
def test_a_unit_that_does_not_run_is_unknown(
    world: World, state: tuple[str, str], restarts: int, words: str
) -> None:
    world.systemd.state, world.systemd.restarts, world.systemd.ended = state, restarts, (1, 1)
    with pytest.raises(ports.LevelUnknown, match=words):
        world.actuator().current_level()


def test_a_unit_that_has_not_said_yet_that_it_is_up_runs(world: World) -> None:
    """Type=notify: systemd calls it activating until k3s says so, which at etcd-only it may never do."""
    world.at("etcd-only")
    world.systemd.shown["SubState"], world.systemd.shown["ActiveState"] = "start", "activating"
    assert world.actuator().current_level() == "etcd-only"


def test_no_systemd_says_so(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ports.LevelUnknown, match=r"this host has no systemctl: RUNTIME=systemd"):
        world.actuator().current_level()


def test_etcds_members_are_read_on_loopback_at_each_level(world: World) -> None:
    for level in ("full", "etcd-only"):
        world.at(level)
        assert [member.name for member in world.actuator().members()] == ["pi1-0a1b2c3d", "pi2-99999999"]
    world.k3s.members_said = "etcdserver: no leader"
    with pytest.raises(ports.LevelUnknown, match=r"answered /db/info on port .* 'etcdserver: no leader'"):
        world.actuator().members()


# --- steps that restart k3s ---


def test_down_and_up_with_one_restart_each(world: World) -> None:
    world.at("control-plane")
    actuator = world.actuator()
    actuator.preflight()
    actuator.apply_level("etcd-only")
    assert world.recorded() == record.text_for("etcd-only", world.moved)
    assert world.deeds() == ["reset-failed", "note", "gate", "reset-failed", "restart"]
    assert world.hooks.facts[0]["started_at"] == f"{2:032x}", "the invocation of before the restart"
    world.systemd.calls.clear()
    world.actuator().apply_level("control-plane")
    assert world.recorded() == "# regrade-level: control-plane\n"
    assert world.deeds() == ["note", "gate", "reset-failed", "restart"]


def test_a_gate_that_refuses_puts_the_old_record_back(world: World) -> None:
    world.hooks.refuse = ports.StepRefused("pi2 is not Ready")
    with pytest.raises(
        ports.StepRefused, match=r"pi2 is not Ready; k3s was not restarted, the old record is back"
    ):
        world.actuator().apply_level("etcd-only")
    assert world.recorded() is None and "restart" not in world.deeds()


@pytest.mark.parametrize(
    "said",
    [
        "Failed to restart k3s.service: Access denied\n",
        "Failed to restart k3s.service: Interactive authentication required.\n",
        "Failed to connect to bus: No such file or directory\n",
        "Failed to restart k3s.service: Unit k3s.service is masked.\n",
        "Failed to restart k3s.service: Transaction for k3s.service/restart is destructive (poweroff.target has "
        "'start' job queued, but 'stop' is included in transaction).\n",
    ],
)
def test_a_restart_that_certainly_did_not_begin_puts_the_old_record_back(world: World, said: str) -> None:
    fault(world, "restart", (1, "", said))
    with pytest.raises(
        ports.ApplyFailed, match=r"restart of unit k3s.service failed: .*old record is back"
    ) as caught:
        world.actuator().apply_level("etcd-only")
    one_line(caught.value)
    assert caught.value.began is False and world.recorded() is None


def test_a_denied_right_is_known_before_anything_is_drained(world: World) -> None:
    fault(world, "reset-failed", (4, "", "Failed to reset failed state of unit k3s.service: Access denied\n"))
    with pytest.raises(k3s_actuator.PlatformError, match=r"Access denied; run it as root"):
        world.actuator().preflight()


def test_a_restart_call_without_an_answer_is_waited_for(world: World) -> None:
    fault(
        world,
        "restart",
        (1, "", "Failed to restart k3s.service: Connection timed out\n"),
        world.systemd.boot,
    )
    world.actuator().apply_level("etcd-only")
    assert world.k3s.level == "etcd-only" and world.deeds().count("restart") == 1


def test_a_restart_that_never_happens_leaves_the_step_open(world: World) -> None:
    world.patience = SHORT
    fault(world, "restart", (1, "", "Failed to restart k3s.service: Connection timed out\n"))
    with pytest.raises(ports.ApplyFailed, match=r"not reached within.*Connection timed out") as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is True and world.recorded() == record.text_for("etcd-only", world.moved)


def test_40_a_crash_loop_gets_the_old_record_back_and_one_start(world: World) -> None:
    world.systemd.restarts = 7  # counted over months
    world.k3s.dies_at = {"etcd-only"}
    with pytest.raises(
        ports.ApplyFailed,
        match=r"ended \d+ times at etcd-only with exit code 1 \(`journalctl -u k3s.service` says why\).*"
        r"runs at full again",
    ) as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.back is True and world.recorded() is None
    assert world.deeds().count("restart") == 2


def test_48_a_stopped_unit_of_an_open_step_is_started_and_of_none_is_left(world: World) -> None:
    world.at("etcd-only")
    world.k3s.stop()
    world.systemd.state = ("failed", "failed")
    world.hooks.open = False
    with pytest.raises(ports.ApplyFailed, match="who stopped it starts it again"):
        world.actuator().apply_level("etcd-only")
    assert "start" not in world.deeds()
    world.hooks.open = True
    world.actuator().apply_level("etcd-only")
    assert world.deeds() == ["reset-failed", "start"], "one that failed too often would not be started else"


def test_a_recovery_asks_nobody(world: World) -> None:
    world.at("etcd-only")
    world.actuator().recover()
    assert (
        world.recorded() is None
        and world.deeds() == ["reset-failed", "restart"]
        and world.k3s.level == "full"
    )


# --- what is refused before anything ---


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ({"LoadState": "not-found"}, r"no unit k3s.service to run \(not-found\); set UNIT"),
        ({"LoadState": "masked"}, r"no unit k3s.service to run \(masked\)"),
        (
            {"Restart": "on-failure"},
            r"Restart=on-failure: .*set `Restart=always`.*`systemctl edit k3s.service`",
        ),
        ({"Restart": "no"}, r"Restart=no: "),
        ({"TimeoutStopUSec": "5s"}, r"stop time-out of 5 s.*`TimeoutStopSec=60`"),
    ],
)
def test_48_a_unit_whose_vote_a_restart_could_lose_is_refused(
    world: World, shown: dict[str, str], words: str
) -> None:
    world.systemd.shown.update(shown)
    for ask in (world.actuator().preflight, lambda: world.actuator().apply_level("etcd-only")):
        with pytest.raises(ports.StepRefused, match=words) as caught:
            ask()
        one_line(caught.value)
    assert world.recorded() is None and world.deeds() == []


def test_a_data_folder_that_is_gone_is_never_restarted_on(world: World) -> None:
    """As where a disk is not mounted: k3s would found a cluster of its own in the empty folder."""
    actuator = world.actuator()
    actuator.preflight()
    world.systemd.calls.clear()
    moved_away = world.member.rename(world.member.with_name("elsewhere"))
    with pytest.raises(ports.StepRefused, match=r"member cannot be looked at \(No such file.*DATA_DIR"):
        actuator.apply_level("etcd-only")
    moved_away.rename(world.member)
    world.systemd.calls.clear()

    def vanish() -> None:  # between the first look and the restart
        world.member.rename(moved_away)

    world.hooks.note = lambda _facts: vanish()  # type: ignore[method-assign]
    with pytest.raises(
        ports.ApplyFailed, match=r"cannot be looked at.*not restarted, the old record is back"
    ) as caught:
        actuator.apply_level("etcd-only")
    assert caught.value.began is False and "restart" not in world.deeds() and world.recorded() is None


def test_a_stopped_k3s_is_not_started_without_its_data(world: World) -> None:
    world.k3s.stop()
    world.systemd.state = ("inactive", "dead")
    world.member.rename(world.member.with_name("elsewhere"))
    with pytest.raises(k3s_actuator.PlatformError, match=r"where etcd's member should be"):
        world.actuator().start_stopped()
    assert world.deeds() == []


def test_another_device_than_when_the_step_began_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    actuator = world.actuator()
    actuator.preflight()
    real = os.stat

    def other(path: str) -> os.stat_result:
        found = list(real(path))
        found[2] += 1  # st_dev
        return os.stat_result(found)

    monkeypatch.setattr(systemd_unit.os, "stat", other)
    with pytest.raises(ports.StepRefused, match=r"lies on another device than when the step began"):
        actuator.apply_level("etcd-only")


def test_where_k3s_is_told_to_look(world: World, tmp_path: Path) -> None:
    """By the unit's own environment files, where the last wins, over its Environment."""
    (tmp_path / "one").write_text("# K3S_CONFIG_FILE=/no\nK3S_CONFIG_FILE='/srv/one.yaml'\n")
    (tmp_path / "two").write_text("K3S_CONFIG_FILE=/srv/two.yaml\n")
    unit = world.actuator()._inspect()
    assert unit.words[:2] == ("/usr/local/bin/k3s", "server")
    for files, given, expected in (
        ((), (), str(world.k3s.config)),
        ((), ("K3S_CONFIG_FILE=/srv/unit.yaml",), "/srv/unit.yaml"),
        (
            (str(tmp_path / "one"), str(tmp_path / "gone")),
            ("K3S_CONFIG_FILE=/srv/unit.yaml",),
            "/srv/one.yaml",
        ),
        ((str(tmp_path / "one"), str(tmp_path / "two")), (), "/srv/two.yaml"),
    ):
        found = unit._replace(environment_files=files, environment=given)
        assert world.actuator()._config_files_in(found) == expected
    assert world.actuator(DATA_DIR="/srv/data/")._server_in(unit, {}).data == "/srv/data"
    assert world.actuator()._server_in(unit._replace(words=()), {"data-dir": "/b"}).data == "/b"


# --- the own-address trap ---


def test_a_trapped_boot_is_restarted_once_more_after_the_gate(world: World) -> None:
    world.k3s.trapped_boots = 1
    world.actuator().apply_level("etcd-only")
    assert world.deeds() == 2 * ["note", "gate", "reset-failed", "restart"]
    assert world.actuator().trapped() is False


# --- 57: the pods that outlive a restart ---


@pytest.fixture
def shim(world: World) -> Iterator[Callable[[Path, str], subprocess.Popen[bytes]]]:
    """Starts a copy of the shell as a program of that path, with a script."""
    started: list[subprocess.Popen[bytes]] = []

    def start(path: Path, script: str) -> subprocess.Popen[bytes]:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            shutil.copy("/bin/sh", path)
        child = subprocess.Popen([path, "-c", script], start_new_session=True)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def alive(child: subprocess.Popen[bytes]) -> bool:
    return child.poll() is None


def test_f57_shims_of_this_k3s_and_their_pods_are_ended_and_no_others(
    world: World, shim: Callable[[Path, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """KillMode=process leaves them running, and their memory is what the step was taken for."""
    pids = tmp_path / "pids"
    script = f"sleep 300 & echo $! >>{pids}; (sleep 300 & echo $! >>{pids}; wait) & echo $! >>{pids}; wait; sleep 1"
    ours = shim(world.k3s.data / "data" / "0a1b" / "bin" / "containerd-shim-runc-v2", script)
    other = shim(
        tmp_path / "docker" / "data" / "0a1b" / "bin" / "containerd-shim-runc-v2", "sleep 300 & wait"
    )
    k3s = shim(world.k3s.data / "data" / "0a1b" / "bin" / "k3s", "sleep 300 & wait")
    end = time.monotonic() + 10
    while not pids.exists() or len(pids.read_text().split()) < 3:
        assert time.monotonic() < end
        time.sleep(0.02)
    world.actuator().apply_level("etcd-only")
    ours.wait(10)
    assert alive(other) and alive(k3s)
    for pid in pids.read_text().split():
        found = systemd_unit._stat("/proc", int(pid))
        assert found is None or found.state == "Z", "a pod's process was left running"


def test_f57_only_etcd_only_ends_them(
    world: World, shim: Callable[[Path, str], subprocess.Popen[bytes]]
) -> None:
    ours = shim(world.k3s.data / "data" / "0a1b" / "bin" / "containerd-shim-runc-v2", "sleep 300 & wait")
    world.actuator().apply_level("control-plane")
    world.at("etcd-only")
    world.actuator().apply_level("full")
    assert alive(ours)


def test_f57_pods_that_do_not_end_are_said_and_the_step_stays_open(
    world: World, shim: Callable[[Path, str], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = shim(world.k3s.data / "data" / "0a1b" / "bin" / "containerd-shim-runc-v2", "sleep 300 & wait")
    monkeypatch.setattr(systemd_unit, "LEFTOVER_SECONDS", 0.2)
    monkeypatch.setattr(systemd_unit, "kill", lambda proc, pid, known: None)
    with pytest.raises(
        ports.ApplyFailed, match=r"etcd serves, but . processes of pods and 1 shims did not end"
    ) as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is True and alive(ours)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/lib/rancher/k3s/data/0a1b/bin/containerd-shim-runc-v2", True),
        ("/var/lib/rancher/k3s/data/current/bin/containerd-shim", True),
        ("/var/lib/rancher/k3s/data/0a1b/bin/k3s", False),
        ("/var/lib/rancher/k3s/data/0a1b/bin/containerd", False),
        ("/var/lib/rancher/k3s/data/0a1b/bin/aux/containerd-shim-runc-v2", False),
        ("/usr/bin/containerd-shim-runc-v2", False),
        ("/var/lib/rancher/k3s/agent/containerd/x/bin/containerd-shim-runc-v2", False),
        ("", False),
    ],
)
def test_f57_what_is_a_shim_of_this_k3s(path: str, expected: bool) -> None:
    assert systemd_unit.is_shim(path, "/var/lib/rancher/k3s") is expected


def test_f57_a_shim_is_told_after_an_upgrade_and_without_the_right_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    shim = "/var/lib/rancher/k3s/data/0a1b/bin/containerd-shim-runc-v2"
    (folder / "exe").symlink_to(f"{shim} (deleted)")
    assert systemd_unit.executable(str(tmp_path), 7) == shim
    (folder / "cmdline").write_bytes(f"{shim}\0-namespace\0k8s.io\0".encode())

    def denied(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(systemd_unit.os, "readlink", denied)
    assert systemd_unit.executable(str(tmp_path), 7) == shim


def test_f57_a_number_that_was_given_to_another_process_is_let_be(
    shim: Callable[[Path, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    child = shim(tmp_path / "program", "sleep 300")
    known = systemd_unit.processes("/proc")[child.pid]
    systemd_unit.kill("/proc", child.pid, known._replace(born="1"))
    assert alive(child)
    systemd_unit.kill("/proc", child.pid, known)
    assert child.wait(10) == -9
