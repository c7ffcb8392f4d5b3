# SPDX-License-Identifier: GPL-3.0-or-later
"""The stage of the fault matrix, on servers that the scenario has made ready."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[4] / "tests"
for folder in (
    TESTS / "bed",
    TESTS / "integration" / "lib",
    TESTS / "integration" / "writes",
    TESTS / "faults",
):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import pressure  # noqa: E402
import scenario  # noqa: E402
from faults import Stage  # noqa: E402


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    made = Stage(up=True)
    for server in made.bed.servers:
        pressure.put(server, pressure.CALM)
    yield made
    scenario.step(made.server, "full")
