# SPDX-License-Identifier: GPL-3.0-or-later
"""What a long part says, remembers, and raises."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import parts
from parts import Failed, Part


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(("seconds", "words"), [(7.4, "7 s"), (59.6, "1 min 00 s"), (130, "2 min 10 s")])
def test_spans_are_in_words(seconds: float, words: str) -> None:
    assert parts.span(seconds) == words


def test_the_last_success_is_told_and_a_failure_is_not_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    with Part("bake"):
        pass
    remembered = parts.last_time("bake")
    with pytest.raises(Failed), Part("bake"):
        time.sleep(0.2)
        raise Failed("burnt")
    said = capsys.readouterr().out
    assert "[bake] begins; first time here" in said and "[bake] begins; last time 0 s" in said
    assert "[bake] FAILED" in said
    assert parts.last_time("bake") == remembered


def test_a_silent_part_is_spoken_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parts, "EVERY_SECONDS", 0.05)
    with Part("bake") as part:
        part.now("kneading")
        time.sleep(0.3)
    assert "[bake] 0 s: kneading" in capsys.readouterr().out


def test_a_command_that_fails_shows_the_end_of_its_log_and_raises_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Failed) as failed, Part("bake") as part:
        part.run([sys.executable, "-c", "print('too hot'); raise SystemExit(3)"])
    assert "exit code 3" in str(failed.value) and "\n" not in str(failed.value)
    assert "too hot" in capsys.readouterr().out


def test_a_command_that_takes_too_long_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with pytest.raises(Failed, match="its limit of 0 s"), Part("bake") as part:
        part.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.3)
    assert time.monotonic() - began < 30


def test_a_command_that_is_not_there_is_said() -> None:
    with pytest.raises(Failed, match="no-such-command could not be started"), Part("bake") as part:
        part.run(["no-such-command"])


def test_what_is_echoed_also_tells_how_far_the_part_is(capsys: pytest.CaptureFixture[str]) -> None:
    with parts.Part("echoing") as part:
        part.run(["echo", "half"], echo=True, describe=lambda line: f"at {line}")
        assert part._doing == "at half"
    assert "half\n" in capsys.readouterr().out
