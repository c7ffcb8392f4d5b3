# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of the fault matrix that stand for the others, each ending in its state; and that a row can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

import faults
from faults import Stage
from rows import ROWS, SHORT, Row


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in SHORT], ids=lambda row: row.name)
def test_a_row_ends_where_it_must(stage: Stage, row: Row) -> None:
    result = faults.run(stage, row)
    print(faults.table([result]))
    assert result["problem"] == ""


def test_a_row_that_ends_elsewhere_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "STABLE_SECONDS", 30)
    undone = next(row for row in ROWS if row.name == "killed-down-intent-shown")
    result = faults.run(stage, replace(undone, name="control", level="etcd-only"))
    assert "a stable state: server1: label is control-plane, not etcd-only" in result["problem"]
