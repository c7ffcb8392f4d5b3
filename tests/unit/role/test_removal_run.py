# SPDX-License-Identifier: GPL-3.0-or-later
"""The check before a removal as Ansible itself runs it, over stand-ins for docker and the hosts' command.

What is refused, and in which words, is tests/unit/filter/test_removal_refusals.py's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import List, Sequence

import pytest
from ansible_collections.exadev.k3s_regrade.tests.unit.filter.placement_world import GROUP, node
from ansible_collections.exadev.k3s_regrade.tests.unit.role import played

DOCKER = """#!/bin/sh
echo "$*" >>"$FOLDER/calls"
case "$*" in
  *" get nodes "*) cat "$FOLDER/nodes" ;;
  *" lease/k3s-regrade") printf '{"metadata": {"name": "k3s-regrade"}}' ;;
  *" replace "*) cat ;;
esac
"""
AT_FULL = """#!/bin/sh
echo '{"level": "full", "recorded": "full"}'
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
        ("pi-ab", ["pi-a", "pi-b", "pi-c"]),  # whose name only begins like that of one that lives
    ],
)
def test_a_dead_server_is_left_out_and_no_other_however_it_is_given(
    dead: object, others: List[str], tmp_path: Path
) -> None:
    assert refused(tmp_path, dead) == others


def taken_back(folder: Path, off: Sequence[str]) -> List[List[str]]:
    """What of the cluster goes with these hosts, in order; the others stay on."""
    (folder / "nodes").write_text(json.dumps({"items": [node(name, at) for at, name in enumerate(GROUP, 11)]}))
    for host in GROUP:
        (folder / host).mkdir()
        (folder / host / "regrade").write_text(AT_FULL)
        (folder / host / "regrade").chmod(0o755)
    of = f"{folder}/{{{{ __github_runner_cluster_of }}}}"
    names = {"command": f"{of}/regrade", "regrade_dir": f"{of}/files", "state_dir": f"{of}/state"}
    code, output = played.run(
        folder,
        {
            "hosts": "servers",
            "gather_facts": False,
            "tasks": [{**played.tasks_of("regrade_disable"), "when": "inventory_hostname in off"}],
        },
        "--extra-vars",
        json.dumps({f"__github_runner_cluster_{name}": value for name, value in names.items()}),
        programs={"docker": DOCKER},
        hosts=GROUP,
        off=list(off),
    )
    assert code == 0, output
    assert [host for host in GROUP if not (folder / host / "regrade").exists()] == list(off)
    return deleted(folder)


def deleted(folder: Path) -> List[List[str]]:
    """What kubectl was told to delete, each time."""
    calls = (folder / "calls").read_text().splitlines()
    return [call.partition(" delete --ignore-not-found ")[2].split() for call in calls if " delete " in call]


def test_what_the_others_of_the_run_need_stays_where_one_of_them_is_turned_off(tmp_path: Path) -> None:
    """As an agent's refusal tells to set it for one host."""
    assert taken_back(tmp_path, ["pi-a"]) == [
        [
            "--namespace=k3s-regrade", "serviceaccount/pi-a", "secret/pi-a-token", "clusterrole/k3s-regrade-pi-a",
            "clusterrolebinding/k3s-regrade-pi-a",
        ]
    ]  # fmt: skip


def test_what_all_share_goes_with_the_last_one_after_the_other(tmp_path: Path) -> None:
    # Of those whose turn was before, nothing is left.
    removal = """
        {%- set servers = [] -%}
        {%- for host in groups.servers -%}
        {%-   set said = 'a report' if host >= inventory_hostname else '' -%}
        {%-   set _ = servers.append({'host': host, 'node_name': host, 'said': said}) -%}
        {%- endfor -%}
        {{ servers }}"""
    code, output = played.run(
        tmp_path,
        {
            "hosts": "servers",
            "gather_facts": False,
            "serial": 1,
            "vars": {"__github_runner_cluster_removal": removal},
            "tasks": [
                {"ansible.builtin.set_fact": {"__github_runner_cluster_leaves": True}},
                played.tasks_of("regrade_objects_remove"),
            ],
        },
        programs={"docker": DOCKER},
        hosts=GROUP,
        __github_runner_cluster_api_host="pi-a",
    )
    assert code == 0, output
    of_a, of_b, *rest = deleted(tmp_path)
    assert (of_a[1], of_b[1]) == ("serviceaccount/pi-a", "serviceaccount/pi-b")
    assert [words[-1] for words in rest][-2:] == ["namespace/k3s-regrade", "lease/k3s-regrade"]
