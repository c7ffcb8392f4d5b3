# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chapters by hand share. Each goes on from the one before, in the order of their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (TESTS / "bed", TESTS / "integration" / "lib"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import pressure  # noqa: E402
from bed import Bed  # noqa: E402
from fixtures import api, bed, server1, server2, server3  # noqa: E402, F401


@pytest.fixture(scope="session", autouse=True)
def whole(bed: Bed) -> None:  # noqa: F811
    """Every server is at full, and no watcher has a reason to step."""
    for server in bed.servers:
        pressure.put(server, pressure.CALM)
    bed.wait_ready()
