# SPDX-License-Identifier: GPL-3.0-or-later
"""How calls and processes fail in one history: rates drawn from its seed, and what goes wrong for a while.

What people, other tools and hosts do is `deeds`; what a call does with its fate is `process`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Dict, Tuple

if TYPE_CHECKING:
    from .cluster import Host
    from .process import Process

FATES = ("500", "429", "answer lost", "write arrives late", "call times out")
MILD = ("500", "429", "answer lost", "call times out")
ACCIDENTS = ("restart not begun", "restart leaves k3s stopped", "crash loop", "restart answers late")


class Faults:
    """`active` False: nothing fails; `troubles`: people and hosts do their deeds, and anything may go wrong.
    `*_until` are true times, for each host."""

    def __init__(self, draw: random.Random) -> None:
        self._random = draw
        self.active = self.troubles = True
        self._fates: Tuple[str, ...] = FATES
        rough = draw.random()
        self._fate = draw.choice((0.0, 0.01, 0.03, 0.1)) * (0.5 + rough)
        self._accident = draw.choice((0.0, 0.8, 0.95))
        self._kill = draw.choice((0.0, 0.001, 0.004, 0.015)) * (0.5 + rough)
        self._pause = draw.choice((0.0, 0.001, 0.005))
        self._ambush = draw.choice((0.0, 0.002, 0.01))
        self._at_mark = draw.choice((0.0, 0.1, 0.3))
        self.cut_until: Dict[str, float] = {}
        self.expired_until: Dict[str, float] = {}
        self.large_hangs_until: Dict[str, float] = {}
        self.slow_until: Dict[str, float] = {}
        self.forbidden: Dict[str, Tuple[str, float]] = {}  # host -> what is forbidden, until

    def end(self) -> None:
        """Faults stop: what was to last longer ends now."""
        self.active = self.troubles = False
        for lasting in (self.cut_until, self.expired_until, self.large_hangs_until, self.slow_until):
            lasting.clear()
        self.forbidden.clear()

    def mildly(self) -> None:
        """What fails on any day: some calls, and at times a process."""
        self.active, self._fates = True, MILD
        self._fate = self._random.choice((0.01, 0.02, 0.04))
        self._kill = self._random.choice((0.0, 0.0002, 0.0005))
        self._accident = self._pause = self._ambush = self._at_mark = 0.0

    def fate(self, write: bool) -> str:
        """What becomes of one call, "" where it is answered."""
        if self._random.random() >= self._fate:
            return ""
        fate = self._random.choice(self._fates)
        return fate if write or fate not in ("answer lost", "write arrives late") else "call times out"

    def cut(self, host: Host) -> bool:
        now = host.cluster.now
        return host.isolated_until > now or self.cut_until.get(host.name, 0.0) > now

    def accident(self, process: Process) -> str:
        """What goes wrong with one restart, "" for nothing."""
        if not self.active or self._random.random() >= self._accident:
            return ""
        return self._random.choice((*ACCIDENTS, ACCIDENTS[1]))  # the one that only rule zero can mend

    def kills(self, process: Process) -> bool:
        if self._random.random() >= self._kill:
            return False
        process.history.count("fault: process killed")
        return True

    def ambushes(self) -> bool:
        """Whether something is done to a step just now."""
        return self._random.random() < self._ambush

    def at_a_mark(self) -> bool:
        """Whether something comes between what a process saw and the mark, or the restart, that follows from it."""
        return self._random.random() < self._at_mark

    def pause(self, process: Process) -> float:
        """Seconds the process is stopped, or gets no CPU."""
        if self._random.random() >= self._pause:
            return 0.0
        process.history.count("fault: process stopped for a while")
        return self._random.choice((2.0, 20.0, 90.0, 400.0)) * self._random.random()
