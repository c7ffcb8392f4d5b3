# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Where the record (`level_record`) of a server in a container lies, worked out from `docker inspect`. Pure.

Three ways to lay it, the first that fits:
1. the drop-in folder is on a mount that outlives the container: the record lies in it;
2. with K3S_CONFIG_FILE or --config on the data volume the drop-in folder is beside that file: the same;
3. else the record lies on the data volume, and a link in the container's own drop-in folder leads to it.
   A recreated container has lost the link: it runs full until a step brings it back.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from . import level_record
from .level_record import Place, RecordRefused
from .odd_json import mapping, mappings, text, texts

ANONYMOUS = re.compile(r"^[0-9a-f]{64}$")  # what Docker names a volume that nobody named

Inspect = dict[str, Any]


def flag(inspect: Inspect, *names: str) -> str:
    """The value of a command-line flag of the container's process, "" where absent; the last one wins."""
    return level_record.flag(_words_of(inspect), *names)


def _words_of(inspect: Inspect) -> tuple[str, ...]:
    return texts(inspect.get("Args"))


def _environment_of(inspect: Inspect) -> tuple[str, ...]:
    return texts(mapping(inspect, "Config").get("Env"))


def config_file(inspect: Inspect) -> str:
    return level_record.config_file(_words_of(inspect), _environment_of(inspect))


def data_folder(inspect: Inspect, configured: str = "") -> str:
    """k3s's data folder; `configured` is what its configuration file says."""
    return level_record.data_folder(_words_of(inspect), _environment_of(inspect), configured)


def place(inspect: Inspect, data: str) -> Place:
    """Where the record of this container lies. Raises RecordRefused."""
    folder = level_record.drop_in_folder(_words_of(inspect), _environment_of(inspect))
    mount = _mount_over(inspect, folder)
    if _outlives(mount):
        if not (mount or {}).get("RW", True):
            raise RecordRefused(
                f"{folder} lies on a mount that is read-only ({_words(mount)}), so the level "
                "cannot be "
                f"kept there; mount it writable: in `volumes:` take `:ro` from "
                f"{(mount or {}).get('Destination')}"
            )
        return Place(folder)
    data_mount = _mount_over(inspect, data)
    if not _outlives(data_mount):
        raise RecordRefused(
            f"the data folder {data} is on {_words(data_mount)}, which does not survive the container's "
            "recreation; "
            f'give it a name in Compose: under the service `volumes: ["k3s-data:{data}"]`, and at the top '
            "level "
            "`volumes: {k3s-data: {}}`"
        )
    if not (data_mount or {}).get("RW", True):
        raise RecordRefused(f"the data folder {data} is mounted read-only ({_words(data_mount)})")
    return Place(posixpath.join(data, "regrade"), folder)


def _mount_over(inspect: Inspect, path: str) -> dict[str, Any] | None:
    """The mount a path lies on: the deepest one at or above it. `tmpfs:` of Compose is not among Mounts."""
    mounts = mappings(inspect.get("Mounts"))
    mounts += [{"Type": "tmpfs", "Destination": where} for where in mapping(inspect, "HostConfig", "Tmpfs")]
    over = [mount for mount in mounts if _at_or_above(text(mount.get("Destination")), path)]
    return max(over, key=lambda mount: len(posixpath.normpath(str(mount.get("Destination")))), default=None)


def _at_or_above(folder: str, path: str) -> bool:
    folder = posixpath.normpath(folder) if folder else "."  # which is above nothing
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _outlives(mount: dict[str, Any] | None) -> bool:
    if mount is None:
        return False
    return mount.get("Type") == "bind" or (
        mount.get("Type") == "volume" and not ANONYMOUS.match(str(mount.get("Name") or ""))
    )


def _words(mount: dict[str, Any] | None) -> str:
    if mount is None:
        return "the container's own layer"
    if mount.get("Type") == "volume":
        name = str(mount.get("Name") or "")
        return f"a volume without a name ({name[:12]})" if ANONYMOUS.match(name) else f"the volume {name}"
    if mount.get("Type") == "tmpfs":
        return f"a tmpfs at {mount.get('Destination')}"
    return f"{mount.get('Type')} {mount.get('Source')} at {mount.get('Destination')}"
