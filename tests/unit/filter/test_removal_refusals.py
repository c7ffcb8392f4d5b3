# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of what the role refuses to be turned off for."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.filter.removal_refusals import removal_refusals

LABEL = "github-runner.exadev.com/regrade-level"
STEP = "github-runner.exadev.com/regrade-step"


def status(**changes: object) -> dict[str, object]:
    return {"level": "full", "recorded": "full", "label": None, "journal": None, **changes}


def server(host: str, report: Optional[dict[str, object]], error: str = "") -> dict[str, object]:
    return {"host": host, "node_name": f"node-{host}", "status": report, "error": error}


def node(
    host: str, labels: Optional[dict[str, str]] = None, annotations: Optional[dict[str, str]] = None
) -> dict[str, Any]:
    metadata: dict[str, object] = {"name": f"node-{host}"}
    if labels is not None:
        metadata["labels"] = labels
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata}


NODES = [node("a", {"other": "label"}), node("b"), node("c", {}, {})]


def test_all_at_full_are_allowed() -> None:
    servers = [server("a", status()), server("b", status(recorded=None)), server("c", None)]
    assert removal_refusals(servers, NODES) == []


@pytest.mark.parametrize(
    ("servers", "nodes", "host", "found"),
    [
        pytest.param(
            [server("a", status(recorded="etcd-only"))], NODES, "a", "record says etcd-only", id="record"
        ),
        pytest.param(
            [server("a", status(level="control-plane"))], NODES, "a", "runs at control-plane", id="level"
        ),
        pytest.param(
            [server("a", status(level=None, level_unknown="k3s boots"))],
            NODES,
            "a",
            "unknown: k3s boots",
            id="unknown",
        ),
        pytest.param(
            [server("a", status(journal={"id": "1"}))], NODES, "a", "step of it is open", id="journal"
        ),
        pytest.param(
            [server("a", None, "no such container")], NODES, "a", "no such container", id="no report"
        ),
        pytest.param(
            [server("a", None)], [node("a", {LABEL: "etcd-only"})], "a", "labelled etcd-only", id="label"
        ),
        pytest.param(
            [server("a", status())], [node("a", {}, {STEP: "{}"})], "a", "a step is open", id="intent"
        ),
        pytest.param(
            [server("a", status())],
            [node("b", {LABEL: "control-plane"})],
            "node-b",
            "labelled",
            id="another server",
        ),
        pytest.param([server("a", status())], [], "group", "No server", id="no API"),
    ],
)
def test_refusals(
    servers: list[dict[str, object]], nodes: list[dict[str, Any]], host: str, found: str
) -> None:
    (line,) = removal_refusals(servers, nodes)
    assert host in line
    assert found in line
    assert "\n" not in line


def test_a_server_is_told_once() -> None:
    servers = [server("a", status(level="etcd-only", recorded="etcd-only"))]
    assert len(removal_refusals(servers, [node("a", {LABEL: "etcd-only"})])) == 1
