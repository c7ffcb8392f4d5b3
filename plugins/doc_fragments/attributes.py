# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation the modules share. No code belongs here."""

from __future__ import annotations


class ModuleDocFragment:
    """Attributes and the options of every module that runs the host's command."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Will return details on what has changed, or would change in C(check_mode), when in diff mode.
  idempotent:
    description:
      - When run twice in a row outside check mode, with the same arguments, the second invocation indicates no change.
      - This assumes that the system controlled or queried by the module has not changed in a relevant way.
  platform:
    description: Target OS/families that can be operated against.
"""

    COMMAND = r"""
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
        settings (drain, restart, boot and the waits between), so that a step is not given up while it goes on.
        Where those settings were raised, raise this too.
    type: int
    default: 900
requirements:
  - On the target, Python 3.9 or newer and the command C(regrade); no further library.
"""

    ACTIONGROUP = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/exadev.k3s_regrade.regrade) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - exadev.k3s_regrade.regrade
"""
