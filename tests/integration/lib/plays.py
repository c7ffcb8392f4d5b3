# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs Ansible as a person would, against the bed's inventory, and reads what it says. No check belongs here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[3]
INVENTORY = ROOT / "extensions" / "molecule" / "inventory.yml"
TREE = ROOT / "build" / "tree"
RECAP = re.compile(r"^(\S+)\s*: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.M)


class Host(NamedTuple):
    changed: int
    failed: int


class Run(NamedTuple):
    """What a run said; `hosts` is empty for an ad hoc call."""

    code: int
    output: str
    hosts: dict[str, Host]
    seconds: float


def command(name: str, *arguments: str, timeout: float = 600, tree: Path = TREE) -> Run:
    """One of Ansible's programs, with the bed's inventory and the collection installed in `tree`."""
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(tree),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    }
    began = time.monotonic()
    program = Path(sys.executable).parent / name
    done = subprocess.run(
        [str(program), f"--inventory={INVENTORY}", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    output = done.stdout + done.stderr
    hosts = {
        host: Host(int(changed), int(away) + int(failed))
        for host, changed, away, failed in RECAP.findall(output)
    }
    return Run(done.returncode, output, hosts, time.monotonic() - began)


def playbook(
    name: str,
    *arguments: str,
    variables: Optional[Mapping[str, object]] = None,
    timeout: float = 600,
    tree: Path = TREE,
) -> Run:
    """One of the collection's own plays, by its short name."""
    extra = [f"--extra-vars={json.dumps(dict(variables))}"] if variables else []
    return command(
        "ansible-playbook", f"exadev.k3s_regrade.{name}", *extra, *arguments, timeout=timeout, tree=tree
    )


def ad_hoc(hosts: str, module: str, arguments: str = "", *more: str, timeout: float = 600) -> Run:
    """`ansible HOSTS -m exadev.k3s_regrade.MODULE -a ARGUMENTS`"""
    given = [f"--args={arguments}"] if arguments else []
    words = (hosts, f"--module-name=exadev.k3s_regrade.{module}", *given, *more)
    return command("ansible", *words, timeout=timeout)


def answers(run: Run) -> dict[str, tuple[str, dict[str, object]]]:
    """Host -> (SUCCESS, CHANGED or FAILED!, the module's result) of an ad hoc call."""
    found: dict[str, tuple[str, dict[str, object]]] = {}
    for match in re.finditer(r"^(\S+) \| (SUCCESS|CHANGED|FAILED!|UNREACHABLE!) => ", run.output, re.M):
        result, _end = json.JSONDecoder().raw_decode(run.output, match.end())
        found[match.group(1)] = (match.group(2), result)
    return found


def install(source: Path = ROOT, built: Path = ROOT / "build" / "archive", tree: Path = TREE) -> None:
    """Build that checkout's archive and install it where plays look, as a person would from Galaxy."""
    tool = ROOT / "tests" / "tools" / "archive.py"
    words = [sys.executable, str(tool), str(source), str(built), str(tree)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])
