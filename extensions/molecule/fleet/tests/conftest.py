# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chapters of the fleet share. Each goes on from the one before, in the order of their names."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (TESTS / "bed", TESTS / "integration" / "lib"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from fixtures import api, bed, server1, server2, server3  # noqa: E402, F401
