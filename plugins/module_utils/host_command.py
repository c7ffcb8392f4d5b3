# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Runs the host's `regrade` command for the modules, and turns its answer into values or one line.

The command holds all the knowledge; no decision about levels belongs here. Standard library only, and
nothing of the core is imported: a target needs Python 3.9 and the command the role put there.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any, Dict, List, Sequence

LEVELS = ["full", "control-plane", "etcd-only"]

# Options that every module which runs the command takes.
COMMAND_ARGUMENTS: Dict[str, Dict[str, Any]] = {
    "command": {"type": "path", "default": "/usr/local/bin/regrade"},
    "timeout": {"type": "int", "default": 1200},
}

# The command's own exit codes, for an answer that carries no words of its own.
_MEANINGS = {
    2: "the arguments or the settings are wrong",
    3: "the step was refused, and nothing was changed",
    4: "the step failed or is still open",
    5: "the level is unknown",
}


class CommandFailed(Exception):
    """The command gave no good answer; the text is one line for a person, `kind` is the command's own word."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def run_regrade(command: str, arguments: List[str], timeout: int, needed: Sequence[str]) -> Dict[str, Any]:
    """The report the command gives with --json, with the keys `needed`. `timeout` is in seconds.

    Raises CommandFailed.
    """
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
        raise CommandFailed(
            f"{command} may not be run by this user: use become: true.", "permission"
        ) from None
    except OSError as error:
        raise CommandFailed(f"{command} could not be run: {error.strerror or error}.", "failed") from None
    except subprocess.TimeoutExpired:
        raise CommandFailed(
            f"{command} gave no answer within {timeout} s; the step may go on without it: "
            "see `regrade status` before anything else.",
            "timeout",
        ) from None
    output = done.stdout.decode("utf-8", "replace").strip()
    complaint = _one_line(done.stderr.decode("utf-8", "replace"))
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


def _failure(command: str, code: int, report: Dict[str, Any] | None, complaint: str) -> CommandFailed:
    error = (report or {}).get("error")
    if isinstance(error, dict) and error.get("message"):
        return CommandFailed(_one_line(str(error["message"])), str(error.get("kind", "failed")))
    if "permission denied" in complaint.lower():
        return CommandFailed(
            f"{command} may not use Docker as this user: use become: true, or put the user into the group "
            "docker.",
            "permission",
        )
    reason = complaint or _MEANINGS.get(code, "it gave no reason")
    return CommandFailed(f"{command} ended with {code}: {reason}", "failed")


def _report(output: str) -> Dict[str, Any] | None:
    try:
        report = json.loads(output)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def _one_line(text: str) -> str:
    """The last line that says something: what went before it is context for logs, not for a person."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
