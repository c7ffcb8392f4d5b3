# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chapters of the cycle share. Each goes on from the one before, in the order of their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (TESTS / "bed", TESTS / "integration" / "lib", TESTS / "integration" / "writes"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bed import Bed  # noqa: E402
from fixtures import api, bed, server1, server2, server3  # noqa: E402, F401
from history import History  # noqa: E402
from scenario import FOLDER  # noqa: E402
from writers import Writers  # noqa: E402


@pytest.fixture(scope="session")
def history() -> Iterator[History]:
    """The watch that the side effect began. It is ended with the last chapter, whatever became of it."""
    kept = History(FOLDER)
    yield kept
    kept.stop()


@pytest.fixture(scope="session")
def writers() -> Iterator[Writers]:
    """The clients that the side effect began, which write through all three the whole time."""
    kept = Writers(Bed(), FOLDER)
    yield kept
    kept.stop()
