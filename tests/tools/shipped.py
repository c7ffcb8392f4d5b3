# SPDX-License-Identifier: GPL-3.0-or-later
"""What the collection's archive has to hold: worked out from what refers to what, so that no list has to be kept.

Called by name, and so needed: modules, filters, lookups, playbooks, what Ansible loads of a role, what Galaxy wants.
What these refer to is needed too, and so on: also what a page links to. A reference to what does not ship is a
problem, and so is a file that nothing refers to.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import json
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

NAME = "exadev.k3s_regrade"
CORE = "plugins/module_utils"
LOADED = ("tasks/main.yml", "defaults/main.yml", "vars/main.yml", "handlers/main.yml", "meta/main.yml",
          "meta/argument_specs.yml", "README.md")  # fmt: skip
ANSIBLES_OWN = (
    "MANIFEST.json", "FILES.json", "meta/runtime.yml", "CHANGELOG.rst", "changelogs/changelog.yaml",
    "changelogs/config.yaml",
)  # fmt: skip
SHARED = ("module_utils", "plugin_utils", "doc_fragments")  # needed only where something refers to it
FOLDERS = {"include_tasks": "tasks", "import_tasks": "tasks", "template": "templates", "copy": "files"}
TOLD = re.compile(r"(?<!ansible_collections\.)\bexadev\.k3s_regrade\.([a-z_]+)")
PROGRAM = re.compile(r"-m[,\s\"']+(regrade\.\w+)")
LOOKED_UP = re.compile(r"lookup\(\s*'ansible\.builtin\.(file|template)'\s*,\s*'([^']+)'")
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
INCLUDED = re.compile(r"{%-?\s*(?:include|import|from)\s+'([^']+)'")


def problems(archive: Path) -> list[str]:
    """One line for each file too few or too many."""
    files: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            held = tar.extractfile(member)
            if held is not None:
                files[member.name] = held.read()
    return problems_of(files)


def problems_of(files: Mapping[str, bytes]) -> list[str]:
    """Of an archive's files: name -> content."""
    found: list[str] = []
    needed: set[str] = set()
    ahead = sorted(_called_by_name(files))
    while ahead:
        name = ahead.pop()
        if name in needed:
            continue
        needed.add(name)
        for wanted in _referred_to(name, files):
            there = fnmatch.filter(files, wanted)
            if not there:
                found.append(f"{name} refers to {wanted}, which does not ship")
            ahead += there
    if f"{CORE}/regrade/cli.py" not in needed:
        found.append(f"nothing runs {CORE}/regrade/cli.py: the service would not")
    return sorted(found) + [f"{name} ships, and nothing refers to it" for name in sorted(set(files) - needed)]


def _called_by_name(files: Mapping[str, bytes]) -> Iterator[str]:
    told = json.loads(files.get("MANIFEST.json", b"{}")).get("collection_info", {})
    for name in files:
        parts = name.split("/")
        if (
            name in (*ANSIBLES_OWN, told.get("readme"), told.get("license_file"))
            or (parts[0] == "plugins" and len(parts) == 3 and parts[1] not in SHARED)
            or (parts[0] == "playbooks" and len(parts) == 2 and name.endswith(".yml"))
            or (parts[0] == "roles" and "/".join(parts[2:]) in LOADED)
        ):
            yield name


def _referred_to(name: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Names, or patterns where part of one is worked out at run time."""
    if name.endswith(".md"):
        yield from linked_from(name, files[name].decode("utf-8"))
    if not name.startswith(("plugins/", "roles/", "playbooks/", "meta/")):
        return
    text = files[name].decode("utf-8")
    for told in sorted(set(TOLD.findall(text))):
        yield from _named(told, files)
    for module in sorted(set(PROGRAM.findall(text))):
        yield f"{CORE}/{module.replace('.', '/')}.py"
    if name.endswith(".py"):
        yield from _imported(name, text, files)
    if name.startswith("roles/"):
        yield from _of_role(name, text, files)


def linked_from(name: str, text: str) -> list[str]:
    """Where the relative links of a page lead."""
    return [posixpath.normpath(posixpath.join(posixpath.dirname(name), link)) for link in LINK.findall(text)]


def _named(told: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """What `exadev.k3s_regrade.TOLD` may mean: an action group, any kind of plugin, a playbook, a role."""
    groups = yaml.safe_load(files.get("meta/runtime.yml", b"{}")) or {}
    if told in groups.get("action_groups", {}):
        return
    there = [
        name
        for name in files
        if re.fullmatch(rf"plugins/(?!module_utils)\w+/{told}\.py|playbooks/{told}\.yml", name)
    ]
    if there:
        yield from there
    else:
        yield f"roles/{told}/tasks/main.yml"


def _imported(name: str, text: str, files: Mapping[str, bytes]) -> Iterator[str]:
    folder = posixpath.dirname(name)
    if f"{folder}/__init__.py" in files:
        yield f"{folder}/__init__.py"
    for level, module, names in _imports(text):
        base = folder
        for _level in range(level - 1):
            base = posixpath.dirname(base)
        words = module.split(".") if module else []
        if not level:
            if words[:3] != ["ansible_collections", *NAME.split(".")]:
                continue
            base, words = "", words[3:]
        target = posixpath.join(base, *words)
        for alias in names:
            inner = f"{target}/{alias}.py"
            if inner in files:
                yield inner
            elif f"{target}/__init__.py" not in files:
                yield f"{target}.py"
            else:  # an empty package gives nothing but its modules
                yield f"{target}/__init__.py" if files[f"{target}/__init__.py"].strip() else inner


@functools.cache
def _imports(text: str) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """(level, module, names) of each `from ... import ...`, wherever it stands."""
    return tuple(
        (node.level, node.module or "", tuple(alias.name for alias in node.names))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
    )


def _of_role(name: str, text: str, files: Mapping[str, bytes]) -> Iterator[str]:
    role = "/".join(name.split("/")[:2])
    inside = name[len(role) + 1 :]
    for kind, wanted in LOOKED_UP.findall(text):
        yield f"{role}/{'files' if kind == 'file' else 'templates'}/{wanted}"
    for wanted in INCLUDED.findall(text):
        yield f"{role}/templates/{wanted}"
    if inside == "meta/argument_specs.yml":
        for entry in yaml.safe_load(text)["argument_specs"]:
            yield f"{role}/tasks/{entry}.yml"
    elif inside.startswith(("tasks/", "handlers/")):
        for task in _tasks(yaml.safe_load(text)):
            yield from _of_task(role, task)
    elif inside.startswith("files/") and inside.endswith(".txt"):  # a lock names what it was made from
        for other in files:
            base = posixpath.basename(other)
            if other != name and other.startswith(f"{role}/files/") and re.search(rf"\b{re.escape(base)}\b", text):
                yield other


def _tasks(found: object) -> Iterator[dict[str, object]]:
    for entry in found if isinstance(found, list) else []:
        yield entry
        for part in ("block", "rescue", "always"):
            yield from _tasks(entry.get(part))


def _of_task(role: str, task: dict[str, object]) -> Iterator[str]:
    for action, given in task.items():
        short = action.rpartition(".")[2]
        folder = FOLDERS.get(short)
        if folder is None:
            continue
        named = given if isinstance(given, str) else None
        if isinstance(given, dict):
            named = given.get("file") or given.get("src")
            if given.get("remote_src"):
                continue
        if not isinstance(named, str) or named.startswith(("/", "{{ lookup(")):
            continue
        loop = task.get("loop")
        each = [named]
        if re.fullmatch(r"{{ *item *}}", named) and isinstance(loop, list):
            each = [str(word) for word in loop]
        for word in each:
            pattern = re.sub(r"{{.*?}}", "*", word)
            if pattern.strip("*"):
                yield f"{role}/{folder}/{pattern}"
