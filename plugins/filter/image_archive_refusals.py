# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether archives of the service's image hold it by its name, as one pure function over what the role read.

No lookups and no calls belong here: the role's tasks read, this judges, and the tests hold the table.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: image_archive_refusals
short_description: Say which hosts would be given an archive of another image
version_added: 0.1.0
author: The exadev.k3s_regrade contributors
description:
  - Takes what was read of each host's archive, and returns one line for each that does not hold the image the host
    is to run. An empty list allows them to be loaded.
positional: _input
options:
  _input:
    description:
      - What was read for each host. Keys V(host), V(image) (the name it has to hold), V(file), V(manifest) (the text of
        C(manifest.json) in it, as C(docker save) writes it) and V(error) (why that could not be read, or empty).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Refuse archives of other images
  ansible.builtin.assert:
    that: refusals | length == 0
    fail_msg: "{{ refusals | join(' | ') }}"
  vars:
    refusals: "{{ archives | exadev.k3s_regrade.image_archive_refusals }}"
"""

RETURN = r"""
_value:
  description: One line for each refusal.
  type: list
  elements: str
"""

import json
import re
from typing import Any, Callable, Dict, List


def _named(image: str) -> str:
    """As `docker save` names it: without Docker's own registry, and with a tag."""
    short = re.sub(r"^(docker\.io/)?(library/)?", "", image)
    return short if ":" in short.rpartition("/")[2] else short + ":latest"


def _held(manifest: Any) -> List[str]:
    """The names in it. Raises ValueError for what is no such manifest."""
    # Before ansible-core 2.19 a fact whose text looks like a list becomes one.
    found = json.loads(manifest) if isinstance(manifest, str) else manifest
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ValueError("it is no list of images")
    return [str(name) for entry in found for name in entry.get("RepoTags") or []]


def _refusal(archive: Dict[str, Any]) -> str:
    host, file, wanted = archive["host"], archive["file"], _named(archive["image"])
    if not file.startswith("/"):
        return (
            "%s: github_runner_cluster_regrade_image_file is %r, which is no absolute path and would be looked for "
            "where the collection is installed. Name the archive by its absolute path on the machine that Ansible runs "
            "on."
            % (host, file)
        )
    if archive["error"]:
        why = "cannot be read (%s)" % " ".join(archive["error"].split())
    else:
        try:
            held = _held(archive["manifest"])
        except ValueError as error:
            why = "is no archive of an image (its manifest.json: %s)" % error
        else:
            if wanted in [_named(name) for name in held]:
                return ""
            why = "holds %s" % (", ".join(held) or "an image without a name")
    return (
        "%s: %s %s, and it has to hold %s: make it by `docker save %s`, or set github_runner_cluster_regrade_image "
        "to the name that it holds" % (host, file, why, wanted, wanted)
    )


def image_archive_refusals(archives: List[Dict[str, Any]]) -> List[str]:
    """One line for each archive that does not hold its image."""
    return [line for line in map(_refusal, archives) if line]


class FilterModule:
    """The filter, as Ansible finds it."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"image_archive_refusals": image_archive_refusals}
