# SPDX-License-Identifier: GPL-3.0-or-later
"""The plays for a step by hand, run by Ansible itself over a stand-in of the host's command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import List, Sequence, Tuple

import pytest
import yaml
from ansible_collections.exadev.k3s_regrade.tests.unit.role import played

SERVERS = ("pi-a", "pi-b", "pi-c")
ANSWER = {
    "changed": True, "from": "full", "to": "full", "level": "full", "steps": [], "message": "in words",
    "hold": {"from": False, "to": False},
}  # fmt: skip
COMMAND = f"""#!/bin/sh
echo "$*" >>"$FOLDER/calls"
echo '{json.dumps(ANSWER)}'
"""


def stepped(folder: Path, level: str, *words: str) -> Tuple[int, str, List[str]]:
    """(exit code, output, what the command was asked) of the play `step` for a group of three."""
    (play,) = yaml.safe_load((played.ROOT / "playbooks" / "step.yml").read_text(encoding="utf-8"))
    command = str(folder / "bin" / "regrade")
    code, output = played.run(
        folder,
        {**play, "module_defaults": {"group/exadev.k3s_regrade.regrade": {"command": command}}},
        f"--extra-vars=regrade_level={level}",
        *words,
        programs={"regrade": COMMAND},
        hosts=SERVERS,
    )
    calls = folder / "calls"
    return code, output, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(
    ("level", "words"), [("control-plane", ()), ("etcd-only", ("--check",))], ids=["real", "rehearsed"]
)
def test_more_than_one_server_below_full_is_refused_in_one_line(
    level: str, words: Sequence[str], tmp_path: Path
) -> None:
    code, output, calls = stepped(tmp_path, level, *words)
    assert code != 0 and calls == []
    assert played.failures(output) == [
        "Only one server of the cluster is below full at a time, and this run would step pi-a, pi-b, pi-c to "
        f"{level}: the second would wait in vain for the first, which is held there. Nothing was changed. Name one "
        "of them, as in --limit pi-a."
    ]


@pytest.mark.parametrize(
    ("level", "words", "times"), [("etcd-only", ("--limit=pi-b",), 1), ("full", (), 3)], ids=["one", "to full"]
)
def test_one_server_steps_anywhere_and_all_of_them_back_to_full(
    level: str, words: Sequence[str], times: int, tmp_path: Path
) -> None:
    code, output, calls = stepped(tmp_path, level, *words)
    assert code == 0, output
    assert [call.split()[:3] for call in calls] == [["step", "to", level]] * times
