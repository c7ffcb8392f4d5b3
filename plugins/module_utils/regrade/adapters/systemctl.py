# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""One service unit through `systemctl`: show, restart, start; bounded, errors in one line.

The command and not D-Bus, which would take a library. Nothing here knows k3s or levels.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import NamedTuple

from ..core.digits import whole
from .k3s_actuator import PlatformError

PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Job",
    "InvocationID",
    "MainPID",
    "NRestarts",
    "Result",
    "ExecMainCode",
    "ExecMainStatus",
    "Restart",
    "TimeoutStopUSec",
    "ExecStart",
    "Environment",
    "EnvironmentFiles",
)
EXITED = 1  # CLD_EXITED; else a signal ended it
# What systemctl says where systemd certainly did not begin: it was not reached, or it said no.
NOT_BEGUN = (
    "Failed to connect to bus",
    "not found",
    "not loaded",
    "is masked",
    "Access denied",
    "authentication required",
    "Permission denied",
    "Operation refused",
    "Transaction",
    "System has not been booted with systemd",
)
SPAN = re.compile(r"([0-9.]+)(us|ms|s|min|h|d|w|month|y)(?: |$)")
SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "min": 60,
    "h": 3600,
    "d": 86400,
    "w": 604800,
    "month": 2629800,
    "y": 31557600,
}


class Unit(NamedTuple):
    """Of `systemctl show`."""

    name: str
    load_state: str
    active: str
    sub: str
    job: bool  # whether a start or a stop of it is waiting its turn
    invocation: str  # another one for each start, "" where it never ran
    main_pid: int
    restarts: int  # by its own policy, since a start that somebody asked for
    ended: str  # "exit code 1", "signal 9", "start-limit-hit": how its last life ended, "" where it has none
    restart: str
    stop_seconds: float
    words: tuple[str, ...]  # of its command line
    environment: tuple[str, ...]  # KEY=VALUE of the unit itself
    environment_files: tuple[str, ...]

    @property
    def loaded(self) -> bool:
        return self.load_state == "loaded"


class Systemctl:
    """`timeout` of one call, in seconds."""

    def __init__(self, unit: str, timeout: float) -> None:
        self._unit, self._timeout = unit, timeout

    def show(self) -> Unit:
        """Also of a unit that does not exist. Raises PlatformError."""
        return unit_of(self._unit, self._say("show", "--no-pager", f"--property={','.join(PROPERTIES)}"))

    def call(self, verb: str, *options: str) -> None:
        """Raises PlatformError."""
        self._say(verb, *options)

    def _say(self, verb: str, *options: str) -> str:
        words = ["systemctl", "--no-ask-password", *options, verb, "--", self._unit]
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout,
                check=False,
                env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
            )
        except FileNotFoundError:
            raise PlatformError(
                "this host has no systemctl: RUNTIME=systemd is for a k3s that systemd runs", sent=False
            ) from None
        except subprocess.TimeoutExpired:
            raise PlatformError(
                f"systemd gave no answer to {verb} of unit {self._unit} within {self._timeout:g} s", sent=True
            ) from None
        except OSError as error:
            raise PlatformError(f"systemctl could not be run: {error.strerror}", sent=False) from None
        if done.returncode:
            raise refusal(self._unit, verb, done.returncode, done.stderr)
        return done.stdout


def refusal(unit: str, verb: str, code: int, errors: str) -> PlatformError:
    """In one line, of what systemctl wrote to stderr."""
    said = " ".join(errors.split()) or f"systemctl ended with {code} and said nothing"
    sent = not any(words.lower() in said.lower() for words in NOT_BEGUN)
    if "Access denied" in said or "authentication required" in said or "Permission denied" in said:
        said += "; run it as root"
    return PlatformError(f"{verb} of unit {unit} failed: {said[:300]}", sent)


def unit_of(name: str, shown: str) -> Unit:
    """Of the lines KEY=VALUE; what is missing or odd is as of a unit that does not run."""
    values: dict[str, list[str]] = {}
    for line in shown.splitlines():
        key, sep, value = line.partition("=")
        if sep:
            values.setdefault(key, []).append(value)

    def one(key: str) -> str:
        return values.get(key, [""])[-1]

    code, result = whole(one("ExecMainCode")) or 0, one("Result")
    status = whole(one("ExecMainStatus")) or 0
    ended = f"exit code {status}" if code == EXITED else f"signal {status}" if code else ""
    if result in ("start-limit-hit", "timeout", "oom-kill", "watchdog", "resources"):
        ended = result
    found = re.search(r"argv\[\]=(.*?) ; ", one("ExecStart"))
    return Unit(
        name=name,
        load_state=one("LoadState") or "unknown",
        active=one("ActiveState") or "unknown",
        sub=one("SubState"),
        job=(whole(one("Job")) or 0) > 0,
        invocation=one("InvocationID"),
        main_pid=whole(one("MainPID")) or 0,
        restarts=whole(one("NRestarts")) or 0,
        ended=ended,
        restart=one("Restart") or "no",
        stop_seconds=seconds_of(one("TimeoutStopUSec")),
        words=tuple(found.group(1).split()) if found else (),
        environment=assignments(one("Environment")),
        environment_files=tuple(
            re.sub(r" \(ignore_errors=(yes|no)\)$", "", path) for path in values.get("EnvironmentFiles", [])
        ),
    )


def seconds_of(text: str) -> float:
    """Of systemd's own words for a time, such as `1min 30s` or `infinity`; what cannot be read is none."""
    if text == "infinity":
        return float("inf")
    try:
        return sum(float(amount) * SECONDS[unit] for amount, unit in SPAN.findall(text))
    except ValueError:
        return 0.0


def assignments(text: str) -> tuple[str, ...]:
    """The KEY=VALUE words of a text that is quoted as for a shell."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    return tuple(word for word in words if "=" in word)


def environment_of(unit: Unit) -> tuple[str, ...]:
    """KEY=VALUE as its process gets it, the strongest first: of the files the last wins, and each over the unit."""
    found: list[str] = []
    for path in unit.environment_files:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:  # most of k3s's own unit's need not be there
            continue
        for line in lines:
            if not line.lstrip().startswith(("#", ";")):
                found = [*assignments(line), *found]
    return (*found, *reversed(unit.environment))
