# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a host of the bed and writes what a kernel under that much pressure would write, several times a second.

    python3 pressure_generator.py FOLDER

FOLDER/wanted holds two numbers: the stall in percent and the MiB available. FOLDER/memory gets the form of
/proc/pressure/memory and FOLDER/meminfo that of /proc/meminfo. Standard library only.
"""

from __future__ import annotations

import os
import sys
import time

TOTAL_MIB = 2048
SECONDS = 0.25
# The kernel's averages: each is pulled to the stall of the moment with its own weight.
WINDOWS = (10, 60, 300)


def put(path: str, text: str) -> None:
    """Whole or not at all: a reader never sees half a file."""
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.rename(path + ".new", path)


def main(folder: str) -> None:
    averages = [0.0] * len(WINDOWS)
    total = 0.0
    last = time.monotonic()
    while True:
        with open(os.path.join(folder, "wanted"), encoding="ascii") as file:
            stall, available = (float(word) for word in file.read().split())
        now = time.monotonic()
        total += (now - last) * 1e6 * stall / 100
        averages = [
            average + (stall - average) * min(1.0, (now - last) / window)
            for average, window in zip(averages, WINDOWS)
        ]
        last = now
        line = "avg10=%.2f avg60=%.2f avg300=%.2f total=%d" % (*averages, total)
        put(
            os.path.join(folder, "memory"), "some %s\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n" % line
        )
        put(
            os.path.join(folder, "meminfo"),
            "MemTotal:       %8d kB\nMemFree:        %8d kB\nMemAvailable:   %8d kB\n"
            % (TOTAL_MIB * 1024, available * 512, available * 1024),
        )
        time.sleep(SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
