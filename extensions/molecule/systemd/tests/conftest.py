# SPDX-License-Identifier: GPL-3.0-or-later
"""What the chapters share. Each goes on from the one before, in the order of their names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (TESTS / "bed", TESTS / "integration" / "lib", TESTS / "integration" / "writes"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
os.environ["REGRADE_BED_SHAPE"] = "systemd"  # as molecule.yml has it for the plays

from bed import Bed, Machine  # noqa: E402
from cycle_fixtures import history, writers  # noqa: E402, F401
from fixtures import api, bed, server1, server2, server3  # noqa: E402, F401


@pytest.fixture(scope="session")
def machines(bed: Bed) -> tuple[Machine, ...]:  # noqa: F811
    found = tuple(server for server in bed.servers if isinstance(server, Machine))
    assert len(found) == 3
    return found


@pytest.fixture(params=range(3), ids=["server1", "server2", "server3"])
def machine(request: pytest.FixtureRequest, machines: tuple[Machine, ...]) -> Machine:
    found: Machine = machines[request.param]
    return found
