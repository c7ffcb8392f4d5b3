# SPDX-License-Identifier: GPL-3.0-or-later
"""The record's text, and the scripts that keep it, run by a real `sh`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    level_record as record,
)


def test_the_text_of_each_level() -> None:
    assert record.text_for("full", 16443) == ""
    assert record.text_for("control-plane", 16443) == "# regrade-level: control-plane\n"
    assert record.text_for("etcd-only", 16443) == (
        "# regrade-level: etcd-only\n"
        "disable-apiserver: true\ndisable-controller-manager: true\ndisable-scheduler: true\ndisable-agent: "
        "true\n"
        "https-listen-port: 16443\n"
    )
    assert "https-listen-port" not in record.text_for("etcd-only", 0)


def test_the_level_of_a_text() -> None:
    assert record.level_of(None) == "full"
    for level in ("control-plane", "etcd-only"):
        assert record.level_of(record.text_for(level, 0)) == level
    assert record.port_of(record.text_for("etcd-only", 16443)) == 16443
    assert record.port_of(record.text_for("etcd-only", 0)) == record.port_of(None) == 0
    for text in (
        "",
        "disable-apiserver: true\n",
        "# regrade-level: half\n",
        "\n# regrade-level: etcd-only\n",
    ):
        with pytest.raises(record.RecordWrong, match=r"expected '# regrade-level: '"):
            record.level_of(text)


def sh(script: str) -> tuple[int, str]:
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.fixture(params=["in its folder", "by a link"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> record.Place:
    folder = tmp_path / "da ta" / "regrade"
    (tmp_path / "da ta").mkdir()
    return record.Place(
        str(folder), str(tmp_path / "etc" / "config.yaml.d") if request.param == "by a link" else ""
    )


def test_a_record_is_written_replaced_and_removed(place: record.Place) -> None:
    for level in ("etcd-only", "control-plane"):
        text = record.text_for(level, 16443)
        code, output = sh(record.script_write(place, text, "cafe"))
        assert (code, record.shown(output)) == (0, (True, text))
        assert Path(place.path).read_text() == Path(place.effective).read_text() == text
        for folder in {place.folder, place.link_folder} - {""}:
            assert os.listdir(folder) == [record.NAME]
    code, output = sh(record.script_remove(place))
    assert (code, record.shown(output)) == (0, (True, None))
    assert not os.path.lexists(place.path) and not os.path.lexists(place.effective)
    assert sh(record.script_remove(place))[0] == 0


def test_temporary_names_are_none_that_k3s_reads_and_are_swept(place: record.Place) -> None:
    for path in {place.path, place.effective}:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{path}.dead").write_text("half")
    script = record.script_write(place, record.text_for("etcd-only", 0), "cafe")
    assert f"{record.NAME}.cafe" in script and "cafe.yaml" not in script
    assert sh(record.script_remove(place))[0] == 0
    for path in {place.path, place.effective}:
        assert os.listdir(os.path.dirname(path)) == []


def test_a_full_disk_leaves_the_old_record(tmp_path: Path) -> None:
    place = record.Place(str(tmp_path / "regrade"))
    assert sh(record.script_write(place, record.text_for("control-plane", 0), "cafe"))[0] == 0
    # A limit on the size of files fails the write as a full disk does (EFBIG, not ENOSPC).
    script = "trap '' XFSZ\nulimit -f 0\n" + record.script_write(
        place, record.text_for("etcd-only", 0), "cafe"
    )
    code, _output = sh(script)
    assert code != 0
    assert Path(place.path).read_text() == record.text_for("control-plane", 0)


def test_showing(tmp_path: Path) -> None:
    assert record.shown(sh(record.script_show(str(tmp_path / "none")))[1]) == (True, None)
    (tmp_path / "empty").write_text("")
    assert record.shown(sh(record.script_show(str(tmp_path / "empty")))[1]) == (True, "")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    assert record.shown(sh(record.script_show(str(tmp_path / "dangling")))[1]) == (False, None)
    assert record.shown(sh(record.script_show(str(tmp_path)))[1]) == (False, None)
