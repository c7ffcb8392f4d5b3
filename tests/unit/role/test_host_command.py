# SPDX-License-Identifier: GPL-3.0-or-later
"""The command on the host, run by the shell with a stand-in for docker: what it brings into the container.

What the command line inside does with it is tests/unit/app/test_cli.py's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, List, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.tests.unit.role.test_role_files import rendered

# inspect tells $STATE; exec and compose note their words and stdin, and a hold does as the real one: `held`, the exit
# code it is told, and what $HOLD makes of it.
DOCKER = """#!/bin/sh
case $1 in
  inspect) echo "$STATE"; exit 0 ;;
esac
for word; do echo "$word"; done >"$FOLDER/words"
echo "$DOCKER_HOST" >"$FOLDER/bin/host"
case "$*" in
  *" --hold="*)
    case $HOLD in
      refused) echo "regrade: refused" >&2; exit 3 ;;
      dies) echo held; exit 137 ;;
    esac
    echo held
    read -r code
    echo "told $code" >"$FOLDER/told"
    case $* in *" --json "*) echo '{"code": '"$code"'}' ;; esac
    [ "$HOLD" = lost ] && exit 4
    exit "${code:-255}" ;;
esac
[ -p /dev/stdin ] || [ -f /dev/stdin ] && cat >"$FOLDER/stdin"
exit "${CODE:-0}"
"""


class Host:
    def __init__(self, folder: Path, **changes: object) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        for path, text in (
            ("bin/docker", DOCKER),
            (
                "regrade",
                rendered(
                    "regrade.sh.j2", **{"__github_runner_cluster_regrade_dir": "/srv/cluster/regrade", **changes}
                ),
            ),
        ):
            (folder / path).write_text(text)
            (folder / path).chmod(0o755)
        self.environment = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}", "STATE": "true false", "FOLDER": str(folder), "HOLD": "",
            "TMPDIR": str(folder),
        }  # fmt: skip

    def run(self, *words: str, stdin: str = "", **environment: str) -> Tuple[int, str, str]:
        done = subprocess.run(
            ["sh", str(self.folder / "regrade"), *words], env={**self.environment, **environment},
            input=stdin, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def words(self) -> List[str]:
        return (self.folder / "words").read_text().splitlines()

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_folders_whose_names_hold_a_space_are_found(tmp_path: Path) -> None:
    """Where the service does not run, its folder is named to Compose."""
    host = Host(tmp_path, __github_runner_cluster_regrade_dir="/srv/my cluster/regrade")
    code, _output, errors = host.run("status", STATE="No such container")
    assert (code, errors) == (0, "")
    assert "--project-directory=/srv/my cluster/regrade" in host.words()
    host = Host(tmp_path / "other", github_runner_cluster_regrade_docker_socket="/run/my engine/docker.sock")
    assert host.run("status")[1:] == ("", "")
    assert host.read("bin/host") == "unix:///run/my engine/docker.sock\n"


INSIDE = ["exec", "--interactive", "k3s-regrade", "python3", "-m", "regrade.cli"]


def test_words_and_exit_code_go_through_as_they_are(host: Host) -> None:
    assert host.run("step", "to", "etcd-only", "a b", "--json", CODE="3")[0] == 3
    assert host.words() == [*INSIDE, "step", "to", "etcd-only", "a b", "--json"]


def test_where_the_service_does_not_run_a_container_of_its_own_does(host: Host) -> None:
    for state in ("false false", "true true", "Error: No such container: k3s-regrade"):
        assert host.run("status", STATE=state)[0] == 0
        assert host.words()[:2] == ["compose", "--progress=quiet"]
        assert host.words()[-8:] == [
            "--no-deps", "--no-TTY", "--interactive=false", "regrade", "python3", "-m", "regrade.cli", "status",
        ]  # fmt: skip
    code, _out, err = host.run("status", STATE="permission denied")
    assert (code, "could not be asked" in err) == (1, True)


@pytest.mark.parametrize("given", ["--kubeconfig {}", "--kubeconfig={}"])
@pytest.mark.parametrize("verb", ["abandon-step", "forget"])
def test_an_administrators_kubeconfig_goes_in_by_stdin(host: Host, verb: str, given: str) -> None:
    file = host.folder / "admin.yaml"
    file.write_text("of an administrator\n")
    words = given.format(file).split()
    assert host.run(verb, "pi b", *words, "--yes")[0] == 0
    assert host.words() == [*INSIDE, verb, "pi b", "--kubeconfig=-", "--yes"]
    assert host.read("stdin") == "of an administrator\n"
    assert host.run(verb, *words, "pi b", "--yes", STATE="false false")[0] == 0
    assert "--interactive=false" not in host.words()
    assert host.words()[-4:] == [verb, "--kubeconfig=-", "pi b", "--yes"]
    assert host.run(verb, "b", "--kubeconfig", "-", stdin="piped\n")[0] == 0
    assert host.read("stdin") == "piped\n"


def test_a_kubeconfig_that_is_not_there_stops_at_once(host: Host) -> None:
    code, _out, err = host.run("forget", "b", "--kubeconfig", "/nowhere/at/all")
    assert (code, err) == (2, "regrade: --kubeconfig /nowhere/at/all cannot be read\n")
    assert host.read("words") == ""
    host.run("forget", "b", "--kubeconfig")  # the command line inside says what lacks
    assert host.words() == [*INSIDE, "forget", "b", "--kubeconfig"]


def test_with_lease_runs_its_command_on_the_host(host: Host) -> None:
    script = f"echo here >{host.folder}/ran; cat; echo to the terminal; exit 7"
    code, out, err = host.run(
        "with-lease", "--wait", "30", "--", "sh", "-c", script, "--", "a b", stdin="typed\n"
    )
    assert (code, out, err) == (7, "typed\nto the terminal\n", "")
    assert host.read("ran") == "here\n"
    assert host.words() == [*INSIDE, "with-lease", "--wait", "30", "--hold=sh"]
    assert host.read("told") == "told 7\n"
    assert sorted(path.name for path in host.folder.iterdir()) == ["bin", "ran", "regrade", "told", "words"]


def test_its_report_comes_after_the_commands_own_words(host: Host) -> None:
    code, out, _err = host.run("with-lease", "--json", "--", "echo", "done")
    assert (code, out) == (0, 'done\n{"code": 0}\n')


@pytest.mark.parametrize(
    ("hold", "code", "ran", "told"),
    [
        ("refused", 3, "", "regrade: refused\n"),
        ("lost", 4, "ran\n", ""),
        (
            "dies",
            4,
            "ran\n",
            "regrade: what held the Lease ended with exit code 137 while sh ran: others may have stepped\n",
        ),
    ],
)
def test_a_lease_that_was_not_held_is_told(host: Host, hold: str, code: int, ran: str, told: str) -> None:
    assert host.run("with-lease", "--", "sh", "-c", "sleep 0.2; echo ran", HOLD=hold) == (code, ran, told)


@pytest.mark.parametrize("words", [[], ["--"], ["--wait", "3", "--"], ["ls"]])
def test_with_lease_without_a_command_is_the_command_lines_to_refuse(host: Host, words: List[str]) -> None:
    assert host.run("with-lease", *words, CODE="2")[0] == 2
    assert host.words() == [*INSIDE, "with-lease", *words]


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_interrupt_is_the_commands_and_the_lease_is_held_until_it_ends(host: Host) -> None:
    script = f"trap 'echo caught' INT; echo >{host.folder}/up; sleep 0.5; sleep 0.5; echo end; exit 5"
    with subprocess.Popen(
        ["sh", str(host.folder / "regrade"), "with-lease", "--", "sh", "-c", script],
        env=host.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        wait_for((host.folder / "up").exists)
        os.killpg(process.pid, signal.SIGINT)
        assert host.read("told") == ""
        out, _none = process.communicate(timeout=20)
    assert (process.returncode, out) == (5, "caught\nend\n")
    assert host.read("told") == "told 5\n"


def test_where_it_is_killed_the_hold_ends(host: Host) -> None:
    with subprocess.Popen(
        ["sh", str(host.folder / "regrade"), "with-lease", "--", "sleep", "0.5"], env=host.environment,
    ) as process:  # fmt: skip
        wait_for((host.folder / "words").exists)
        time.sleep(0.1)
        process.kill()
    wait_for((host.folder / "told").exists)
    assert host.read("told") == "told \n"
