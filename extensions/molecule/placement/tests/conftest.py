# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of this scenario are given: the bed and its API. What is set wrong on it stands beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (TESTS / "bed", TESTS / "integration" / "lib"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from fixtures import api, bed  # noqa: E402

__all__ = ["api", "bed"]
