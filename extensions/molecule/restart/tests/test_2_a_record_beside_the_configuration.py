# SPDX-License-Identifier: GPL-3.0-or-later
"""server2, whose record lies beside its K3S_CONFIG_FILE on the data volume: no way of coming back loses it."""

from __future__ import annotations

from typing import Any

import pytest

import restarts
from admin_api import AdminApi
from bed import Bed, Server
from restarts import away_and_back, steps_to

WAYS = [restarts.stop_and_start, restarts.kill, restarts.recreate]


def test_down_to_control_plane(bed: Bed, api: AdminApi, server2: Server, before: dict[str, Any]) -> None:
    steps_to(bed, api, server2, "control-plane", before)


@pytest.mark.parametrize("way", WAYS)
def test_at_control_plane(
    bed: Bed, api: AdminApi, server2: Server, before: dict[str, Any], way: restarts.Way
) -> None:
    away_and_back(bed, api, server2, "control-plane", way, before)


def test_down_to_etcd_only(bed: Bed, api: AdminApi, server2: Server, before: dict[str, Any]) -> None:
    steps_to(bed, api, server2, "etcd-only", before)


@pytest.mark.parametrize("way", WAYS)
def test_at_etcd_only(
    bed: Bed, api: AdminApi, server2: Server, before: dict[str, Any], way: restarts.Way
) -> None:
    away_and_back(bed, api, server2, "etcd-only", way, before)


def test_back_at_full(bed: Bed, api: AdminApi, server2: Server, before: dict[str, Any]) -> None:
    steps_to(bed, api, server2, "full", before)
