# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Samples of pressure and memory from /proc. What they mean is `core.reading` and `core.policy`.

Light: the idle loop imports it. A file that cannot be read is an unknown, never an exception; only the
look at the start (`missing_pressure`) tells a person why.
"""

from __future__ import annotations

import errno
import os
import time

from ..core.reading import Sample, parse_meminfo, parse_pressure

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
NO_PSI = (
    "the kernel is built without CONFIG_PSI, or PSI is switched off: add psi=1 to the kernel command line "
    "(Raspberry Pi OS: /boot/firmware/cmdline.txt) and reboot; a step by hand works without it"
)


def read_text(path: str) -> str:
    """The file's first 64 KiB, unbuffered (a buffered reader allocates for nothing). Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 65536).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def boot_id() -> str:
    return read_text(BOOT_ID_FILE).strip()


def sample(pressure_file: str, meminfo_file: str, boot: str) -> Sample:
    """One sample now; what cannot be read is None in it."""
    try:
        stall = parse_pressure(read_text(pressure_file))
    except OSError:
        stall = None
    try:
        available, total = parse_meminfo(read_text(meminfo_file))
    except OSError:
        available, total = None, None
    monotonic, boottime = _clocks()
    return Sample(monotonic, boottime, boot, stall, available, total)


def _clocks() -> tuple[float, float]:
    """CLOCK_MONOTONIC and CLOCK_BOOTTIME of one moment: a process that is not run between the two reads must not
    look like a host that slept."""
    for _try in range(5):
        monotonic = time.clock_gettime(time.CLOCK_MONOTONIC)
        boottime = time.clock_gettime(time.CLOCK_BOOTTIME)
        if time.clock_gettime(time.CLOCK_MONOTONIC) - monotonic < 0.1:
            break
    return monotonic, boottime


def missing_pressure(path: str) -> str:
    """Why there is no pressure to read, with the cure; "" where there is."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        return f"{path} does not exist: {NO_PSI}"
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return f"{path} cannot be read (EOPNOTSUPP): {NO_PSI}"
        return f"{path} cannot be read ({error.strerror}): expected PSI; check the path and its rights"
    if not text.strip():
        return f"{path} is empty: {NO_PSI}"
    if parse_pressure(text) is None:
        return f"{path} holds no line `some ... total=<microseconds>`: expected PSI, check the path"
    return ""


def missing_memory(path: str) -> str:
    """Why MemAvailable cannot be read, "" where it can."""
    try:
        text = read_text(path)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}): expected meminfo of the kernel"
    if parse_meminfo(text)[0] is None:
        return (
            f"{path} has no usable MemAvailable and MemTotal (kernel before 3.14, lxcfs): nothing can be told"
        )
    return ""
