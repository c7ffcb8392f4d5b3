# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's objects on a Kubernetes that the bed has not: run by Ansible itself, with a stand-in for docker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.tests.unit.role.test_role_files import ROLE

# kubectl of 1.29, which knows no ValidatingAdmissionPolicy of v1: what it was given is kept, and each call is counted.
DOCKER = """#!/bin/sh
echo "$*" >>"$FOLDER/calls"
case "$*" in
  *" apply "*)
    cat >"$FOLDER/given"
    if grep -q '^kind: ValidatingAdmissionPolicy' "$FOLDER/given"; then
      echo 'resource mapping not found for name: "k3s-regrade-keep-node" namespace: "" from "STDIN": no matches for kind "ValidatingAdmissionPolicy" in version "admissionregistration.k8s.io/v1"' >&2
      exit 1
    fi
    echo 'namespace/k3s-regrade unchanged (server dry run)' ;;
  *" delete "*) echo "error: the server doesn't have a resource type \\"validatingadmissionpolicy\\"" >&2; exit 1 ;;
esac
"""  # noqa: E501


def run(folder: Path, guard: bool) -> Tuple[int, str]:
    docker = folder / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {
            "ansible_python_interpreter": sys.executable,
            "github_runner_cluster_regrade_guard": guard,
            "__github_runner_cluster_api_host": "localhost",
            "__github_runner_cluster_server": {"node_name": "pi-a"},
        },
        "tasks": [
            {
                "ansible.builtin.include_role": {
                    "name": ROLE.name,
                    "tasks_from": "regrade_objects",
                    "rolespec_validate": False,
                }
            }
        ],
    }
    (folder / "play.yml").write_text(json.dumps([play]))
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), str(folder / "play.yml")],
        env={
            **os.environ,
            "PATH": f"{docker.parent}:{os.environ['PATH']}",
            "FOLDER": str(folder),
            "ANSIBLE_ROLES_PATH": str(ROLE.parent),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
            "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("guard", [True, False])
def test_a_kubernetes_without_the_guards_is_told_before_anything_is_changed(tmp_path: Path, guard: bool) -> None:
    code, output = run(tmp_path, guard)
    calls = (tmp_path / "calls").read_text().splitlines()
    applied = [call for call in calls if " apply " in call and "--dry-run=server" not in call]
    assert applied == []
    if not guard:
        assert code == 0, output
        assert "k3s-regrade-keep-node" not in (tmp_path / "given").read_text()
        return
    assert code != 0
    assert "The cluster's Kubernetes does not know ValidatingAdmissionPolicy" in output
    assert "or leave the guard out with github_runner_cluster_regrade_guard: false" in output
    assert len(calls) == 1
