# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chapters of a cycle are given besides the bed (`fixtures`): what its side effect began beside it.

A scenario that goes through a cycle imports it in its conftest.py, once tests/integration/writes is on the path.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bed import Bed
from history import History
from scenario import FOLDER
from writers import Writers


@pytest.fixture(scope="session", autouse=True)
def history() -> Iterator[History]:
    """The watch that the side effect began. It is ended with the last chapter, also of a run that comes to none that
    asks for it."""
    kept = History(FOLDER)
    yield kept
    kept.stop()


@pytest.fixture(scope="session", autouse=True)
def writers() -> Iterator[Writers]:
    """The clients that the side effect began, which write through all three the whole time."""
    kept = Writers(Bed(), FOLDER)
    yield kept
    kept.stop()
