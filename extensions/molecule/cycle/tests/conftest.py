# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chapters of the cycle share. Each goes on from the one before, in the order of their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (TESTS / "bed", TESTS / "integration" / "lib"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from admin_api import AdminApi  # noqa: E402
from bed import Bed, Server  # noqa: E402
from history import History  # noqa: E402
from scenario import FOLDER  # noqa: E402


@pytest.fixture(scope="session")
def bed() -> Bed:
    return Bed()


@pytest.fixture(scope="session")
def api(bed: Bed) -> AdminApi:
    return AdminApi(bed)


@pytest.fixture(scope="session")
def server1(bed: Bed) -> Server:
    return bed.servers[0]


@pytest.fixture(scope="session")
def server2(bed: Bed) -> Server:
    return bed.servers[1]


@pytest.fixture(scope="session")
def server3(bed: Bed) -> Server:
    return bed.servers[2]


@pytest.fixture(scope="session")
def history() -> Iterator[History]:
    """The watch that the side effect began. It is ended with the last chapter, whatever became of it."""
    kept = History(FOLDER)
    yield kept
    kept.stop()
