# SPDX-License-Identifier: GPL-3.0-or-later
"""Section F of the field cases: what k3s does by itself at etcd-only, where its maintainers support no agentless etcd.

The soak of the row is in `make faults`; here is what comes of a k3s that ended by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.filter.refused_node_passwords import (
    refused_node_passwords,
)
from ansible_collections.exadev.k3s_regrade.plugins.filter.unready_nodes import unready_nodes
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import settle, step_to
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import NodeChange
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_docker import OWN_MEMBER, World, worlds

S = "server1"
TOLD = "RegradeStartedAnew"
ROOT = Path(__file__).resolve().parents[3]


def at(level: str) -> Cluster:
    """A server that was stepped there, without a hold, and looked after once."""
    cluster = Cluster()
    step_to(cluster.process(S), level, hold=False)
    settle(cluster.process(S), automatic=True)
    return cluster


def told(cluster: Cluster) -> list[str]:
    return [message for node, _kind, reason, message in cluster.api.events if (node, reason) == (S, TOLD)]


# --- F54: k3s at etcd-only ends after 15 minutes without an API server ---


@pytest.mark.parametrize("level", ["control-plane", "etcd-only"])
def test_f54_a_k3s_that_came_back_by_itself_is_told_once_and_is_no_step(level: str) -> None:
    cluster = at(level)
    host = cluster.hosts[S]
    noted, marked = dict(host.noted), cluster.node(S)
    host.starts += 1  # its restart policy had it back at its record within seconds
    for _ in range(3):
        settled = settle(cluster.process(S), automatic=True)
        assert (settled["action"], settled["level"]) == ("nothing", level)
    assert len(told(cluster)) == 1
    assert [line for line in host.logged if "by no step of ours" in line and "15 minutes" in line]
    assert host.noted == noted, "no step is noted, so no cooldown begins"
    assert marks.agrees(cluster.node(S), level) and cluster.node(S).uid == marked.uid
    host.starts += 1
    settle(cluster.process(S), automatic=True)
    assert len(told(cluster)) == 2


def test_f54_a_restart_by_a_step_or_by_a_boot_of_the_host_is_not_told() -> None:
    cluster = at("etcd-only")
    step_to(cluster.process(S), "control-plane", hold=False)
    settle(cluster.process(S), automatic=True)
    cluster.time.boot = "boot-2"
    cluster.hosts[S].starts += 1
    settle(cluster.process(S), automatic=True)
    assert told(cluster) == []


def test_f54_under_a_hold_the_log_alone_tells() -> None:
    cluster = at("etcd-only")
    node = cluster.node(S)
    cluster.api.change_node(S, NodeChange(annotations={marks.HOLD: "by-hand"}), node.resource_version)
    cluster.hosts[S].starts += 1
    settle(cluster.process(S), automatic=True)
    assert told(cluster) == []
    assert [line for line in cluster.hosts[S].logged if "by no step of ours" in line]


def test_f54_at_full_nobody_asks() -> None:
    cluster = Cluster()
    cluster.hosts[S].starts += 1
    settle(cluster.process(S), automatic=True)
    assert told(cluster) == [] and "started" not in cluster.hosts[S].disk


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield from worlds(tmp_path, monkeypatch)


def test_f54_dockers_policy_has_it_back_at_its_record_and_its_member_votes(world: World) -> None:
    world.at("etcd-only")
    actuator = world.actuator()
    before = actuator.started()
    world.k3s.stop()  # "failed to wait for API server to become ready": the process ends with code 0
    world.engine.exit_code, world.engine.restarts = 0, 1
    assert world.k3s.start()
    assert actuator.started() not in ("", before)
    assert (actuator.current_level(), actuator.recorded_level()) == ("etcd-only", "etcd-only")
    assert actuator.healthy() and not actuator.trapped()
    assert OWN_MEMBER in [member.id for member in actuator.members() if not member.learner]


def test_f54_the_docs_name_the_risk() -> None:
    page = (ROOT / "docs" / "restarts.md").read_text(encoding="utf-8")
    for words in ("k3s#7085", "15 minutes", "without any API server", TOLD):
        assert words in page, words


# --- F56: k3s says that a node password was refused, where it was and where it was not ---

NOT_READY_SINCE = "2026-11-30T09:00:40Z"
SECRETS = {"pi-b": {"uid": "5ec", "created": "2026-11-01T00:00:00Z"}}
EVENT = {
    "involvedObject": {"kind": "Node", "name": "pi-b", "uid": "pi-b"},
    "reason": "NodePasswordValidationFailed",
    "message": "Deferred node password secret validation failed: unable to verify hash for node 'pi-b': "
    "hash does not match",
    "lastTimestamp": "2026-11-30T09:00:05Z",
}
LINE = (
    "2026-11-30T09:00:06.123456789Z level=info msg=\"Waiting to retrieve agent configuration; server is not ready: "
    "Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match\""
)


@pytest.mark.parametrize(
    ("level", "ready", "healed"),
    [
        ("etcd-only", "Unknown", []),
        ("control-plane", "False", []),
        ("", "True", []),
        ("", "Unknown", ["5ec"]),
        ("", "False", ["5ec"]),
    ],
)
def test_f56_a_refused_password_is_healed_at_full_and_not_ready_alone(
    level: str, ready: str, healed: list[str]
) -> None:
    node = {
        "metadata": {"name": "pi-b", "labels": {marks.LEVEL: level} if level else {}},
        "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": NOT_READY_SINCE}]},
    }
    log = {"host": "host-b", "node": "pi-b", "lines": [LINE], "error": ""}
    found = refused_node_passwords(unready_nodes([node]), [log], [EVENT], SECRETS)
    assert [item["uid"] for item in found if item["refused"]] == healed


def test_f56_healing_never_deletes_a_node() -> None:
    tasks = ROOT / "roles" / "github_runner_cluster" / "tasks"
    healing = (tasks / "heal_node_passwords.yml").read_text(encoding="utf-8")
    verbs = re.findall(r"'(delete|patch|replace|apply|drain|--raw=\S+)'", healing)
    assert verbs == ["delete", "--raw=/api/v1/namespaces/kube-system/secrets/"]
