# SPDX-License-Identifier: GPL-3.0-or-later
"""Pressure by fixture: what each host's watcher reads in place of the kernel's files. Says so wherever it is shown."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

BED = Path(__file__).resolve().parents[2] / "bed"
if str(BED) not in sys.path:
    sys.path.insert(0, str(BED))

from bed import Bed, Server  # noqa: E402

SOURCE = "a fixture file on each host, written by tests/integration/lib/pressure_generator.py"
FOLDER = "/srv/fixture"
GENERATOR = Path(__file__).with_name("pressure_generator.py")


class Wanted(NamedTuple):
    stall_percent: float
    available_mib: float


CALM = Wanted(0, 1400)
OVER = Wanted(45, 500)

# As the bed's inventory gives them to the role.
COOLDOWN_DOWN_SECONDS = 6
COOLDOWN_UP_SECONDS = 9


def begin(server: Server) -> bool:
    """Start the host's generator, calm. False where it runs already, and then what it writes is left as it is."""
    running = f"[ -r {FOLDER}/pid ] && grep -q generator /proc/$(cat {FOLDER}/pid)/cmdline 2>/dev/null"
    if server.sh(running, check=False).returncode == 0:
        return False
    server.sh(
        f"mkdir -p {FOLDER} && cat > {FOLDER}/generator.py", input=GENERATOR.read_text(encoding="utf-8")
    )
    put(server, CALM)
    server.sh(
        f"setsid python3 {FOLDER}/generator.py {FOLDER} >{FOLDER}/log 2>&1 </dev/null &\n"
        f"echo $! >{FOLDER}/pid"
    )
    until = time.monotonic() + 10
    while server.sh(f"test -s {FOLDER}/memory && test -s {FOLDER}/meminfo", check=False).returncode:
        assert time.monotonic() < until, f"{server.name}: no pressure is written"
        time.sleep(0.2)
    return True


def put(server: Server, wanted: Wanted) -> None:
    server.sh(
        f"printf '%s %s\\n' {wanted.stall_percent} {wanted.available_mib} >{FOLDER}/wanted.new && "
        f"mv {FOLDER}/wanted.new {FOLDER}/wanted"
    )


def main() -> int:
    """Start what is not running yet on every host, and say where."""
    for server in Bed().servers:
        if begin(server):
            print(f"{server.name}: started")
    return 0


if __name__ == "__main__":
    sys.exit(main())
