#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads the cluster's report through the host's `regrade` command. What is in it belongs to the core."""

from __future__ import annotations

DOCUMENTATION = r"""
module: regrade_cluster_info
short_description: Read which Nodes of the cluster are ready, and at which level each server is
version_added: 0.1.0
author: The exadev.k3s_regrade contributors (@exadev)
description:
  - Reads the report of C(regrade heartbeat) from this host. It tells of the whole cluster, so one host that answers is
    enough; also one that is itself at V(etcd-only) can tell it. Like every call of the service it asks the API of other
    servers, so the host whose API is the only one left cannot. Changes nothing.
extends_documentation_fragment:
  - exadev.k3s_regrade.attributes
  - exadev.k3s_regrade.attributes.info_module
  - exadev.k3s_regrade.attributes.actiongroup
  - exadev.k3s_regrade.command
seealso:
  - module: exadev.k3s_regrade.regrade_level_info
  - plugin: exadev.k3s_regrade.fleet_alerts
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Read the cluster
  exadev.k3s_regrade.regrade_cluster_info:
  become: true
  register: regrade

- name: Say which Nodes are not ready, and which of them are stepped down on purpose
  ansible.builtin.debug:
    msg: "{{ item.name }} is not ready ({{ item.regrade_level | default('full', true) }})"
  loop: "{{ regrade.cluster.nodes | rejectattr('ready') }}"
  loop_control:
    label: "{{ item.name }}"
"""

RETURN = r"""
cluster:
  description:
    - The report. Times are in UTC.
    - What a later version of this collection adds to it has to be left alone by readers that do not know it.
  type: dict
  returned: success
  contains:
    version:
      description: Rises only where a reader of the version before would misread the report.
      type: int
      sample: 1
    time:
      description: When it was told.
      type: str
      sample: "2026-11-30T09:00:00.000000Z"
    server:
      description: The Node of the server that told it.
      type: str
      sample: server1
    nodes:
      description: Every Node, by name.
      type: list
      elements: dict
      contains:
        name:
          description: The Node's name.
          type: str
          sample: server3
        server:
          description: Whether it is a server with an etcd member, by its role.
          type: bool
          sample: true
        ready:
          description: Whether it is Ready. Not where that is unknown.
          type: bool
          sample: false
        ready_since:
          description: Since when it is ready, or is not. None where the Node does not tell.
          type: str
          sample: "2026-11-30T08:10:43Z"
        regrade_level:
          description: The level its label names. None at V(full).
          type: str
          sample: etcd-only
        below_full_since:
          description: Since when it is below V(full). None at V(full), and where it was never told.
          type: str
          sample: "2026-11-30T08:10:00Z"
        hold:
          description: Whether a person holds it at its level.
          type: bool
          sample: true
        step:
          description: The levels of an open step, in the keys V(from) and V(to), or none.
          type: dict
          sample: null
        foreign_taints:
          description: Taints of others that keep pods away, as C(key=value:effect).
          type: list
          elements: str
          sample: ["node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"]
kind:
  description: Why the command gave no good answer, in one word.
  type: str
  returned: failure
  sample: unknown
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.host_command import (
    COMMAND_ARGUMENTS,
    CommandFailed,
    run_regrade,
)


def main() -> None:
    module = AnsibleModule(argument_spec=dict(COMMAND_ARGUMENTS), supports_check_mode=True)
    wanted = ("version", "nodes")
    try:
        report = run_regrade(module.params["command"], ["heartbeat"], module.params["timeout"], wanted)
    except CommandFailed as error:
        module.fail_json(msg=str(error), kind=error.kind)
    module.exit_json(changed=False, cluster=report)


if __name__ == "__main__":
    main()
