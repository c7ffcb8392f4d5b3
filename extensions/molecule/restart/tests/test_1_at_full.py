# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that never stepped: each way of going and coming back leaves them at full, with no record at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

import restarts
from admin_api import AdminApi
from bed import Bed, Server
from history import History
from images import is_stand_in
from restarts import OVERRIDE, away_and_back


def test_the_founding_server_made_anew(
    bed: Bed, api: AdminApi, server1: Server, before: dict[str, Any], history: History
) -> None:
    """From now on its own address comes first in the list it asks itself for, which sets the trap of chapter 4. On k3s
    itself that is chance; the stand-in can be told."""
    if is_stand_in(server1.docker("inspect", "--format={{.Config.Image}}", "k3s").stdout):
        override = {"services": {"k3s": {"environment": {"BED_APISERVERS_ORDER": "own-first"}}}}
        server1.sh(f"cat >{OVERRIDE}", input=json.dumps(override))
    away_and_back(bed, api, server1, "full", restarts.recreate, before)


def test_the_founding_server_restarted(
    bed: Bed, api: AdminApi, server1: Server, before: dict[str, Any]
) -> None:
    away_and_back(bed, api, server1, "full", restarts.docker_restart, before)


@pytest.mark.parametrize("way", [restarts.stop_and_start, restarts.kill, restarts.recreate])
def test_a_joined_server(
    bed: Bed, api: AdminApi, server2: Server, before: dict[str, Any], way: restarts.Way
) -> None:
    away_and_back(bed, api, server2, "full", way, before)


@pytest.mark.parametrize("way", [restarts.reboot, restarts.recreate])
def test_another_joined_server(
    bed: Bed, api: AdminApi, server3: Server, before: dict[str, Any], way: restarts.Way
) -> None:
    away_and_back(bed, api, server3, "full", way, before)
