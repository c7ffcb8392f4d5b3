#!/usr/bin/python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""An OCI runtime for machines whose bounding set lacks CAP_SYS_RESOURCE: runc, asked for no more than they have.

A stock runc refuses a privileged container there ("unable to apply caps"), and a negative oom_score_adj. This takes
both out of what the engine asks for, and becomes runc. The default runtime of an engine, and the runtime of the
k3s stand-in's containerd, only where the capability is missing. It must run alone (an engine outlives the checkout
it was started from): standard library only, no import of a neighbour.
"""

import json
import os
import sys

RUNC = "/usr/sbin/runc"
MISSING = "CAP_SYS_RESOURCE"
# runc's own options before its command that take a value.
GLOBAL_WITH_VALUE = {"--log", "--log-format", "--root", "--criu", "--rootless"}


def edits(arguments):
    """The file to edit and the key of the process in it (None: the file is the process), or None."""
    command, rest = _command(arguments)
    if command in ("create", "run", "restore"):
        return os.path.join(_option(rest, "--bundle", "-b") or ".", "config.json"), "process"
    if command == "exec":
        process = _option(rest, "--process", "-p")
        return (process, None) if process else None
    return None


def _command(arguments):
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        position += 2 if arguments[position] in GLOBAL_WITH_VALUE else 1
    return (arguments[position], arguments[position + 1 :]) if position < len(arguments) else ("", [])


def _option(arguments, long, short):
    for position, argument in enumerate(arguments):
        if argument in (long, short) and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith(long + "="):
            return argument[len(long) + 1 :]
    return None


def lowered(process):
    """The process of an OCI bundle without the capability and without a negative oom_score_adj."""
    result = dict(process)
    if process.get("capabilities"):
        result["capabilities"] = {
            name: [c for c in granted or [] if c != MISSING]
            for name, granted in process["capabilities"].items()
        }
    if process.get("oomScoreAdj", 0) < 0:
        result["oomScoreAdj"] = 0
    return result


def edit(path, key):
    """Write the lowered process back; the file is ours until runc reads it."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    if key is None:
        content = lowered(content)
    elif key in content:
        content[key] = lowered(content[key])
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def main(arguments):
    found = edits(arguments)
    if found is not None:
        try:
            edit(*found)
        except (OSError, ValueError) as error:
            # The engine shows the last line of standard error to its user.
            sys.stderr.write(f"runc_without_sys_resource: {found[0]} could not be edited: {error}\n")
            raise SystemExit(1) from error
    os.execv(RUNC, [RUNC, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
