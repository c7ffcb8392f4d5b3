# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated time: actors that wait, in the order a seed gives. Knows nothing of clusters.

An actor is a generator that yields how long it waits, in seconds of true time. Nothing else may pass time,
and every random draw of a history comes from the one generator here, so that a seed is the whole history.
"""

from __future__ import annotations

import heapq
import random
from typing import Callable, Generator, List, Optional, Protocol, Tuple

Waits = Generator[float, None, None]


class Killed(BaseException):
    """The actor's process is killed here. Not an Exception: nothing of the product may catch it."""


class Suspends(Protocol):
    """Where an actor runs: nothing runs on a host that sleeps."""

    asleep_until: float


class Actor:
    """One thread of what happens. `alive` False: it is never resumed."""

    __slots__ = ("alive", "host", "waits")

    def __init__(self, waits: Optional[Waits], host: Optional[Suspends]) -> None:
        self.waits, self.host, self.alive = waits, host, True


class Scheduler:
    """The event queue and the clock of one history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.events = 0
        self._queue: List[Tuple[float, int, Actor, Optional[Callable[[], None]]]] = []
        self._count = 0

    def spawn(self, waits: Waits, host: Optional[Suspends] = None, after: float = 0.0) -> Actor:
        actor = Actor(waits, host)
        self._push(self.now + after, actor, None)
        return actor

    def call(self, after: float, function: Callable[[], None], host: Optional[Suspends] = None) -> Actor:
        """`function` once, later."""
        actor = Actor(None, host)
        self._push(self.now + after, actor, function)
        return actor

    def _push(self, at: float, actor: Actor, function: Optional[Callable[[], None]]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at, self._count, actor, function))

    def run(self, until: float) -> None:
        """All that happens up to that time."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            at, _count, actor, function = heapq.heappop(queue)
            self.now = at
            if not actor.alive:
                continue
            host = actor.host
            if host is not None and host.asleep_until > at:
                self._push(host.asleep_until + self.random.random(), actor, function)
                continue
            self.events += 1
            if actor.waits is None:
                actor.alive = False
                assert function is not None
                function()
                continue
            try:
                wait = next(actor.waits)
            except (StopIteration, Killed):
                actor.alive = False
                continue
            self._push(at + wait, actor, None)
        self.now = max(self.now, until)
