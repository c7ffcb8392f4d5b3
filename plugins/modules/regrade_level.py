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
    allowed changes nothing, and the module fails with the reason.
extends_documentation_fragment:
  - exadev.k3s_regrade.attributes
  - exadev.k3s_regrade.attributes.actiongroup
  - exadev.k3s_regrade.command
attributes:
  check_mode:
    support: full
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
    type: str
    required: true
    choices: [full, control-plane, etcd-only]
  hold:
    description:
      - Whether a step to a level below V(full) holds the server there, so that the watcher does not step it by itself,
        and a step to V(full) ends that hold.
      - With V(false) a hold is left as it is.
    type: bool
    default: true
seealso:
  - module: exadev.k3s_regrade.regrade_level_info
"""

EXAMPLES = r"""
- name: Free the memory of a server, and keep its vote
  exadev.k3s_regrade.regrade_level:
    level: etcd-only
  become: true

- name: Bring it back
  exadev.k3s_regrade.regrade_level:
    level: full
  become: true
"""

RETURN = r"""
level:
  description: The level the server runs at now.
  type: str
  returned: success
  sample: etcd-only
from:
  description: The level it ran at before.
  type: str
  returned: success
  sample: full
steps:
  description: The steps that were made, in order. Empty in check mode.
  type: list
  elements: dict
  returned: success
  sample:
    - from: full
      to: control-plane
      seconds: 1.7
    - from: control-plane
      to: etcd-only
      seconds: 5.7
message:
  description: What was done, in words.
  type: str
  returned: success
  sample: server1 went from full to etcd-only.
kind:
  description: Why the command gave no good answer, in one word.
  type: str
  returned: failure
  sample: refused
"""

from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.host_command import (
    COMMAND_ARGUMENTS,
    LEVELS,
    CommandFailed,
    run_regrade,
)

REPORTED = ("changed", "level", "from", "steps", "message")


def arguments_of(params: Dict[str, Any], check_mode: bool) -> List[str]:
    """The command's arguments for what the task asks."""
    arguments = ["step", "to", params["level"]]
    if not params["hold"]:
        arguments.append("--no-hold")
    if check_mode:
        arguments.append("--check")
    return arguments


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "level": {"type": "str", "required": True, "choices": LEVELS},
            "hold": {"type": "bool", "default": True},
            **COMMAND_ARGUMENTS,
        },
        supports_check_mode=True,
    )
    arguments = arguments_of(module.params, module.check_mode)
    try:
        report = run_regrade(module.params["command"], arguments, module.params["timeout"], (*REPORTED, "to"))
    except CommandFailed as error:
        module.fail_json(msg=str(error), kind=error.kind)
    result = {key: report[key] for key in REPORTED}
    after = report["to"] if module.check_mode else report["level"]
    diff = {"before": f"level: {report['from']}\n", "after": f"level: {after}\n"}
    module.exit_json(diff=diff, **result)


if __name__ == "__main__":
    main()
