# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures of the tests against real servers. The bed is brought up where it is not, and left running."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ansible_collections.exadev.k3s_regrade.tests.integration.real import Real

from bed import Bed


@pytest.fixture(scope="session")
def bed() -> Bed:
    found = Bed()
    if not all(server.api_answers() for server in found.servers):
        found.up()
    found.wait_ready(180)
    return found


@pytest.fixture(scope="session")
def real(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    made = Real(bed, tmp_path_factory.mktemp("kube"))
    yield made
    made.remove()
