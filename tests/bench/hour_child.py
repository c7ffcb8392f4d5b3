# SPDX-License-Identifier: GPL-3.0-or-later
"""The watcher with every time of its settings divided by SPEED: an hour of samples passes in seconds.

The loop, the policy and the children are the product's own; only the settings differ, by which no code path depends on
how long a second is. Started as `python -S hour_child.py SPEED SAMPLES DESCRIPTOR`; after each SAMPLES samples one line
goes to that descriptor: how many there were, how many blocks Python holds, and the verdict.
"""

from __future__ import annotations

import os
import sys

from regrade import cli
from regrade.app import watcher
from regrade.core.settings import Settings

SPEED, SAMPLES, DESCRIPTOR = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def sooner(settings: Settings) -> Settings:
    """Only what the idle loop waits for or compares: a child's own time-outs stay."""
    names = [
        name
        for name in settings._fields
        if name.endswith("_seconds")
        and name.partition("_")[0] in ("sample", "pressure", "sustain", "cooldown", "settle")
    ]
    return settings._replace(**{name: getattr(settings, name) / SPEED for name in names})


class Counted(watcher.Loop):
    """Tells how far it is, and allocates nothing that lasts."""

    taken = 0

    def _sample(self) -> int | None:
        stopped = super()._sample()
        self.taken += 1
        if self.taken % SAMPLES == 0:
            verdict = self._watch.said.split("|")[1]
            os.write(DESCRIPTOR, b"%d %d %s\n" % (self.taken, sys.getallocatedblocks(), verdict.encode()))
        return stopped


begin = watcher.main
watcher.Loop = Counted
watcher.main = lambda settings, as_json=False: begin(sooner(settings), as_json)
raise SystemExit(cli.main(["watch"]))
