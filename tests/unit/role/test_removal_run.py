# SPDX-License-Identifier: GPL-3.0-or-later
"""The check before a removal as Ansible itself runs it, over stand-ins for docker and the hosts' command.

What is refused, and in which words, is tests/unit/filter/test_removal_refusals.py's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import List

import pytest
from ansible_collections.exadev.k3s_regrade.tests.unit.filter.placement_world import GROUP, node
from ansible_collections.exadev.k3s_regrade.tests.unit.role import played

DOCKER = """#!/bin/sh
echo "$*" >>"$FOLDER/calls"
case "$*" in *" get nodes "*) cat "$FOLDER/nodes" ;; esac
"""
SILENT = """#!/bin/sh
echo 'regrade: the Docker engine could not be asked' >&2
exit 1
"""


def refused(folder: Path, dead: object) -> List[str]:
    """The hosts that refuse the removal where no server's command answers."""
    (folder / "nodes").write_text(json.dumps({"items": [node("other", 20)]}))
    code, output = played.run(
        folder,
        {
            "hosts": "servers",
            "gather_facts": False,
            "tasks": [played.tasks_of("regrade_removal_check")],
        },
        f"--extra-vars=__github_runner_cluster_command={folder}/bin/regrade",
        programs={"docker": DOCKER, "regrade": SILENT},
        hosts=GROUP,
        github_runner_cluster_regrade_dead_servers=dead,
    )
    assert (code == 0) == (not played.failures(output)), output
    return [line.partition(":")[0] for said in played.failures(output) for line in said.split(" | ")]


@pytest.mark.parametrize(
    ("dead", "others"),
    [
        (["pi-b"], ["pi-a", "pi-c"]),
        ("pi-c,pi-b", ["pi-a"]),
        ('["pi-c", "pi-b"]', ["pi-a"]),
        ("pi-ab", ["pi-a", "pi-b", "pi-c"]),  # whose name only begins like that of one that lives
    ],
)
def test_a_dead_server_is_left_out_and_no_other_however_it_is_given(
    dead: object, others: List[str], tmp_path: Path
) -> None:
    assert refused(tmp_path, dead) == others
