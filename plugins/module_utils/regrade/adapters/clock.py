# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""This host's clocks. Only the time text for the API is a wall clock, and it is for show."""

from __future__ import annotations

import time
from datetime import datetime, timezone

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


class SystemClock:
    """`ports.Clock` of a Linux host; a container shares these with its host."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC)

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        with open(BOOT_ID_FILE, encoding="ascii") as file:
            return file.read().strip()

    def now_text(self) -> str:
        # isoformat() drops `.000000`, and the API refuses a time without six fractional digits
        return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
