# SPDX-License-Identifier: GPL-3.0-or-later
"""What must hold over every revision of the Nodes and the Lease since before the first step.

That these checks can fail is shown in the scenario `cycle`.
"""

from __future__ import annotations

import pytest

import history as recorded
from admin_api import AdminApi
from cycle_checks import no_write_was_lost
from history import History
from writers import Writers


@pytest.fixture(scope="module")
def whole(history: History, api: AdminApi) -> list[recorded.Line]:
    """All that the watch saw, up to now. It must have run through."""
    assert history.running()
    history.catch_up(api)
    history.stop()
    return history.lines()


def test_no_revision_was_missed(whole: list[recorded.Line]) -> None:
    assert recorded.gaps(whole) == []
    assert recorded.levels_of(whole, "server1") == ["full", "control-plane", "etcd-only", "control-plane", "full"]
    assert recorded.levels_of(whole, "server2") == recorded.levels_of(whole, "server3") == ["full"]


def test_nothing_was_ever_wrong(whole: list[recorded.Line]) -> None:
    assert recorded.two_at_once(whole) == []
    assert recorded.unlabelled_below_full(whole) == []
    assert recorded.steps_without_lease(whole) == []
    assert len({(line["name"], line["uid"]) for line in whole if line["kind"] == "node"}) == 3


def test_no_write_was_lost_and_none_waited_long(writers: Writers, whole: list[recorded.Line]) -> None:
    no_write_was_lost(writers, whole, outages=1)
