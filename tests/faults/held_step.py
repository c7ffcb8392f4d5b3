# SPDX-License-Identifier: GPL-3.0-or-later
"""The named points of a step, and what holds a step still at one of them, for as long as something is done to it.

A step is a generator of requests (core/step.py), so a point is the moment at which a request was answered. On the bed
this file is put beside the core in the service's memory as `sitecustomize.py`, for one process alone: it waits at the
point that HOLD_AT names, says so by the file `at`, and goes on when there is a file `go`. The product knows nothing of
it. Standard library only; what is done meanwhile does not belong here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

FOLDER = "/tmp/held-step"
STEP = "github-runner.exadev.com/regrade-step"


def _journal(phase: str) -> Callable[[Any], bool]:
    return lambda request: request.name == "journal" and request.document["phase"] == phase


def _shows_intent(request: Any) -> bool:
    return bool(request.change.annotations.get(STEP)) and not request.change.labels


# name, what has just happened, the request, and what tells it from others of its kind
POINTS: tuple[tuple[str, str, str, Callable[[Any], bool]], ...] = (
    ("lease-taken", "the Lease was taken", "WriteLease", lambda request: bool(request.lease.holder)),
    ("gate-passed", "the gate was asked for the first time", "NewId", lambda request: True),
    ("journal-written", "the journal is on disk", "WriteState", _journal("intent")),
    ("intent-shown", "the Node shows the intent", "ChangeNode", _shows_intent),
    ("effects-begun", "Lease and gate were asked again", "WriteState", _journal("effects")),
    (
        "node-marked",
        "label and taint are those of the level to come",
        "ChangeNode",
        lambda request: bool(request.change.annotations.get(STEP)) and bool(request.change.labels),
    ),
    ("restart-noted", "the journal says that the restart is asked for", "WriteState", _journal("restart")),
    ("level-applied", "k3s was restarted and is at its level", "Apply", lambda request: True),
    (
        "intent-cleared",
        "the last write of the step was made",
        "ChangeNode",
        lambda request: STEP in request.change.annotations and not request.change.annotations[STEP],
    ),
    ("step-noted", "the note of the step is on disk", "NoteStep", lambda request: True),
    ("journal-closed", "the journal is gone", "RemoveState", lambda request: request.name == "journal"),
    ("lease-released", "the Lease was let go", "WriteLease", lambda request: not request.lease.holder),
)


def hold(driver_class: Any, name: str, wait: Callable[[], None]) -> None:
    """From now on, the first time a Driver has carried out the request of that point, it calls `wait`."""
    (kind, is_it) = next((kind, is_it) for point, _what, kind, is_it in POINTS if point == name)
    begin = driver_class.__init__

    def begun(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        (request_class,) = [request for request in self._answers if request.__name__ == kind]
        answer = self._answers[request_class]
        held: list[Any] = []

        def answered(request: Any) -> Any:
            result = answer(request)
            if not held and is_it(request):
                held.append(request)
                wait()
            return result

        self._answers[request_class] = answered

    driver_class.__init__ = begun


def wait() -> None:
    """Say so, and wait for leave."""
    with open(os.path.join(FOLDER, "at"), "w", encoding="ascii"):
        pass
    while not os.path.exists(os.path.join(FOLDER, "go")):
        time.sleep(0.02)


def shift_clock(clock_class: Any) -> None:
    """From now on this process's wall clock is off by the seconds in the file `clock`, where there is one."""
    now_text = clock_class.now_text

    def shifted(self: Any) -> str:
        text = str(now_text(self))
        try:
            with open(os.path.join(FOLDER, "clock"), encoding="ascii") as file:
                seconds = float(file.read())
        except FileNotFoundError:
            return text
        form = "%Y-%m-%dT%H:%M:%S.%fZ"
        return (datetime.strptime(text, form) + timedelta(seconds=seconds)).strftime(form)

    clock_class.now_text = shifted


if os.environ.get("HOLD_AT"):
    from regrade.adapters.clock import SystemClock  # type: ignore[import-not-found]
    from regrade.app.driver import Driver  # type: ignore[import-not-found]

    shift_clock(SystemClock)
    hold(Driver, os.environ["HOLD_AT"], wait)
