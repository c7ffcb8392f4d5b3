# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The record: k3s's drop-in `90-regrade.yaml`, which holds the level of a server in a container.

What is here is pure: where the record lies (from `docker inspect`), its text for a level, the level of a
text, and the shell scripts that read, write and remove it inside the container with the tools of the
stock image. Running them is `docker_engine`'s.

Three ways to lay it, the first that fits:
1. the drop-in folder is on a mount that outlives the container: the record lies in it;
2. with K3S_CONFIG_FILE or --config on the data volume the drop-in folder is beside that file: the same;
3. else the record lies on the data volume, and a link in the container's own drop-in folder leads to it.
   A recreated container has lost the link: it runs full until a step brings it back.

k3s reads `<config file>.d/*.yaml` in name order, follows links, and refuses to start on a dangling one.
K3S_CONFIG_FILE wins over --config (k3s pkg/configfilearg).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Any, NamedTuple

from ..core.digits import whole
from ..core.levels import ETCD_ONLY, FULL, LEVELS
from .odd_json import mapping, mappings, text, texts

NAME = "90-regrade.yaml"
MARK = "# regrade-level: "
DEFAULT_CONFIG = "/etc/rancher/k3s/config.yaml"
DEFAULT_DATA = "/var/lib/rancher/k3s"
DISABLED = ("disable-apiserver", "disable-controller-manager", "disable-scheduler", "disable-agent")
ANONYMOUS = re.compile(r"^[0-9a-f]{64}$")  # what Docker names a volume that nobody named
ABSENT = "\x02absent"  # no record holds this line
BROKEN = "\x02unreadable"

Inspect = dict[str, Any]


class RecordRefused(Exception):
    """No place for the record outlives the container; the text holds the Compose lines that cure it."""


class RecordWrong(Exception):
    """The file at the record's place is not one of ours."""


class Place(NamedTuple):
    """Where the record lies inside the container."""

    folder: str  # of the record itself
    link_folder: str = ""  # the drop-in folder that needs a link to it; "" where the record lies in it

    @property
    def path(self) -> str:
        return posixpath.join(self.folder, NAME)

    @property
    def link(self) -> str:
        return posixpath.join(self.link_folder, NAME) if self.link_folder else ""

    @property
    def effective(self) -> str:
        """The path k3s reads."""
        return self.link or self.path


def text_for(level: str, https_port: int) -> str:
    """The record of a level; "" for full, where there is no file. `https_port` 0 leaves k3s's own."""
    if level == FULL:
        return ""
    lines = [MARK + level]
    if level == ETCD_ONLY:
        lines += [f"{key}: true" for key in DISABLED]
        if https_port:
            lines.append(f"https-listen-port: {https_port}")
    return "\n".join(lines) + "\n"


def level_of(record: str | None) -> str:
    """The level a record names; full where there is none. Raises RecordWrong."""
    if record is None:
        return FULL
    first = record.split("\n", 1)[0].rstrip()
    level = first[len(MARK) :] if first.startswith(MARK) else ""
    if level not in LEVELS:
        raise RecordWrong(
            f"begins with {first[:80]!r}, expected {MARK!r} and one of {', '.join(LEVELS)}; "
            "move the file away and step the server to the level it should have"
        )
    return level


def port_of(record: str | None) -> int:
    """The https-listen-port a record names, 0 where none."""
    match = re.search(r"^https-listen-port: (.+)$", record or "", re.MULTILINE)
    port = whole(match.group(1)) if match else None
    return port if port and port < 65536 else 0


def flag(inspect: Inspect, *names: str) -> str:
    """The value of a command-line flag of the container's process, "" where absent; the last one wins."""
    words = texts(inspect.get("Args"))
    found = ""
    for index, word in enumerate(words):
        for name in names:
            if word == name and index + 1 < len(words):
                found = words[index + 1]
            elif word.startswith(name + "="):
                found = word[len(name) + 1 :]
    return found


def variable(inspect: Inspect, name: str) -> str:
    for pair in texts(mapping(inspect, "Config").get("Env")):
        key, _sep, value = pair.partition("=")
        if key == name:
            return value
    return ""


def config_file(inspect: Inspect) -> str:
    return variable(inspect, "K3S_CONFIG_FILE") or flag(inspect, "--config", "-c") or DEFAULT_CONFIG


def data_folder(inspect: Inspect, configured: str = "") -> str:
    """k3s's data folder; `configured` is what its configuration file says."""
    return (
        flag(inspect, "--data-dir", "-d") or configured or variable(inspect, "K3S_DATA_DIR") or DEFAULT_DATA
    ).rstrip("/")


def place(inspect: Inspect, data: str) -> Place:
    """Where the record of this container lies. Raises RecordRefused."""
    config = config_file(inspect)
    if "://" in config:
        raise RecordRefused(
            f"k3s reads its configuration from {config}, and a drop-in cannot lie beside a URL; use a file"
        )
    folder = posixpath.normpath(config) + ".d"
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


# --- Scripts for the stock image's busybox `sh`. Paths are quoted into them. Its `sync` is one that ignores
# names and flushes everything (k3s-root's busybox.config); others flush just what is named. ---


def script_show(path: str) -> str:
    """Prints a file, or one line ABSENT or BROKEN."""
    quoted = shlex.quote(path)
    return (
        f"if [ -e {quoted} ] || [ -L {quoted} ]; then cat {quoted} 2>/dev/null || echo '{BROKEN}'; "
        f"else echo '{ABSENT}'; fi\n"
    )


def script_write(where: Place, record: str, token: str) -> str:
    """Writes the record whole or not at all, then shows what k3s will read. `token` makes its temporary names
    its own, so that a late writer that was given up finds its file swept away."""
    folder, path = shlex.quote(where.folder), shlex.quote(where.path)
    temporary = shlex.quote(f"{where.path}.{token}")
    lines = ["set -e", f"[ -d {folder} ] || mkdir -p {folder}", f"cat > {temporary} <<'REGRADE'"]
    lines += [
        record.rstrip("\n"),
        "REGRADE",
        f"sync {temporary}",
        f"mv -f {temporary} {path}",
        f"sync {folder}",
    ]
    if where.link:
        link_folder, link = shlex.quote(where.link_folder), shlex.quote(where.link)
        temporary = shlex.quote(f"{where.link}.{token}")
        lines += [
            f"[ -d {link_folder} ] || mkdir -p {link_folder}",
            f"ln -s {path} {temporary}",
            f"mv -f {temporary} {link}",
        ]
    lines.append(f"rm -f {_strays(where)}")
    return "\n".join(lines) + "\n" + script_show(where.effective)


def script_remove(where: Place) -> str:
    """Removes the record (the link first: k3s refuses a dangling one), then shows that it is gone."""
    lines = ["set -e", f"rm -f {_strays(where)}"]
    if where.link:
        lines.append(f"rm -f {shlex.quote(where.link)}")
    folder = shlex.quote(where.folder)
    lines.append(
        f"if [ -e {shlex.quote(where.path)} ]; then rm -f {shlex.quote(where.path)}; sync {folder}; fi"
    )
    return "\n".join(lines) + "\n" + script_show(where.effective)


def _strays(where: Place) -> str:
    """Left-over temporary files, as a shell pattern."""
    return " ".join(f"{shlex.quote(path)}.*" for path in (where.path, where.link) if path)


def shown(output: str) -> tuple[bool, str | None]:
    """Of `script_show`'s output: whether it could be read, and the text, None where absent."""
    if output.strip() == ABSENT:
        return True, None
    return (False, None) if BROKEN in output else (True, output)
