# SPDX-License-Identifier: GPL-3.0-or-later
"""The NixOS example: its shell parts as they ship, against stand-ins for `switch-to-configuration` and systemd.

Nix itself is not run: of the module only what can be read in it is looked at.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import local_k3s
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.command import Executable
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import conformance
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings as settings_of
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Authority
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_local_k3s import LocalStub

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "nixos"
MODULE = (EXAMPLE / "regrade.nix").read_text(encoding="utf-8")
LEVELS = ("full", "control-plane", "etcd-only")


class Machine:
    """A NixOS of three systems, its systemd, and a k3s that is no more than its loopback ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.system, self.current = folder / "system", folder / "current-system"
        self.record, self.drop_ins = folder / "lib" / "level", folder / "config.yaml.d"
        self.log = folder / "log"
        self.k3s = LocalStub(folder, Authority().server(folder), self._level_of_drop_in)
        for level in LEVELS:
            self._system(self.top(level))
        lower = self.top("etcd-only") / "etc" / "regrade"
        lower.mkdir(parents=True)
        shipped = (EXAMPLE / "etcd-only.yaml").read_text(encoding="utf-8")
        (lower / "k3s.yaml").write_text(shipped.replace("16443", str(self.k3s.moved)), encoding="utf-8")
        self.current.symlink_to(self.system)
        tools = folder / "bin"
        tools.mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "REGRADE_SYSTEM": str(self.system),
            "REGRADE_CURRENT": str(self.current),
            "REGRADE_RECORD": str(self.record),
            "REGRADE_DROP_INS": str(self.drop_ins),
            "REGRADE_LEVEL_LOCK": str(folder / "level.lock"),
            "REGRADE_CONTAINERD": str(folder / "containerd.sock"),
            "REGRADE_API_PORT": str(self.k3s.api_port),
            "ETCD_ONLY_HTTPS_PORT": str(self.k3s.moved),
        }
        self._tool(tools / "systemctl", f"""echo "systemctl $*" >>{self.log}
case $* in
  "restart k3s.service")
    [ ! -e {folder}/broken ] || exit 1
    {EXAMPLE}/lay-drop-in.sh
    : >{folder}/restart
    while [ -e {folder}/restart ]; do sleep 0.02; done ;;
  "--quiet is-active k3s.service") [ ! -e {folder}/stopped ] ;;
  *) exit 9 ;;
esac
""")
        self.k3s.start()

    def top(self, level: str) -> Path:
        return self.system if level == "full" else self.system / "specialisation" / level

    def _system(self, top: Path) -> None:
        (top / "bin").mkdir(parents=True)
        self._tool(top / "bin" / "switch-to-configuration", f"""echo "switch $* to {top.name}" >>{self.log}
[ ! -e {self.folder}/fails ] || {{ echo "warning: the following units failed: other.service" >&2; exit 4; }}
ln -sfn {top} {self.current}
""")

    @staticmethod
    def _tool(path: Path, text: str) -> None:
        path.write_text(f"#!/bin/sh\n{text}", encoding="utf-8")
        path.chmod(0o755)

    def _level_of_drop_in(self) -> str:
        """As k3s: every *.yaml of the folder."""
        found: dict[str, Any] = {}
        for path in sorted(self.drop_ins.glob("*.yaml")):
            found.update(yaml.safe_load(path.read_text(encoding="utf-8")))
        lower = [found.get(f"disable-{part}") for part in ("apiserver", "controller-manager", "scheduler", "agent")]
        if any(lower):
            assert all(lower)
            assert found["https-listen-port"] == self.k3s.moved
        return "etcd-only" if any(lower) else "full"

    def run(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [str(EXAMPLE / "regrade-level.sh"), *words],
            env=self.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, (done.stderr.splitlines() or [""])[-1]

    def apply(self, level: str) -> None:
        code, _out, said = self.run("apply_level", level)
        assert (code, self.record.read_text()) == (0, f"{level}\n"), said

    def logged(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.k3s.close()


@pytest.mark.parametrize("start", LEVELS)
def test_it_keeps_the_contract(machine: Machine, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    """All that `check-actuator --apply` checks."""
    monkeypatch.setattr(local_k3s, "BALANCER_PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(conformance, "POLL_SECONDS", 0.05)
    for level in LEVELS[1 : LEVELS.index(start) + 1]:
        machine.apply(level)
    boots = machine.k3s.boots
    executable = Executable(str(EXAMPLE / "regrade-level.sh"), machine.environment, 10.0, 30.0)
    looks = machine.k3s.looks()
    checks = [*conformance.look(executable, looks), *conformance.flip(executable, looks, 10.0)]
    assert [found for found in checks if not found.ok] == []
    assert len([found for found in checks if " from " in found.check]) == 4
    assert machine.k3s.boots == boots + 2


def test_each_level_is_switched_to_in_place_and_k3s_restarted_only_around_etcd_only(machine: Machine) -> None:
    seen = []
    for level in ("control-plane", "etcd-only", "etcd-only", "control-plane", "full", "full"):
        machine.apply(level)
        seen.append((machine.run("current_level")[1].strip(), machine.current.resolve().name, machine.logged()))
    restart = "systemctl restart k3s.service"
    assert seen == [
        ("control-plane", "control-plane", ["switch test to control-plane"]),
        ("etcd-only", "etcd-only", ["switch test to etcd-only", restart]),
        ("etcd-only", "etcd-only", []),
        ("control-plane", "control-plane", ["switch test to control-plane", restart]),
        ("full", "system", ["switch test to system"]),
        ("full", "system", []),
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_after_a_boot_k3s_comes_up_at_the_recorded_level(machine: Machine, level: str) -> None:
    """The next boot starts the system itself, whatever specialisation was switched to."""
    for name in LEVELS[1 : LEVELS.index(level) + 1]:
        machine.apply(name)
    machine.k3s.stop()
    machine.current.unlink()
    machine.current.symlink_to(machine.system)
    subprocess.run([str(EXAMPLE / "lay-drop-in.sh")], env=machine.environment, check=True)
    machine.k3s.start()
    assert machine.run("current_level")[:2] == (0, f"{level}\n")
    machine.logged()
    machine.apply("full")  # and from there it goes up, though the booted system is that of full already
    assert machine.run("current_level")[1] == "full\n"
    expected = ["systemctl restart k3s.service"] if level == "etcd-only" else []
    assert machine.logged() == expected


def test_a_rebuild_while_stepped_down_changes_no_level(machine: Machine) -> None:
    machine.apply("control-plane")
    machine.apply("etcd-only")
    machine.current.unlink()  # the rebuilt system is switched to, k3s is not restarted by it
    machine.current.symlink_to(machine.system)
    assert machine.run("current_level")[1] == "etcd-only\n"
    subprocess.run(["systemctl", "restart", "k3s.service"], env=machine.environment, check=True)
    assert machine.run("current_level")[1] == "etcd-only\n"


def test_a_system_without_the_specialisation_is_refused_untouched(machine: Machine) -> None:
    shutil.rmtree(machine.top("etcd-only"))
    code, _out, said = machine.run("apply_level", "etcd-only")
    assert (code, machine.record.exists(), machine.logged()) == (3, False, [])
    assert said.endswith("is no system to switch to: rebuild this one with the module, nothing was changed")


def test_a_switch_that_fails_puts_the_record_back_and_restarts_nothing(machine: Machine) -> None:
    machine.apply("control-plane")
    machine.logged()
    (machine.folder / "fails").touch()
    code, _out, said = machine.run("apply_level", "etcd-only")
    assert code == 3
    assert said.endswith("the switch to etcd-only failed: k3s was not restarted, and the record is control-plane again")
    assert machine.record.read_text() == "control-plane\n"
    assert machine.logged() == ["switch test to etcd-only"]  # nothing to switch back: it is still the current system


def test_a_record_that_cannot_be_written_is_a_refusal(machine: Machine) -> None:
    machine.record.parent.write_text("a file where the folder should be")
    code, _out, said = machine.run("apply_level", "control-plane")
    assert (code, machine.logged()) == (3, [])
    assert "cannot be written, nothing was changed" in said


def test_a_restart_that_fails_is_told_with_where_to_look(machine: Machine) -> None:
    (machine.folder / "broken").touch()
    code, _out, said = machine.run("apply_level", "etcd-only")
    assert code == 4
    assert said.endswith("systemctl restart k3s.service failed; journalctl -u k3s.service says why")


@pytest.mark.parametrize("level", LEVELS)
def test_a_k3s_that_is_stopped_is_started_at_the_level(machine: Machine, level: str) -> None:
    machine.k3s.stop()
    (machine.folder / "stopped").touch()
    machine.apply(level)
    assert machine.run("current_level")[1] == f"{level}\n"


def test_a_k3s_that_boots_is_left_to_boot(machine: Machine) -> None:
    machine.k3s.stop()
    machine.apply("control-plane")
    assert machine.k3s.boots == 1


def test_a_k3s_that_tells_no_level_is_unknown(machine: Machine) -> None:
    machine.k3s.stop()
    code, out, said = machine.run("current_level")
    assert (code, out) == (5, "")
    assert said.startswith("regrade-level: k3s tells no level on port")


def test_calls_do_not_overlap(machine: Machine) -> None:
    with (machine.folder / "level.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        begun = time.monotonic()
        machine.environment["REGRADE_LEVEL_WAIT"] = "1"
        code, _out, said = machine.run("apply_level", "control-plane")
    assert (code, machine.record.exists()) == (3, False)
    assert "another call is still at work" in said
    assert time.monotonic() - begun > 1  # it was waited for


def test_pods_end_with_the_step_to_etcd_only_and_nothing_else_does(machine: Machine) -> None:
    shim = machine.folder / "containerd-shim-runc-v2"
    shutil.copy(shutil.which("bash") or "/bin/bash", shim)
    shim.chmod(0o755)
    words = ["-c", "sleep 300 & wait; exit", "-address"]
    ours = subprocess.Popen([str(shim), *words, str(machine.folder / "containerd.sock")])
    dockers = subprocess.Popen([str(shim), *words, "/run/containerd/containerd.sock"])
    try:
        children = Path(f"/proc/{ours.pid}/task/{ours.pid}/children")
        end = time.monotonic() + 10
        while not (pod := children.read_text().strip()):
            assert time.monotonic() < end
            time.sleep(0.05)
        machine.apply("control-plane")
        assert ours.poll() is None
        machine.apply("etcd-only")
        assert ours.wait(10) == -signal.SIGKILL
        end = time.monotonic() + 10
        while Path(f"/proc/{pod}/exe").exists():  # a zombie, until its new parent takes note, has none
            assert time.monotonic() < end
            time.sleep(0.05)
        assert dockers.poll() is None
    finally:
        subprocess.run(["pkill", "-P", str(dockers.pid)], check=False)
        for process in (ours, dockers):
            process.kill()
            process.wait()


@pytest.mark.parametrize("words", [(), ("leap",), ("apply_level",), ("apply_level", "half")])
def test_what_it_does_not_know_is_status_2(machine: Machine, words: tuple[str, ...]) -> None:
    code, out, said = machine.run(*words)
    assert (code, out, machine.logged()) == (2, "", [])
    assert said.startswith("regrade-level: ")


def test_a_drop_in_that_cannot_be_laid_lets_k3s_start(machine: Machine) -> None:
    machine.apply("control-plane")
    machine.apply("etcd-only")
    laid = (machine.drop_ins / "90-regrade.yaml").read_text()
    shutil.rmtree(machine.top("etcd-only"))
    done = subprocess.run(
        [str(EXAMPLE / "lay-drop-in.sh")], env=machine.environment, capture_output=True, text=True, check=True
    )
    assert "could not be laid" in done.stderr
    assert (machine.drop_ins / "90-regrade.yaml").read_text() == laid


def test_the_module_names_files_settings_and_the_release_that_are_there() -> None:
    for name in re.findall(r" \./([\w.-]+)", MODULE):
        assert (EXAMPLE / name).is_file(), name
    block = re.search(r"settings = \{\n(.*?)\n  \} //", MODULE, re.DOTALL)
    assert block
    keys = re.findall(r"^    ([A-Z_]+) = ", block.group(1), re.MULTILINE)
    assert set(keys) <= set(settings_of.KEYS)
    assert {"RUNTIME", "ACTUATOR_COMMAND", "STEP_UP"} <= set(keys)
    assert 'STEP_UP = "automatic";' in MODULE
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    assert f'default = "{galaxy["version"]}";' in MODULE
    assert galaxy["repository"] in MODULE


def test_the_drop_in_moves_the_port_that_the_settings_name() -> None:
    drop_in = yaml.safe_load((EXAMPLE / "etcd-only.yaml").read_text(encoding="utf-8"))
    assert f'ETCD_ONLY_HTTPS_PORT = "{drop_in["https-listen-port"]}";' in MODULE
    assert not [key for key in drop_in if "etcd" in key]
