# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of a cluster's report is worth an alert, as one pure function over the report.

No lookups, no calls and no clock belong here: the report tells its own time. The play fleet_alert gathers, this
judges, and the tests hold the table.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_alerts
short_description: Say what of a cluster's report is worth an alert
version_added: 0.1.0
author: The exadev.k3s_regrade contributors
description:
  - Takes the report of C(regrade heartbeat) (RV(exadev.k3s_regrade.regrade_cluster_info#module:cluster)) and returns
    one alert for each Node that is out, and for each server that is below V(full) for too long.
  - A Node that is not ready is an outage, but for a server that carries a level, which is stepped down on purpose.
  - A report of a version before the levels has Nodes without the key V(regrade_level). They alert as before.
  - A server at V(etcd-only) has no kubelet that could show that its machine is alive. One that dies there is not seen
    here, but as a server that is below V(full) for too long, and by the others, which then take no step.
positional: _input, below_full_seconds, expected
options:
  _input:
    description: The report, or none where no server could tell one.
    type: dict
    required: true
  below_full_seconds:
    description: Seconds below V(full) after which a server is an alert. V(0) for never.
    type: int
    default: 21600
  expected:
    description: Names of Nodes that must be there. One that is not is an outage.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Read the cluster
  exadev.k3s_regrade.regrade_cluster_info:
  become: true
  register: regrade

- name: Alert
  ansible.builtin.fail:
    msg: "{{ alerts | map(attribute='message') | join(' | ') }}"
  when: alerts | length > 0
  vars:
    alerts: "{{ regrade.cluster | exadev.k3s_regrade.fleet_alerts(below_full_seconds=3600) }}"
"""

RETURN = r"""
_value:
  description: The alerts, outages first.
  type: list
  elements: dict
  contains:
    kind:
      description: >-
        V(outage), V(below-full), or V(report) where the report cannot be read, so that nothing is known of the cluster.
      type: str
    node:
      description: The Node's name. Empty where it is about the report.
      type: str
    message:
      description: One line.
      type: str
"""

from datetime import datetime, timezone
from typing import Any, Callable, Dict, List, Optional, Sequence

OUTAGE = "outage"
BELOW_FULL = "below-full"
REPORT = "report"
KNOWN_VERSION = 1
FULL = "full"


def fleet_alerts(
    report: Optional[Dict[str, Any]], below_full_seconds: int = 21600, expected: Sequence[str] = ()
) -> List[Dict[str, str]]:
    """Alerts, outages first; an empty list where all is well."""
    wrong = _unreadable(report)
    if wrong or report is None:
        return [_alert(REPORT, "", wrong)]
    nodes = sorted(report["nodes"], key=lambda node: str(node["name"]))
    there = [node["name"] for node in nodes]
    alerts = [
        _alert(
            OUTAGE,
            name,
            "%s has no Node in the cluster: look whether its server ever joined, or who deleted it" % name,
        )
        for name in expected
        if name not in there
    ]
    alerts += [
        _alert(OUTAGE, node["name"], _outage_words(node))
        for node in nodes
        if not (node.get("ready") or _level(node))
    ]
    for node in nodes:
        seconds = _seconds_below_full(node, report.get("time"))
        if _level(node) and below_full_seconds and seconds is not None and seconds > below_full_seconds:
            alerts.append(
                _alert(BELOW_FULL, node["name"], _below_full_words(node, seconds, below_full_seconds))
            )
    return alerts


def _alert(kind: str, node: str, message: str) -> Dict[str, str]:
    return {"kind": kind, "node": node, "message": message}


def _unreadable(report: Optional[Dict[str, Any]]) -> str:
    """Why nothing can be told from the report, or an empty text."""
    if not report:
        return "no server could tell a report of the cluster: look whether one of them and its API can be reached"
    if not isinstance(report, dict):
        return (
            "the report is no mapping (%s): give what regrade_cluster_info returns as cluster, or what `regrade "
            "heartbeat` printed through from_json" % type(report).__name__
        )
    version = report.get("version", 0)  # before the levels there was none
    if not isinstance(version, int) or version > KNOWN_VERSION:
        return (
            "the report is of version %s, and %s is the newest that can be read here: install this collection anew"
            % (
                version,
                KNOWN_VERSION,
            )
        )
    nodes = report.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        return "the report holds no Nodes, and every cluster has some: look at the server that told it"
    if not all(isinstance(node, dict) and node.get("name") for node in nodes):
        return "the report holds a Node without a name: look at the server that told it"
    return ""


def _level(node: Dict[str, Any]) -> str:
    """The level it carries below full, or an empty text."""
    level = node.get("regrade_level")
    return "" if level in (None, FULL) else str(level)


def _outage_words(node: Dict[str, Any]) -> str:
    since = " since %s" % node["ready_since"] if node.get("ready_since") else ""
    return "%s is not Ready%s, and is not stepped down: look at its host and its k3s" % (node["name"], since)


def _below_full_words(node: Dict[str, Any], seconds: float, allowed: int) -> str:
    held = ", and a person holds it there" if node.get("hold") else ""
    cure = (
        "`regrade step to full` on it brings it back"
        if held
        else "`regrade status` on it says what it waits for"
    )
    return "%s is at %s, below full for %s, longer than %s%s: %s" % (
        node["name"],
        _level(node),
        _span(seconds),
        _span(allowed),
        held,
        cure,
    )


def _seconds_below_full(node: Dict[str, Any], now: Any) -> Optional[float]:
    """From the report's own times; where it is not told since when, at least for as long as it is not Ready."""
    since = node.get("below_full_since") or (None if node.get("ready") else node.get("ready_since"))
    began, told = _time(since), _time(now)
    return None if began is None or told is None else (told - began).total_seconds()


def _time(text: Any) -> Optional[datetime]:
    try:
        return datetime.strptime(str(text)[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def _span(seconds: float) -> str:
    whole = int(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= 2 * length:
            return "%d %s" % (whole // length, unit)
    return "%d s" % whole


class FilterModule:
    """The filter, as Ansible looks it up."""

    def filters(self) -> Dict[str, Callable[..., List[Dict[str, str]]]]:
        return {"fleet_alerts": fleet_alerts}
