# SPDX-License-Identifier: GPL-3.0-or-later
"""That a file too few or too many in the collection's archive is seen, whatever kind of file it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

import archive as archive_tool
import shipped

ROOT = Path(__file__).resolve().parents[3]
PAGES = (("docs", "*.md"), ("docs", "*.svg"), ("examples", "*"))
ROLE = "roles/github_runner_cluster"


def archive() -> dict[str, bytes]:
    """As `ansible-galaxy collection build` would fill it now."""
    found = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for folder, pattern in (("plugins", "*.py"), ("roles", "*"), ("playbooks", "*.yml"), *PAGES)
        for path in (ROOT / folder).rglob(pattern)
        if path.is_file() and path.suffix != ".pyc"
    }
    for name in ("README.md", "COPYING", "meta/runtime.yml", "changelogs/changelog.yaml", "changelogs/config.yaml"):
        found[name] = (ROOT / name).read_bytes()
    info = {"collection_info": {"readme": "README.md", "license_file": "COPYING"}}
    return {**found, "MANIFEST.json": json.dumps(info).encode(), "FILES.json": b"{}"}


def test_what_ships_now_is_what_is_needed() -> None:
    assert shipped.problems_of(archive()) == []


@pytest.mark.parametrize(
    "name",
    [
        f"{ROLE}/files/Dockerfile",
        f"{ROLE}/files/requirements.txt",
        f"{ROLE}/files/unpack.py",
        f"{ROLE}/templates/compose.yaml.j2",
        f"{ROLE}/templates/settings.env.j2",
        f"{ROLE}/templates/regrade.sh.j2",
        f"{ROLE}/templates/objects.yaml.j2",
        f"{ROLE}/templates/kubeconfig.j2",
        f"{ROLE}/tasks/cluster.yml",
        f"{ROLE}/tasks/regrade_service.yml",
        "plugins/module_utils/regrade/cli.py",
        "plugins/module_utils/regrade/app/watcher.py",
        "plugins/module_utils/regrade/core/gate.py",
        "plugins/module_utils/regrade/adapters/docker_engine.py",
        "plugins/module_utils/host_command.py",
        "plugins/filter/placement_refusals.py",
        "plugins/lookup/core_archive.py",
        "plugins/doc_fragments/attributes.py",
        "docs/refusals.md",
        "docs/field-cases.md",
        "examples/nixos/README.md",
        "examples/nixos/lay-drop-in.sh",
    ],
)  # fmt: skip
def test_each_file_of_the_service_is_missed(name: str) -> None:
    files = archive()
    del files[name]
    stem = re.escape(name.removesuffix(".py").rpartition("/")[2])
    assert any(re.search(stem, line) and "does not ship" in line for line in shipped.problems_of(files))


@pytest.mark.parametrize(
    "name",
    [
        "tests/unit/test_cli.py",
        "plugins/module_utils/regrade/core/__pycache__/gate.cpython-311.pyc",
        "plugins/module_utils/regrade/core/left_over.py",
        "plugins/modules/__pycache__/regrade_level.cpython-311.pyc",
        f"{ROLE}/files/core.zip",
        f"{ROLE}/templates/old.j2",
        f"{ROLE}/tasks/unused.yml",
        f"{ROLE}/tests/test.yml",
        "examples/nixos/left_over.nix",
        "docs/left_over.md",
        ".gitignore",
        "changelogs/fragments/0001-first-cycle.yml",
    ],
)  # fmt: skip
def test_each_file_that_nothing_needs_is_told(name: str) -> None:
    files = {**archive(), name: b""}
    assert shipped.problems_of(files) == [f"{name} ships, and nothing refers to it"]


@pytest.mark.parametrize("name", sorted(name for name in archive() if name.endswith(".md")))
def test_each_link_of_a_page_leads_to_what_ships_or_into_the_repository(name: str) -> None:
    files = archive()
    text = files[name].decode("utf-8")
    assert [link for link in shipped.linked_from(name, text) if link not in files] == []
    repository = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["repository"]
    named = re.findall(rf"\]\({re.escape(repository)}/blob/main/([^)#]+)", text)
    assert [path for path in named if path in files or not (ROOT / path).is_file()] == []


def test_what_is_taken_for_the_archive_here_is_what_galaxy_yml_ships() -> None:
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    lines = [line.split() for line in galaxy["manifest"]["directives"]]
    folders = {words[1] for words in lines if words[0] == "recursive-include"}
    assert folders == {"plugins", "roles", "playbooks", "docs", "examples"}
    assert folders <= set(archive_tool.SOURCES)
