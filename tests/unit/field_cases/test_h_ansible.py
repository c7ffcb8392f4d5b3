# SPDX-License-Identifier: GPL-3.0-or-later
"""Section H of the field cases, Ansible: what a target lacks is named with its cure, and never a traceback.

The modules run as Ansible runs them, each a process of its own.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
import yaml
from ansible_collections.exadev.k3s_regrade.plugins.doc_fragments import command
from ansible_collections.exadev.k3s_regrade.plugins.module_utils import host_command
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import (
    FRESH_SECONDS,
    RESTART_GRACE_SECONDS,
    load,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.step import (
    APPLY_TRIES,
    FINISH_SECONDS,
    VERIFY_SECONDS,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.modules.test_modules import (
    THERE,
    Host,
    failure,
    run,
)

ROOT = Path(__file__).resolve().parents[3]
PLUGINS = ROOT / "plugins"
ON_TARGETS = sorted((PLUGINS / "modules").glob("*.py")) + sorted((PLUGINS / "module_utils").rglob("*.py"))
MODULES = [path.stem for path in ON_TARGETS if path.parent.name == "modules"]
RUN_THE_COMMAND = [
    name for name in MODULES if "run_regrade" in (PLUGINS / "modules" / f"{name}.py").read_text(encoding="utf-8")
]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def asked(module: str) -> Dict[str, Any]:
    return {"level": "full"} if module == "regrade_level" else {}


# --- H66: docker, requests, kubernetes or yaml missing on the target ---

STANDARD = {*sys.stdlib_module_names, "ansible", "ansible_collections"}


def imports(path: Path) -> List[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    ]


def test_h66_modules_ask_nothing_of_a_target_but_its_python() -> None:
    paths = [PLUGINS / "modules" / f"{name}.py" for name in MODULES]
    paths.append(Path(host_command.__file__))
    assert {name for path in paths for name in imports(path)} <= STANDARD
    for path in paths[:-1]:
        text = path.read_text(encoding="utf-8")
        assert "module_utils.regrade" not in text, f"{path.name} brings the core, and with it its libraries"


@pytest.mark.parametrize("module", RUN_THE_COMMAND)
def test_h66_a_target_without_any_library_runs_them(host: Host, module: str) -> None:
    """As on a target whose site packages hold nothing: only the standard library, and what Ansible itself brings."""
    for name in ("docker", "requests", "kubernetes", "yaml"):
        (host.command.parent / f"{name}.py").write_text("raise ImportError('not on this target')\n")
    host.answers({"error": {"kind": "refused", "message": "server2 is at etcd-only"}}, 3)
    answer = run(module, host, first_on_path=str(host.command.parent), **asked(module))
    assert failure(answer) == "server2 is at etcd-only"


# --- H67: a target's Python is too old ---

FOLDERS = (*os.environ.get("PATH", "").split(os.pathsep), *map(str, Path.home().glob(".pyenv/versions/*/bin")))
PYTHONS = sorted(
    {
        str(path.resolve())
        for folder in FOLDERS
        for path in Path(folder).glob("python3.[0-9]*")
        if re.fullmatch(r"python3\.\d+", path.name) and os.access(path, os.X_OK)
    }
)


def test_h67_what_runs_on_a_target_has_no_newer_syntax_than_the_floor_declared() -> None:
    floor = host_command.OLDEST_PYTHON
    words = "Python %d.%d" % floor
    assert words in yaml.safe_load(command.ModuleDocFragment.DOCUMENTATION)["requirements"][0]
    assert words in (ROOT / "README.md").read_text(encoding="utf-8")
    runtime = (ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(runtime)["requires_ansible"] and words in runtime
    assert len(ON_TARGETS) > len(MODULES) > 1
    for path in ON_TARGETS:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=floor)


@pytest.mark.parametrize("python", PYTHONS)
def test_h67_every_python_from_the_floor_on_compiles_it_all(python: str) -> None:
    """Each that is on this machine: at least the one that runs this."""
    told = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, timeout=30
    )
    if told.returncode or tuple(map(int, told.stdout.split())) < host_command.OLDEST_PYTHON:
        return  # a shim of nothing, or below the floor: what is said there is the next test's
    script = (
        "import sys\nfor path in sys.argv[1:]: compile(open(path, encoding='utf-8').read(), path, 'exec')"
    )
    done = subprocess.run(
        [python, "-c", script, *map(str, ON_TARGETS)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", RUN_THE_COMMAND)
def test_h67_an_older_python_is_named_with_where_it_is_and_the_cure(host: Host, module: str) -> None:
    host.answers(THERE)
    answer = run(module, host, version="3.8.10", **asked(module))
    assert failure(answer) == (
        f"this module needs Python 3.9 or newer on the target, and {sys.executable} is 3.8: set "
        "ansible_python_interpreter to a newer one."
    )
    assert answer["kind"] == "python"
    assert not host.calls.exists()


# --- H68: not root, files of the controller, a time-out below drain and restart ---

DENIED = (
    "regrade: the Docker engine could not be asked for k3s-regrade: Got permission denied while trying to connect to "
    'the Docker daemon socket at unix:///var/run/docker.sock: Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/info": dial '
    "unix /var/run/docker.sock: connect: permission denied"
)
NOBODY = 65534
# Lookups that read a file, or what a command says, where Ansible itself runs.
READERS = ("csvfile", "file", "fileglob", "first_found", "ini", "lines", "pipe", "template", "unvault")


@pytest.mark.parametrize("module", RUN_THE_COMMAND)
def test_h68_who_may_not_use_docker_is_told_of_become_and_the_group(host: Host, module: str) -> None:
    host.answers("", 1, DENIED)
    answer = run(module, host, user=NOBODY, **asked(module))
    message = failure(answer)
    assert "needs become: true, or the user in the group docker" in message
    assert f"denied to the user with id {NOBODY}" in message
    assert answer["kind"] == "permission"


@pytest.mark.parametrize("module", RUN_THE_COMMAND)
def test_h68_root_who_is_denied_is_told_of_selinux(host: Host, module: str) -> None:
    host.answers("", 1, DENIED)
    answer = run(module, host, user=0, **asked(module))
    assert "although it runs as root, so SELinux or AppArmor forbids it: `ausearch -m avc" in failure(answer)
    assert answer["kind"] == "permission"


def test_h68_a_command_that_others_may_not_run_is_told_of_become(host: Host) -> None:
    host.answers(THERE)
    host.command.chmod(0o600)
    answer = run("regrade_level_info", host, user=NOBODY)
    assert f"may not be run by the user with id {NOBODY}: use become: true." in failure(answer)


def test_h68_no_task_play_or_example_reads_a_file_of_the_controller() -> None:
    """A lookup runs on the controller: k3s.yaml is the target's."""
    own = {path.name for path in (ROOT / "roles").rglob("*") if path.parent.name in ("files", "templates")}
    looked_up = [
        (path.name, plugin, word)
        for folder in ("roles", "playbooks", "plugins")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".yml", ".py", ".j2", ".md")
        for plugin, word in re.findall(
            r"(?:lookup|query|q)\(\s*'([\w.]+)'(?:\s*,\s*([^)]*))?\)", path.read_text(encoding="utf-8")
        )
    ]
    assert looked_up, "nothing was looked at"
    for path, plugin, word in looked_up:
        if plugin.rpartition(".")[2] in READERS:
            assert word.strip("'") in own, (path, plugin, word)


def test_h68_the_modules_time_out_is_above_drain_and_restart_and_told() -> None:
    settings = load("", {"NODE_NAME": "server1"})
    restart = settings.restart_timeout_seconds + RESTART_GRACE_SECONDS + settings.boot_timeout_seconds
    longest = (
        2 * settings.drain_timeout_seconds
        + APPLY_TRIES * restart
        + settings.trap_wait_seconds
        + 6 * FRESH_SECONDS
        + 2 * (VERIFY_SECONDS + FINISH_SECONDS / 2)
    )
    default = host_command.COMMAND_ARGUMENTS["timeout"]["default"]
    assert longest <= default <= 1.25 * longest
    told = yaml.safe_load(command.ModuleDocFragment.DOCUMENTATION)["options"]["timeout"]
    assert told["default"] == default
    assert "drains" in str(told["description"]) and "restarts" in str(told["description"])


def test_h68_a_command_given_up_says_that_its_step_goes_on(host: Host) -> None:
    host.answers(THERE, seconds=20)
    answer = run("regrade_level", host, level="etcd-only", timeout=1)
    assert (
        "gave no answer within 1 s; a step that it has begun goes on without it: look with regrade_level_info"
        in (failure(answer))
    )
    assert answer["kind"] == "timeout"


# --- every other way in which a host is not ready ---


@pytest.mark.parametrize(
    ("said", "kind", "cure"),
    [
        ("regrade: the Docker engine could not be asked for k3s-regrade: /usr/local/bin/regrade: 17: docker: not found",
         "engine", "there is no docker command on this host: install Docker"),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
         "engine", "no Docker engine answers on this host: start it"),
        ("Error response from daemon: client version 1.24 is too old. Minimum supported API version is 1.44, please "
         "upgrade your client to a newer version", "engine", "too far apart in age: update the older one"),
        ("Error response from daemon: client version 1.52 is too new. Maximum supported API version is 1.41", "engine",
         "too far apart in age: update the older one"),
        ("docker: 'compose' is not a docker command.\nSee 'docker --help'", "service",
         "without Docker Compose v2 no other container can take its place"),
        ("unknown flag: --progress", "service", "install the Compose plugin"),
        ("no configuration file provided: not found", "service", "its files are not all there: run the role"),
        ("open /srv/cluster/regrade: no such file or directory", "service",
         "its files are not all there: run the role"),
        ("env file /srv/cluster/regrade/settings.env not found", "service",
         "its files are not all there: run the role"),
        ("Error response from daemon: No such image: exadev/k3s-regrade:1", "service",
         "its image is not there: run the role"),
        ("Error response from daemon: Container 0f is paused, unpause the container before exec", "service",
         "the service's container is paused: `docker unpause` it"),
        ("/usr/bin/python3: No module named regrade", "service", "is not the service of this collection"),
        ('OCI runtime exec failed: exec failed: "python3": executable file not found in $PATH: unknown', "service",
         "is not the service of this collection"),
    ],
)  # fmt: skip
def test_a_host_that_is_not_ready_is_told_cause_and_cure(host: Host, said: str, kind: str, cure: str) -> None:
    host.answers("", 1, said)
    answer = run("regrade_level", host, level="full")
    message = failure(answer)
    assert cure in message
    assert said.splitlines()[-1] in message, "what was said is lost"
    assert answer["kind"] == kind


def test_the_commands_own_words_come_before_any_guess(host: Host) -> None:
    """What the command itself reports is the cause, also where its log has a word of Docker's in it."""
    told = "no container named k3s at unix:///var/run/docker.sock; set CONTAINER to the name of the k3s container"
    host.answers({"error": {"kind": "unknown", "message": told}}, 5, "permission denied; No such image: x")
    answer = run("regrade_level_info", host)
    assert (failure(answer), answer["kind"]) == (told, "unknown")
