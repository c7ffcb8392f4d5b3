# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of cures: each reason the code can give has one, and each cure is of a reason that is given."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Set

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import (
    cures,
    gate,
    marks,
    settings,
)

CORE = Path(cures.__file__).parent
REFUSALS = {"StepRefused": 1}  # error: the place of its reason among the arguments


def given() -> Set[str]:
    """Every reason written down in the code: of refusals, and of the classes of errors."""
    found: Set[str] = set(gate.CHECKS) | set(marks.SWITCHES)
    for path in CORE.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REFUSALS:
                named = [word.value for word in node.keywords if word.arg == "reason"]
                found |= {
                    word.value
                    for word in (*node.args[1:2], *named)
                    if isinstance(word, ast.Constant) and isinstance(word.value, str)
                }
            if isinstance(node, ast.ClassDef):
                for line in ast.walk(node):
                    if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
                        names = [target.id for target in line.targets if isinstance(target, ast.Name)]
                        if names == ["reason"]:
                            found.add(str(line.value.value))
    return found


def test_every_reason_that_is_given_has_a_cure() -> None:
    assert len(given()) > 20
    assert given() - set(cures.CURES) == set()


def test_a_word_that_is_no_reason_is_other() -> None:
    assert cures.cure("surprise") == cures.CURES["other"]
    assert cures.cure("ready") != cures.CURES["other"]


def test_each_check_of_the_gate_gives_its_name_as_the_reason() -> None:
    for check in gate.CHECKS:
        assert gate.reason_of(f"{check}: server2: what was found") == check
    assert gate.reason_of("nothing of the gate: here") == "other"
    assert [item.check for item in gate.check(gate.Facts("a", (), ()))] == list(gate.CHECKS)


def test_a_setting_that_a_person_is_to_set_is_named_with_the_roles_variable() -> None:
    """The role writes the settings anew with each run: one that is set by its own name does not last."""
    named = [
        (reason, key, rest)
        for reason, text in cures.CURES.items()
        for key, rest in re.findall(r"\b([A-Z]+_[A-Z_]+)\b(?:=\w+)?(?=(.{0,90}))", text)
        if key != "STATE_DIR"  # the role's own
    ]
    assert len(named) >= 6
    for reason, key, rest in named:
        assert rest.startswith(f" (with the role {cures.VARIABLES[key]}"), reason


def test_nothing_else_tells_to_set_one_by_its_own_name() -> None:
    told = [
        f"{path.name}: {node.value}"
        for path in CORE.parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(rf"\bset (to )?({'|'.join(cures.VARIABLES)})\b", node.value)
    ]
    assert told == []
    assert set(cures.VARIABLES) <= set(settings.KEYS)
    assert cures.setting("STEP_UP", "automatic") == (
        "STEP_UP=automatic (with the role github_runner_cluster_regrade_step_up: automatic)"
    )
