# SPDX-License-Identifier: GPL-3.0-or-later
"""What the runtime wrapper takes out of what an engine asks for, and that it leaves the rest alone."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "bed" / "host" / "runc_without_sys_resource.py"
_spec = importlib.util.spec_from_file_location("runc_without_sys_resource", FILE)
assert _spec is not None and _spec.loader is not None
wrapper = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(wrapper)

PROCESS = {
    "args": ["CAP_SYS_RESOURCE"],
    "oomScoreAdj": -500,
    "capabilities": {
        "bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"],
        "ambient": None,
        "effective": ["CAP_SYS_RESOURCE"],
    },
}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (
            ["--root", "/r", "--log", "create", "create", "--bundle", "/b", "id"],
            ("/b/config.json", "process"),
        ),
        (["--systemd-cgroup", "run", "-b", "/b", "id"], ("/b/config.json", "process")),
        (["restore", "--bundle=/b", "id"], ("/b/config.json", "process")),
        (["create", "id"], ("./config.json", "process")),
        (["--root", "/r", "exec", "--process", "/p.json", "id"], ("/p.json", None)),
        (["exec", "--process=/p.json", "id"], ("/p.json", None)),
        (["exec", "id", "create"], None),
        (["--root=/r", "delete", "create"], None),
        (["kill", "exec", "--process"], None),
        (["--version"], None),
        ([], None),
    ],
)
def test_which_file_is_edited(arguments: list[str], found: object) -> None:
    assert wrapper.edits(arguments) == found


def test_the_capability_and_a_negative_score_go_and_nothing_else() -> None:
    assert wrapper.lowered(PROCESS) == {
        "args": ["CAP_SYS_RESOURCE"],
        "oomScoreAdj": 0,
        "capabilities": {"bounding": ["CAP_CHOWN"], "ambient": [], "effective": []},
    }


def test_a_score_that_may_be_had_stays_and_none_is_added() -> None:
    assert wrapper.lowered({"oomScoreAdj": 300}) == {"oomScoreAdj": 300}
    assert wrapper.lowered({"args": ["x"]}) == {"args": ["x"]}


def test_a_bundle_and_a_process_file_are_edited_in_place(tmp_path: Path) -> None:
    bundle, process = tmp_path / "config.json", tmp_path / "process.json"
    bundle.write_text(json.dumps({"process": PROCESS, "root": {"path": "r"}}))
    process.write_text(json.dumps(PROCESS))
    wrapper.edit(str(bundle), "process")
    wrapper.edit(str(process), None)
    assert json.loads(bundle.read_text()) == {"process": wrapper.lowered(PROCESS), "root": {"path": "r"}}
    assert json.loads(process.read_text()) == wrapper.lowered(PROCESS)


def test_it_becomes_runc_with_the_same_arguments(tmp_path: Path) -> None:
    runc = tmp_path / "runc"
    runc.write_text('#!/bin/sh\necho "$0 $*"\n')
    runc.chmod(0o755)
    copy = tmp_path / "wrapper.py"
    copy.write_text(FILE.read_text().replace("/usr/sbin/runc", str(runc)))
    done = subprocess.run(
        [sys.executable, str(copy), "--root", "/r", "state", "id"], capture_output=True, text=True
    )
    assert done.stdout == f"{runc} --root /r state id\n"


def test_a_bundle_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(FILE), "create", "--bundle", str(tmp_path), "id"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and str(tmp_path) in done.stderr


def test_it_is_executable_where_the_engine_runs_it_from() -> None:
    assert os.access(FILE, os.X_OK)
    assert FILE.read_text().startswith("#!/usr/bin/python3\n")
