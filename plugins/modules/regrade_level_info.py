#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads a server's level and report through the host's `regrade` command. What is in it belongs to the core."""

from __future__ import annotations

DOCUMENTATION = r"""
module: regrade_level_info
short_description: Read the level of a k3s server
version_added: 0.1.0
author: The exadev.k3s_regrade contributors (@exadev)
description:
  - Reads at which level the k3s server of this host runs, why it is there, and what would make it step.
extends_documentation_fragment:
  - exadev.k3s_regrade.attributes
  - exadev.k3s_regrade.attributes.info_module
  - exadev.k3s_regrade.attributes.actiongroup
  - exadev.k3s_regrade.command
seealso:
  - module: exadev.k3s_regrade.regrade_level
"""

EXAMPLES = r"""
- name: Read the level
  exadev.k3s_regrade.regrade_level_info:
  become: true
  register: regrade

- name: Say it
  ansible.builtin.debug:
    msg: "{{ inventory_hostname }} runs at {{ regrade.level | default('an unknown level', true) }}"

- name: Stop where a step up would be refused, and say what it needs
  ansible.builtin.assert:
    that: not regrade.status.up.needs
    fail_msg: "{{ regrade.status.up.needs | join('; ') }}"
"""

RETURN = r"""
level:
  description: The level the server runs at now, or none where it cannot be told.
  type: str
  returned: success
  sample: full
hold:
  description: Whether the server is held, or none where its Node cannot be read.
  type: bool
  returned: success
  sample: false
status:
  description:
    - The report of C(regrade status --json). What cannot be read is none, and an error beside it says why.
  type: dict
  returned: success
  contains:
    server:
      description: The server's Node name.
      type: str
    level:
      description: As RV(level).
      type: str
    level_unknown:
      description: Why the level is not known, empty where it is.
      type: str
    recorded:
      description: The level on record on the server's storage.
      type: str
    recorded_error:
      description: Why that is not known, empty where it is.
      type: str
    label:
      description: The level that the Node's label names, V(full) without one.
      type: str
    node_error:
      description: Why the Node could not be read, empty where it was.
      type: str
    hold:
      description: As RV(hold).
      type: bool
    pause:
      description: Whether the annotation C(github-runner.exadev.com/regrade-pause) stops automatic steps.
      type: bool
    dry_run:
      description: Whether C(github-runner.exadev.com/regrade-dry-run) does, so that they are only told.
      type: bool
    foreign_taints:
      description: Taints of others that keep pods away from the Node, each as key=value and effect.
      type: list
      elements: str
    reading:
      description: The last reading of memory, with C(pressure) as a share of the window from 0 to 1,
        C(mem_available) and C(mem_total) in bytes, and the C(verdict).
      type: dict
    reading_error:
      description: Why there is no pressure to read, empty where there is.
      type: str
    streaks:
      description: Seconds that memory has been C(over) and C(calm), and how many a step asks for (C(over_asked),
        C(calm_asked)).
      type: dict
    cooldown:
      description: Seconds until an automatic step C(down) and C(up) may come.
      type: dict
    relapses:
      description: How often memory got short soon after a step up. Each doubles the calm that is asked for.
      type: int
    lease:
      description: The cluster's Lease, with its C(holder) (empty for none), whether it is C(free) for this server, its
        C(age) and C(duration) in seconds, an C(error) where it cannot be read, and the C(cure).
      type: dict
    gate:
      description: What is asked of the other voters, each as C(check), C(ok) (none where it was not asked), C(detail)
        and C(cure).
      type: list
      elements: dict
    blocked:
      description: The automatic step that is due and refused, as C(move), C(reason), C(message), C(cure) and
        C(retry_in) in seconds. None where there is none.
      type: dict
    exhausted:
      description: Whether memory is short at the lowest level.
      type: bool
    back:
      description: The level that a recreated container is to be stepped down to again, empty for none.
      type: str
    trap:
      description: Whether k3s is locked behind its own address (C(trapped), none where that cannot be told), with
        C(detail).
      type: dict
    journal:
      description: The step of this server that is open, none where there is none.
      type: dict
    journal_error:
      description: Why that is not known, empty where it is.
      type: str
    watcher:
      description: What the watcher last noted, none where there is no watcher.
      type: dict
    watcher_error:
      description: Why that tells nothing of now, empty where it does.
      type: str
    down:
      description: The next step down, with the level it goes C(to) (empty where there is none), what it still C(needs),
        and what an automatic one needs besides (C(automatic_needs)).
      type: dict
    up:
      description: The same for the next step up.
      type: dict
    next:
      description: What comes next, or what stands in its way first, in one line.
      type: str
kind:
  description: Why the command gave no good answer, in one word, as of M(exadev.k3s_regrade.regrade_level).
  type: str
  returned: failure
  sample: missing
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.host_command import (
    COMMAND_ARGUMENTS,
    CommandFailed,
    run_regrade,
)

NEEDED = ("level", "hold")


def main() -> None:
    module = AnsibleModule(argument_spec=dict(COMMAND_ARGUMENTS), supports_check_mode=True)
    try:
        report = run_regrade(module.params["command"], ["status"], module.params["timeout"], NEEDED)
    except CommandFailed as error:
        module.fail_json(msg=str(error), kind=error.kind)
    module.exit_json(changed=False, level=report["level"], hold=report["hold"], status=report)


if __name__ == "__main__":
    main()
