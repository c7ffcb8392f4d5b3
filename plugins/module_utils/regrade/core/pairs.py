# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""KEY=VALUE lines: the one text form of settings and of what the watcher and its children tell each other.

Light on purpose (the idle loop imports it, and json costs 1 MiB). A value is one line; nothing is escaped
in it, so whoever writes a value takes the line breaks out (`dump` does).
"""

from __future__ import annotations


def parse(text: str) -> dict[str, str]:
    """Keys to values; blank lines and lines that begin with `#` are left out.

    Raises ValueError naming the first line that is not KEY=VALUE, or a key that comes twice.
    """
    found: dict[str, str] = {}
    for number, untidy in enumerate(text.splitlines(), 1):
        line = untidy.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError(f"line {number} is {line!r}, expected KEY=VALUE")
        if key in found:
            raise ValueError(f"line {number} gives {key} a second time")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]  # as docker compose and systemd read an environment file
        found[key] = value
    return found


def dump(pairs: dict[str, str]) -> str:
    """The text `parse` reads back; line breaks in a value become blanks."""
    return "".join(f"{key}={_on_one_line(str(value))}\n" for key, value in pairs.items())


def _on_one_line(text: str) -> str:
    line = " ".join(text.split())
    # quotes around the whole would be taken for an environment file's
    return f"'{line}'" if len(line) >= 2 and line[0] == line[-1] and line[0] in "'\"" else line
