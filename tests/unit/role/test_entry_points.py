# SPDX-License-Identifier: GPL-3.0-or-later
"""The entry points as a play calls them, without the rest of the role, run by Ansible itself over a stand-in of docker.

What is judged of what they read is the filters' tests'.
"""

from __future__ import annotations

from pathlib import Path

from ansible_collections.exadev.k3s_regrade.tests.unit.role import played

DOCKER = """#!/bin/sh
echo "$*" >>"$FOLDER/calls"
[ "$1" = --host=unix:///run/pi-b/docker.sock ] || exit 1
case "$*" in *inspect*) echo 2026-09-20T10:00:00Z ;; *) echo 'a line' ;; esac
"""


def test_a_log_is_read_from_the_engine_of_its_host(tmp_path: Path) -> None:
    code, output = played.run(
        tmp_path,
        {
            "hosts": "servers",
            "gather_facts": False,
            "vars": {"host": "pi-b"},
            "tasks": [
                played.tasks_of("heal_docker_log"),
                {"ansible.builtin.assert": {"that": "__github_runner_cluster_log.stdout == 'a line'"}},
            ],
        },
        programs={"docker": DOCKER},
        hosts=("pi-a", "pi-b"),
        github_runner_cluster_regrade_docker_socket="/run/{{ inventory_hostname }}/docker.sock",
    )
    assert code == 0, output + (tmp_path / "calls").read_text()
