# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of every scenario are given: the bed, its servers, and its API. A scenario's conftest.py imports it.

What only one scenario needs belongs to that scenario.
"""

from __future__ import annotations

import pytest

from admin_api import AdminApi
from bed import Bed, Server


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
