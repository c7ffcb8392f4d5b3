# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What keeps the watcher running where memory is short, and what everything else gives up again.

The kernel evicts pages of programs before it kills, so on a host that thrashes a loop that is not locked
waits for its own code to be read back (earlyoom#320: a 3 s loop was not scheduled for 4 minutes). Each
protection is tried and none is needed: a container or a host may forbid it. What comes from outside (the
service's CPU weight and memory limit) is the role's.

Light: the idle loop imports it, and ctypes (0.5 MiB, the only way to mlockall) comes in with `protect`.
"""

from __future__ import annotations

import os

OOM_FILE = "/proc/self/oom_score_adj"
LAST_TO_GO = -900  # before what is never killed (-1000) and what kubelet and containerd give themselves (-999)
ORDINARY = 0

# As in asm-generic/mman.h (amd64, arm64, armhf, riscv64, s390x). Without MCL_ONFAULT (Linux 4.4) every page
# of every library is read in and kept: 14 MiB instead of 10.
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
LOCK = MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT


def protect() -> str:
    """Both protections, each where it is allowed; one line that says what was had and what was not."""
    unlocked, exposed = _lock(), _last_to_go()
    return "; ".join(
        (
            f"memory is not locked ({unlocked}; CAP_IPC_LOCK allows it)" if unlocked else "memory is locked",
            f"killed like any other when memory runs out ({exposed}; set oom_score_adj where the service is "
            "started)"
            if exposed
            else "among the last to be killed when memory runs out",
        )
    )


def _lock() -> str:
    """Keeps every page that is or comes to be in memory there; why not, "" where it does. A child does not
    inherit it."""
    try:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        return os.strerror(ctypes.get_errno()) if library.mlockall(LOCK) else ""
    except (ImportError, OSError, AttributeError) as error:  # a Python or a libc without it
        return " ".join(str(error).split())


def _last_to_go() -> str:
    """Why the kernel would kill this process as readily as any other, "" where it would not."""
    try:
        if _read() > LAST_TO_GO:
            _write(LAST_TO_GO)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def be_ordinary() -> None:
    """Gives up what was inherited from the watcher or its container: a command that takes memory must go
    before k3s does, and a step that is cut off is ended by the next. A score above 0 stays."""
    try:
        if _read() < ORDINARY:
            _write(ORDINARY)
    except (OSError, ValueError):
        return  # no /proc: nothing was inherited from it either


def _read() -> int:
    descriptor = os.open(OOM_FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, 32))
    finally:
        os.close(descriptor)


def _write(score: int) -> None:
    descriptor = os.open(OOM_FILE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"%d" % score)
    finally:
        os.close(descriptor)
