# SPDX-License-Identifier: GPL-3.0-or-later
"""Every command of the README, in its order, with its inventory's names in place of the bed's."""

from __future__ import annotations

import re
import shlex

import yaml

import observer
import plays
from admin_api import AdminApi
from bed import Server
from observer import wait_for
from scenario import step

README = (plays.ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sh|yaml)\n(.*?)```", README, re.S)
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines() if line]
# Run by people and CI at the root of the checkout; this scenario is part of the one.
MAKE = {"make demo", "make test"}
# Run by the next chapter, which looks at what comes of it.
LAST = "ansible-playbook -i inventory.yml exadev.k3s_regrade.disable"


def test_the_inventory_to_copy_is_one_the_role_understands() -> None:
    (inventory,) = [yaml.safe_load(block) for kind, block in BLOCKS if kind == "yaml"]
    specs = plays.ROOT / "roles" / "github_runner_cluster" / "meta" / "argument_specs.yml"
    options = yaml.safe_load(specs.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]
    servers = inventory["servers"]
    assert len(servers["hosts"]) >= 3
    assert {name for name in servers["vars"] if name != "ansible_user"} <= set(options)


def test_the_targets_of_make_are_there() -> None:
    makefile = (plays.ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {word for line in re.findall(r"^([\w -]+):", makefile, re.M) for word in line.split()}
    assert {command.split()[1] for command in MAKE} <= targets
    assert set(COMMANDS) >= MAKE


def test_every_command_for_ansible_runs(api: AdminApi) -> None:
    commands = [command for command in COMMANDS if command not in MAKE]
    assert commands.pop() == LAST
    assert len(commands) >= 5
    for command in commands:
        program, *words = shlex.split(command)
        assert words[:2] == ["-i", "inventory.yml"], command
        given = ["server1" if word == "pi-a" else word for word in words[2:]]
        run = plays.command(program, *given)
        assert run.code == 0, f"{command}: {run.output}"
        if "k3s_regrade.enable" in command:  # at full, like the run that the scenario began with
            assert {host: result.changed for host, result in run.hosts.items()} == dict.fromkeys(
                ("server1", "server2", "server3"), 0
            ), run.output
        if "etcd-only" in command:
            assert observer.label(api, "server1") == "etcd-only"
    wait_for("server1 is at full", lambda: observer.at_full_again(api, "server1"), 60)


def test_every_command_on_the_host_runs(server1: Server, api: AdminApi) -> None:
    """But for those of "When a server is gone", which need one that is: `tests/unit/app/test_cli.py` reads them."""
    usual = README.partition("## When a server is gone")[0]
    commands = re.findall(r"`(regrade [^`]+)`", usual)
    assert commands == ["regrade status", "regrade step to etcd-only", "regrade hold", "regrade release"]
    for command in commands:
        done = server1.sh(command, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
    assert observer.label(api, "server1") == "etcd-only"
    step(server1, "full")
    wait_for("server1 is at full", lambda: observer.at_full_again(api, "server1"), 60)
