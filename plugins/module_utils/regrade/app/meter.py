# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""How long etcd and this server's API were away during one step, measured beside it, for the report alone.

Nothing is decided by these figures. They are asked for only in steps that restart k3s.
"""

from __future__ import annotations

import threading
from typing import Optional

from ..core.errors import RegradeError
from ..core.levels import restarts
from .driver import World

EVERY_SECONDS = 0.5


class Meter:
    """Looks at etcd every EVERY_SECONDS from its start to `end`."""

    def __init__(self, world: World, start: str, target: str) -> None:
        self.etcd_away: Optional[float] = None
        self.api_away: Optional[float] = None
        self._world, self._start, self._target = world, start, target
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        if restarts(start, target):
            self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        away = 0.0
        before = self._world.clock.monotonic()
        while not self._stop.wait(EVERY_SECONDS):
            healthy = self._healthy()
            now = self._world.clock.monotonic()
            if not healthy:
                away += now - before
            before = now
        self.etcd_away = round(away, 1)

    def _healthy(self) -> bool:
        try:
            return self._world.meter_etcd.healthy()
        except RegradeError:
            return False
