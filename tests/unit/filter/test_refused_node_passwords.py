# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose node password was really refused, and what only looks like a refusal.

The three cases of the field are in `tests/unit/field_cases/test_f_etcd_only.py`.
"""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.filter.refused_node_passwords import (
    refused_node_passwords,
)
from ansible_collections.exadev.k3s_regrade.plugins.filter.unready_nodes import unready_nodes

SECRETS = {"pi-b": {"uid": "5ec", "created": "2026-11-01T00:00:00Z"}}
OUT = "2026-11-30T09:00:40Z"  # when it was no longer Ready
REFUSED = "2026-11-30T09:00:05"
REJECTED = (
    "Waiting to retrieve agent configuration; server is not ready: Node password rejected, duplicate hostname or "
    "contents of '/etc/rancher/node/password' may not match server node-passwd entry"
)


def unready(**changes: Any) -> List[Dict[str, Any]]:
    found = {"name": "pi-b", "regrade_level": None, "step": False, "since": OUT, "words": "pi-b"}
    return [{**found, **changes}]


def event(at: str = f"{REFUSED}Z", **changes: Any) -> Dict[str, Any]:
    made = {
        "involvedObject": {"kind": "Node", "name": "pi-b", "uid": "pi-b"},
        "reason": "NodePasswordValidationFailed",
        "message": "Deferred node password secret validation failed: unable to verify hash for node 'pi-b': "
        "hash does not match",
        "lastTimestamp": at,
    }
    return {**made, **changes}


def log(*lines: str, **changes: Any) -> Dict[str, Any]:
    return {"host": "host-b", "node": "pi-b", "lines": list(lines), "error": "", **changes}


def line(text: str = REJECTED, at: str = REFUSED) -> str:
    return f'{at}.123456789Z time="{at}Z" level=info msg="{text}"'


def judged(
    found: List[Dict[str, Any]], logs: Any = (), events: Any = (), secrets: Any = None
) -> Dict[str, Any]:
    (item,) = refused_node_passwords(found, list(logs), list(events), SECRETS if secrets is None else secrets)
    assert item["name"] == "pi-b" and item["words"] and "\n" not in item["words"]
    assert bool(item["uid"]) is item["refused"]
    return item


@pytest.mark.parametrize(
    ("logs", "events"),
    [
        ([log(line())], []),
        ([log(line("unable to verify hash for node 'pi-b': hash does not match"))], []),
        ([log(f"{REFUSED}.799956+0000 host-b k3s[94]: {REJECTED}")], []),  # a journal's
        ([log("", "no time", line("k3s is up"), line())], [event(reason="Rebooted")]),
        ([log()], [event()]),
        ([], [event()]),
        ([], [event(lastTimestamp=None, eventTime=f"{REFUSED}.000001Z")]),
        ([], [event("2026-11-01T00:00:00Z", series={"count": 9, "lastObservedTime": f"{REFUSED}.000001Z"})]),
    ],
)
def test_its_own_log_or_an_event_is_evidence(logs: Any, events: Any) -> None:
    found = judged(unready(), logs, events)
    assert (found["refused"], found["uid"]) == (True, "5ec")
    assert found["words"].startswith(f"pi-b: its password was refused at {REFUSED}Z")


@pytest.mark.parametrize(
    ("logs", "events"),
    [
        ([], []),
        ([log(line("Node pi-b is not Ready"))], []),
        ([log(line("unable to verify hash for node 'pi-c': hash does not match"))], []),
        ([log(line(), node="pi-c")], []),
        ([log(f"without a time {REJECTED}")], []),
        ([], [event(message='Deferred node password secret validation failed: secrets "pi-b" already exists')]),
        ([], [event(message=None)]),
        ([], [event(reason="NodePasswordValidationComplete")]),
        ([], [event(), event("2026-11-30T09:00:06Z", reason="NodePasswordValidationComplete")]),
        ([], [event(involvedObject={"kind": "Node", "name": "pi-c"})]),
        ([], [event(involvedObject={"kind": "Pod", "name": "pi-b"})]),
        ([], [event("yesterday")]),
    ],
    ids=[
        "nothing", "another trouble", "another node's", "another node's log", "no time", "a cache not filled yet",
        "no message", "that all is well", "that all is well since", "another node", "a pod", "no time either",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_refusal_is_none(logs: Any, events: Any) -> None:
    found = judged(unready(), logs, events)
    assert found["refused"] is False
    assert "that its password was refused in its time" in found["words"]


@pytest.mark.parametrize(
    ("at", "counts"),
    [("2026-11-30T08:59:39", False), ("2026-11-30T08:59:40", True), ("2026-11-30T11:00:00", True)],
)
def test_a_refusal_from_before_it_was_out_is_of_another_time(at: str, counts: bool) -> None:
    assert judged(unready(), [log(line(at=at))])["refused"] is counts
    assert judged(unready(), [], [event(f"{at}Z")])["refused"] is counts


@pytest.mark.parametrize(("at", "counts"), [("2026-11-30T09:10:00", False), ("2026-11-30T09:10:01", True)])
def test_a_refusal_from_before_the_secret_was_made_is_of_the_one_before(at: str, counts: bool) -> None:
    made = {"pi-b": {"uid": "new", "created": "2026-11-30T09:10:00Z"}}
    assert judged(unready(), [log(line(at=at))], secrets=made)["refused"] is counts


@pytest.mark.parametrize(
    ("found", "logs", "secrets", "words"),
    [
        (unready(regrade_level="etcd-only"), [log(line())], None, "stepped down to etcd-only"),
        (unready(step=True), [log(line())], None, "a step of it is open"),
        (unready(since=""), [log(line())], None, "no Node"),
        (unready(since="soon"), [log(line())], None, "not told"),
        (unready(), [log(line())], {}, "no Secret"),
        (unready(), [log(line())], {"pi-b": {"uid": "1", "created": ""}}, "not told"),
        (
            unready(),
            [log(line()), log(host="host-c")],
            None,
            "more than one host says that it is this Node: host-b, host-c",
        ),
        (
            unready(),
            [log(error="no such container")],
            None,
            "the log on host-b could not be read: no such container",
        ),
    ],
)
def test_it_is_left_alone_with_the_reason(found: Any, logs: Any, secrets: Any, words: str) -> None:
    item = judged(found, logs, [event("2026-11-01T00:00:00Z")], secrets)
    assert item["refused"] is False
    assert words in item["words"]


def test_the_newest_evidence_is_told() -> None:
    found = judged(unready(), [log(line(), line(at="2026-11-30T09:00:10"))], [event("2026-11-30T09:00:07Z")])
    assert found["words"].startswith("pi-b: its password was refused at 2026-11-30T09:00:10Z")


def test_without_an_api_there_is_nobody_to_judge() -> None:
    assert refused_node_passwords(unready_nodes([]), [], [], {}) == []
