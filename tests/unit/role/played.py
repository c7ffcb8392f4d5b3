# SPDX-License-Identifier: GPL-3.0-or-later
"""One play run by Ansible itself on this machine, with stand-ins for the programs that it calls.

What it is to do, and what the stand-ins answer, is the tests'.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ansible_collections.exadev.k3s_regrade.tests.unit.role.test_role_files import ROLE

ROOT = ROLE.parents[1]


def tasks_of(name: str) -> Dict[str, Any]:
    """The task that runs one of the role's files of tasks."""
    return {
        "ansible.builtin.include_role": {"name": ROLE.name, "tasks_from": name, "rolespec_validate": False}
    }


def run(
    folder: Path,
    play: Mapping[str, object],
    *words: str,
    programs: Mapping[str, str] = {},
    hosts: Sequence[str] = (),
    **variables: object,
) -> Tuple[int, str]:
    """(exit code, output) of a play. The stand-ins see `$FOLDER`."""
    bin_folder, tree = folder / "bin", folder / "tree" / "ansible_collections" / "exadev"
    bin_folder.mkdir(exist_ok=True)
    if not tree.is_dir():
        tree.mkdir(parents=True)
        (tree / "k3s_regrade").symlink_to(ROOT)
    for name, text in programs.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    (folder / "play.yml").write_text(json.dumps([play]))
    given = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,  # who runs the tests may have no sudo, and may run a stand-in
        **variables,
    }
    inventory: List[str] = []
    if hosts:
        servers = {"hosts": dict.fromkeys(hosts), "vars": given}
        (folder / "inventory.yml").write_text(json.dumps({"servers": servers}))
        inventory = ["--inventory", str(folder / "inventory.yml")]
    else:
        (folder / "variables.json").write_text(json.dumps(given))
        inventory = ["--extra-vars", f"@{folder / 'variables.json'}"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), *inventory, str(folder / "play.yml"), *words],
        env={
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "FOLDER": str(folder),
            "ANSIBLE_COLLECTIONS_PATH": str(tree.parents[1]),
            "ANSIBLE_ROLES_PATH": str(ROLE.parent),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_FORCE_COLOR": "0",
            "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
            "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def failures(output: str) -> List[str]:
    """What Ansible tells of each task that failed: its `msg`."""
    decoder = json.JSONDecoder()
    return [
        str(decoder.raw_decode(output, found.end())[0]["msg"])
        for found in re.finditer(r"^fatal: .*=> (?={)", output, re.M)
    ]
