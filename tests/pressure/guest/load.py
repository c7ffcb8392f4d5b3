# SPDX-License-Identifier: GPL-3.0-or-later
"""The loads, each as a process of its own: `python3 load.py VERB NUMBER...`. Standard library only: it runs in the
small machine, and in a container. What a load is expected to cause does not belong here.

    hold MIB HOT       MIB of memory of its own, HOT of it touched all the time: a k3s, a service
    once FILE MIB      reads so much of a file once through, as a backup does
    read FILE MIB      the same, over and over
    waves MIB          takes and gives back so much every few seconds, as a job runner does
    pages FILE MIB     touches random pages of a mapping of the file: programs and data that are all in use
    memory MIB         touches random pages of so much memory of its own, and writes to some
    leak RATE LEFT     takes memory until LEFT MiB are available, then RATE MiB a second until it is killed
    limited FILE MIB N in a container: writes the file itself, so that its pages are charged there, then `pages` N times
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import sys
import time

MIB, PAGE = 1 << 20, 4096
# Half of each page random: memory of services is compressed by zram to about that.
TEMPLATE = b"".join(os.urandom(PAGE // 2) + bytes(PAGE // 2) for _ in range(MIB // PAGE))


def taken(mib: int) -> mmap.mmap:
    held = mmap.mmap(-1, mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(mib):
        held[at * MIB : (at + 1) * MIB] = TEMPLATE
    return held


def hold(mib: int, hot: int) -> None:
    held = taken(mib)
    while True:
        for _ in range(hot):  # each hot page about every 25 s
            at = random.randrange(hot * MIB // PAGE)
            held[at * PAGE] = 1
        time.sleep(0.1)


def through(path: str, mib: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    for _ in range(mib):
        os.read(descriptor, MIB)
    os.close(descriptor)


def once(path: str, mib: int) -> None:
    through(path, mib)
    while True:
        time.sleep(60)


def read(path: str, mib: int) -> None:
    while True:
        through(path, mib)


def waves(mib: int) -> None:
    while True:
        held = taken(mib)
        time.sleep(3)
        held.close()
        time.sleep(3)


def pages(path: str, mib: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    mapped = mmap.mmap(descriptor, mib * MIB, prot=mmap.PROT_READ)
    count = mib * MIB // PAGE
    while True:
        mapped[random.randrange(count) * PAGE]


def memory(mib: int) -> None:
    held = taken(mib)
    count = mib * MIB // PAGE
    while True:
        at = random.randrange(count) * PAGE
        if held[at] & 7 == 0:
            held[at] = 8


def available() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) // 1024
    return 0


def leak(rate: float, left: int) -> None:
    held = []
    while available() > left:
        held.append(taken(4))
    began, taken_since = time.monotonic(), 0
    while True:
        while taken_since < (time.monotonic() - began) * rate:
            held.append(taken(1))
            taken_since += 1
        time.sleep(0.1)


def limited(path: str, mib: int, readers: int) -> None:
    with open(path, "wb") as file:
        for _ in range(mib):
            file.write(TEMPLATE)
        file.flush()
        os.fsync(file.fileno())
    while readers > 1 and os.fork():
        readers -= 1
    pages(path, mib)


def main(words: list[str]) -> None:
    verb, *rest = words
    given = [int(word) if word.isdigit() else word for word in rest]
    with contextlib.suppress(ValueError):
        given = [float(word) if isinstance(word, str) and "." in word and word[0].isdigit() else word for word in given]
    VERBS[verb](*given)


VERBS = {verb.__name__: verb for verb in (hold, once, read, waves, pages, memory, leak, limited)}

if __name__ == "__main__":
    main(sys.argv[1:])
