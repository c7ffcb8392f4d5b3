# SPDX-License-Identifier: GPL-3.0-or-later
"""The idle loop as a process: what it imports, its children, its notes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.state_files import (
    StateFiles,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import log_lines, watcher_notes
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import load
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.step import JOURNAL
from hypothesis import example, given
from hypothesis import strategies as st

LIBRARY = str(Path(cli.__file__).parent.parent)
# All that the idle loop may load over a bare Python: `enum` and `functools` come with `signal` itself, and what
# `collections` needs with `core.light`. Whatever is not here costs memory where memory is short.
ALLOWED = {
    "__future__", "collections", "enum", "errno", "functools", "genericpath", "itertools", "keyword", "operator", "os",
    "os.path", "posixpath", "reprlib", "signal", "stat", "types",
}  # fmt: skip


class Watcher:
    """A watcher in a process of its own, whose children are a shell script of the test's."""

    CODE = ""  # Python that runs before it

    def __init__(self, folder: Path, child: str, *options: str, **settings: str) -> None:
        self.folder = folder
        (folder / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n")
        (folder / "pressure").write_text("some avg10=0 avg60=0 avg300=0 total=0\n")
        script = folder / "child"
        script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{child}\n')
        script.chmod(0o755)
        self.environment = {
            "NODE_NAME": "a", "KUBE_SERVER": "https://b", "PRESSURE_FILE": str(folder / "pressure"),
            "MEMINFO_FILE": str(folder / "meminfo"), "STATE_DIR": str(folder / "state"),
            "LOCK_FILE": str(folder / "lock"), "SAMPLE_SECONDS": "1", "PRESSURE_WINDOW_SECONDS": "3",
            "SUSTAIN_DOWN_SECONDS": "2", "SUSTAIN_UP_SECONDS": "2", "COOLDOWN_DOWN_SECONDS": "4",
            "COOLDOWN_UP_SECONDS": "4", "SETTLE_SECONDS": "5", **settings,
        }  # fmt: skip
        code = (
            f"{self.CODE}import sys; from regrade import cli; from regrade.app import watcher; "
            f"watcher.COMMAND = (); sys.executable = {str(script)!r}; "
            f"raise SystemExit(cli.main({['watch', *options]!r}))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], env={"PYTHONPATH": LIBRARY, "PATH": "/usr/bin:/bin", **self.environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def asked(self) -> List[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def notes(self) -> Dict[str, str]:
        return watcher_notes.read(load("", self.environment))

    def until(self, holds: Callable[[], bool], seconds: float = 15.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < end, (self.asked(), self.notes())
            time.sleep(0.05)

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=10)[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Watcher]]:
    started: List[Watcher] = []

    def begin(child: str, *options: str, **settings: str) -> Watcher:
        started.append(Watcher(tmp_path, child, *options, **settings))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


WELL = "echo result=done; echo action=nothing; echo level=full; echo message=well"


def test_the_idle_loop_loads_nothing_but_what_is_allowed() -> None:
    code = (
        "import sys\nbare = set(sys.modules)\nfrom regrade import cli\nfrom regrade.app import watcher\n"
        "assert not [name for name in sys.modules if 'metrics' in name]\n"  # nor what writes no METRICS_FILE needs
        "from regrade.app import metrics\n"
        "print(*sorted(set(sys.modules) - bare))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": LIBRARY}, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    assert {"regrade.app.watcher", "regrade.cli"} <= loaded, done.stderr
    ours = {name for name in loaded if name.partition(".")[0] == "regrade"}
    assert {name for name in loaded - ours if not name.startswith("_") or name == "__future__"} <= ALLOWED


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
@example('"\\\x00\n\r\t\x1f\x7f\u2028', "\U0001f600\ud800")
def test_a_line_of_the_log_is_json(server: str, message: str) -> None:
    told = log_lines.encoded({"server": server, "message": message})
    assert told.endswith(b"\n") and told.count(b"\n") == 1
    # two halves of a pair side by side are one character to JSON, however they were written
    joined = {"server": _joined(server), "message": _joined(message)}
    assert {key: _joined(value) for key, value in json.loads(told).items()} == joined


def _joined(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def test_with_json_each_line_of_the_log_is_an_object(start: Callable[..., Watcher]) -> None:
    one = start("echo result=done; echo action=cured; echo level=full; echo 'message=a \"word\"'", "--json")
    one.until(lambda: one.notes().get("level") == "full")
    told = [json.loads(line) for line in one.stop().splitlines()]
    assert all(set(line) == {"server", "message"} and line["server"] == "a" for line in told)
    assert told[0]["message"].startswith("watching a every 1 s")
    assert 'settle: done: a "word"' in [line["message"] for line in told]
    assert one.asked() == ["settle --automatic --json"], "what a child logs is JSON too"


def test_the_metrics_are_written_at_every_sample_and_gone_once_it_is_stopped(
    start: Callable[..., Watcher], tmp_path: Path
) -> None:
    path = tmp_path / "out" / "a.prom"
    one = start(WELL, METRICS_FILE=str(path))
    one.until(lambda: one.notes().get("level") == "full")
    path.parent.mkdir()  # a folder that comes late is found
    known = 'k3s_regrade_level{server="a",level="full"} 1\n'
    one.until(lambda: path.exists() and known in path.read_text())
    before = path.read_text()
    assert 'k3s_regrade_below_full{server="a"} 0\n' in before
    one.until(lambda: path.read_text() != before)
    log = one.stop()
    assert not list(path.parent.iterdir())
    assert log.count(f"METRICS_FILE={path} cannot be written: No such file or directory") == 1
    assert one.process.returncode == 0


def test_still_over_at_the_lowest_level_asks_for_an_alert_and_no_step(
    start: Callable[..., Watcher], tmp_path: Path
) -> None:
    one = start("echo result=done; echo action=nothing; echo level=etcd-only; echo message=well")
    one.until(lambda: one.notes().get("level") == "etcd-only")
    (tmp_path / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 100000 kB\n")
    one.until(lambda: "alert --automatic" in one.asked())
    one.stop()
    assert not [line for line in one.asked() if line.startswith("step")]


def test_a_blocked_step_is_told_by_a_child_of_its_own(start: Callable[..., Watcher], tmp_path: Path) -> None:
    refuses = "echo result=refused; echo reason=ready; echo cure=wait; echo level=full; echo message=b is not Ready"
    one = start(f"case $1 in step) {refuses};; *) {WELL};; esac")
    one.until(lambda: one.notes().get("level") == "full")
    (tmp_path / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 100000 kB\n")
    one.until(lambda: len(one.asked()) > 2)
    one.until(lambda: one.notes().get("busy") == "")
    log = one.stop()
    assert one.asked()[-1] == "blocked --automatic --move=down --reason=ready --text=b is not Ready"
    assert (one.notes()["blocked_reason"], one.notes()["blocked_cure"]) == ("ready", "wait")
    assert "down: refused: b is not Ready (blocked by ready; cure: wait)" in log


def test_a_child_that_hangs_is_killed_after_its_settings_time(start: Callable[..., Watcher]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Watcher, "CODE", "from regrade.app import watcher; watcher.child_seconds = lambda settings: 1.0; "
        )
        one = start("exec sleep 60")
    one.until(lambda: "without an answer" in one.notes().get("unhealthy", ""))
    assert "settle: failed: the child ended without an answer" in one.stop()


def test_health_tells_in_json_too(start: Callable[..., Watcher], capsys: pytest.CaptureFixture[str]) -> None:
    one = start(WELL)
    one.until(lambda: one.notes().get("level") == "full")
    one.stop()
    path = one.folder / "regrade.watcher"  # its last note, rounded up to just ahead of now
    now = f"boottime={time.clock_gettime(time.CLOCK_BOOTTIME) + 0.5:.1f}"
    path.write_text(re.sub(r"^boottime=.*$", now, path.read_text(), count=1, flags=re.M))
    with pytest.MonkeyPatch.context() as patch:
        for key, value in one.environment.items():
            patch.setenv(key, value)
        assert cli.main(["health", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"health": "well", "message": ""}
        patch.setenv("LOCK_FILE", str(one.folder / "other" / "lock"))
        assert cli.main(["health", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["health"] == "unwell"
    assert "no watcher has written" in told["message"]


def test_it_settles_at_the_start_then_only_samples_and_ends_at_once(start: Callable[..., Watcher]) -> None:
    one = start(WELL)
    one.until(lambda: one.notes().get("level") == "full")
    time.sleep(1.5)
    assert one.asked() == ["settle --automatic"]
    begun = time.monotonic()
    log = one.stop()
    assert one.process.returncode == 0
    assert time.monotonic() - begun < 15
    assert "watching a every 1 s" in log
    assert watcher_notes.unhealthy(load("", one.environment)) == ""


def test_pressure_starts_a_step_and_a_stop_waits_for_it(
    start: Callable[..., Watcher], tmp_path: Path
) -> None:
    step = f"case $1 in step) touch {tmp_path}/stepping; sleep 2; touch {tmp_path}/stepped;; esac; {WELL}"
    one = start(step)
    one.until(lambda: one.notes().get("level") == "full")
    (tmp_path / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 100000 kB\n")
    one.until((tmp_path / "stepping").exists)
    log = one.stop()
    assert (tmp_path / "stepped").exists()
    assert "step down --automatic --from full --after=" in one.asked(), "the level it was decided at"
    assert re.search(r"down at full: over for [23] s; over, pressure", log)
    assert "stopping: waiting" in log


def test_a_note_of_a_step_by_hand_is_seen(start: Callable[..., Watcher], tmp_path: Path) -> None:
    one = start("echo result=done; echo action=nothing; echo level=control-plane; echo message=well")
    one.until(lambda: one.notes().get("level") == "control-plane")
    now, boot = one.notes()["boottime"], one.notes()["boot_id"]
    note = tmp_path / "state" / "last-step"
    note.with_suffix(".new").write_text(
        f"boottime={now}\nboot_id={boot}\ndirection=down\nlevel=control-plane\n"
    )
    os.rename(note.with_suffix(".new"), note)
    one.until(lambda: float(one.notes()["cooldown_up"]) > 0)


def test_a_step_by_hand_that_died_at_full_is_settled(start: Callable[..., Watcher], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watcher, "CODE", "from regrade.core import watch; watch.FIRST_SETTLE_SECONDS = 1.0; ")
        one = start(WELL)
    one.until(lambda: one.notes().get("level") == "full")
    store = StateFiles(str(tmp_path / "state"))
    store.write(JOURNAL, {"phase": "effects"})
    one.until(lambda: len(one.asked()) > 1)
    store.remove(JOURNAL)
    one.stop()
    assert set(one.asked()) == {"settle --automatic"}


def test_where_no_process_can_be_started_it_tries_again(start: Callable[..., Watcher]) -> None:
    """EAGAIN and ENOMEM are to be expected where memory is short."""
    broken = (
        "import os; spawn = os.posix_spawn; tried = []\n"
        "def none(*given, **named):\n"
        "    if tried: return spawn(*given, **named)\n"
        "    tried.append(1); raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "os.posix_spawn = none\n"
        "from regrade.core import watch; watch.FIRST_SETTLE_SECONDS = 1.0\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watcher, "CODE", broken)
        one = start(WELL)
    one.until(lambda: one.notes().get("level") == "full")
    log = one.stop()
    assert "settle: unknown: no process could be started: Resource temporarily unavailable" in log
    assert "Traceback" not in log


def test_notes_that_cannot_be_written_do_not_end_it(start: Callable[..., Watcher]) -> None:
    broken = (
        "import os\n"
        "def full(*given): raise OSError(28, 'No space left on device')\n"
        "os.pwrite = full\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watcher, "CODE", broken)
        one = start(WELL)
    one.until(lambda: bool(one.asked()))
    time.sleep(1.5)
    assert one.process.poll() is None
    assert "Traceback" not in one.stop()


def test_memory_that_cannot_be_read_is_told_before_it_begins(
    start: Callable[..., Watcher], tmp_path: Path
) -> None:
    one = Watcher(tmp_path, WELL)
    one.process.kill()
    one.process.communicate()
    (tmp_path / "meminfo").write_text("MemTotal: 1048576 kB\nMemFree: 834036 kB\n")
    done = subprocess.run(
        [sys.executable, "-m", "regrade.cli", "watch"], env={"PYTHONPATH": LIBRARY, **one.environment},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "MemAvailable" in done.stderr


def test_files_that_cannot_be_read_do_not_end_it(start: Callable[..., Watcher], tmp_path: Path) -> None:
    """A failing card: whoever keeps a vote must go on, at the start and later."""
    store = StateFiles(str(tmp_path / "state"))
    store.note_step({"level": "etcd-only"})
    broken = (
        "import errno, os\n"
        "read = os.read\n"
        "def failing(descriptor, size):\n"
        "    if os.readlink(f'/proc/self/fd/{descriptor}').endswith(('/last-step', '/watcher')):\n"
        "        raise OSError(errno.EIO, 'Input/output error')\n"
        "    return read(descriptor, size)\n"
        "os.read = failing\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watcher, "CODE", broken)
        one = start(WELL.replace("full", "etcd-only"))
    one.until(lambda: one.notes().get("level") == "etcd-only")
    store.note_step({"level": "etcd-only", "id": "another"})
    time.sleep(2.5)
    assert one.process.poll() is None
    assert "last-step cannot be read: Input/output error" in one.stop()


def test_below_full_it_stays_also_where_memory_cannot_be_read(
    start: Callable[..., Watcher], tmp_path: Path
) -> None:
    StateFiles(str(tmp_path / "state")).write("identity", {"uid": "u", "member": "1"})
    with pytest.MonkeyPatch.context() as patch:
        blank = f"open({str(tmp_path / 'meminfo')!r}, 'w').close(); "
        patch.setattr(Watcher, "CODE", blank)
        one = start(WELL.replace("full", "etcd-only"))
    one.until(lambda: one.notes().get("level") == "etcd-only")
    one.until(lambda: len(one.asked()) > 1)
    assert "no step up by itself" in one.notes()["unhealthy"]


def test_what_it_remembers_is_written_once_the_disk_has_room(
    start: Callable[..., Watcher], tmp_path: Path
) -> None:
    full = tmp_path / "full"
    full.touch()
    broken = (
        "import os\n"
        "rename = os.rename\n"
        f"def full_disk(*given):\n    if os.path.exists({str(full)!r}): raise OSError(28, 'No space left on device')\n"
        "    return rename(*given)\n"
        "os.rename = full_disk\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watcher, "CODE", broken)
        one = start(WELL.replace("full", "etcd-only"))
    one.until(lambda: one.notes().get("level") == "etcd-only")
    time.sleep(2.5)
    kept = tmp_path / "state" / "watcher"
    assert not kept.exists()
    full.unlink()
    one.until(kept.exists)
    assert one.stop().count("cannot be written: No space left on device") == 1


def test_health_tells_a_watcher_that_is_gone(start: Callable[..., Watcher]) -> None:
    one = start(WELL)
    one.until(lambda: one.notes().get("level") == "full")
    one.stop()
    settings = load("", {**one.environment, "LOCK_FILE": str(one.folder / "other" / "lock")})
    assert "no watcher has written" in watcher_notes.unhealthy(settings)
    path = one.folder / "regrade.watcher"
    path.write_text(path.read_text().replace("boottime=", "boottime=1\nwas="))
    assert "silent for" in watcher_notes.unhealthy(load("", one.environment))
