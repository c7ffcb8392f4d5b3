# SPDX-License-Identifier: GPL-3.0-or-later
"""The page about the simulation says what the simulation does."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.exadev.k3s_regrade.tests.simulation import simulate
from ansible_collections.exadev.k3s_regrade.tests.simulation.checks import INVARIANTS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "simulation.md").read_text(encoding="utf-8")


def test_every_invariant_is_on_the_page_in_the_same_words() -> None:
    table = PAGE.partition("| invariant | what holds |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", table, re.M))
    assert rows == INVARIANTS


def test_kept_seeds_say_what_they_found() -> None:
    for line in simulate.KEPT.read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"\d+ +\S.*", line), line
