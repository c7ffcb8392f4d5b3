# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chapters of the cycle share. Each goes on from the one before, in the order of their names."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (TESTS / "bed", TESTS / "integration" / "lib", TESTS / "integration" / "writes"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from cycle_fixtures import history, writers  # noqa: E402, F401
from fixtures import api, bed, server1, server2, server3  # noqa: E402, F401
