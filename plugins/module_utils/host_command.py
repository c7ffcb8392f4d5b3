# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Runs the host's `regrade` command for the modules, and turns its answer into values or one line.

The command holds all the knowledge; no decision about levels belongs here, only what can be wrong with a host before
that command can tell it itself. Standard library only, and nothing of the core is imported: a target needs Python 3.9
and the command the role put there. An older Python must come as far as to be told so, hence no newer syntax.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

LEVELS = ["full", "control-plane", "etcd-only"]
OLDEST_PYTHON = (3, 9)

# Options that every module which runs the command takes.
COMMAND_ARGUMENTS: Dict[str, Dict[str, Any]] = {
    "command": {"type": "path", "default": "/usr/local/bin/regrade"},
    "timeout": {"type": "int", "default": 1800},
}

# The command's own exit codes, for an answer that carries no words of its own.
_MEANINGS = {
    2: "the arguments or the settings are wrong",
    3: "the step was refused, and nothing was changed",
    4: "the step failed or is still open",
    5: "the level is unknown",
}


class Trouble(NamedTuple):
    """Something wrong with a host, told by words of what the command said where it could not give its own answer."""

    kind: str
    words: Tuple[str, ...]  # any of these, in lower case
    found: str  # what was found and what to do


# The first that fits counts. The words are those of the docker command (20.10 to 29), of Compose v2 and of the shell.
_TROUBLES = (
    Trouble(
        "engine",
        ("docker: not found", "docker: command not found"),
        "there is no docker command on this host: install Docker, or put it on the PATH of the user who runs this",
    ),
    Trouble(
        "engine",
        ("cannot connect to the docker daemon", "is the docker daemon running"),
        "no Docker engine answers on this host: start it (`systemctl start docker`)",
    ),
    Trouble(
        "engine",
        ("api version", "client version"),
        "the Docker engine and what calls it are too far apart in age: update the older one",
    ),
    Trouble(
        "service",
        ("'compose' is not a docker command", "unknown command: docker compose", "unknown flag: --progress"),
        "the service regrade does not run on this host, and without Docker Compose v2 no other container can take its "
        "place: run the role, or install the Compose plugin",
    ),
    Trouble(
        "service",
        ("no such image", "pull access denied", "manifest unknown", "unable to find image"),
        "the service regrade does not run on this host, and its image is not there: run the role",
    ),
    Trouble(
        "service",
        ("no configuration file provided", "no such service", "no such file or directory", "env file"),
        "the service regrade does not run on this host, and its files are not all there: run the role",
    ),
    Trouble(
        "service",
        ("is paused",),
        "the service's container is paused: `docker unpause` it",
    ),
    Trouble(
        "service",
        ("no module named regrade", "executable file not found"),
        "the container that runs under the service's name is not the service of this collection: remove it, and run "
        "the role",
    ),
)
_DENIED = ("permission denied",)


class CommandFailed(Exception):
    """The command gave no good answer; the text is one line for a person, `kind` is the command's own word."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def run_regrade(command: str, arguments: List[str], timeout: int, needed: Sequence[str]) -> Dict[str, Any]:
    """The report the command gives with --json, with the keys `needed`. `timeout` is in seconds.

    Raises CommandFailed.
    """
    _new_enough()
    try:
        done = subprocess.run(
            [command, *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise CommandFailed(
            f"{command} is not on this host: run the role github_runner_cluster with "
            "github_runner_cluster_regrade: true, or name the command in the option command.",
            "missing",
        ) from None
    except PermissionError:
        cure = "use become: true." if os.geteuid() else (
            "it is no file that may be executed. Run the role again, or name the command in the option command."
        )
        raise CommandFailed(f"{command} may not be run by {_who()}: {cure}", "permission") from None
    except OSError as error:
        raise CommandFailed(f"{command} could not be run: {error.strerror or error}.", "failed") from None
    except subprocess.TimeoutExpired:
        raise CommandFailed(
            f"{command} gave no answer within {timeout} s; a step that it has begun goes on without it: look with "
            "regrade_level_info before anything else, and give a longer timeout.",
            "timeout",
        ) from None
    output = done.stdout.decode("utf-8", "replace").strip()
    complaint = done.stderr.decode("utf-8", "replace")
    report = _report(output)
    if done.returncode == 0 and report is not None and not [key for key in needed if key not in report]:
        return report
    if done.returncode == 0:
        raise CommandFailed(
            f"{command} ended well but printed no report in JSON with {', '.join(needed)}: it is not the "
            "command of this collection's version; run the role again.",
            "failed",
        )
    raise _failure(command, done.returncode, report, complaint)


def _new_enough() -> None:
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise CommandFailed(
            "this module needs Python %d.%d or newer on the target, and %s is %d.%d: set ansible_python_interpreter to "
            "a newer one." % (*OLDEST_PYTHON, sys.executable, *sys.version_info[:2]),
            "python",
        )


def _who() -> str:
    return f"the user with id {os.geteuid()}"


def _failure(command: str, code: int, report: Optional[Dict[str, Any]], complaint: str) -> CommandFailed:
    error = (report or {}).get("error")
    if isinstance(error, dict) and error.get("message"):
        return CommandFailed(" ".join(str(error["message"]).split()), str(error.get("kind", "failed")))
    said = _one_line(complaint)
    lowered = complaint.lower()
    if any(word in lowered for word in _DENIED):
        return CommandFailed(_denied(command, said), "permission")
    for trouble in _TROUBLES:
        if any(word in lowered for word in trouble.words):
            return CommandFailed(f"{trouble.found} ({command} said: {said})", trouble.kind)
    return CommandFailed(
        f"{command} ended with {code}: {said or _MEANINGS.get(code, 'it gave no reason')}", "failed"
    )


def _denied(command: str, said: str) -> str:
    if os.geteuid():
        return (
            f"{command} needs become: true, or the user in the group docker where k3s runs in Docker: what it asks is "
            f"denied to {_who()} ({said})"
        )
    return (
        f"{command} is denied what it needs although it runs as root, so SELinux or AppArmor forbids it: "
        f"`ausearch -m avc -ts recent` or `journalctl -k` names the rule to allow ({said})"
    )


def _report(output: str) -> Optional[Dict[str, Any]]:
    try:
        report = json.loads(output)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _one_line(text: str) -> str:
    """The last line that says something: what went before it is context for logs, not for a person."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
