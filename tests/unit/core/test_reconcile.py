# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of reconciling: each row by what it is for, and what no situation may bring about."""

from __future__ import annotations

import itertools
from typing import Dict, Set

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import reconcile as table
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reconcile import (
    ROWS,
    Situation,
    choose,
)

WELL = Situation("same", "none", "none", "full", "agree", "agree", "no", "no")
WORDS: Dict[str, tuple[str, ...]] = {
    "identity": ("same", "changed"),
    "journal": ("none", "bare", "begun", "recovered"),
    "intent": ("none", "same", "other"),
    "running": ("unknown", "start", "target", "full", "control-plane", "etcd-only"),
    "marks": ("agree", "differ"),
    "record": ("agree", "above", "below"),
    "trapped": ("no", "yes", "uncured"),
    "still": ("no", "hold", "pause", "dry-run"),
}
SWITCHES = ("hold", "pause", "dry-run")


def at(**found: str) -> str:
    return choose(WELL._replace(**found)).action


def every() -> list[Situation]:
    """All that can be put together, also what no world would show."""
    return [Situation(*words) for words in itertools.product(*WORDS.values())]


@pytest.mark.parametrize(
    ("found", "action"),
    [
        ({}, table.NOTHING),
        ({"identity": "changed"}, table.ALARM),
        ({"identity": "changed", "running": "unknown", "journal": "begun"}, table.ALARM),
        ({"running": "unknown"}, table.WAIT),
        ({"journal": "begun", "intent": "other"}, table.ALARM),
        ({"journal": "bare", "intent": "other"}, table.UNDO),
        ({"journal": "bare", "intent": "same", "running": "start"}, table.UNDO),
        ({"journal": "bare", "intent": "none", "running": "start"}, table.UNDO),
        ({"journal": "begun", "intent": "same", "running": "start"}, table.RESUME),
        ({"journal": "begun", "intent": "same", "running": "target", "marks": "differ"}, table.RESUME),
        ({"journal": "begun", "intent": "none", "running": "target"}, table.CLOSE),
        ({"journal": "begun", "intent": "none", "running": "target", "marks": "differ"}, table.ADOPT),
        ({"journal": "begun", "intent": "none", "running": "etcd-only"}, table.ADOPT),
        ({"journal": "begun", "intent": "same", "running": "etcd-only"}, table.ADOPT),
        ({"journal": "recovered", "running": "target", "marks": "differ"}, table.RECOVER),
        ({"journal": "recovered", "intent": "other", "running": "target"}, table.RECOVER),
        ({"journal": "recovered", "intent": "other", "running": "start"}, table.REVERT),
        ({"intent": "other"}, table.REPAIR),
        ({"marks": "differ"}, table.REPAIR),
        ({"record": "above", "running": "etcd-only"}, table.REPAIR),
        ({"record": "below"}, table.RETURN),
        ({"record": "below", "marks": "differ", "intent": "other"}, table.RETURN),
        ({"running": "etcd-only", "trapped": "yes"}, table.CURE),
        ({"running": "etcd-only", "trapped": "uncured"}, table.UNCURED),
        ({"running": "etcd-only", "trapped": "yes", "marks": "differ"}, table.REPAIR),
        ({"running": "etcd-only", "trapped": "yes", "record": "above"}, table.CURE),
    ],
)
def test_rows(found: Dict[str, str], action: str) -> None:
    assert at(**found) == action


@pytest.mark.parametrize("still", SWITCHES)
@pytest.mark.parametrize(
    ("found", "action"),
    [
        ({}, table.NOTHING),
        ({"marks": "differ"}, table.LEFT),
        ({"marks": "differ", "running": "etcd-only"}, table.LEFT),
        ({"record": "above", "running": "etcd-only"}, table.LEFT),
        ({"record": "below"}, table.LEFT),
        ({"record": "below", "marks": "differ"}, table.LEFT),
        ({"intent": "other"}, table.CLEAR),
        ({"intent": "other", "record": "below", "marks": "differ"}, table.CLEAR),
        ({"journal": "begun", "intent": "same", "running": "start"}, table.RESUME),
        ({"journal": "bare", "intent": "same", "running": "start"}, table.UNDO),
        ({"journal": "begun", "intent": "none", "running": "target"}, table.CLOSE),
        ({"journal": "begun", "intent": "none", "running": "target", "marks": "differ"}, table.ADOPT),
        ({"journal": "recovered", "running": "target", "marks": "differ"}, table.RECOVER),
        ({"running": "etcd-only", "trapped": "yes"}, table.CURE),
        ({"running": "etcd-only", "trapped": "yes", "marks": "differ"}, table.REPAIR),
        ({"running": "etcd-only", "trapped": "yes", "record": "above"}, table.CURE),
        ({"running": "etcd-only", "trapped": "uncured"}, table.UNCURED),
    ],
)
def test_under_a_switch_only_what_ends_a_step_or_keeps_the_vote(
    still: str, found: Dict[str, str], action: str
) -> None:
    assert at(still=still, **found) == action


def test_every_row_is_some_situations() -> None:
    used: Set[str] = {choose(situation).words for situation in every()}
    assert used == {row.words for row in ROWS}


def test_under_a_switch_no_situation_is_repaired_but_to_be_freed_from_the_trap() -> None:
    for found in every():
        if found.still != "no":
            action = choose(found).action
            assert action != table.RETURN
            assert action != table.REPAIR or found.trapped == "yes"


def test_an_open_step_is_ended_under_a_switch_as_without_one() -> None:
    for found in every():
        if found.journal != "none":
            assert choose(found) == choose(found._replace(still="no"))


def test_no_situation_with_a_changed_identity_or_an_unknown_level_is_acted_on() -> None:
    for found in every():
        if found.identity == "changed":
            assert choose(found).action == table.ALARM
        elif found.running == "unknown":
            assert choose(found).action == table.WAIT


def test_a_level_that_was_raised_is_never_brought_back_while_a_step_is_open() -> None:
    for found in every():
        if choose(found).action == table.RETURN:
            assert (found.journal, found.record, found.still) == ("none", "below", "no")
