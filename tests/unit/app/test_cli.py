# SPDX-License-Identifier: GPL-3.0-or-later
"""The command: its exit codes, its one line on stderr, and the shape of each report."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import watcher
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks, pairs
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import (
    Lease,
    PeerAnswer,
    Taint,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import Unreachable
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import (
    Cluster,
    SteadyRenewal,
    fails,
    unreachable,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Authority, Reply, StubApi

LIBRARY = Path(cli.__file__).parent.parent


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    made = Cluster(LOCK_FILE=str(tmp_path / "lock"))
    monkeypatch.setenv("NODE_NAME", "server1")
    monkeypatch.delenv("REGRADE_SETTINGS", raising=False)
    monkeypatch.setattr(cli, "SETTINGS_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(cli, "_compose", lambda settings, options: made.process(settings.node_name))
    return made


Run = Tuple[int, str, str]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Run:
    code = cli.main(list(words))
    told = capsys.readouterr()
    assert told.err.count("\n") <= 1, told.err
    assert "Traceback" not in told.err
    return code, told.out, told.err


def report(capsys: pytest.CaptureFixture[str], *words: str) -> Dict[str, Any]:
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    found: Dict[str, Any] = json.loads(out)
    return found


def test_levels(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "levels") == {"levels": ["full", "control-plane", "etcd-only"]}
    assert run(capsys, "levels") == (0, "full\ncontrol-plane\netcd-only\n", "")


def test_step_report(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "step", "to", "etcd-only")
    assert {key: found[key] for key in ("changed", "from", "to", "level")} == {
        "changed": True, "from": "full", "to": "etcd-only", "level": "etcd-only",
    }  # fmt: skip
    assert [sorted(entry) for entry in found["steps"]] == [
        ["api_away_seconds", "etcd_away_seconds", "from", "remaining", "seconds", "to"]
    ] * 2
    again = report(capsys, "step", "to", "etcd-only")
    assert (again["changed"], again["steps"]) == (False, [])


def test_check_changes_nothing(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "step", "down", "--check")["changed"] is True
    assert cluster.api.writes == []


@pytest.mark.parametrize(("verb", "held"), [("hold", True), ("release", False)])
def test_hold_and_release_reports(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], verb: str, held: bool
) -> None:
    run(capsys, "release" if held else "hold")
    writes = list(cluster.api.writes)
    foretold = report(capsys, verb, "--check")
    assert cluster.api.writes == writes
    done, again = report(capsys, verb), report(capsys, verb)
    assert [(found["changed"], found["hold"]) for found in (foretold, done, again)] == [
        (True, held), (True, held), (False, held),
    ]  # fmt: skip
    assert marks.switch(cluster.node("server1"), marks.HOLD) is held


@pytest.mark.parametrize(
    ("words", "held"),
    [([], True), (["--hold=yes"], True), (["--hold", "no"], False), (["--hold=keep"], False)],
)
def test_a_step_says_whether_its_server_is_held(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], words: List[str], held: bool
) -> None:
    found = report(capsys, "step", "down", *words)
    assert found["hold"] == {"from": False, "to": held}
    assert marks.switch(cluster.node("server1"), marks.HOLD) is held
    assert run(capsys, "step", "up", "--hold=perhaps")[0] == 2


def test_status_report(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "status")
    assert sorted(found) == sorted([
        "server", "level", "level_unknown", "recorded", "recorded_error", "label", "node_error", "hold", "pause",
        "dry_run", "foreign_taints", "reading", "reading_error", "streaks", "cooldown", "relapses", "lease", "gate",
        "blocked", "exhausted", "back", "trap", "journal", "journal_error", "watcher", "watcher_error", "down", "up",
        "next",
    ])  # fmt: skip
    assert sorted(found["gate"][0]) == ["check", "cure", "detail", "ok"]
    words = run(capsys, "status")[1]
    assert "level      full" in words
    assert re.search(r"gate +quorum +yes", words)


def test_the_heartbeat_is_json_in_any_case_and_tells_the_level_of_each_node(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "step", "to", "etcd-only")
    cluster.api.set_node("server1", ready=None, ready_since="2026-01-01T00:05:00Z")
    taint = Taint("node.kubernetes.io/out-of-service", "", "NoExecute")
    cluster.api.set_node("server2", taints=(taint,), labels={}, annotations={marks.INTENT: "{"})
    found = report(capsys, "heartbeat")
    assert json.loads(run(capsys, "heartbeat")[1]) == {**found, "time": found["time"]}
    assert sorted(found) == ["nodes", "server", "time", "version"]
    assert (found["version"], found["server"], found["time"][:11]) == (1, "server1", "2026-01-01T")
    stepped, tainted, plain = found["nodes"]
    since = stepped.pop("below_full_since")
    assert since.startswith("2026-01-01T") and since < found["time"]
    assert stepped == {
        "name": "server1", "server": True, "ready": False, "ready_since": "2026-01-01T00:05:00Z",
        "regrade_level": "etcd-only", "hold": True, "step": None, "foreign_taints": [],
    }  # fmt: skip
    assert tainted == {
        "name": "server2", "server": False, "ready": True, "ready_since": None, "regrade_level": None,
        "below_full_since": None, "hold": False, "step": {"from": "", "to": ""},
        "foreign_taints": ["node.kubernetes.io/out-of-service:NoExecute"],
    }  # fmt: skip
    assert (plain["name"], plain["regrade_level"], plain["step"]) == ("server3", None, None)


def test_a_heartbeat_that_cannot_be_had_is_5(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.api.faults.append(fails("nodes", unreachable()))
    code, out, _err = run(capsys, "heartbeat", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (5, "unknown")


def test_settle_and_release_report(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "settle")["action"] == "nothing"
    assert report(capsys, "release")["changed"] is False


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "required"),
        (["leap"], "leap"),
        (["step", "sideways"], "sideways"),
        (["step", "to"], "`step to` takes a level"),
        (["step", "down", "full"], "take none"),
        (["step", "to", "off"], "off"),
        (["watch", "--loud"], "unexpected '--loud'; the options here are --settings FILE and --json"),
        (["watch", "--settings"], "unexpected '--settings'"),
        (["health", "--loud"], "unexpected '--loud'; the options here are --settings FILE and --json"),
        (["metrics", "--loud"], "unexpected '--loud'; the options here are --settings FILE and --json"),
    ],
)
def test_usage_is_2_and_one_line(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert told in err
    if words[-1:] != ["--settings"]:  # which would take --json for its file
        code, out, err = run(capsys, *words, "--json")
        assert (code, json.loads(out)["error"]["kind"]) == (2, "usage")


def test_wrong_settings_are_2(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMPLE_SECONDS", "99")
    code, out, err = run(capsys, "status", "--json")
    assert code == 2
    assert json.loads(out)["error"]["kind"] == "settings"
    assert err.startswith("regrade: SAMPLE_SECONDS=99")
    code, out, err = run(capsys, "status", "--settings", "/nowhere/at/all")
    assert code == 2
    assert "/nowhere/at/all cannot be read" in err


def test_a_refusal_is_3_and_names_the_reason(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.api.lease = Lease("server2/beef", 60, "", "", 3, "50")
    code, out, err = run(capsys, "step", "down", "--json")
    assert code == 3
    assert json.loads(out)["error"]["kind"] == "refused"
    assert "server2/beef" in err


def test_a_failed_step_is_4(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.hosts["server1"].disk["journal"] = {"id": "x"}
    code, out, err = run(capsys, "step", "down", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (4, "failed")
    assert "journal" in err


def test_an_unknown_level_is_5(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.hosts["server1"].running = ""
    code, out, _err = run(capsys, "step", "down", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (5, "unknown")
    found = report(capsys, "status")
    assert found["level"] is None
    assert found["level_unknown"] == "k3s does not answer"


def test_a_bug_is_one_line_with_its_place(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(cli, "_compose", broken)
    code, _out, err = run(capsys, "settle")
    assert code == 4
    assert re.search(r"KeyError at test_cli.py:\d+: 'surprise'; this is a bug", err)


def test_a_bug_of_the_watcher_is_one_line_too(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> int:
        raise KeyError("surprise")

    monkeypatch.setattr(watcher, "main", broken)
    code, out, err = run(capsys, "watch")
    assert (code, out) == (4, "")
    assert re.search(r"KeyError at test_cli.py:\d+: 'surprise'", err)


def test_the_watchers_children_answer_in_pairs(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "step", "down", "--automatic")
    answer = pairs.parse(out)
    assert (code, err) == (0, "")
    assert (answer["result"], answer["level"]) == ("done", "control-plane")
    cluster.api.set_node("server2", ready=None)
    code, out, err = run(capsys, "step", "down", "--automatic")
    answer = pairs.parse(out)
    assert (code, err) == (3, ""), "the watcher logs the answer itself"
    assert (answer["result"], answer["reason"], answer["undone"]) == ("refused", "ready", "false")
    assert "server2 is not Ready" in answer["message"]
    assert "bring that server back" in answer["cure"]


def test_a_step_decided_at_another_level_is_3_and_tells_the_level(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "step", "up", "--from", "control-plane", "--automatic")
    assert (code, err) == (3, "")
    answer = pairs.parse(out)
    assert (answer["result"], answer["level"]) == ("refused", "full")
    assert "is at full, expected control-plane" in answer["message"]
    assert cluster.api.writes == []


def test_still_over_at_the_lowest_level_is_one_event(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "step", "to", "etcd-only", "--hold=keep")
    code, out, err = run(capsys, "alert", "--automatic")
    assert (code, err, pairs.parse(out)["level"]) == (0, "", "etcd-only")
    assert "nothing is left to step down" in pairs.parse(out)["message"]
    assert [event[2] for event in cluster.api.events].count("RegradeExhausted") == 1
    for words in (["step", "down"], ["step", "down", "--automatic"]):
        assert run(capsys, *words)[0] == 0
    assert [event[2] for event in cluster.api.events].count("RegradeExhausted") == 1


def test_what_is_blocked_is_one_event_with_its_cure(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ["--move=down", "--reason=ready", "--text=- server2 is not Ready"]
    code, out, err = run(capsys, "blocked", "--automatic", *told)
    assert (code, err, pairs.parse(out)["result"]) == (0, "", "done")
    [(node, kind, reason, message)] = cluster.api.events
    assert (node, kind, reason) == ("server1", "Warning", "RegradeBlocked")
    assert message.startswith("the step down of server1 that is due is blocked by ready: - server2 is not Ready; cure:")
    assert cluster.api.writes == []


@pytest.mark.parametrize("level", ["full", "control-plane"])
def test_an_alert_never_steps_where_the_level_rose_meanwhile(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    run(capsys, "step", "to", level, "--hold=keep")
    events, writes = list(cluster.api.events), list(cluster.api.writes)
    code, out, err = run(capsys, "alert", "--automatic")
    answer = pairs.parse(out)
    assert (code, err, answer["result"], answer["level"]) == (0, "", "done", level)
    assert f"at {level} by now" in answer["message"]
    assert (cluster.api.events, cluster.api.writes) == (events, writes)
    assert cluster.hosts["server1"].running == level or level == "control-plane"


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "regrade.cli", *words],
        env={"PYTHONPATH": str(LIBRARY), "PATH": "/usr/bin:/bin", **environment},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_it_runs_with_no_ansible_and_no_library() -> None:
    done = command("levels", "--json")
    assert (done.returncode, json.loads(done.stdout)["levels"][0]) == (0, "full")
    assert command("--help").returncode == 0


def test_a_settings_file_that_the_environment_names_stands_alone(tmp_path: Path) -> None:
    """On a host, whose users have a KUBECONFIG of their own; in the service's container the environment wins."""
    path = tmp_path / "settings.env"
    path.write_text("NODE_NAME=a\nKUBE_SERVER=https://b\nLEASE_NAME=of-the-file\nSTATE_DIR=/nowhere\n")
    script = (
        "import os, sys; from regrade import cli; found = cli._settings(sys.argv[1]); "
        "print(found.lease_name, found.kubeconfig)"
    )
    for given, words, expected in (
        ({"REGRADE_SETTINGS": str(path)}, "", "of-the-file /etc/regrade/kube/config"),
        ({}, str(path), "of-me /home/me"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script, words],
            env={"PYTHONPATH": str(LIBRARY), "KUBECONFIG": "/home/me", "LEASE_NAME": "of-me", **given},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.stdout.strip() == expected, done.stderr


def test_field_cases_a1_and_a2_watch_stops_once_and_names_both_causes(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n")
    empty = tmp_path / "empty"
    empty.write_text("")
    stub = tmp_path / "child"
    stub.write_text("#!/bin/sh\necho result=done; echo action=nothing; echo level=full; echo message=well\n")
    stub.chmod(0o755)
    for pressure in (tmp_path / "none", empty):
        settings = {
            "NODE_NAME": "a", "KUBE_SERVER": "https://b", "PRESSURE_FILE": str(pressure), "MEMINFO_FILE": str(meminfo),
            "STATE_DIR": str(tmp_path / "state"), "LOCK_FILE": str(tmp_path / "lock"), "SAMPLE_SECONDS": "1",
        }  # fmt: skip
        script = (
            "import sys; from regrade.app import watcher; from regrade import cli; "
            f"sys.executable = {str(stub)!r}; raise SystemExit(cli.main(['watch']))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": str(LIBRARY), **settings},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "CONFIG_PSI" in done.stdout
        assert "psi=1" in done.stdout
        assert done.stdout.count("stopped:") == 1


# ---- what only a person may ask for


INTERRUPT = "Ctrl-C"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # of IOBase, for bytes
        if self.getvalue() == INTERRUPT:
            raise KeyboardInterrupt
        return super().readline()


def dead_in_a_step(cluster: Cluster) -> None:
    """server2 is gone, with a step open."""
    cluster.api.silent["server2"] = 0.0
    cluster.api.answers["10.0.0.2"] = PeerAnswer("connection refused", "connection refused")
    text = marks.intent_text(marks.Intent("7", "full", "control-plane", "server2/1", ""))
    annotations = {**cluster.node("server2").annotations, marks.INTENT: text}
    cluster.api.set_node("server2", ready=None, annotations=annotations)
    cluster.api.lease = Lease("server2/1", 60, "", "", 3, "50")


ADMIN = ("--kubeconfig", "admin.yaml")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["abandon-step", "server2"], "--kubeconfig"),
        (["abandon-step", *ADMIN], "NODE"),
        (["forget", "server2"], "--kubeconfig"),
        (["forget", "server2", "--kubeconfig", "/etc/regrade/kube/config"], "is the service's own"),
        (["recover"], "--offline"),
        (["with-lease"], "takes the command to run after `--`"),
        (["with-lease", "ls"], "ls"),
        (["step", "down", "--despite", "server2"], "step up by hand"),
        (["step", "up", "--automatic", "--despite", "server2"], "step up by hand"),
        (["step", "to", "etcd-only", "--despite"], "--despite"),
    ],
)
def test_a_persons_command_that_says_too_little_is_2(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    code = cli.main(words)
    said = capsys.readouterr()
    assert code == 2
    assert told in said.err + said.out
    assert cluster.api.writes == []


def test_without_a_terminal_it_says_what_it_would_do_and_names_yes(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    dead_in_a_step(cluster)
    code, out, err = run(capsys, "abandon-step", "server2", *ADMIN, "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (2, "usage")
    assert "its step from full to control-plane (id 7) will be closed" in err
    assert "run it with --yes" in err
    assert cluster.api.writes == []
    assert report(capsys, "abandon-step", "server2", *ADMIN, "--yes", "--step", "7")["changed"] is True
    assert marks.INTENT not in cluster.node("server2").annotations


@pytest.mark.parametrize(
    ("answer", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 3), ("\n", 3), ("", 3), (INTERRUPT, 3)]
)
def test_on_a_terminal_it_asks(
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
) -> None:
    dead_in_a_step(cluster)
    asked = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", asked)
    assert cli.main(["abandon-step", "server2", *ADMIN]) == code
    assert "its step from full to control-plane" in asked.getvalue()
    assert "Go on? [y/N]" in asked.getvalue()
    assert (marks.INTENT in cluster.node("server2").annotations) is (code != 0)


def test_reports_of_a_persons_commands(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "forget", "server2", *ADMIN, "--yes") == {
        "changed": False, "message": "server2 carries no mark of ours and no hold",
    }  # fmt: skip
    report(capsys, "step", "to", "etcd-only")
    dead_in_a_step(cluster)
    report(capsys, "abandon-step", "server2", *ADMIN, "--yes")
    assert run(capsys, "step", "up")[0] == 3
    assert run(capsys, "step", "up", "--despite", "server2")[0] == 2
    assert report(capsys, "step", "up", "--despite", "server2", "--yes")["level"] == "control-plane"
    assert report(capsys, "step", "to", "full", "--despite", "server2,server3")["level"] == "full"
    assert run(capsys, "recover", "--offline", "--yes")[0] == 3


def test_a_recovery_is_confirmed_and_told(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    report(capsys, "step", "to", "etcd-only")

    def silence(_call: str) -> None:
        raise Unreachable("no API server of KUBE_SERVER served it within 5 s")

    cluster.api.faults.append(silence)
    code, _out, err = run(capsys, "recover", "--offline")
    assert (code, "no quorum" in err, "run it with --yes" in err) == (2, True, True)
    assert "was restarted at full" in report(capsys, "recover", "--offline", "--yes")["message"]
    assert cluster.hosts["server1"].running == "full"


def test_with_lease_gives_back_the_commands_exit_code(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["with-lease", "--", "sh", "-c", "echo of the command; exit 7", "--", "--json"]) == 7
    assert capfd.readouterr() == ("of the command\n", "")
    assert cli.main(["with-lease", "--json", "--", "sh", "-c", "kill -9 $$"]) == 137
    told = json.loads(capfd.readouterr().out)
    assert (told["code"], told["lease_lost"]) == (137, "")
    assert cluster.api.lease is not None
    assert cluster.api.lease.holder == ""
    assert cli.main(["with-lease", "--", "/nowhere/at/all"]) == 4
    assert "/nowhere/at/all cannot be run: No such file" in capfd.readouterr().err


def test_with_lease_is_4_where_the_lease_was_lost(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SteadyRenewal, "why", "not renewed for 60 s")
    assert cli.main(["with-lease", "--", "true"]) == 4
    told = capfd.readouterr().err.splitlines()
    assert "others may step while true ran" in told[0]
    assert "true ended with exit code 0, but the Lease was lost meanwhile" in told[1]


def test_an_administrators_kubeconfig_is_used_and_never_the_services_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of it put together as on a host, up to the API."""
    authority = Authority()
    node = {"metadata": {"name": "server2", "uid": "u2", "resourceVersion": "1", "labels": {}}, "status": {}}
    stub = StubApi(authority.server(tmp_path), lambda request: Reply(200, node))
    own = authority.kubeconfig(tmp_path / "own", token="of-the-service")
    admin = authority.kubeconfig(tmp_path / "admin", token="of-an-administrator")
    for key, value in {
        "NODE_NAME": "server1", "KUBE_SERVER": stub.url, "KUBECONFIG": str(own), "LOCK_FILE": str(tmp_path / "lock"),
        "STATE_DIR": str(tmp_path / "state"), "DOCKER_HOST": f"unix://{tmp_path}/docker.sock",
    }.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(cli, "SETTINGS_FILE", str(tmp_path / "none"))
    try:
        assert report(capsys, "forget", "server2", "--kubeconfig", str(admin))["changed"] is False
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(admin.read_bytes())))
            assert report(capsys, "forget", "server2", "--kubeconfig", "-")["changed"] is False
        assert {request.headers["Authorization"] for request in stub.requests} == {"Bearer of-an-administrator"}
        code, _out, err = run(capsys, "forget", "server2", "--kubeconfig", str(own))
        assert (code, "is the service's own" in err) == (2, True)
        code, _out, err = run(capsys, "forget", "server2", "--kubeconfig", str(tmp_path / "absent"))
        assert (code, "absent cannot be read" in err, "run the role" in err) == (5, True, False)
    finally:
        stub.close()


def test_every_command_of_the_readme_is_one_that_is_understood() -> None:
    readme = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"`regrade ([^`]+)`", readme)
    assert len(commands) >= 7
    for command in commands:
        options = cli._parse(shlex.split(command))
        assert options.verb == command.split()[0]
        # The host's command gives the kubeconfig by stdin, where nobody can be asked any more.
        assert getattr(options, "kubeconfig", None) is None or options.yes, command
    assert "`--yes`" in readme
