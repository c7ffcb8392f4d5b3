# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of every module that runs the host's command `regrade`: COMMAND_ARGUMENTS of module_utils.host_command."""

from __future__ import annotations


class ModuleDocFragment:
    """What such a module takes, needs, and what a task that runs it must know."""

    DOCUMENTATION = r"""
options:
  command:
    description:
      - The host's command C(regrade), as the role C(github_runner_cluster) puts it there.
    type: path
    default: /usr/local/bin/regrade
  timeout:
    description:
      - Seconds to wait for the command's answer.
      - The default is above what the steps from V(full) to V(etcd-only) take with the service's default settings where
        each wait runs to its end (two drains, three restarts with their boots, the cure of a k3s that is locked behind
        its own address, the checks before each). Where those settings were raised, raise this too.
      - A command that is given up goes on by itself where it has begun a step.
        M(exadev.k3s_regrade.regrade_level_info) tells what became of it.
    type: int
    default: 1800
requirements:
  - On the target, Python 3.9 or newer and the command C(regrade); no further library.
notes:
  - The command asks the host's Docker engine, so the task needs C(become), or a user in the group that may.
  - The files it reads are those of the target, never the controller's.
  - On a Python that ansible-core itself no longer runs on, such as 3.6, Ansible ends with a C(SyntaxError) of its own
    (C(future feature annotations is not defined)) before a module can say anything. The cure is the same, a newer
    Python named in C(ansible_python_interpreter).
"""
