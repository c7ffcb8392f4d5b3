# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chapters of the restarts share. Each goes on from the one before, in the order of their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (TESTS / "bed", TESTS / "integration" / "lib"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import observer  # noqa: E402
import pressure  # noqa: E402
import restarts  # noqa: E402
from admin_api import AdminApi  # noqa: E402
from bed import Bed  # noqa: E402
from fixtures import api, bed, server1, server2, server3  # noqa: E402, F401
from history import History  # noqa: E402
from plays import ROOT  # noqa: E402


@pytest.fixture(scope="session")
def before(bed: Bed, api: AdminApi) -> Iterator[dict[str, Any]]:  # noqa: F811
    """Members, Nodes and node passwords of before, once no watcher has a reason to step."""
    for server in bed.servers:
        restarts.between(server)
        restarts.boot_id_by_fixture(server)
    bed.wait_ready()
    yield observer.identity(bed, api)
    for server in bed.servers:
        restarts.boot_id_of_the_kernel(server)
        pressure.put(server, pressure.CALM)


@pytest.fixture(scope="session")
def history(before: dict[str, Any]) -> Iterator[History]:
    """Every revision of the Nodes and the Lease from the first restart on."""
    kept = History(ROOT / "build" / "molecule" / "restart")
    kept.start()
    yield kept
    kept.stop()
