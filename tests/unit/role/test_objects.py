# SPDX-License-Identifier: GPL-3.0-or-later
"""The role's objects on a Kubernetes that the bed has not: run by Ansible itself, with a stand-in for docker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest
import yaml
from ansible_collections.exadev.k3s_regrade.tests.unit.role import played
from ansible_collections.exadev.k3s_regrade.tests.unit.role.test_role_files import text
from jinja2 import Environment

# kubectl of 1.29, which knows no ValidatingAdmissionPolicy of v1: what it was given is kept, and each call is counted.
DOCKER = """#!/bin/sh
echo "$*" >>"$FOLDER/calls"
case "$*" in
  *" apply "*)
    cat >"$FOLDER/given"
    if grep -q '^kind: ValidatingAdmissionPolicy' "$FOLDER/given"; then
      echo 'resource mapping not found for name: "k3s-regrade-keep-node" namespace: "" from "STDIN": no matches for kind "ValidatingAdmissionPolicy" in version "admissionregistration.k8s.io/v1"' >&2
      exit 1
    fi
    echo 'namespace/k3s-regrade unchanged (server dry run)' ;;
  *" delete "*) echo "error: the server doesn't have a resource type \\"validatingadmissionpolicy\\"" >&2; exit 1 ;;
esac
"""  # noqa: E501


def run(folder: Path, guard: bool, *words: str) -> Tuple[int, str]:
    return played.run(
        folder,
        {"hosts": "localhost", "gather_facts": False, "tasks": [played.tasks_of("regrade_objects")]},
        *words,
        programs={"docker": DOCKER},
        github_runner_cluster_regrade_guard=guard,
        __github_runner_cluster_api_host="localhost",
        __github_runner_cluster_server={"node_name": "pi-a"},
    )


@pytest.mark.parametrize("guard", [True, False])
def test_a_kubernetes_without_the_guards_is_told_before_anything_is_changed(tmp_path: Path, guard: bool) -> None:
    code, output = run(tmp_path, guard)
    calls = (tmp_path / "calls").read_text().splitlines()
    applied = [call for call in calls if " apply " in call and "--dry-run=server" not in call]
    assert applied == []
    if not guard:
        assert code == 0, output
        assert "k3s-regrade-keep-node" not in (tmp_path / "given").read_text()
        return
    assert code != 0
    assert "The cluster's Kubernetes does not know ValidatingAdmissionPolicy" in output
    assert "or leave the guard out with github_runner_cluster_regrade_guard: false" in output
    assert len(calls) == 1


@pytest.mark.parametrize("words", [(), ("--check",)], ids=["real", "rehearsed"])
def test_a_rehearsal_takes_no_guard_off(tmp_path: Path, words: Tuple[str, ...]) -> None:
    code, output = run(tmp_path, False, *words)
    assert code == 0, output
    (call,) = [call for call in (tmp_path / "calls").read_text().splitlines() if " delete " in call]
    assert ("--dry-run=server" in call) == bool(words)


@pytest.mark.parametrize("name", ["1234", "12e5", "true", "null", "192.168.1.12", "node3.lan"])
def test_a_node_whose_name_looks_like_a_number_is_named_by_its_text(name: str) -> None:
    environment = Environment(trim_blocks=True)
    environment.filters.update({"extract": lambda host, of: of[host], "to_json": json.dumps, "bool": bool})
    server = {"__github_runner_cluster_server": {"node_name": name}}
    given: Dict[str, Any] = {"ansible_play_hosts": ["pi-a"], "hostvars": {"pi-a": server}}
    given.update(__github_runner_cluster_namespace="k3s-regrade", __github_runner_cluster_lease="k3s-regrade")
    manifest = environment.from_string(text("templates", "objects.yaml.j2")).render(given)
    objects = [document for document in yaml.safe_load_all(manifest) if name in str(document)]
    assert [document["metadata"]["name"] for document in objects] == [
        name, f"{name}-token", f"k3s-regrade-{name}", f"k3s-regrade-{name}",
    ]  # fmt: skip
    assert objects[1]["metadata"]["annotations"] == {"kubernetes.io/service-account.name": name}
    assert objects[2]["rules"][0]["resourceNames"] == [name]
    assert objects[3]["subjects"][0]["name"] == name
