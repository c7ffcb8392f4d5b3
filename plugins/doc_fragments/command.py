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
      - The default is above the longest that the steps from V(full) to V(etcd-only) can take with the default
        settings (two drains, a restart and a boot, and both again where k3s has to be freed from behind its own
        address), so that a step is not given up while it goes on. Where those settings were raised, raise this too.
      - A command that is given up goes on by itself where it has begun a step.
        M(exadev.k3s_regrade.regrade_level_info) tells what became of it.
    type: int
    default: 1200
requirements:
  - On the target, Python 3.9 or newer and the command C(regrade); no further library.
notes:
  - The command asks the host's Docker engine, so the task needs C(become), or a user in the group that may.
  - The files it reads are those of the target, never the controller's.
"""
