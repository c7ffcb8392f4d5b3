# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The errors the world may answer with and those a step ends in.

They stand in the core because the step is written around them (they are thrown into it where a
request fails); `ports` hands them on to the adapters. Every text is one line for a person: what was
found, what was expected, what to do. No error of a library belongs here.
"""

from __future__ import annotations


class RegradeError(Exception):
    """Base of every error this project raises on purpose; its text is one line for a person.

    `reason` is the word for it in the closed list of `cures`, which says what a person can do.
    """

    reason = "other"


class LevelUnknown(RegradeError):
    """The level cannot be told now (booting, container gone, engine silent). Never taken for full."""

    reason = "level-unknown"


class ApplyFailed(RegradeError):
    """A level was not reached.

    `began` tells whether a restart may have begun: if not, nothing changed. `back` tells that k3s was
    brought back (after a crash loop): it runs at the level it ran at before, with the old record. `stuck`
    tells that it runs at the level but is trapped there, and that the restart for it did not help; `trapped`
    that it is, and that this restart was not made: it would not help yet, or was refused.
    """

    def __init__(
        self, message: str, began: bool, back: bool = False, stuck: bool = False, trapped: bool = False
    ) -> None:
        super().__init__(message)
        self.began = began
        self.back = back
        self.stuck = stuck
        self.trapped = trapped


class StepRefused(RegradeError):
    """A check forbids the step; nothing was changed by the one who raises it.

    `level` is the running level where it became known. `undone` tells that the intent was written and taken
    back: a write of it whose answer was lost may still come.
    """

    def __init__(self, message: str, reason: str = "other", level: str = "", undone: bool = False) -> None:
        super().__init__(message)
        self.reason, self.level, self.undone = reason, level, undone


class LevelMoved(StepRefused):
    """The server is at another level (`level`) than the one the step was decided at."""

    def __init__(self, node: str, level: str, expected: str) -> None:
        super().__init__(
            f"{node} is at {level}, expected {expected}: it was stepped meanwhile; decide anew",
            "level",
            level,
        )


class HostBusy(StepRefused):
    """Another process of this host has the host's lock; the text names it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "host")


class StepFailed(RegradeError):
    """The step had its first effect and did not succeed: undone, or left open for `settle` to end.

    `level` is the running level where it became known.
    """

    def __init__(self, message: str, left_open: bool, level: str = "", reason: str = "other") -> None:
        super().__init__(message)
        self.left_open, self.level, self.reason = left_open, level, reason


class StateLost(RegradeError):
    """A document of the state store could not be read, written or removed; the text names the file and why."""

    reason = "storage"


class SettingsWrong(RegradeError):
    """A setting is missing, malformed or contradicts another; the text names them and why."""

    reason = "settings"


class UsageWrong(RegradeError):
    """The command line cannot be understood, or does not say all that it must."""


class ClusterError(RegradeError):
    """A call to the cluster did not give its answer."""

    reason = "cluster"


class Unreachable(ClusterError):
    """No API server of KUBE_SERVER answered, or the answer is unknown (a time-out, a 5xx).

    After a write this means *unknown*: read back before deciding.
    """


class Conflict(ClusterError):
    """409 or a failed precondition: somebody wrote first. Nothing was written."""


class Forbidden(ClusterError):
    """401 or 403, with verb, resource and namespace in the text."""

    reason = "permission"


class Missing(ClusterError):
    """404: the object does not exist."""
