# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of what the role refuses to be turned off for."""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.filter.removal_refusals import removal_refusals
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.tests.unit.filter.test_placement_refusals import page

LABEL = "github-runner.exadev.com/regrade-level"
STEP = "github-runner.exadev.com/regrade-step"
AWAY = "Failed to connect to the host via ssh: No route to host"


def full(**changes: object) -> str:
    return json.dumps({"level": "full", "recorded": "full", "label": None, "journal": None, **changes})


def server(host: str, said: str, **changes: object) -> dict[str, object]:
    return {
        "host": host,
        "node_name": f"node-{host}",
        "code": 0,
        "said": said,
        "error": "",
        "away": False,
        "not_stopped": "",
        **changes,
    }


def away(host: str) -> dict[str, object]:
    return server(host, "", code=-1, error=AWAY, away=True)


def node(
    host: str,
    labels: Optional[dict[str, str]] = None,
    annotations: Optional[dict[str, str]] = None,
    ready: str = "True",
) -> dict[str, Any]:
    metadata: dict[str, object] = {"name": f"node-{host}"}
    if labels is not None:
        metadata["labels"] = labels
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


NODES = [node("a", {"other": "label"}), node("b"), node("c", {}, {})]
ALL_FULL = [server("a", full()), server("b", full(recorded=None)), server("c", "")]


def test_all_at_full_are_allowed() -> None:
    assert removal_refusals(ALL_FULL, NODES, []) == []


def test_a_removal_that_was_cut_off_goes_on() -> None:
    assert removal_refusals([server("a", "left"), server("b", full())], NODES, []) == []


def test_a_host_without_pressure_is_asked_by_a_rehearsal() -> None:
    rehearsed = json.dumps({"changed": False, "from": "full", "to": "full", "level": "full"})
    assert removal_refusals([server("a", rehearsed)], NODES, []) == []


@pytest.mark.parametrize(
    ("servers", "nodes", "host", "found"),
    [
        pytest.param(
            [server("a", full(recorded="etcd-only"))], NODES, "a", "record says etcd-only", id="record"
        ),
        pytest.param(
            [server("a", full(recorded=None, recorded_error="no mount holds it"))],
            NODES,
            "a",
            "record could not be read: no mount holds it",
            id="record not known",
        ),
        pytest.param(
            [server("a", full(level="control-plane"))], NODES, "a", "runs at control-plane", id="level"
        ),
        pytest.param(
            [server("a", full(level=None, level_unknown="k3s boots"))],
            NODES,
            "a",
            "unknown: k3s boots",
            id="unknown",
        ),
        pytest.param([server("a", full(journal={"id": "1"}))], NODES, "a", "step of it is open", id="journal"),
        pytest.param(
            [server("a", full(journal_error="the journal is no JSON"))],
            NODES,
            "a",
            "is open (the journal is no JSON)",
            id="journal not known",
        ),
        pytest.param(
            [server("a", "", code=1, error="no such container")], NODES, "a", "no such container", id="no report"
        ),
        pytest.param([server("a", "what?")], NODES, "a", "printed no report (what?)", id="not a report"),
        pytest.param([server("a", "[]")], NODES, "a", "printed no report", id="not a report either"),
        pytest.param(
            [server("a", full(), not_stopped="daemon is busy")], NODES, "a", "could not be stopped: daemon", id="stop"
        ),
        pytest.param([away("a")], NODES, "a", f"cannot be told ({AWAY})", id="away"),
        pytest.param([server("a", "")], [node("a", {LABEL: "etcd-only"})], "a", "labelled etcd-only", id="label"),
        pytest.param([server("a", full())], [node("a", {}, {STEP: "{}"})], "a", "a step is open", id="intent"),
        pytest.param(
            [server("a", full())],
            [node("b", {LABEL: "control-plane"})],
            "node-b",
            "labelled",
            id="another server",
        ),
        pytest.param([server("a", full())], [], "group", "No server", id="no API"),
    ],
)  # fmt: skip
def test_refusals(
    servers: list[dict[str, object]], nodes: list[dict[str, Any]], host: str, found: str
) -> None:
    (line,) = removal_refusals(servers, nodes, [])
    assert host in line
    assert found in line
    assert "\n" not in line


def test_a_server_is_told_once_and_all_are_told() -> None:
    servers = [server("a", full(level="etcd-only", recorded="etcd-only")), away("b")]
    lines = removal_refusals(servers, [node("a", {LABEL: "etcd-only"}), node("b", {LABEL: "etcd-only"})], [])
    assert [line.partition(":")[0] for line in lines] == ["a", "b"]


@pytest.mark.parametrize("name", ["c", "node-c"])
@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(away("c"), id="host gone"),
        pytest.param(server("c", "", code=1, error="no such container"), id="k3s gone"),
        pytest.param(server("c", full(level=None, level_unknown="k3s is stopped")), id="k3s ended"),
    ],
)
def test_a_server_that_is_named_dead_is_left_out(name: str, gone: dict[str, object]) -> None:
    nodes = [node("a"), node("c", {LABEL: "etcd-only"}, {STEP: "{}"}, ready="Unknown")]
    servers = [server("a", full()), gone]
    assert removal_refusals(servers, nodes, []) != []
    assert removal_refusals(servers, nodes, [name]) == []


@pytest.mark.parametrize(
    ("said", "ready", "found"),
    [
        (full(level="etcd-only"), "Unknown", "its k3s runs at etcd-only"),
        (full(), "True", "its k3s runs at full"),
        ("", "True", "its Node is Ready"),
    ],
)
def test_a_server_that_lives_is_not_taken_for_dead(said: str, ready: str, found: str) -> None:
    (line,) = removal_refusals([server("c", said)], [node("c", ready=ready)], ["c"])
    assert line.startswith("c: it is named in github_runner_cluster_regrade_dead_servers, but ")
    assert found in line


def test_a_node_outside_of_the_group_can_be_named_dead() -> None:
    nodes = [node("a"), node("z", {LABEL: "etcd-only"}, ready="Unknown")]
    assert removal_refusals([server("a", full())], nodes, []) != []
    assert removal_refusals([server("a", full())], nodes, ["node-z"]) == []


def gone(verb: str, name: str) -> str:
    return (
        f"run `regrade {verb} {name} --kubeconfig ADMIN` on one that lives (ADMIN is an administrator's kubeconfig), "
        "or name it in github_runner_cluster_regrade_dead_servers"
    )


def test_of_a_node_that_no_host_is_only_what_can_be_done_is_told() -> None:
    (line,) = removal_refusals([server("a", full())], [node("a"), node("z", {LABEL: "etcd-only"})], [])
    assert line == (
        "node-z: its Node node-z is labelled etcd-only. No host of the group is this Node. Where it is gone for good, "
        f"{gone('forget', 'node-z')}. Else bring it to full with `regrade step to full` on it first."
    )


@pytest.mark.parametrize(
    ("host", "said", "stranger"),
    [("a", "a: a step is open on its Node node-a.", ""), ("z", "node-z: a step is open on its Node node-z.",
                                                          " No host of the group is this Node.")],
)  # fmt: skip
def test_of_a_step_that_is_open_the_way_out_where_that_server_is_dead_is_told(
    host: str, said: str, stranger: str
) -> None:
    (line,) = removal_refusals([server("a", full())], [node("b"), node(host, {}, {STEP: "{}"})], [])
    assert line == (
        f"{said}{stranger} Wait for its end. Where that server is dead, {gone('abandon-step', 'node-' + host)}."
    )


@pytest.mark.parametrize("verb", ["forget", "abandon-step"])
def test_what_is_told_to_be_run_is_what_the_command_line_takes(verb: str) -> None:
    options = cli._parse([verb, "node-z", "--kubeconfig", "ADMIN"])
    assert (options.verb, options.node, options.kubeconfig) == (verb, "node-z", "ADMIN")


# --- the page that tells them ---

PI = [
    {"metadata": {"name": name, "labels": {}}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    for name in ("pi-a", "pi-b")
]


def pi(said: str = full(), **changes: object) -> list[dict[str, object]]:
    """pi-a as it answers."""
    return [server("pi-a", said, node_name="pi-a", **changes)]


def marked(name: str, **metadata: dict[str, str]) -> list[dict[str, Any]]:
    return [{"metadata": {"name": name, **metadata}}]


DEAD_BOARD = {"code": -1, "error": "ssh: connect to host pi-a port 22: No route to host", "away": True}
TOLD: dict[str, tuple[list[dict[str, object]], list[dict[str, Any]], list[str]]] = {
    "it runs below full": (pi(full(level="etcd-only", recorded=None)), PI, []),
    "its record says so": (pi(full(recorded="control-plane")), PI, []),
    "its record cannot be read": (pi(full(recorded=None, recorded_error="no mount holds it")), PI, []),
    "its level is not known": (pi(full(level=None, level_unknown="k3s boots")), PI, []),
    "a step of it is open": (pi(full(journal={"id": "1"})), PI, []),
    "its command fails": (pi("", code=1, error="regrade: the Docker engine could not be asked"), PI, []),
    "it cannot be reached": (pi("", **DEAD_BOARD), PI, []),
    "its service does not stop": (pi(not_stopped="the daemon is busy"), PI, []),
    "its Node is labelled": (pi(), marked("pi-a", labels={LABEL: "etcd-only"}), []),
    "a Node that no host is": (pi(), marked("ghost", labels={LABEL: "etcd-only"}), []),
    "a step is open on its Node": (pi(), marked("pi-a", annotations={STEP: "{}"}), []),
    "the same where no host is the Node": (pi(), marked("ghost", annotations={STEP: "{}"}), []),
    "it is named dead, and its k3s runs": (pi(), PI, ["pi-a"]),
    "it is named dead, and its Node is Ready": (pi("", **DEAD_BOARD), PI, ["pi-a"]),
    "no API": (pi(), [], []),
}


@pytest.mark.parametrize("name", TOLD)
def test_the_page_tells_what_is_said(name: str) -> None:
    (line,) = removal_refusals(*TOLD[name])
    assert page("Refused to be turned off").get(name) == [line], f"| {name} | {line} |"


def test_the_page_tells_of_no_other_case() -> None:
    assert list(page("Refused to be turned off")) == list(TOLD)
