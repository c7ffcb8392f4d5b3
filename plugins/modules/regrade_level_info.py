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
  - Reads at which level the k3s server of this host runs, and why it is there. Changes nothing.
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
"""

RETURN = r"""
level:
  description: The level the server runs at now, or none where it cannot be told.
  type: str
  returned: success
  sample: full
status:
  description:
    - The report of C(regrade status --json), with among others the level on record, the Node's label, the reading
      of pressure and memory, the Lease, the checks that allow a step, an open step, and what comes next in words.
  type: dict
  returned: success
kind:
  description: Why the command gave no good answer, in one word.
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


def main() -> None:
    module = AnsibleModule(argument_spec=dict(COMMAND_ARGUMENTS), supports_check_mode=True)
    try:
        report = run_regrade(module.params["command"], ["status"], module.params["timeout"], ("level",))
    except CommandFailed as error:
        module.fail_json(msg=str(error), kind=error.kind)
    module.exit_json(changed=False, level=report["level"], status=report)


if __name__ == "__main__":
    main()
