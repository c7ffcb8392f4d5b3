# SPDX-License-Identifier: GPL-3.0-or-later
"""The placement check as Ansible itself runs it, over stand-ins for docker and systemctl: who is told of, and when.

What is refused, and in which words, is tests/unit/filter/test_placement_refusals.py's.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path
from typing import List, NamedTuple, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.tests.unit.filter.placement_world import GROUP, member, node
from ansible_collections.exadev.k3s_regrade.tests.unit.role import played

# What every question of the role is answered with; a file `fail-...` of the folder takes an answer away.
DOCKER = """#!/bin/sh
echo "docker $*" >>"$FOLDER/calls"
case "$*" in
  *" get nodes "*) [ ! -e "$FOLDER/fail-nodes" ] || { cat "$FOLDER/fail-nodes" >&2; exit 1; }; cat "$FOLDER/nodes" ;;
  *" get --raw /db/info"*) [ ! -e "$FOLDER/fail-members" ] || { cat "$FOLDER/fail-members" >&2; exit 1; }
                           cat "$FOLDER/members" ;;
  *" get leases "*) printf 'k3s-regrade\\t\\n' ;;
  version*) echo '{"Client":{},"Server":{"Version":"27.5.1","ApiVersion":"1.47"}}' ;;
  info*) echo '[]' ;;
  "compose version"*) echo 2.40.3 ;;
  inspect*) cat "$FOLDER/inspect" ;;
esac
"""
# Of pi-a a unit that no step could be made with, of the others one as k3s's install script writes it.
SYSTEMCTL = """#!/bin/sh
case "$*" in
  *LoadState*a.service) printf 'Restart=no\nTimeoutStopUSec=5s\n' ;;
  *LoadState*) printf 'Restart=always\nTimeoutStopUSec=1min 30s\n' ;;
  *ExecStart*) echo 'ExecStart={ path=/k3s ; argv[]=/usr/local/bin/k3s server ; ignore_errors=no }' ;;
esac
case "$*" in *LoadState*) printf 'LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=1\n' ;; esac
"""
PYTHON = """#!/bin/sh
case "$0" in *-old) echo 3.9 ;; *-bare) echo "No module named 'ensurepip'" >&2; exit 1 ;; *) echo 3.11 ;; esac
"""
INSPECT = {
    "Args": ["server"],
    "Config": {"Image": "rancher/k3s:v1.34.9-k3s1", "Labels": {}},
    "State": {"Running": True, "Pid": 0},
    "HostConfig": {"NetworkMode": "host", "RestartPolicy": {"Name": "no"}},
    "Mounts": [],
}
MOUNTS = [{"Type": "bind", "Source": "/srv/k3s", "Destination": "/var/lib/rancher/k3s", "RW": True}]


class Run(NamedTuple):
    code: int
    output: str
    lines: List[str]  # of the refusal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind("docker.sock")  # whose whole path may be too long for it
    members = {"members": [member(name, at) for at, name in enumerate(GROUP, 11)]}
    (tmp_path / "nodes").write_text(json.dumps({"items": [node(name, at) for at, name in enumerate(GROUP, 11)]}))
    (tmp_path / "members").write_text(json.dumps(members))
    (tmp_path / "inspect").write_text(json.dumps([INSPECT]))
    return tmp_path


def by_host(otherwise: object, **values: object) -> str:
    """A variable's value for each host, by its last letter."""
    return f"{{{{ ({json.dumps(values)})[inventory_hostname[-1]] | default({json.dumps(otherwise)}) }}}}"


def run(folder: Path, *words: str, **variables: object) -> Run:
    """Turn regrading on for three hosts that are this one."""
    play = {
        "hosts": "servers",
        "gather_facts": False,
        "roles": [{"role": "exadev.k3s_regrade.github_runner_cluster"}],
    }
    given = {
        "github_runner_cluster_regrade": True,
        "github_runner_cluster_regrade_docker_socket": str(folder / "docker.sock"),
        "github_runner_cluster_dir": str(folder / "cluster"),
        **variables,
    }
    pythons = dict.fromkeys(("python-old", "python-bare", "python-good"), PYTHON)
    programs = {"docker": DOCKER, "k3s": DOCKER, "systemctl": SYSTEMCTL, **pythons}
    code, output = played.run(folder, play, *words, programs=programs, hosts=GROUP, **given)
    refused = [said for said in played.failures(output) if " | " in said or said.startswith(GROUP)]
    return Run(code, output, refused[-1].split(" | ") if refused else [])


def of(lines: List[str], host: str) -> List[str]:
    return [line for line in lines if line.startswith(f"{host}: ")]


@pytest.mark.parametrize("more", [(), ("--check",)])
def test_a_host_that_drops_out_refuses_it_for_all(folder: Path, more: Tuple[str, ...]) -> None:
    """One is away, one has no Python, and the third is looked at: all three are told, and nothing is made."""
    done = run(
        folder,
        *more,
        ansible_connection=by_host("local", b="ssh"),
        ansible_host="127.0.0.1",
        ansible_port=1,
        ansible_python_interpreter=by_host(sys.executable, c="/nowhere/python3"),
    )
    assert done.code != 0
    (line,) = of(done.lines, "pi-b")
    assert line.startswith("pi-b: could not be looked at (it cannot be reached: ")
    assert line.endswith("). Bring it back and run the role again, or leave it out with --limit.")
    (line,) = of(done.lines, "pi-c")
    assert line.startswith("pi-c: could not be looked at (") and "/nowhere/python3" in line
    assert of(done.lines, "pi-a"), "and what is wrong with the others"
    # Their own failures are shown too.
    assert re.search(r"^fatal: \[pi-b\]: UNREACHABLE! ", done.output, re.M), done.output
    assert re.search(r"^fatal: \[pi-c\]: FAILED! ", done.output, re.M), done.output
    nothing_was_made(folder, done)


def nothing_was_made(folder: Path, done: Run) -> None:
    assert not (folder / "cluster").exists()
    assert not [call for call in (folder / "calls").read_text().splitlines() if " apply " in call]
    assert not re.search(r"changed=[1-9]", done.output), done.output


def test_a_host_that_failed_before_the_look_refuses_it_for_all(folder: Path) -> None:
    # Refused by the role's own list of variables, for that host alone.
    done = run(folder, github_runner_cluster_mesh=by_host("none", c="no such mesh"))
    assert done.code != 0
    assert of(done.lines, "pi-a") and of(done.lines, "pi-b")
    (line,) = of(done.lines, "pi-c")
    assert line == (
        "pi-c: could not be looked at (it had dropped out of this run before; its own failure stands above). "
        "Cure that and run the role again, or leave it out with --limit."
    )
    nothing_was_made(folder, done)


def test_what_the_cluster_does_not_tell_is_one_line_and_no_failure_of_kubectl(folder: Path) -> None:
    (folder / "fail-members").write_text("Error from server (ServiceUnavailable): no leader\n")
    # Beside a host that regrading is off for, as an agent's refusal tells to set: it is not looked at.
    done = run(folder, github_runner_cluster_regrade=by_host(True, c=False))
    assert of(done.lines, "pi-b") and not of(done.lines, "pi-c"), done.output
    (line,) = [line for line in done.lines if line.startswith("etcd's members")]
    assert line == (
        "etcd's members could not be read through pi-a (Error from server (ServiceUnavailable): no leader). Bring its "
        "API and etcd to answer, then run again."
    )


def test_what_is_given_in_a_line_is_text_and_means_the_same(folder: Path) -> None:
    """As `--extra-vars NAME=value` and an inventory in INI give it: Ansible checks a text as what it would be, and
    hands it on as it is."""
    items = json.loads((folder / "nodes").read_text())["items"]
    for item in items:
        item["spec"]["providerID"] = "hcloud://1"
    (folder / "nodes").write_text(json.dumps({"items": items}))
    inspect = {**INSPECT, "HostConfig": {"NetworkMode": "host", "RestartPolicy": {"Name": "always"}}, "Mounts": MOUNTS}
    (folder / "inspect").write_text(json.dumps([inspect]))
    typed = {
        f"github_runner_cluster_regrade_{name}": value
        for name, value in {
            **dict.fromkeys(("sample_seconds", "window_samples"), 4),
            "sustain_down_windows": 6,  # more than up: told with the number that was worked out
            "cooldown_down_windows": 1,
            "kube_server": ["https://127.0.0.1:1", "https://127.0.0.2:1"],
            "allow_cloud_provider": False,
        }.items()
    }
    texts = {
        name: ", ".join(value) if isinstance(value, list) else str(value).lower() for name, value in typed.items()
    }
    meant, told = run(folder, **typed), run(folder, github_runner_cluster_regrade="true", **texts)
    assert "SUSTAIN_UP_SECONDS=80" in meant.output and "hcloud" in meant.output
    assert "KUBE_SERVER https://127.0.0.2:1 is this server itself" in meant.output
    assert told.lines == meant.lines


def test_off_in_a_line_is_off(folder: Path) -> None:
    done = run(folder, github_runner_cluster_regrade="false")
    assert done.code == 0, done.output
    assert not (folder / "calls").exists()


def test_an_api_that_does_not_answer_is_told_with_the_words_of_each_host(folder: Path) -> None:
    (folder / "fail-nodes").write_text("E0101 memcache.go:265]\nThe connection to 127.0.0.1:6443 was refused\n")
    (line,) = [line for line in run(folder).lines if line.startswith("No server of the group")]
    assert ": The connection to 127.0.0.1:6443 was refused; ".join(GROUP) in line


def test_a_unit_is_looked_at_for_all_that_a_step_would_refuse(folder: Path) -> None:
    python = by_host("good", b="old", c="bare")
    done = run(
        folder,
        "--check",
        github_runner_cluster_regrade_runtime="systemd",
        github_runner_cluster_regrade_k3s=str(folder / "bin" / "k3s"),
        github_runner_cluster_regrade_unit=by_host("k3s.service", a="a.service"),
        github_runner_cluster_regrade_python=f"{folder}/bin/python-{python}",
    )
    told = {host: of(done.lines, host) for host in GROUP}
    assert told["pi-a"][:2] == [
        "pi-a: its k3s unit has Restart=no: k3s would stay away after it ends with code 0, and its vote with it. In a "
        "drop-in (`systemctl edit a.service`, which restarts nothing) under [Service]: `Restart=always`.",
        "pi-a: its k3s unit has a stop time-out of 5s, after which systemd kills k3s, and 10 s are the least it "
        "is given. In a drop-in (`systemctl edit a.service`, which restarts nothing) under [Service]: "
        "`TimeoutStopSec=60`.",
    ]
    name = "github_runner_cluster_regrade_python"
    assert told["pi-b"][0] == (
        f"pi-b: {folder}/bin/python-old is 3.9, and the service needs 3.10 or newer. Name such a Python in {name}."
    )
    assert told["pi-c"][0] == (
        f"pi-c: {folder}/bin/python-bare cannot make the environment of the service (No module named 'ensurepip'). "
        f"Install python3-venv, or name another Python (3.10 or newer) in {name}."
    )
