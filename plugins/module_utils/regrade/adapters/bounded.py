# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""One blocking call with an end.

A socket's time-out bounds each read, not the whole answer: a server that sends a byte a second, a name
that resolves slowly, a body that stalls half-way (an MTU black hole) would hold a step up for ever.
Knows nothing of HTTP, Kubernetes or Docker.
"""

from __future__ import annotations

import threading
from typing import Callable, TypeVar

T = TypeVar("T")


class OutOfTime(Exception):
    """The call did not end in its time. What it asked for may still happen."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises, or OutOfTime after `seconds`.

    The call goes on in its own thread after that, so it must have time-outs of its own that end it, and
    whatever it writes must be conditional.
    """
    done: list[tuple[T, None] | tuple[None, BaseException]] = []

    def run() -> None:
        try:
            done.append((call(), None))
        except BaseException as error:
            done.append((None, error))

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(max(0.0, seconds))
    if not done:
        raise OutOfTime(f"no answer within {round(seconds, 1):g} s")
    value, error = done[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # the value of a call that returned is a T
