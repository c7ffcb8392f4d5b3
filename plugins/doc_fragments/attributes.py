# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The attributes of the modules, in words they share. No option and no code belongs here."""

from __future__ import annotations


class ModuleDocFragment:
    """What a module can do; one that only reads takes C(info_module) instead of saying it all itself."""

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
    support: full
    platforms: linux
"""

    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details:
      - This module changes nothing.
  diff_mode:
    support: N/A
    details:
      - This module changes nothing.
  idempotent:
    support: full
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
