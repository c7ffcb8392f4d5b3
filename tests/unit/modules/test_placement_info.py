# SPDX-License-Identifier: GPL-3.0-or-later
"""The module that gathers for the placement checks, as Ansible runs it, over a stand-in for docker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.exadev.k3s_regrade.tests.unit.module_utils.test_docker_facts import (
    DOCKER,
    ENGINE,
    INSPECT,
    SECRET,
)

MODULE = "ansible_collections.exadev.k3s_regrade.plugins.modules.regrade_placement_info"


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    file = tmp_path / "docker"
    inspect = {**INSPECT, "State": {**INSPECT["State"], "Pid": os.getpid()}}
    file.write_text(DOCKER.format(version=json.dumps(ENGINE), inspect=json.dumps([inspect])))
    file.chmod(0o755)
    return tmp_path


def run(folder: Path, check: bool = False, **params: object) -> Dict[str, Any]:
    """What the module answers; SECRET is nowhere in it, whatever the verbosity."""
    arguments = {"_ansible_check_mode": check, "_ansible_verbosity": 4, **params}
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-m", MODULE],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        env={**os.environ, "PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert SECRET not in done.stdout
    answer = json.loads(done.stdout)
    assert answer["changed"] is False
    server: Dict[str, Any] = answer["server"]
    return server


@pytest.mark.parametrize("check", [False, True])
def test_a_container_is_looked_at(docker: Path, check: bool) -> None:
    pressure = docker / "memory"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n")
    found = run(docker, check, container="k3s", docker_socket=str(docker), pressure_file=str(pressure))
    assert (found["kind"], found["role"], found["running"], found["error"]) == (
        "container",
        "server",
        True,
        "",
    )
    assert found["addresses"] and found["memory_total"] > 0
    assert (found["pressure"], found["pressure_error"]) == (pressure.read_text(), "")
    assert found["docker"]["inspect"]["HostConfig"]["Memory"] == found["memory_limit"] == 2147483648


def test_a_container_that_is_not_there_is_an_answer_and_no_failure(docker: Path) -> None:
    found = run(docker, container="k4s", docker_socket=str(docker))
    assert "No such container: k4s" in found["error"]
    assert (found["role"], found["running"], found["addresses"]) == ("", False, [])


def test_without_a_container_the_host_is_looked_at_and_docker_for_services_alone(docker: Path) -> None:
    found = run(docker, pid=os.getpid(), kube_server=["https://127.0.0.1:1"], authority="no PEM")
    assert not {"docker", "role", "error"} & set(found)
    assert found["addresses"]
    assert [entry["problem"] for entry in found["kube_server"]] == ["authority"]
    assert ([one["name"] for one in found["others"]], found["compose_folder"]) == (["k3s-regrade", "old"], "")


def test_without_a_container_the_service_of_the_other_runtime_is_found(docker: Path) -> None:
    (docker / "docker").write_text("#!/bin/sh\ncase $1 in ps) printf 'k3s-regrade\\tcluster-regrade\\n' ;; esac\n")
    folder = docker / "regrade"
    folder.mkdir()
    assert run(docker, pid=os.getpid(), compose_folder=str(folder))["compose_folder"] == ""
    (folder / "compose.yaml").touch()
    found = run(docker, pid=os.getpid(), compose_folder=str(folder))
    assert found["others"] == [{"name": "k3s-regrade", "project": "cluster-regrade"}]
    assert found["compose_folder"] == str(folder)
    (docker / "docker").write_text("#!/bin/sh\nexit 1\n")
    assert run(docker, pid=os.getpid())["others"] == [], "no Docker, or none that answers"
