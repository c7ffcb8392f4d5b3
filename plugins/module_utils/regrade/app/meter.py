# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""How long etcd and this server's API were away during one step, measured beside it, for the report alone.

Nothing is decided by these figures, so they are taken only where a person or a module reads them: in
steps by hand that restart k3s. Every look costs a `docker exec`.
"""

from __future__ import annotations

import threading
from typing import Optional, Protocol

from ..core.errors import RegradeError
from ..core.levels import ETCD_ONLY, restarts
from ..ports import Clock

EVERY_SECONDS = 0.5


class Beside(Protocol):
    """What may be looked at while a step is under way, from another thread."""

    def healthy(self) -> bool: ...

    def current_level(self) -> str: ...


class Meter:
    """Looks at etcd, and on the way up at the API too, every EVERY_SECONDS from its start to `end`.

    `etcd_away`: seconds in which etcd did not serve. `api_away`: seconds from etcd's going away until the
    server speaks as one that runs an API; None on the way down, where it stays away. Both are None where
    nothing was measured.
    """

    def __init__(self, beside: Beside, clock: Clock, start: str, target: str) -> None:
        self.etcd_away: Optional[float] = None
        self.api_away: Optional[float] = None
        self._beside, self._clock, self._up = beside, clock, start == ETCD_ONLY != target
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
        clock = self._clock
        before = clock.monotonic()
        away, went = 0.0, None
        while not self._stop.wait(EVERY_SECONDS):
            healthy = self._healthy()
            now = clock.monotonic()
            if not healthy:
                away += now - before
                went = went if went is not None else before
            elif self._up and went is not None and self.api_away is None and self._api_speaks():
                self.api_away = round(clock.monotonic() - went, 1)
            before = now
        self.etcd_away = round(away, 1)

    def _healthy(self) -> bool:
        try:
            return self._beside.healthy()
        except RegradeError:
            return False

    def _api_speaks(self) -> bool:
        try:
            return self._beside.current_level() != ETCD_ONLY
        except RegradeError:
            return False
