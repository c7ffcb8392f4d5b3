# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role says where it gives up in the middle: run by Ansible itself, over stand-ins of what it calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.tests.unit.role import played

# A Secret whose token the cluster has not filled in.
NO_TOKEN = json.dumps({"data": {"ca.crt": "c2VjcmV0IGFzIGl0IGlz"}})
ANSWERS = "#!/bin/sh\ncat <<'END'\n%s\nEND\n"


def given_up(folder: Path, tasks: str, *words: str, program: str, answer: str, **more: object) -> Tuple[List[str], str]:
    """(what was told, the whole output) of a file of the role's tasks, which has to fail."""
    code, output = played.run(
        folder,
        {"hosts": "localhost", "gather_facts": False, "tasks": [played.tasks_of(tasks)]},
        *words,
        programs={program: answer},
        inventory_hostname="pi-a",
        github_runner_cluster_node_name="node-a",
        __github_runner_cluster_api_host="localhost",
        **more,
    )
    assert code != 0
    return played.failures(output), output


def test_a_token_that_is_not_made_is_told_with_no_secret(tmp_path: Path) -> None:
    told, output = given_up(
        tmp_path,
        "regrade_service",
        "-vvv",
        program="docker",
        answer=ANSWERS % NO_TOKEN,
        __github_runner_cluster_token_seconds=2,
    )
    assert told == [
        "pi-a: the cluster made no token for ServiceAccount k3s-regrade/node-a within 2 s. Look at `kubectl get "
        "secret -n k3s-regrade node-a-token` and whether kube-controller-manager runs, then run the role again."
    ]
    assert "c2VjcmV0" not in output


def test_a_token_that_cannot_be_read_is_told_with_what_was_said(tmp_path: Path) -> None:
    told, output = given_up(
        tmp_path,
        "regrade_service",
        program="docker",
        answer=ANSWERS % NO_TOKEN + "echo 'Error from server (Forbidden):\n  not you.' >&2; exit 1\n",
        __github_runner_cluster_token_seconds=0,
    )
    assert told == [
        "pi-a: the token of ServiceAccount k3s-regrade/node-a could not be read: Error from server (Forbidden): "
        "not you. Cure that and run the role again."
    ]
    assert "c2VjcmV0" not in output


@pytest.mark.parametrize("seconds", [0, 5])
def test_a_step_that_stays_open_is_told_with_the_seconds_that_were_waited(seconds: int, tmp_path: Path) -> None:
    told, _output = given_up(
        tmp_path,
        "regrade_wait_for_step",
        program="regrade",
        answer='#!/bin/sh\necho >>"$FOLDER/asked"\necho \'{"journal": {"id": "1"}}\'\n',
        __github_runner_cluster_command=str(tmp_path / "bin" / "regrade"),
        github_runner_cluster_regrade_wait_for_step_seconds=seconds,
    )
    assert told == [
        f"pi-a: a step is still open after {seconds} s, so its service was left as it is. `regrade status` says what "
        "holds it up, `regrade settle` ends it. Then run the role again, or raise "
        "github_runner_cluster_regrade_wait_for_step_seconds."
    ]
    assert len((tmp_path / "asked").read_text()) == seconds // 5 + 1
