# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Packs the core into the one archive that travels to the hosts.

Only packing belongs here. What is done with the archive on a host is the role's.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: core_archive
short_description: Pack the core of regrading into one archive on the controller
version_added: 0.1.0
author: The exadev.k3s_regrade contributors
description:
  - Packs the collection's core into a zip in Ansible's own temporary folder and returns its path.
  - The same sources give the same bytes, and the file's name carries their checksum.
options:
  _terms:
    description: Not used.
    type: list
    elements: str
    required: false
"""

EXAMPLES = r"""
- name: Copy the core
  ansible.builtin.copy:
    src: "{{ lookup('exadev.k3s_regrade.core_archive') }}"
    dest: /srv/cluster/regrade/core.zip
    mode: "0644"
"""

RETURN = r"""
_raw:
  description: Path of the archive on the controller.
  type: list
  elements: path
"""

import hashlib
import io
import os
import pathlib
import zipfile
from typing import Any, Dict, List, Optional

from ansible import constants as C
from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

# A zip keeps each file's time; a fixed one makes the bytes depend on the sources alone.
FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def pack(package: pathlib.Path) -> bytes:
    """The bytes of the archive: every Python file of the package, below its own name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*.py")):
            entry = zipfile.ZipInfo(path.relative_to(package.parent).as_posix(), FIXED_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3
            archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


class LookupModule(LookupBase):
    """The lookup, as Ansible finds it."""

    def run(self, terms: List[str], variables: Optional[Dict[str, Any]] = None, **kwargs: Any) -> List[str]:
        self.set_options(var_options=variables, direct=kwargs)
        package = pathlib.Path(__file__).resolve().parents[1] / "module_utils" / "regrade"
        if not (package / "cli.py").is_file():
            raise AnsibleLookupError("The core is not at %s. Install the collection anew." % package)
        content = pack(package)
        path = pathlib.Path(C.DEFAULT_LOCAL_TMP) / (
            "k3s-regrade-%s.zip" % hashlib.sha256(content).hexdigest()[:16]
        )
        if not path.is_file():
            # Forks pack the same bytes at the same time: whole or not at all.
            unfinished = path.with_suffix(".%d" % os.getpid())
            unfinished.write_bytes(content)
            unfinished.replace(path)
        return [str(path)]
