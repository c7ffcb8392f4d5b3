# SPDX-License-Identifier: GPL-3.0-or-later
"""What held the whole time: one server at a time, always labelled, and no step but those that were asked for."""

from __future__ import annotations

import history as recorded
from admin_api import AdminApi
from history import History

DOWN_AND_UP = ["full", "control-plane", "etcd-only", "control-plane", "full"]


def test_over_every_revision(api: AdminApi, history: History) -> None:
    assert history.running()
    history.catch_up(api)
    history.stop()
    lines = history.lines()
    assert recorded.two_at_once(lines) == []
    assert recorded.unlabelled_below_full(lines) == []
    assert recorded.steps_without_lease(lines) == []
    # Once more for each step that was not trapped.
    turns = recorded.levels_of(lines, "server1")
    assert turns == [*DOWN_AND_UP[:4] * (len(turns) // 4), "full"]
    assert recorded.levels_of(lines, "server2") == DOWN_AND_UP
    # Once more by itself, in its new container.
    assert recorded.levels_of(lines, "server3") == [*DOWN_AND_UP[:3], *DOWN_AND_UP[1:]]
