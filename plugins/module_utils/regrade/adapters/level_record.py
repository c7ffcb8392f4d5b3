# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The record: k3s's drop-in `90-regrade.yaml`, which holds a server's level, the same on every platform.

What is here is pure: its text for a level, the level of a text, what k3s's command line says of where it
reads, and the shell scripts that read, write and remove the record with no more tools than the stock image
has. Where it lies is the platform's (`docker_record`), running the scripts is `k3s_actuator`'s.

k3s reads `<config file>.d/*.yaml` in name order, follows links, and refuses to start on a dangling one.
K3S_CONFIG_FILE wins over --config (k3s pkg/configfilearg).
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from ..core.digits import whole
from ..core.levels import ETCD_ONLY, FULL, LEVELS

NAME = "90-regrade.yaml"
MARK = "# regrade-level: "
DEFAULT_CONFIG = "/etc/rancher/k3s/config.yaml"
DEFAULT_DATA = "/var/lib/rancher/k3s"
DISABLED = ("disable-apiserver", "disable-controller-manager", "disable-scheduler", "disable-agent")
ABSENT = "\x02absent"  # no record holds this line
BROKEN = "\x02unreadable"


class RecordRefused(Exception):
    """There is no place for the record that would keep it; the text says what cures it."""


class RecordWrong(Exception):
    """The file at the record's place is not one of ours."""


class Place(NamedTuple):
    """Where the record lies, as k3s sees it."""

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


def flag(words: Sequence[str], *names: str) -> str:
    """The value of a flag among the words of a command line, "" where absent; the last one wins."""
    found = ""
    for index, word in enumerate(words):
        for name in names:
            if word == name and index + 1 < len(words):
                found = words[index + 1]
            elif word.startswith(name + "="):
                found = word[len(name) + 1 :]
    return found


def variable(pairs: Sequence[str], name: str) -> str:
    """Of an environment's KEY=VALUE texts."""
    for pair in pairs:
        key, _sep, value = pair.partition("=")
        if key == name:
            return value
    return ""


def config_file(words: Sequence[str], environment: Sequence[str]) -> str:
    return variable(environment, "K3S_CONFIG_FILE") or flag(words, "--config", "-c") or DEFAULT_CONFIG


def drop_in_folder(words: Sequence[str], environment: Sequence[str]) -> str:
    """Where k3s looks for drop-ins. Raises RecordRefused."""
    config = config_file(words, environment)
    if "://" in config:
        raise RecordRefused(
            f"k3s reads its configuration from {config}, and a drop-in cannot lie beside a URL; use a file"
        )
    return posixpath.normpath(config) + ".d"


def data_folder(words: Sequence[str], environment: Sequence[str], configured: str = "") -> str:
    """k3s's data folder; `configured` is what its configuration file says."""
    return (
        flag(words, "--data-dir", "-d") or configured or variable(environment, "K3S_DATA_DIR") or DEFAULT_DATA
    ).rstrip("/")


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
