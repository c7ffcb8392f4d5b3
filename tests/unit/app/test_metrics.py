# SPDX-License-Identifier: GPL-3.0-or-later
"""The command `regrade metrics` and the file for node_exporter, over real files; the form is tests/unit/core's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import pair_files, psi
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import metrics, watcher_notes
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import Settings, load

LIBRARY = str(Path(cli.__file__).parent.parent)
NOTES = {"level": "etcd-only", "verdict": "over", "unhealthy": "", "exhausted": "yes", "relapses": "1"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "state").mkdir()
    given = {"LOCK_FILE": "lock", "STATE_DIR": "state", "METRICS_FILE": "out/a.prom"}
    return load("", {"NODE_NAME": "a", **{key: f"{tmp_path}/{name}" for key, name in given.items()}})


def noted(settings: Settings, age: float, **changes: str) -> None:
    boottime = time.clock_gettime(time.CLOCK_BOOTTIME) - age
    told = {"boottime": f"{boottime:.1f}", "boot_id": psi.boot_id(), **NOTES, **changes}
    watcher_notes.Notes(settings).write(told)


def samples(text: str) -> Dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = (line.replace('server="a",', "").replace('{server="a"}', "").rpartition(" ") for line in lines)
    return {name[len("k3s_regrade_") :]: float(value) for name, _blank, value in found}


def test_the_command_tells_what_was_noted_and_what_is_on_disk(settings: Settings) -> None:
    noted(settings, 3.0)
    pair_files.write(os.path.join(settings.state_dir, pair_files.MEMORY), {"relapses": "1", "level": "etcd-only"})
    (Path(settings.state_dir) / "journal.json").write_text("{}")
    found = samples(metrics.now(settings))
    assert found['level{level="etcd-only"}'] == found["exhausted"] == found["below_full"] == found["step_open"] == 1
    assert found["unhealthy"] == 0
    assert abs(found["last_sample_timestamp_seconds"] - (time.time() - 3)) < 2


def test_what_a_silent_watcher_noted_is_not_told_as_of_now(settings: Settings) -> None:
    noted(settings, 200.0)
    found = samples(metrics.now(settings))
    assert found["unhealthy"] == found["level_unknown"] == 1
    assert not {"exhausted", "relapses", "blocked"} & set(found)
    assert abs(found["last_sample_timestamp_seconds"] - (time.time() - 200)) < 2


def test_of_another_boots_notes_the_time_is_not_known(settings: Settings) -> None:
    noted(settings, 200.0, boot_id="another")
    assert "last_sample_timestamp_seconds" not in samples(metrics.now(settings))


def test_a_watcher_that_says_so_itself_is_unhealthy(settings: Settings) -> None:
    noted(settings, 1.0, unhealthy="no pressure")
    assert samples(metrics.now(settings))["unhealthy"] == 1


def test_the_command_loads_no_library_and_no_parser_of_arguments(settings: Settings) -> None:
    code = "import sys; from regrade import cli; code = cli.main(['metrics']); print('#', *sys.modules); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": LIBRARY, "NODE_NAME": "a", "LOCK_FILE": settings.lock_file, "STATE_DIR": settings.state_dir},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 'k3s_regrade_unhealthy{server="a"} 1\n' in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "regrade.app.metrics" in loaded
    assert not {"typing", "argparse", "json", "urllib3", "docker", "kubernetes"} & loaded


def test_the_file_is_for_everyone_to_read_and_replaced_as_a_whole(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "a.prom"
    read: List[str] = []  # what node_exporter would read while the second is written
    before, write = os.umask(0o077), os.write

    def looked(descriptor: int, data: bytes) -> int:
        read.append(path.read_text())
        return write(descriptor, data[:100])  # a write may do less than it was asked

    try:
        text = metrics.Textfile(settings)
        assert text.write(NOTES, {"level": "etcd-only"}) == ""
        first = path.read_text()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", looked)
            assert text.write({**NOTES, "level": "full"}, {"level": "full"}) == ""
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644
    assert samples(first)['level{level="etcd-only"}'] == 1
    assert len(read) > 2 and set(read) == {first}
    found = samples(path.read_text())
    assert found['level{level="full"}'] == 1
    assert abs(found["last_sample_timestamp_seconds"] - time.time()) < 60
    assert [one.name for one in path.parent.iterdir()] == ["a.prom"]
    text.remove()
    assert not path.exists()
    text.remove()


def test_a_file_that_cannot_be_written_is_told_once_until_it_could_be(settings: Settings, tmp_path: Path) -> None:
    text = metrics.Textfile(settings)
    told: List[str] = []
    for there in (False, False, True, False):
        if there:
            (tmp_path / "out").mkdir()
        elif (tmp_path / "out").exists():
            (tmp_path / "out" / "a.prom").unlink()
            (tmp_path / "out").rmdir()
        told.append(text.write(NOTES, {}))
    assert told[1:3] == ["", ""]
    assert told[0] == told[3] == (
        f"METRICS_FILE={tmp_path}/out/a.prom cannot be written: No such file or directory; its folder has to be "
        "there, and root's; tried again at each sample"
    )


def test_a_link_in_the_way_is_replaced_and_not_followed(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "theirs").write_text("theirs")
    for name in ("a.prom", "a.prom.new"):
        (tmp_path / "out" / name).symlink_to(tmp_path / "theirs")
    assert metrics.Textfile(settings).write(NOTES, {}) == ""
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (tmp_path / "out" / "a.prom").is_symlink()
