# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chapters of what holds a server share. Each goes on from the one before, in the order of their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (TESTS / "bed", TESTS / "integration" / "lib"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import by_hand  # noqa: E402
import observer  # noqa: E402
import pressure  # noqa: E402
from admin_api import AdminApi  # noqa: E402
from bed import Bed  # noqa: E402
from fixtures import api, bed, server1, server2, server3  # noqa: E402, F401


@pytest.fixture(scope="session", autouse=True)
def whole(bed: Bed, api: AdminApi) -> Iterator[None]:  # noqa: F811
    """Every server is at full, calm and free of any switch before the first chapter, and after the last."""
    for server in bed.servers:
        pressure.put(server, pressure.CALM)
    bed.wait_ready()
    yield
    for server in bed.servers:
        pressure.put(server, pressure.CALM)
        for word in ("hold", "pause", "dry-run"):
            by_hand.switch(api, server.name, word, None)
    for server in bed.servers:
        observer.wait_for(
            f"{server.name} is at full again", partial(observer.at_full_again, api, server.name), 180
        )
