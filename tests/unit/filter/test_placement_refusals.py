# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of what the role refuses to be turned on for."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.filter.placement_refusals import placement_refusals

GROUP = ["pi-a", "pi-b", "pi-c"]
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3"


def server(host: str, **changes: object) -> dict[str, object]:
    return {
        "host": host, "node_name": host, "running": True, "role": "server", "error": "",
        "pressure": PRESSURE, "pressure_error": "", **changes,
    }  # fmt: skip


def node(name: str, etcd: Optional[str] = "true") -> dict[str, Any]:
    labels = {} if etcd is None else {"node-role.kubernetes.io/etcd": etcd}
    return {"metadata": {"name": name, "labels": labels}}


def member(name: str, learner: bool = False) -> dict[str, object]:
    # k3s leaves isLearner out where it is false.
    return {"ID": 2**60, "name": name and f"{name}-0a1b2c", **({"isLearner": True} if learner else {})}


SERVERS = [server(name) for name in GROUP]
NODES = [node(name) for name in GROUP]
MEMBERS = [member(name) for name in GROUP]


def test_three_voting_servers_are_allowed() -> None:
    assert placement_refusals(SERVERS, NODES, MEMBERS, GROUP) == []


def test_one_host_of_the_group_alone_is_allowed() -> None:
    assert placement_refusals(SERVERS[:1], NODES, MEMBERS, GROUP) == []


def test_more_nodes_than_servers_are_allowed() -> None:
    assert placement_refusals(SERVERS, [*NODES, node("worker", None)], MEMBERS, GROUP) == []


@pytest.mark.parametrize(
    ("servers", "nodes", "members", "group", "host", "found", "cure"),
    [
        pytest.param(
            [*SERVERS, server("pi-d", role="agent")],
            NODES,
            MEMBERS,
            GROUP,
            "pi-d",
            "k3s agent",
            "Leave",
            id="agent",
        ),
        pytest.param(
            [server("pi-a", role="")],
            NODES,
            MEMBERS,
            GROUP,
            "pi-a",
            "does not run `k3s server`",
            "Name",
            id="other",
        ),
        pytest.param(
            [server("pi-a", role="", error="No such container: k3s")],
            NODES,
            MEMBERS,
            GROUP,
            "pi-a",
            "No such container: k3s",
            "container_name",
            id="no container",
        ),
        pytest.param(
            [server("pi-a", running=False)],
            NODES,
            MEMBERS,
            GROUP,
            "pi-a",
            "does not run",
            "Start it",
            id="stopped",
        ),
        pytest.param(
            [server("pi-a", node_name="raspberrypi")],
            NODES,
            MEMBERS,
            GROUP,
            "pi-a",
            "no Node raspberrypi",
            "github_runner_cluster_node_name",
            id="wrong name",
        ),
        pytest.param(
            SERVERS,
            [node("pi-a", None), *NODES[1:]],
            MEMBERS,
            GROUP,
            "pi-a",
            "no etcd role",
            "Leave",
            id="no etcd",
        ),
        pytest.param(
            SERVERS,
            [node("pi-a", "false"), *NODES[1:]],
            MEMBERS,
            GROUP,
            "pi-a",
            "no etcd role",
            "Leave",
            id="etcd false",
        ),
        pytest.param(
            [server("pi-a"), server("pi-b", node_name="pi-a")],
            NODES,
            MEMBERS,
            GROUP,
            "pi-a, pi-b",
            "Node pi-a",
            "its own",
            id="twice the same Node",
        ),
        pytest.param(SERVERS, NODES, MEMBERS[:2], GROUP, "etcd", "2 voting", "Join", id="two voters"),
        pytest.param(
            SERVERS,
            NODES,
            [*MEMBERS[:2], member("pi-c", True)],
            GROUP,
            "etcd",
            "2 voting",
            "Join",
            id="a learner",
        ),
        pytest.param(
            SERVERS,
            NODES,
            [*MEMBERS[:2], member("")],
            GROUP,
            "etcd",
            "2 voting",
            "Join",
            id="an unstarted member",
        ),
        pytest.param(SERVERS, NODES, [], GROUP, "etcd", "0 voting member(s) (none)", "Join", id="no members"),
        pytest.param(
            SERVERS[:2],
            NODES,
            MEMBERS,
            GROUP[:2],
            "group",
            "2 host(s)",
            "Name all servers",
            id="two in the group",
        ),
        pytest.param(SERVERS, [], [], GROUP, "group", "No server", "Bring", id="no API"),
    ],
)
def test_refusals(
    servers: list[dict[str, object]],
    nodes: list[dict[str, Any]],
    members: list[dict[str, object]],
    group: list[str],
    host: str,
    found: str,
    cure: str,
) -> None:
    (line,) = placement_refusals(servers, nodes, members, group)
    assert host in line
    assert found in line
    assert cure in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        pytest.param(
            {"pressure": "", "pressure_error": "cat: /proc/pressure/memory: No such file or directory"},
            "No such file or directory",
            id="not built in",
        ),
        pytest.param(
            {"pressure": "", "pressure_error": "cat: /proc/pressure/memory: Operation not supported\n"},
            "Operation not supported",
            id="psi=0",
        ),
        pytest.param({"pressure": ""}, "the file is empty", id="empty"),
        pytest.param({"pressure": "full avg10=0.00 total=3"}, "no line `some ... total=`", id="another file"),
        pytest.param({"pressure": "some avg10=0.00 total="}, "no line `some ... total=`", id="cut off"),
    ],
)
def test_field_cases_a1_and_a2_a_host_without_pressure_is_refused_and_told_both_causes(
    changes: dict[str, object], found: str
) -> None:
    (line,) = placement_refusals([server("pi-a", **changes), *SERVERS[1:]], NODES, MEMBERS, GROUP)
    assert line.startswith("pi-a: ")
    assert found in line
    assert "CONFIG_PSI" in line and "psi=1" in line
    assert "\n" not in line
    # the twin: the same servers, each with pressure to read
    assert placement_refusals(SERVERS, NODES, MEMBERS, GROUP) == []


def test_every_host_is_told_at_once() -> None:
    servers = [server("pi-a", role="agent"), server("pi-b"), server("pi-c", running=False)]
    lines = placement_refusals(servers, NODES, MEMBERS, GROUP)
    assert [line.split(":")[0] for line in lines] == ["pi-a", "pi-c"]
