# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the role refuses to turn regrading off, as one pure function over facts the role gathered.

No lookups and no calls belong here: the role's tasks gather, this judges, and the tests hold the table.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: removal_refusals
short_description: Say which servers keep regrading from being turned off, and why
version_added: 0.1.0
author: The exadev.k3s_regrade contributors
description:
  - Takes what every server's command and the cluster's Nodes say, and returns one line for each server that is
    not known to be at full. An empty list allows the removal.
  - A server that is named dead is left out, unless something shows that it lives.
positional: _input, nodes, dead
options:
  _input:
    description:
      - What was found on each host of the group. Keys V(host), V(node_name), V(code) (exit code of the question),
        V(said) (the report of C(regrade status --json) or of C(regrade step to full --check --json), V(left) where
        there is no command but files of ours, nothing where there is neither), V(error) (what was said besides),
        V(away) (whether the host could not be reached) and V(not_stopped) (why its service could not be stopped,
        or empty).
    type: list
    elements: dict
    required: true
  nodes:
    description: The Nodes of the cluster as its API lists them. Empty where no API answered.
    type: list
    elements: dict
    required: true
  dead:
    description: Servers that are gone for good, by their name in the inventory or their Node's.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Refuse to turn off while a server is below full
  ansible.builtin.assert:
    that: refusals | length == 0
    fail_msg: "{{ refusals | join(' ') }}"
  vars:
    refusals: "{{ servers | exadev.k3s_regrade.removal_refusals(nodes, ['pi-c']) }}"
"""

RETURN = r"""
_value:
  description: One line for each refusal.
  type: list
  elements: str
"""

import json
from typing import Any, Callable, Dict, List, Optional, Set

FULL = "full"
LEVEL_LABEL = "github-runner.exadev.com/regrade-level"
STEP_ANNOTATION = "github-runner.exadev.com/regrade-step"
NAMED_DEAD = "it is named in github_runner_cluster_regrade_dead_servers"
OR_DEAD = " and run the role again, or name it in github_runner_cluster_regrade_dead_servers if it is gone for good."
# What only another server can do for one that is dead, with an administrator's kubeconfig.
GONE = (
    "run `regrade %s %s --kubeconfig ADMIN` on one that lives (ADMIN is an administrator's kubeconfig), or name it in "
    "github_runner_cluster_regrade_dead_servers"
)
LEFT = "left"


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "it gave no reason"


def _report(server: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """The report of the host's command; None where there is none. Raises ValueError where it is not one."""
    if server["said"].strip() in ("", LEFT):
        return None
    report = json.loads(server["said"])
    if not isinstance(report, dict):
        raise ValueError("no report")
    return report


def _refusal(server: Dict[str, Any]) -> str:
    """What this host itself says against the removal, or an empty text."""
    if server["away"]:
        return (
            "it cannot be reached, so at which level it runs cannot be told (%s). Bring it back%s"
            % (_one_line(server["error"]), OR_DEAD)
        )
    if server["not_stopped"]:
        return "its service could not be stopped: %s. Cure that and run the role again." % _one_line(
            server["not_stopped"]
        )
    unread = "its level could not be read: %s. Cure that" + OR_DEAD
    if server["code"] != 0:
        return unread % _one_line(server["error"])
    try:
        report = _report(server)
    except ValueError:
        return unread % ("its command printed no report (%s)" % _one_line(server["said"])[:80])
    if report is None:
        return ""
    if report.get("recorded") not in (None, FULL):
        return "its record says %s. Bring it to full with `regrade step to full` first." % report["recorded"]
    if report.get("recorded_error"):
        return (
            "its record could not be read: %s. Cure that and run the role again." % report["recorded_error"]
        )
    if report.get("level") is None:
        return "its level is unknown: %s. Cure that%s" % (
            report.get("level_unknown") or "no reason was given",
            OR_DEAD,
        )
    if report["level"] != FULL:
        return "it runs at %s. Bring it to full with `regrade step to full` first." % report["level"]
    if report.get("journal") or report.get("journal_error"):
        return "a step of it is open (%s). Wait for its end, or settle it with `regrade settle`." % (
            report.get("journal_error") or "it has a journal"
        )
    return ""


def _sign_of_life(server: Dict[str, Any], node: Optional[Dict[str, Any]]) -> str:
    """What shows that the k3s of a server that is named dead lives, or an empty text."""
    try:
        report = _report(server) if server["code"] == 0 and not server["away"] else None
    except ValueError:
        report = None
    if report and report.get("level"):
        return "%s, but its k3s runs at %s. Take it off that list." % (NAMED_DEAD, report["level"])
    conditions = (node or {}).get("status", {}).get("conditions") or []
    if any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions):
        return "%s, but its Node is Ready. Take it off that list." % NAMED_DEAD
    return ""


def removal_refusals(
    servers: List[Dict[str, Any]], nodes: List[Dict[str, Any]], dead: List[str]
) -> List[str]:
    """Lines that forbid turning regrading off; an empty list allows it."""
    if not nodes:
        return [
            "No server of the group answered on its own API, so the levels of the others cannot be read. "
            "Bring at least one server to full and run the role again."
        ]
    node_of = {node["metadata"]["name"]: node for node in nodes}
    host_of = {server["node_name"]: server["host"] for server in servers}
    lines = []
    told: Set[str] = set(dead)
    for server in servers:
        is_dead = server["host"] in dead or server["node_name"] in dead
        refusal = _sign_of_life(server, node_of.get(server["node_name"])) if is_dead else _refusal(server)
        if refusal:
            lines.append("%s: %s" % (server["host"], refusal))
        if refusal or is_dead:
            told.add(server["node_name"])
    for name, node in node_of.items():
        if name in told:
            continue
        host = host_of.get(name, name)
        stranger = "" if name in host_of else " No host of the group is this Node."
        level = (node["metadata"].get("labels") or {}).get(LEVEL_LABEL)
        if level is not None:
            cure = " Bring it to full with `regrade step to full` first."
            if stranger:
                cure = "%s Where it is gone for good, %s." % (stranger, GONE % ("forget", name))
                cure += " Else bring it to full with `regrade step to full` on it first."
            lines.append("%s: its Node %s is labelled %s.%s" % (host, name, level, cure))
        elif STEP_ANNOTATION in (node["metadata"].get("annotations") or {}):
            lines.append(
                "%s: a step is open on its Node %s.%s Wait for its end. Where that server is dead, %s."
                % (host, name, stranger, GONE % ("abandon-step", name))
            )
    return lines


class FilterModule:
    """The filter, as Ansible looks it up."""

    def filters(self) -> Dict[str, Callable[..., List[str]]]:
        return {"removal_refusals": removal_refusals}
