# SPDX-License-Identifier: GPL-3.0-or-later
"""That a file too few or too many in the collection's archive is seen, whatever kind of file it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import shipped

ROOT = Path(__file__).resolve().parents[3]
ROLE = "roles/github_runner_cluster"


def archive() -> dict[str, bytes]:
    """As `ansible-galaxy collection build` would fill it now."""
    found = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for folder, pattern in (("plugins", "*.py"), ("roles", "*"), ("playbooks", "*.yml"))
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
        "examples/nixos/regrade.nix",
        ".gitignore",
        "changelogs/fragments/0001-first-cycle.yml",
    ],
)  # fmt: skip
def test_each_file_that_nothing_needs_is_told(name: str) -> None:
    files = {**archive(), name: b""}
    assert shipped.problems_of(files) == [f"{name} ships, and nothing refers to it"]
