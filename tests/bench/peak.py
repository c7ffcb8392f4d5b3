# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a command and prints, as JSON on its last line, what it took. Started as a process of its own, on purpose:

the peak a kernel tells of a child begins with that of the process it was started from, so whoever starts it must be
small. This one is, and imports nothing that is not needed.
"""

from __future__ import annotations

import os
import sys
import time

began = time.monotonic()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_pid, status, used = os.wait4(pid, 0)
took = time.monotonic() - began
sys.stdout.write(
    f'{{"exit_code": {os.waitstatus_to_exitcode(status)}, "peak_kib": {used.ru_maxrss}, '
    f'"cpu_seconds": {used.ru_utime + used.ru_stime:.3f}, "seconds": {took:.3f}}}\n'
)
