# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet as the first cycle's collection set it up, with one server stepped down by its watcher."""

from __future__ import annotations

from typing import Any

import first_cycle
import pressure
from admin_api import AdminApi
from bed import Bed, Server
from cycle_checks import assert_marked, reaches_etcd_only
from history import History


def test_what_runs_is_the_first_cycles(bed: Bed) -> None:
    """It knows nothing of what came later: `abandon-step` is one of today's verbs."""
    assert (first_cycle.TREE / "ansible_collections" / "exadev" / "k3s_regrade").is_dir()
    for server in bed.servers:
        assert "abandon-step" not in server.sh("regrade --help").stdout


def test_its_watcher_steps_a_server_down(
    server2: Server, api: AdminApi, before: dict[str, Any], history: History
) -> None:
    pressure.put(server2, pressure.OVER)
    reaches_etcd_only(server2, api)
    assert_marked(api.node("server2"))
