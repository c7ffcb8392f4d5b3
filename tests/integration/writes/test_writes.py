# SPDX-License-Identifier: GPL-3.0-or-later
"""The write check on real servers: calm it finds nothing, and each kind of harm done on purpose it shows."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bed import Bed, Server

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent / "lib", HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import judgement  # noqa: E402
import operations as ops  # noqa: E402
from admin_api import AdminApi  # noqa: E402
from clients import FOLDER, RUN, Pace  # noqa: E402
from observer import etcd_healthy, wait_for  # noqa: E402
from writers import Writers, forget  # noqa: E402

CALM_SECONDS = 15
AWAY_SECONDS = 5
"""A k3s that is restarted and has nothing else to do is back so soon that no write need wait."""


@pytest.fixture(scope="module")
def api(bed: Bed) -> AdminApi:
    return AdminApi(bed)


def test_a_calm_run_loses_nothing_and_writes_through_every_server(
    bed: Bed, api: AdminApi, tmp_path: Path
) -> None:
    with Writers(bed, tmp_path) as writers:
        time.sleep(CALM_SECONDS)
        report = writers.verdict()
    print(report.line())
    assert report.problems == ()
    assert set(report.servers) == {server.name for server in bed.servers}
    assert all(found.acknowledged >= CALM_SECONDS for found in report.servers.values()), report.line()
    assert report.refused == report.unknown == 0, report.line()
    # What was written is gone again.
    assert api.call("GET", f"{FOLDER}?labelSelector={RUN}")["items"] == []


def test_clients_that_are_killed_leave_a_history_that_can_be_judged(bed: Bed, tmp_path: Path) -> None:
    with Writers(bed, tmp_path) as writers:
        time.sleep(3)
        writers.kill()
        report = writers.verdict()
    assert report.problems == ()
    assert report.acknowledged > 3


def test_two_servers_restarted_at_once_stall_the_writes_and_lose_none(bed: Bed, tmp_path: Path) -> None:
    def restart(server: Server) -> None:
        server.stop_k3s()
        time.sleep(AWAY_SECONDS)
        server.start_k3s()

    with Writers(bed, tmp_path) as writers:
        time.sleep(5)
        began = time.time()
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(restart, bed.servers[1:]))
        bed.wait_ready(180)
        wait_for("etcd is healthy on all", lambda: all(map(etcd_healthy, bed.servers)), 60)
        ended = time.time()
        time.sleep(5)
        report = writers.verdict()
    print(report.line())
    assert report.problems == ()
    # Through no server was there a quorum.
    assert report.longest_stall.seconds > AWAY_SECONDS, report.line()
    assert began - 1 < report.longest_stall.time < ended
    assert report.stalled_outside((began, ended)) < report.longest_stall.seconds
    assert all(found.longest_stall.seconds > AWAY_SECONDS for found in report.servers.values()), report.line()
    assert report.refused + report.unknown > 0, report.line()


def test_a_value_that_is_taken_out_behind_the_clients_back_is_lost(
    bed: Bed, api: AdminApi, tmp_path: Path
) -> None:
    with Writers(bed, tmp_path, pace=Pace(length=5)) as writers:
        old = wait_for("a key was left for a new one", lambda: left(writers), 60)
        path = f"{FOLDER}/{old.key}"
        values = [value for value in api.call("GET", path)["data"]["values"].split() if value != old.id]
        api.call("PATCH", path, {"data": {"values": " ".join(values)}})
        time.sleep(3)
        report = writers.verdict()
    print(report.line())
    try:
        assert not report.ok
        assert report.lost == 1
        lost = next(problem for problem in report.problems if problem.kind == judgement.LOST)
        assert lost.key == old.key
        assert f"append {old.id} through {old.server}" in lost.text
        assert {problem.kind for problem in report.problems} == {judgement.LOST, judgement.ORDER}
    finally:
        forget(api)


def left(writers: Writers) -> ops.Operation | None:
    """An acknowledged append of a key that nobody appends to any more."""
    appends = [
        operation
        for operation in writers.history().operations
        if operation.kind == ops.APPEND and operation.acknowledged
    ]
    if not appends:
        return None
    last = {operation.key: operation.completed for operation in appends}
    return next((found for found in appends if last[found.key] < appends[-1].completed - 3), None)
