#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sets a server's level through the host's `regrade` command. What a step is belongs to the core."""

from __future__ import annotations

DOCUMENTATION = r"""
module: regrade_level
short_description: Set the level of a k3s server
version_added: 0.1.0
author: The exadev.k3s_regrade contributors (@exadev)
description:
  - Steps the k3s server of this host to a level, one level at a time. The etcd vote is never given up.
  - Each step takes the cluster's Lease and asks that every other voter is well and at full. A step that is not
    allowed changes nothing, and the module fails with the reason. Where a later one of several steps is not allowed,
    the module says how far it came, and the server stays there.
  - In check mode all that is asked before a step is asked too, so that what would be refused is refused.
extends_documentation_fragment:
  - exadev.k3s_regrade.attributes
  - exadev.k3s_regrade.attributes.actiongroup
  - exadev.k3s_regrade.command
attributes:
  check_mode:
    support: full
    details:
      - A server with a step that is still open, or whose Node's marks do not agree with the level it runs at, must be
        settled first. What comes of that is not known before, so check mode fails there and says what it found.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  level:
    description:
      - The level to bring the server to.
      - V(full) runs everything.
      - V(control-plane) runs everything, with the Node cordoned and drained.
      - V(etcd-only) runs etcd alone.
      - Without it the server stays where it is, and only O(hold) counts. One of the two is required.
    type: str
    choices: [full, control-plane, etcd-only]
  hold:
    description:
      - Whether the server is held once it is there. The watcher takes no step of a held server by itself; steps by hand
        are taken all the same.
      - Where it is not given, a step to a level below V(full) begins a hold, one to V(full) ends it, and a server that
        was below V(full) already is left as it is.
      - Without O(level), V(true) holds the server at the level it is at, and V(false) releases it.
    type: bool
  wait:
    description:
      - Whether to wait for the server's turn while others are at work, that is while another one holds the cluster's
        Lease, is in a step, or is below V(full).
      - Otherwise such a step is refused at once. What does not end by itself, such as a voter that is down, is refused
        at once in any case.
    type: bool
    default: false
  wait_timeout:
    description:
      - Seconds to wait before each step where O(wait=true). They are added to O(timeout).
    type: int
    default: 300
seealso:
  - module: exadev.k3s_regrade.regrade_level_info
"""

EXAMPLES = r"""
- name: Free the memory of a server, keep its vote, and leave it there
  exadev.k3s_regrade.regrade_level:
    level: etcd-only
  become: true

- name: Bring it back
  exadev.k3s_regrade.regrade_level:
    level: full
  become: true

- name: Take its pods away and let the watcher decide when they come back
  exadev.k3s_regrade.regrade_level:
    level: control-plane
    hold: false
  become: true

- name: Keep the server at the level it is at, whatever its memory does
  exadev.k3s_regrade.regrade_level:
    hold: true
  become: true

- name: Release it, so that the watcher may step it again
  exadev.k3s_regrade.regrade_level:
    hold: false
  become: true

- name: Bring it back as soon as no other server steps
  exadev.k3s_regrade.regrade_level:
    level: full
    wait: true
    wait_timeout: 600
  become: true
"""

RETURN = r"""
level:
  description: The level the server runs at now.
  type: str
  returned: success, where O(level) is given
  sample: etcd-only
from:
  description: The level it ran at before.
  type: str
  returned: success, where O(level) is given
  sample: full
to:
  description: The level it is brought to. In check mode it would be.
  type: str
  returned: success, where O(level) is given
  sample: etcd-only
hold:
  description: Whether the server is held. In check mode, whether it would be. None where that could not be read.
  type: bool
  returned: success
  sample: true
steps:
  description: The steps that were made, in order. Empty in check mode.
  type: list
  elements: dict
  returned: success, where O(level) is given
  contains:
    from:
      description: The level it began at.
      type: str
    to:
      description: The level it ended at, one above or below.
      type: str
    seconds:
      description: How long it took.
      type: float
    etcd_away_seconds:
      description: How long etcd of this server did not answer meanwhile. None where that was not measured.
      type: float
    api_away_seconds:
      description: How long the server's own API did not answer meanwhile. None where that was not measured.
      type: float
    remaining:
      description: Pods that were not evicted, each with the reason.
      type: list
      elements: str
  sample:
    - from: full
      to: control-plane
      seconds: 1.7
      etcd_away_seconds: null
      api_away_seconds: null
      remaining: []
    - from: control-plane
      to: etcd-only
      seconds: 5.7
      etcd_away_seconds: 2.4
      api_away_seconds: null
      remaining: ["default/job-1: the budget default/job allows no disruption"]
message:
  description: What was done, in words. In check mode, what would be.
  type: str
  returned: success
  sample: server1 stepped from full to control-plane to etcd-only
kind:
  description:
    - Why the command gave no good answer, in one word.
    - V(refused) means that nothing was changed, V(failed) that a step was undone or is still open, V(unknown) that the
      level or the cluster cannot be told now, V(settings) and V(usage) that the service or the call is wrong.
    - V(missing), V(permission), V(engine), V(service), V(python) and V(timeout) are about the host.
  type: str
  returned: failure
  sample: refused
"""

from typing import Any, Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.host_command import (
    COMMAND_ARGUMENTS,
    LEVELS,
    CommandFailed,
    run_regrade,
)

STEPPED = ("changed", "level", "from", "to", "steps", "message")
MOST_STEPS = len(LEVELS) - 1


def arguments_of(params: Dict[str, Any], check_mode: bool) -> List[str]:
    """The command's arguments for what the task asks."""
    if params["level"] is None:
        arguments = ["hold" if params["hold"] else "release"]
    else:
        arguments = ["step", "to", params["level"]]
        if params["hold"] is not None:
            arguments.append("--hold=yes" if params["hold"] else "--hold=no")
        if params["wait"]:
            arguments.append("--wait=%d" % params["wait_timeout"])
    if check_mode:
        arguments.append("--check")
    return arguments


def seconds_of(params: Dict[str, Any]) -> int:
    """How long the command may take."""
    waits = params["wait"] and params["level"] is not None
    return int(params["timeout"]) + (MOST_STEPS * int(params["wait_timeout"]) if waits else 0)


def told(params: Dict[str, Any], report: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """(what the module returns, its diff) of the command's report."""
    if params["level"] is None:
        result = {key: report[key] for key in ("changed", "hold", "message")}
        held = (report["hold"] != report["changed"], report["hold"])  # before, after
        return result, {"before": _lines(None, held[0]), "after": _lines(None, held[1])}
    hold = report["hold"]
    result = {**{key: report[key] for key in STEPPED}, "hold": hold["to"]}
    return result, {
        "before": _lines(report["from"], hold["from"]),
        "after": _lines(report["to"], hold["to"]),
    }


def _lines(level: Any, hold: Any) -> str:
    lines = [] if level is None else [f"level: {level}\n"]
    if hold is not None:
        lines.append("hold: %s\n" % str(hold).lower())
    return "".join(lines)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "level": {"type": "str", "choices": LEVELS},
            "hold": {"type": "bool"},
            "wait": {"type": "bool", "default": False},
            "wait_timeout": {"type": "int", "default": 300},
            **COMMAND_ARGUMENTS,
        },
        required_one_of=[("level", "hold")],
        supports_check_mode=True,
    )
    params = module.params
    needed = ("changed", "hold", "message") if params["level"] is None else (*STEPPED, "hold")
    try:
        report = run_regrade(
            params["command"], arguments_of(params, module.check_mode), seconds_of(params), needed
        )
    except CommandFailed as error:
        module.fail_json(msg=str(error), kind=error.kind)
    result, diff = told(params, report)
    module.exit_json(diff=diff, **result)


if __name__ == "__main__":
    main()
