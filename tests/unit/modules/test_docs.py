# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules' pages say is what the modules are: options, attributes, return values, examples.

The examples run as they stand, in a play, over a stub of the host's command; what the real one answers is shown on the
test bed.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, get_args, get_origin, get_type_hints

import pytest
import yaml
from ansible.module_utils import basic
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import reports

ROOT = Path(__file__).resolve().parents[3]
COLLECTION = "exadev.k3s_regrade"
GROUP = f"{COLLECTION}.regrade"
ALL = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py") if path.stem != "__init__")
# Those that run the host's command, which share their options; the other one is the role's, before there is a command.
MODULES = [name for name in ALL if name != "regrade_placement_info"]
RUNTIME = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))

# What the stub answers to each verb.
ANSWERS: Dict[str, Dict[str, Any]] = {
    "status": {"level": "full", "hold": False, "up": {"needs": []}},
    "step": {
        "changed": True,
        "from": "full",
        "to": "etcd-only",
        "level": "etcd-only",
        "hold": {"from": False, "to": True},
        "steps": [],
        "message": "in words",
    },
    "heartbeat": {"version": 1, "server": "server1", "nodes": [{"name": "server2", "ready": False}], "message": ""},
    "hold": {"changed": True, "hold": True, "message": "in words"},
    "release": {"changed": True, "hold": False, "message": "in words"},
}
CASES = "\n".join(f"  {verb}) echo '{json.dumps(answer)}' ;;" for verb, answer in ANSWERS.items())
STUB = f"""#!/bin/sh
echo "$@" >> "$0.calls"
case $1 in
{CASES}
  *) exit 2 ;;
esac
"""
# Of a host without a k3s: what is found there of one is tests/unit/module_utils' and the scenario placement's.
DOCKER = """#!/bin/sh
echo "$@" >> "$0.calls"
echo "Error: No such container: k3s" >&2
exit 1
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, str]:
    """In which Ansible finds the checkout as the collection it is."""
    folder = tmp_path_factory.mktemp("tree") / "ansible_collections" / "exadev"
    folder.mkdir(parents=True)
    (folder / "k3s_regrade").symlink_to(ROOT)
    return {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(folder.parents[1]),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
    }


def ansible(program: str, environment: Dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / program), *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def pages(environment: Dict[str, str]) -> Dict[str, Dict[str, Any]]:
    """Module -> its page, with the fragments in it."""
    names = [f"{COLLECTION}.{name}" for name in ALL]
    done = ansible("ansible-doc", environment, "--type=module", "--json", *names)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name: found[f"{COLLECTION}.{name}"] for name in ALL}


class Asked(Exception):
    """What a module gave to AnsibleModule."""


def specification(name: str, monkeypatch: pytest.MonkeyPatch) -> Dict[str, Any]:
    found: Dict[str, Any] = {}

    def note(**given: Any) -> None:
        found.update(given)
        raise Asked

    module = importlib.import_module(f"ansible_collections.{COLLECTION}.plugins.modules.{name}")
    monkeypatch.setattr(module, "AnsibleModule", note)
    with pytest.raises(Asked):
        module.main()
    assert module.AnsibleModule is not basic.AnsibleModule
    return found


def test_every_module_that_runs_the_command_is_in_the_action_group() -> None:
    assert list(RUNTIME["action_groups"]) == ["regrade"]
    assert sorted(RUNTIME["action_groups"]["regrade"]) == MODULES


@pytest.mark.parametrize("name", ALL)
def test_the_options_are_those_the_module_takes(
    name: str, pages: Dict[str, Dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = specification(name, monkeypatch)
    kept = ("type", "default", "required", "choices", "elements")

    def plain(options: Dict[str, Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
        told = {
            option: {key: value for key, value in words.items() if key in kept and value is not None}
            for option, words in options.items()
        }
        return {option: {"required": False, **words} for option, words in told.items()}

    assert plain(pages[name]["doc"]["options"]) == plain(given["argument_spec"])
    assert given["supports_check_mode"] is True


@pytest.mark.parametrize("name", ALL)
def test_the_attributes_are_told(name: str, pages: Dict[str, Dict[str, Any]]) -> None:
    told = pages[name]["doc"]["attributes"]
    grouped = {"action_group"} if name in MODULES else set()
    assert set(told) == {"check_mode", "diff_mode", "idempotent", "platform"} | grouped
    assert told["check_mode"]["support"] == told["idempotent"]["support"] == "full"
    assert told["diff_mode"]["support"] == ("N/A" if name.endswith("_info") else "full")
    if grouped:
        assert told["action_group"]["membership"] == [GROUP]


def documented(hint: Any) -> Dict[str, str]:
    """What a page says of a value of that type."""
    if get_origin(hint) is not None and type(None) in get_args(hint):
        (hint,) = [choice for choice in get_args(hint) if choice is not type(None)]
    if get_origin(hint) is list:
        return {"type": "list", "elements": documented(get_args(hint)[0])["type"]}
    names = {str: "str", bool: "bool", int: "int", float: "float"}
    return {"type": names.get(hint, "dict")}


@pytest.mark.parametrize(
    ("name", "value", "report"),
    [
        ("regrade_level_info", "status", reports.StatusReport),
        ("regrade_level", "steps", reports.StepTaken),
    ],
)
def test_what_is_returned_has_the_reports_own_fields_and_types(
    name: str, value: str, report: Any, pages: Dict[str, Dict[str, Any]]
) -> None:
    contains = pages[name]["return"][value]["contains"]
    told = {
        key: {part: words[part] for part in ("type", "elements") if part in words}
        for key, words in contains.items()
    }
    assert told == {key: documented(hint) for key, hint in get_type_hints(report).items()}


def test_the_examples_run_as_they_stand_with_the_groups_defaults(
    pages: Dict[str, Dict[str, Any]], environment: Dict[str, str], tmp_path: Path
) -> None:
    """The command they run is named by the defaults alone, so these reach every module that runs it."""
    stub, book, docker = tmp_path / "regrade", tmp_path / "play.yml", tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    for path, text in ((stub, STUB), (docker, DOCKER)):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    examples = {name: yaml.safe_load(pages[name]["examples"]) for name in ALL}
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,  # who runs the tests may have no sudo, and may run a stub
    }
    document = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": variables,
        "module_defaults": {f"group/{GROUP}": {"command": str(stub)}},
        "tasks": [task for tasks in examples.values() for task in tasks],
    }
    book.write_text(json.dumps([document]), encoding="utf-8")
    path = f"{docker.parent}:{environment['PATH']}"
    done = ansible("ansible-playbook", {**environment, "PATH": path}, str(book))
    assert done.returncode == 0, done.stdout + done.stderr
    ours = [name for name, tasks in examples.items() for task in tasks if f"{COLLECTION}.{name}" in task]
    assert set(ours) == set(ALL)
    calls = (tmp_path / "regrade.calls").read_text(encoding="utf-8").splitlines()
    assert len(calls) == sum(name in MODULES for name in ours)
    assert docker.with_name("docker.calls").exists(), "it was looked at what runs k3s"
    assert "no k3s at " in done.stdout, "of a host without it"
