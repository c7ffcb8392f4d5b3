# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Keeping the Lease while a step is under way: one renewal as a generator, and what counts as lost.

Rules
1. Only what we hold is renewed, by compare-and-swap. A holder that is not us: lost.
2. One unanswered renewal is no lost Lease; none answered for the Lease's whole duration is.
3. What was lost once stays lost: the step that held it ends.
No I/O and no clock here; the thread it runs in is `app.driver`.
"""

from __future__ import annotations

from . import lease as leases
from .errors import ClusterError, Conflict
from .model import Lease
from .requests import Log, Now, ReadLease, Steps, WriteLease


class Held:
    """The Lease as one process holds it. Times are CLOCK_BOOTTIME, seconds."""

    def __init__(self, holder: str, duration: float, boottime: float) -> None:
        self._holder, self._duration, self._good = holder, duration, boottime
        self._why = ""

    def lost(self, boottime: float) -> str:
        """Why it was lost, "" while it was not."""
        if not self._why and boottime - self._good >= self._duration:
            self._why = f"not renewed for {boottime - self._good:.0f} s"
        return self._why

    def lose(self, why: str) -> None:
        self._why = self._why or why

    def renew(self) -> Steps[None]:
        """One renewal, unless it is lost already."""
        if self._why:
            return
        begun = yield Now()
        try:
            found: Lease = yield ReadLease()
            if found.holder != self._holder:
                self.lose(f"the Lease is held by {found.holder or 'nobody'}")
                return
            now = yield Now()
            yield WriteLease(leases.renewed(found, now.text))
        except Conflict:
            return  # somebody wrote between: the next look tells who
        except ClusterError as error:
            yield Log(f"renewing the Lease: {error}")
            return
        self._good = begun.boottime
