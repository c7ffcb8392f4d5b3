# SPDX-License-Identifier: GPL-3.0-or-later
"""`regrade check-actuator`: an executable that keeps the contract passes, and each breach of it is named."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import command, local_k3s
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import conformance
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Authority
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_local_k3s import LocalStub, Script


class Bench:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.script = Script(folder)
        self.k3s = LocalStub(folder, Authority().server(folder), self.script.level)
        self.k3s.start()
        self._capsys = capsys

    def run(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        code = cli.main(["check-actuator", str(self.script.path), "--json", *words])
        told = self._capsys.readouterr()
        assert told.err == ""
        report = json.loads(told.out)
        assert report["passed"] is (code == 0)
        return code, report["checks"]

    def failed(self, *words: str) -> list[str]:
        code, checks = self.run(*words)
        found = [f"{entry['check']}: {entry['detail']}" for entry in checks if not entry["ok"]]
        assert code == (4 if found else 0)
        return found


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Bench]:
    made = Bench(tmp_path, capsys)
    monkeypatch.setattr(local_k3s, "LocalK3s", lambda *_given: made.k3s.looks())
    monkeypatch.setattr(local_k3s, "BALANCER_PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(local_k3s, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(conformance, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(cli, "SETTINGS_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("REGRADE_SETTINGS", raising=False)
    monkeypatch.setenv("NODE_NAME", "pi1")
    monkeypatch.setenv("LOCK_FILE", str(tmp_path / "lock"))
    monkeypatch.setenv("BOOT_TIMEOUT_SECONDS", "10")
    monkeypatch.setenv("RESTART_TIMEOUT_SECONDS", "10")
    yield made
    made.k3s.close()


def test_one_that_keeps_the_contract_passes_and_is_only_looked_at(bench: Bench) -> None:
    assert bench.failed() == []
    assert bench.script.called("apply_level") == []
    assert bench.k3s.boots == 1


@pytest.mark.parametrize("start", ["full", "control-plane", "etcd-only"])
def test_with_apply_it_goes_through_every_level_and_back(bench: Bench, start: str) -> None:
    bench.script.record.write_text(f"{start}\n")
    bench.k3s.start()
    code, checks = bench.run("--apply", "--yes")
    assert (code, bench.script.level()) == (0, start)
    flips = [entry["check"] for entry in checks if " from " in entry["check"]]
    assert flips == [
        f"apply_level {name} from {was}"
        for was, name in zip((start, *conformance.way(start)), conformance.way(start))
    ]
    assert bench.k3s.boots == 4
    assert {"full", "control-plane", "etcd-only"} == set(conformance.way(start)) | {start}


def test_it_asks_before_it_applies(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-actuator", str(bench.script.path), "--apply"]) == 2
    told = capsys.readouterr()
    assert "restarts this host's k3s twice and asks no other server" in told.err
    assert bench.script.called("apply_level") == []
    assert told.out.startswith("ok      levels: in ")


def test_nothing_is_applied_where_the_looks_fail(bench: Bench) -> None:
    bench.script.write(levels="echo full")
    assert bench.failed("--apply", "--yes") != []
    assert bench.script.called("apply_level") == []


def test_nothing_is_applied_while_another_process_of_ours_is_at_work(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cli.main(["check-actuator", str(bench.script.path), "--apply", "--yes"]) == 3
    assert "this host is busy" in capsys.readouterr().err
    assert bench.script.called("apply_level") == []


@pytest.mark.parametrize(
    ("verb", "words", "told"),
    [
        ("levels", "echo full control-plane etcd-only", "levels: .*expected full control-plane etcd-only, one a line"),
        ("levels", "exit 1", "levels: exit status 1: no word on stderr"),
        ("current_level", "echo some", "current_level: the executable's current_level says 'some'"),
        ("current_level", "echo etcd-only", "current_level is what k3s shows: .*answers as one at full"),
        ("current_level", "[ -e again ] || echo full; touch again", "current_level says it again: .*'', and before"),
        ("current_level", "restart; echo full", "k3s was not restarted: its process was started anew"),
        ("*", "exit 0", "an unknown verb: .*expected exit status 2 and a line on stderr"),
        ("*", "exit 2", "an unknown verb: .*exit status 2: no word on stderr"),
    ],
)  # fmt: skip
def test_each_breach_that_can_be_looked_for(
    bench: Bench, verb: str, words: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    bench.script.write(**{verb: words})
    failed = bench.failed()
    assert any(re.match(told, line) for line in failed), failed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("exit 0", "apply_level without a level: .*expected exit status 2"),
        ("RULES; echo $1 >RECORD; restart", "k3s was not restarted: its process was started anew meanwhile"),
        (
            'RULES; [ $(cat RECORD) = "$1" ] && exit 0; echo $1 >RECORD; restart',
            "apply_level control-plane from full: .*k3s was restarted, and must not be",
        ),
        ("RULES; [ $1 = full ] || { echo 'no such unit' >&2; exit 4; }", "apply_level control-plane .*no such unit"),
        ("RULES; [ $1 != etcd-only ] || exit 0; echo $1 >RECORD", "apply_level etcd-only .*k3s runs at control-plane"),
    ],
)  # fmt: skip
def test_each_breach_that_applying_shows(
    bench: Bench, words: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = conformance.flip
    monkeypatch.setattr(conformance, "flip", lambda executable, k3s, _patience: real(executable, k3s, 1.0))
    rules = "case ${1-} in full | control-plane | etcd-only) ;; *) echo no level >&2; exit 2 ;; esac"
    bench.script.write(apply_level=words.replace("RULES", rules).replace("RECORD", str(bench.script.record)))
    failed = bench.failed("--apply", "--yes")
    assert any(re.match(told, line) for line in failed), failed
    assert bench.script.level() == "full"


def test_a_trap_is_a_breach(bench: Bench) -> None:
    bench.k3s.trapped = True
    assert any("locked behind its own address" in line for line in bench.failed("--apply", "--yes"))
    assert bench.script.level() == "full"


def test_one_that_is_not_there_is_named(bench: Bench) -> None:
    bench.script.path.unlink()
    assert bench.failed()[0].startswith(f"levels: {bench.script.path} cannot be run: No such file")


def test_current_level_of_the_server_in_the_settings(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The composition by RUNTIME=command, as the verbs are called."""
    monkeypatch.setenv("RUNTIME", "command")
    monkeypatch.setenv("KUBE_SERVER", "https://10.0.0.12:6443")
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(Authority().kubeconfig(tmp_path / "kubeconfig")))
    assert cli.main(["current_level"]) == 2
    assert "ACTUATOR_COMMAND is not set" in capsys.readouterr().err
    monkeypatch.setenv("ACTUATOR_COMMAND", "bin/levels")
    assert cli.main(["current_level"]) == 2
    assert "ACTUATOR_COMMAND=bin/levels is not an absolute path" in capsys.readouterr().err
    monkeypatch.setenv("ACTUATOR_COMMAND", str(bench.script.path))
    monkeypatch.setattr(command, "LocalK3s", lambda *_given: bench.k3s.looks())
    assert cli.main(["current_level"]) == 0
    assert capsys.readouterr().out == "full\n"
    bench.script.write(current_level="echo it boots >&2; exit 5")
    assert cli.main(["current_level", "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "unknown"
