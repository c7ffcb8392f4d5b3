# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules as Ansible runs them, each a process of its own, over a stub of the host's `regrade`.

What the real command answers is tested with the core and on the test bed.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Optional

import pytest

MODULES = "ansible_collections.exadev.k3s_regrade.plugins.modules"

STEPPED = {
    "changed": True,
    "from": "full",
    "to": "etcd-only",
    "level": "etcd-only",
    "hold": {"from": False, "to": True},
    "steps": [{"from": "full", "to": "control-plane"}, {"from": "control-plane", "to": "etcd-only"}],
    "message": "server1 stepped from full to control-plane to etcd-only",
}
THERE = {
    "changed": False,
    "from": "etcd-only",
    "to": "etcd-only",
    "level": "etcd-only",
    "hold": {"from": True, "to": True},
    "steps": [],
    "message": "server1 is at etcd-only already",
}
WOULD = {
    **STEPPED,
    "level": "full",
    "steps": [],
    "message": "server1 would step from full to control-plane to etcd-only",
}
HELD = {"changed": True, "hold": True, "message": "server1 is held"}
STEPPED_DIFF = {"before": "level: full\nhold: false\n", "after": "level: etcd-only\nhold: true\n"}


class Host:
    """A folder with a stub command that notes its arguments and answers what it is told."""

    def __init__(self, folder: Path) -> None:
        self.command = folder / "regrade"
        self.calls = folder / "calls"

    def answers(self, output: object, code: int = 0, complaint: str = "", seconds: float = 0) -> None:
        text = output if isinstance(output, str) else json.dumps(output)
        self.command.write_text(
            "#!/bin/sh\n"
            f'echo "$@" >> {self.calls}\n'
            f"cat <<'END'\n{text}\nEND\n"
            f"cat >&2 <<'END'\n{complaint}\nEND\n"
            f"exec sh -c 'sleep {seconds}; exit {code}'\n",
            encoding="utf-8",
        )
        self.command.chmod(0o755)

    def arguments(self) -> list[str]:
        return self.calls.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# What is told to a module's process of the target it is on: how old its Python is, and who runs it.
TARGET = """
import os, runpy, sys, types
from ansible_collections.exadev.k3s_regrade.plugins.module_utils import host_command
version, user, name = sys.argv[1:]
del sys.argv[1:]
if version:
    told = tuple(map(int, version.split(".")))
    host_command.sys = types.SimpleNamespace(version_info=told, executable=sys.executable)
if user:
    host_command.os = types.SimpleNamespace(geteuid=lambda: int(user))
runpy.run_module(name, run_name="__main__", alter_sys=True)
"""


def run(
    module: str,
    host: Host,
    check: bool = False,
    version: str = "",
    user: Optional[int] = None,
    first_on_path: str = "",
    **params: Any,
) -> dict[str, Any]:
    """What the module answers; it must be one JSON document, with nothing beside it."""
    arguments = {"command": str(host.command), "_ansible_check_mode": check, "_ansible_diff": True, **params}
    told = [version, "" if user is None else str(user)]
    done = subprocess.run(
        [sys.executable, "-c", TARGET, *told, f"{MODULES}.{module}"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in (first_on_path, *sys.path) if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    assert done.returncode == (1 if answer.get("failed") else 0)
    return answer


def failure(answer: dict[str, Any]) -> str:
    assert answer["failed"] is True
    message = answer["msg"]
    assert isinstance(message, str)
    assert "\n" not in message and "Traceback" not in message
    return message


def test_a_step_is_reported_with_what_changed(host: Host) -> None:
    host.answers(STEPPED)
    answer = run("regrade_level", host, level="etcd-only")
    assert host.arguments() == ["step to etcd-only --json"]
    assert answer["changed"] is True
    assert (answer["from"], answer["level"]) == ("full", "etcd-only")
    assert answer["steps"] == STEPPED["steps"]
    assert answer["message"] == STEPPED["message"]
    assert answer["hold"] is True
    assert answer["diff"] == STEPPED_DIFF


def test_a_server_that_is_there_already_is_not_changed(host: Host) -> None:
    host.answers(THERE)
    answer = run("regrade_level", host, level="etcd-only")
    assert answer["changed"] is False
    assert answer["diff"]["before"] == answer["diff"]["after"]


def test_check_mode_asks_only_and_shows_where_it_would_go(host: Host) -> None:
    host.answers(WOULD)
    answer = run("regrade_level", host, check=True, level="etcd-only")
    assert host.arguments() == ["step to etcd-only --check --json"]
    assert answer["changed"] is True
    assert (answer["level"], answer["to"]) == ("full", "etcd-only")
    assert answer["diff"] == STEPPED_DIFF


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"level": "etcd-only"}, "step to etcd-only"),
        ({"level": "etcd-only", "hold": True}, "step to etcd-only --hold=yes"),
        ({"level": "full", "hold": False}, "step to full --hold=no"),
        ({"level": "full", "wait": True}, "step to full --wait=300"),
        ({"level": "full", "wait": True, "wait_timeout": 20, "hold": True}, "step to full --hold=yes --wait=20"),
        ({"level": "full", "wait_timeout": 20}, "step to full"),
        ({"hold": True}, "hold"),
        ({"hold": False}, "release"),
        ({"hold": False, "wait": True}, "release"),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_what_a_task_asks_is_what_the_command_is_asked(
    host: Host, params: Dict[str, Any], expected: str, check: bool
) -> None:
    host.answers(STEPPED if "level" in params else HELD)
    run("regrade_level", host, check=check, **params)
    assert host.arguments() == [f"{expected} --check --json" if check else f"{expected} --json"]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_a_hold_without_a_level_tells_its_own_diff(host: Host, hold: bool, changed: bool, check: bool) -> None:
    host.answers({"changed": changed, "hold": hold, "message": "in words"})
    answer = run("regrade_level", host, check=check, hold=hold)
    assert (answer["changed"], answer["hold"], answer["message"]) == (changed, hold, "in words")
    before = hold != changed
    lines = {True: "hold: true\n", False: "hold: false\n"}
    assert answer["diff"] == {"before": lines[before], "after": lines[hold]}


def test_a_hold_that_could_not_be_read_is_no_part_of_the_diff(host: Host) -> None:
    host.answers({**STEPPED, "hold": {"from": None, "to": None}})
    answer = run("regrade_level", host, level="etcd-only")
    assert answer["hold"] is None
    assert answer["diff"] == {"before": "level: full\n", "after": "level: etcd-only\n"}


def test_a_task_says_a_level_or_a_hold(host: Host) -> None:
    host.answers(STEPPED)
    assert "one of the following is required: level, hold" in failure(run("regrade_level", host))
    assert not host.calls.exists()


def test_the_wait_is_added_to_the_time_out_for_each_step(host: Host) -> None:
    host.answers(STEPPED, seconds=3)
    assert run("regrade_level", host, level="etcd-only", wait=True, wait_timeout=10, timeout=1)["changed"]
    assert "within 1 s" in failure(run("regrade_level", host, level="etcd-only", wait_timeout=10, timeout=1))
    host.answers(HELD, seconds=3)
    assert "within 1 s" in failure(run("regrade_level", host, hold=True, wait=True, timeout=1))


def test_an_unknown_level_never_reaches_the_command(host: Host) -> None:
    host.answers(STEPPED)
    assert "value of level must be one of" in failure(run("regrade_level", host, level="off"))
    assert not host.calls.exists()


@pytest.mark.parametrize("module", ["regrade_level", "regrade_level_info", "regrade_cluster_info"])
@pytest.mark.parametrize(
    ("output", "code", "complaint", "kind", "words"),
    [
        (
            {"error": {"kind": "refused", "message": "server2 is below full (control-plane)."}},
            3,
            "regrade: server2 is below full (control-plane).",
            "refused",
            "server2 is below full",
        ),
        ({"error": {"kind": "failed", "message": "etcd did not\ncome back."}}, 4, "", "failed", "come back."),
        ("", 5, "regrade: the level is unknown: k3s boots.", "failed", "the level is unknown: k3s boots."),
        ("", 2, "", "failed", "the arguments or the settings are wrong"),
        ("", 3, "", "failed", "the step was refused, and nothing was changed"),
        ("", 137, "", "failed", "ended with 137: it gave no reason"),
        (
            "",
            1,
            "Traceback (most recent call last):\n  File\nKeyError: 'x'",
            "failed",
            "ended with 1: KeyError: 'x'",
        ),
        ("all is well", 0, "", "failed", "printed no report in JSON"),
        ("[1, 2]", 0, "", "failed", "printed no report in JSON"),
    ],
)
def test_every_bad_answer_is_one_line(
    host: Host, module: str, output: object, code: int, complaint: str, kind: str, words: str
) -> None:
    host.answers(output, code, complaint)
    params = {"level": "full"} if module == "regrade_level" else {}
    answer = run(module, host, **params)
    assert words in failure(answer)
    assert answer["kind"] == kind


@pytest.mark.parametrize("lacking", ["changed", "level", "from", "to", "hold", "steps", "message"])
def test_a_report_without_what_is_needed_is_one_line(host: Host, lacking: str) -> None:
    host.answers({key: value for key, value in STEPPED.items() if key != lacking})
    assert lacking in failure(run("regrade_level", host, level="etcd-only"))


def test_a_missing_command_says_what_to_do(host: Host) -> None:
    answer = run("regrade_level_info", host)
    assert "run the role github_runner_cluster" in failure(answer)
    assert answer["kind"] == "missing"


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(("user", "cure"), [(1000, "use become: true."), (0, "it is no file that may be executed.")])
def test_a_command_that_may_not_be_run_says_what_to_do(host: Host, user: int, cure: str, folder: bool) -> None:
    if folder:
        host.command.mkdir()
    else:
        host.answers(THERE)
        host.command.chmod(stat.S_IRUSR)
    answer = run("regrade_level_info", host, user=user)
    assert f"may not be run by the user with id {user}: {cure}" in failure(answer)
    assert answer["kind"] == "permission"


def test_a_command_of_another_format_says_so(host: Host) -> None:
    host.command.write_bytes(b"\x7fELF nothing")
    host.command.chmod(0o755)
    assert "could not be run" in failure(run("regrade_level_info", host))


def test_a_silent_command_is_given_up_in_time(host: Host) -> None:
    host.answers(THERE, seconds=30)
    answer = run("regrade_level", host, level="etcd-only", timeout=1)
    assert "gave no answer within 1 s" in failure(answer)
    assert answer["kind"] == "timeout"


def test_cluster_info_gives_the_heartbeat_as_it_is(host: Host) -> None:
    report = {"version": 1, "time": "2026-11-30T09:00:00Z", "server": "server1", "nodes": [], "later": "more"}
    host.answers(report)
    answer = run("regrade_cluster_info", host, check=True)
    assert host.arguments() == ["heartbeat --json"]
    assert answer["changed"] is False
    assert answer["cluster"] == report


@pytest.mark.parametrize("lacking", ["version", "nodes"])
def test_a_heartbeat_without_what_is_needed_is_one_line(host: Host, lacking: str) -> None:
    host.answers({key: value for key, value in {"version": 1, "nodes": []}.items() if key != lacking})
    assert lacking in failure(run("regrade_cluster_info", host))


def test_info_reports_an_unknown_level_as_none(host: Host) -> None:
    report = {"server": "server1", "level": None, "level_unknown": "k3s boots", "hold": None}
    host.answers(report)
    answer = run("regrade_level_info", host)
    assert host.arguments() == ["status --json"]
    assert answer["changed"] is False
    assert (answer["level"], answer["hold"]) == (None, None)
    assert answer["status"] == report
