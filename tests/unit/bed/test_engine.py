# SPDX-License-Identifier: GPL-3.0-or-later
"""That an engine which answers is left alone, and how one of our own is configured."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

import engine
from parts import Failed

WITHOUT = "Name:\tx\nCapEff:\t000001fffeffffff\nCapBnd:\t000001fffeffffff\n"
WITH = "CapBnd:\t000001ffffffffff\n"


def test_the_bounding_set_tells_whether_the_wrapper_is_needed() -> None:
    assert engine.has_sys_resource(WITH) is True
    assert engine.has_sys_resource(WITHOUT) is False


def test_a_status_without_a_bounding_set_is_said() -> None:
    with pytest.raises(Failed, match="CapBnd"):
        engine.has_sys_resource("Name:\tx\n")


def test_without_a_wrapper_the_machines_configuration_is_unchanged() -> None:
    own = {"data-root": "/elsewhere"}
    assert engine.configuration(own, None) == own


def test_the_wrapper_becomes_default_and_the_rest_stays() -> None:
    own = {"data-root": "/elsewhere", "runtimes": {"other": {"path": "/other"}}, "default-runtime": "other"}
    made = engine.configuration(own, Path("/w"))
    assert made["data-root"] == "/elsewhere"
    assert made["runtimes"]["other"] == {"path": "/other"}
    assert made["runtimes"][made["default-runtime"]] == {"path": "/w"}
    assert own["default-runtime"] == "other" and len(own["runtimes"]) == 1


def _never(*_: object, **__: object) -> None:
    raise AssertionError("an engine was started or something installed")


def test_an_engine_that_answers_is_never_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "answers", lambda: None)
    monkeypatch.setattr(engine, "packages", _never)
    monkeypatch.setattr(engine, "start", _never)
    engine.ensure_engine()


@pytest.mark.parametrize(
    ("host", "uid", "words"), [("tcp://far:2375", 0, "DOCKER_HOST"), ("", 1000, "as root")]
)
def test_nothing_is_started_for_another_engine_or_without_root(
    monkeypatch: pytest.MonkeyPatch, host: str, uid: int, words: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setattr(engine, "answers", lambda: "Cannot connect")
    monkeypatch.setattr(engine.os, "geteuid", lambda: uid)
    monkeypatch.setattr(engine, "packages", _never)
    monkeypatch.setattr(engine, "start", _never)
    with pytest.raises(Failed, match=f"Cannot connect.*{words}|{words}.*Cannot connect"):
        engine.ensure_engine()


def test_missing_packages_are_only_named_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_installed", lambda name: name == "there")
    monkeypatch.setattr(engine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(engine.os, "geteuid", lambda: 1000)
    engine.packages("there")
    with pytest.raises(Failed, match="apt-get install absent"):
        engine.packages("there", "absent")


def test_only_what_is_still_missing_is_installed_and_root_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine, "_installed", lambda name: name == "there")
    monkeypatch.setattr(engine.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(engine.os, "geteuid", lambda: 0)
    ran: list[list[str]] = []
    monkeypatch.setattr(engine.Part, "run", lambda self, command, **_: ran.append(command))
    engine.packages("there", "absent")
    assert [command[3] for command in ran] == ["update", "install"]
    assert ran[1][-1] == "absent" and "there" not in ran[1]
    assert "running as root: installing absent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "comm", "stays"),
    [
        ("41", "dockerd", True),
        ("41\n", "dockerd", True),
        ("41", "bash", False),  # the number was given to another program
        ("41", None, False),
        ("", None, False),
    ],
)
def test_only_the_pid_file_of_an_engine_that_lives_is_left(
    tmp_path: Path, text: str, comm: str | None, stays: bool
) -> None:
    if comm is not None:
        (tmp_path / "proc" / "41").mkdir(parents=True)
        (tmp_path / "proc" / "41" / "comm").write_text(f"{comm}\n")
    pid_file = tmp_path / "docker.pid"
    pid_file.write_text(text)
    engine.forget_dead(pid_file, "dockerd", tmp_path / "proc")
    assert pid_file.exists() is stays


def test_a_pid_file_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    engine.forget_dead(tmp_path / "docker.pid", "dockerd", tmp_path)


def test_a_package_is_unpacked_once_and_never_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine.shutil, "which", lambda name: f"/usr/bin/{name}")
    ran: list[list[str]] = []

    def run(_part: object, command: list[str], cwd: Optional[Path] = None, **_: object) -> None:
        ran.append(command)
        if cwd is not None:
            (cwd / "tool_1_all.deb").touch()
        elif command[0] == "dpkg-deb":
            Path(command[-1], "usr").mkdir(parents=True)

    monkeypatch.setattr(engine.Part, "run", run)
    made = engine.unpacked("tool")
    assert (made / "usr").is_dir() and engine.unpacked("tool") == made
    first, second = (command for command in ran if "update" not in command)
    assert first == ["apt-get", "-q", "download", "tool"]
    assert second[:2] == ["dpkg-deb", "--extract"]
    assert [path.name for path in made.parent.iterdir()] == ["tool"], "no archive is kept"
