# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whose node password was really refused, as one pure function over facts the role gathered.

No lookups and no calls belong here: the role's tasks gather, this judges, and the tests hold the table.

What k3s says (its pkg/nodepassword and pkg/agent/config): the agent whose password does not match gets a 403 and logs
`Node password rejected` every few seconds. A server that cannot look at its Secret yet lets its own agent start, looks
later, and then makes an Event `NodePasswordValidationFailed`: the Node joins all the same. That Event also comes where
nothing is wrong: at each start without an agent (k3s-io/k3s#9447), and with `already exists` from a cache that is not
filled yet (k3s-io/k3s#11354). So an Event counts only with `hash does not match`, and of a Node that is not Ready.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: refused_node_passwords
short_description: Say whose node password was really refused
version_added: 0.1.0
author: The exadev.k3s_regrade contributors
description:
  - Takes the Nodes that are not Ready and what their logs, the Events and the Secrets of their passwords tell, and says
    of each whether its Secret may be deleted, so that k3s takes the password that the node has now.
  - That is only so for a Node at V(full) of which its own log, since its k3s started, or an Event tells a refusal that
    is newer than the Secret, and no older than a minute before it was not Ready any more. Never for one that is
    stepped down.
  - The Node itself must never be deleted for this. That removes its etcd member.
positional: _input, logs, events, secrets
options:
  _input:
    description: What P(exadev.k3s_regrade.unready_nodes#filter) returned.
    type: list
    elements: dict
    required: true
  logs:
    description:
      - What k3s logged on each host. Keys V(host), V(node) (the Node's name), V(lines) (since k3s started, each with
        its time in UTC at its beginning) and V(error) (why the log could not be read, or empty).
    type: list
    elements: dict
    required: true
  events:
    description: The Events of Nodes as the cluster's API lists them.
    type: list
    elements: dict
    required: true
  secrets:
    description: >-
      By a Node's name, the keys V(uid) and V(created) of the Secret of its password. Absent where there is none.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Say whose password was refused
  ansible.builtin.debug:
    msg: "{{ unready | exadev.k3s_regrade.refused_node_passwords(logs, events, secrets) | selectattr('refused') }}"
"""

RETURN = r"""
_value:
  description: One item for each Node that is not Ready.
  type: list
  elements: dict
  contains:
    name:
      description: The Node's name.
      type: str
    refused:
      description: Whether its password was really refused, so that the Secret may be deleted.
      type: bool
    uid:
      description: The Secret's uid, for deleting that one and no other. Empty where it is to be left alone.
      type: str
    words:
      description: The name, and the evidence, or why it is left alone.
      type: str
"""

import re
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Optional

REJECTED = "Node password rejected"  # what the agent says of a 403
MISMATCH = "hash does not match"
FAILED = "NodePasswordValidationFailed"
COMPLETE = "NodePasswordValidationComplete"
# Times of the API are in whole seconds: what is told in the second in which the Secret was made may be older than it.
SECOND = timedelta(seconds=1)
# A kubelet that is gone is seen 40 to 50 s later.
BEFORE_UNREADY = timedelta(seconds=60)


def refused_node_passwords(
    unready: List[Dict[str, Any]],
    logs: List[Dict[str, Any]],
    events: List[Dict[str, Any]],
    secrets: Dict[str, Dict[str, str]],
) -> List[Dict[str, Any]]:
    """Of each Node that is not Ready, whether its password was refused."""
    return [
        _judged(node, [log for log in logs if log["node"] == node["name"]], events, secrets.get(node["name"]))
        for node in unready
        if node["name"]
    ]


def _judged(
    node: Dict[str, Any],
    logs: List[Dict[str, Any]],
    events: List[Dict[str, Any]],
    secret: Optional[Dict[str, str]],
) -> Dict[str, Any]:
    why = _left_alone(node, logs, secret)
    if why or not secret:
        return _left(node, why)
    made, out = _time(secret.get("created", "")), _time(node["since"])
    if made is None or out is None:
        return _left(node, "it is not told when its Secret was made, and since when it is not Ready")
    newer = max(made + SECOND, out - BEFORE_UNREADY)
    told = [*_from_logs(node["name"], logs), *_from_events(node["name"], events)]
    told = [item for item in told if item[0] >= newer]
    if not told:
        unread = "".join(
            "; the log on %s could not be read: %s" % (log["host"], log["error"])
            for log in logs
            if log["error"]
        )
        where = (
            "neither its own log nor an Event tells"
            if logs
            else "no Event tells, and no host of the inventory could,"
        )
        return _left(node, "%s that its password was refused in its time%s" % (where, unread))
    when, words = max(told)
    at = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    text = "%s: its password was refused at %s: %s" % (node["name"], at, words)
    return {"name": node["name"], "refused": True, "uid": secret["uid"], "words": text}


def _left_alone(node: Dict[str, Any], logs: List[Dict[str, Any]], secret: Optional[Dict[str, str]]) -> str:
    """Why the Secret is to be left alone whatever was told, or an empty text."""
    if node["regrade_level"]:
        return "it is stepped down to %s" % node["regrade_level"]
    if node["step"]:
        return "a step of it is open"
    if not node["since"]:
        return "it has no Node, or one that never told whether it is Ready"
    if not secret:
        return "it has no Secret, so that k3s takes the next password it comes with"
    if len(logs) > 1:
        return "more than one host says that it is this Node: %s" % ", ".join(
            sorted(log["host"] for log in logs)
        )
    return ""


def _left(node: Dict[str, Any], why: str) -> Dict[str, Any]:
    return {"name": node["name"], "refused": False, "uid": "", "words": "%s: %s" % (node["name"], why)}


def _from_logs(name: str, logs: List[Dict[str, Any]]) -> List[Any]:
    """(when, what) of each refusal that the node's own log tells."""
    found = []
    for log in logs:
        for line in log["lines"]:
            when = _time(line)
            # A server's log also tells of the passwords of others.
            if when and (REJECTED in line or (MISMATCH in line and "'%s'" % name in line)):
                found.append(
                    (when, "%r in the log on %s" % (REJECTED if REJECTED in line else MISMATCH, log["host"]))
                )
    return found


def _from_events(name: str, events: List[Dict[str, Any]]) -> List[Any]:
    """(when, what) of each Event that tells of a refusal, unless a later one tells that all is well."""
    failed, well = [], []
    for event in events:
        about = event.get("involvedObject") or {}
        when = _time(_last_seen(event))
        if about.get("kind") != "Node" or about.get("name") != name or when is None:
            continue
        if event.get("reason") == COMPLETE:
            well.append(when)
        elif event.get("reason") == FAILED and MISMATCH in (event.get("message") or ""):
            failed.append((when, "an Event %s with %r" % (FAILED, MISMATCH)))
    return [item for item in failed if not well or item[0] > max(well)]


def _last_seen(event: Dict[str, Any]) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _time(text: str) -> Optional[datetime]:
    """The time in UTC that the text begins with."""
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?\d*(?:Z|\+00:?00)", text)
    if not found:
        return None
    try:
        when = datetime.strptime(found.group(1), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return when + timedelta(seconds=float(found.group(2) or 0))


class FilterModule:
    """The filter, as Ansible looks it up."""

    def filters(self) -> Dict[str, Callable[..., List[Dict[str, Any]]]]:
        return {"refused_node_passwords": refused_node_passwords}
