# SPDX-License-Identifier: GPL-3.0-or-later
"""What a target has done so far: its parts, what passed and failed, the summary line and summary.json."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from parts import span


@dataclass
class Outcome:
    """One part: how many tests (or checks, each counting as one) passed and failed, and why in a line each."""

    name: str
    passed: int
    failed: int
    seconds: float
    problems: list[str] = field(default_factory=list)


@dataclass
class Report:
    """The outcomes of a target, in the order they came."""

    target: str
    began: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    @property
    def ok(self) -> bool:
        return bool(self.outcomes) and not any(outcome.failed for outcome in self.outcomes)

    @property
    def passed(self) -> int:
        return sum(outcome.passed for outcome in self.outcomes)

    @property
    def failed(self) -> int:
        return sum(outcome.failed for outcome in self.outcomes)

    @property
    def problems(self) -> list[str]:
        return [problem for outcome in self.outcomes for problem in outcome.problems]

    def summary(self) -> dict[str, Any]:
        # What a part measured adds to what is counted here, and never replaces it.
        return {
            **self.figures,
            "ok": self.ok,
            "seconds": round(time.monotonic() - self.began, 1),
            "passed": self.passed,
            "failed": self.failed,
            "parts": {
                outcome.name: {
                    "passed": outcome.passed,
                    "failed": outcome.failed,
                    "seconds": round(outcome.seconds, 1),
                }
                for outcome in self.outcomes
            },
            "problems": self.problems,
        }

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(self.summary(), indent=2) + "\n", encoding="utf-8")

    def line(self) -> str:
        took = span(time.monotonic() - self.began)
        if self.ok:
            return f"{self.target}: ok in {took}"
        first = self.problems[0] if self.problems else "nothing was run"
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        return f"{self.target}: FAILED after {took}: {first}{more}"


def counts(junit: Path) -> tuple[int, int, list[str]]:
    """Passed, failed and the problems, from pytest's JUnit report.

    A skipped test counts as failed: it tested nothing.
    """
    passed = failed = 0
    problems = []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        bad = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), None)
        if bad is None:
            passed += 1
        else:
            failed += 1
            problems.append(f"{case.get('classname')}::{case.get('name')} {bad}")
    return passed, failed, problems
