# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/field-cases.md names the tests of each case, and every test named after a case is in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Set

ROOT = Path(__file__).resolve().parents[3]
TABLE = (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8")
ROWS = {
    "A": (1, 2, 3, 5, 7, 9, 10),
    "B": (11, 12, 14, 15, 16, 17, 20),
    "C": (21, 23, 24, 25, 26),
    "D": (28, 29, 30, 32, 33, 34, 35),
    "E": (37, 38, 39, 40, 43, 44, 45, 47, 48, 50, 51, 52),
    "F": (54, 56, 57),
    "G": (59, 60, 61),
    "H": (64, 66, 67, 68),
}


def names_by_file() -> Dict[str, Set[str]]:
    return {
        str(file.relative_to(ROOT)): set(
            re.findall(r"^ *def (test_\w+)", file.read_text(encoding="utf-8"), re.M)
        )
        for folder in ("tests", "extensions")
        for file in (ROOT / folder).rglob("test_*.py")
    }


def test_every_case_is_in_the_table_with_tests_that_are_there() -> None:
    tests = names_by_file()
    rows = re.findall(r"^\| ([A-Z]\d+) \| [^|]+ \| ([^|]+) \| ([^|]*)\|$", TABLE, re.M)
    assert [row for row, _shown, _else in rows] == [
        f"{part}{number}" for part, numbers in ROWS.items() for number in numbers
    ]
    for row, shown, other in rows:
        section = [name for name in tests if re.search(rf"field_cases/test_{row[0].lower()}_\w+\.py$", name)]
        assert re.search(rf"`test_{row.lower()}_\w+`", shown), f"{row} has no test of its own"
        assert not other.strip() or "not yet" in other, row
        for clause in shown.split("; "):
            named = re.findall(r"`([\w/]*test_\w+\.py)`", clause)
            files = [file for file in tests if any(file.endswith(f"/{name}") for name in named)] or section
            for name in re.findall(r"`(test_\w+)`", clause):
                assert any(name in tests[file] for file in files), f"{row}: {name} is not in {files}"


def test_every_test_named_after_a_case_is_in_the_table() -> None:
    for file, names in names_by_file().items():
        for name in names:
            if file.startswith("tests/unit/field_cases/") and re.match(r"test_[a-h]\d", name):
                assert f"`{name}`" in TABLE, f"{file}: {name}"
