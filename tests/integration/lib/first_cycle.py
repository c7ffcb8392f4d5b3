# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection as it was when its first whole cycle ran: built and installed beside today's, and turned on.

    python3 first_cycle.py      on every host of the bed; prints the hosts it changed

It is what a fleet that turned regrading on then has on its servers. What must come of an upgrade is the tests' to say.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

BED = Path(__file__).resolve().parents[2] / "bed"
if str(BED) not in sys.path:
    sys.path.insert(0, str(BED))

import plays  # noqa: E402
from bed import Bed  # noqa: E402
from plays import ROOT, Run  # noqa: E402

# Tag `first-cycle`. Named by its hash: a clone need not have the tags, and a tag can be moved.
COMMIT = "9aacb274eaf777acba4daa7d5c07a8bedbd528d8"
FOLDER = ROOT / "build" / "first-cycle"
TREE = FOLDER / "tree"


def install() -> None:
    """From the history of this checkout into TREE. Raises RuntimeError, in one line."""
    there = subprocess.run(
        ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if there.returncode:
        raise RuntimeError(
            f"this checkout has no commit {COMMIT[:12]} (tag first-cycle), which the upgrade begins from: take a "
            "clone with its history (`git fetch --unshallow` for a shallow one)"
        )
    shutil.rmtree(FOLDER, ignore_errors=True)
    source = FOLDER / "source"
    source.mkdir(parents=True)
    packed = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=packed, check=True)
    plays.install(source, FOLDER / "archive", TREE)


def off_by_today() -> None:
    """What a scenario before this one left on: a server of the first cycle has nothing of today."""
    if any(
        server.sh("test -d /srv/cluster/regrade", check=False).returncode == 0 for server in Bed().servers
    ):
        _done(plays.playbook("disable"))


def enable() -> Run:
    return _done(plays.playbook("enable", tree=TREE))


def _done(run: Run) -> Run:
    if run.code:
        raise RuntimeError(run.output)
    return run


def main() -> int:
    install()
    off_by_today()
    for host, result in enable().hosts.items():
        if result.changed:
            print(host)
    return 0


if __name__ == "__main__":
    sys.exit(main())
