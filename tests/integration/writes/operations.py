# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations of the clients, as lines of a history file and back. No judgement belongs here.

A file has one JSON document a line: `begin` (both clocks, so that a moment can be found in other logs), for each append
a line before it is sent, a line `answer` for it and a line `read` for each read, `died` for a client that ended on an
error of its own, and `end` when all have ended. An append without an answer is one whose answer is not known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Optional

APPEND, READ = "append", "read"

ACKNOWLEDGED = "acknowledged"
CONFLICT = "conflict"  # refused by the compare-and-swap alone: another client was first
REFUSED = "refused"  # it was never sent, or a definite no came back: it did not take effect
UNKNOWN = "unknown"  # it may have taken effect, or may yet

NEVER = float("inf")

FINAL = "final"
"""How the names of the clients begin that read every key when the others have ended."""

Line = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """One append or read of a key, whose value is a list; ``id`` is what an append appends, and is used once.

    ``values`` is the whole list as it was answered, after an append with what it appended; () where no list was
    answered. Times are seconds of CLOCK_MONOTONIC, the same for every process of the machine.
    """

    kind: str
    id: str
    key: str
    client: str
    server: str
    invoked: float
    completed: float = NEVER
    answer: str = UNKNOWN
    values: tuple[str, ...] = ()
    why: str = ""

    @property
    def acknowledged(self) -> bool:
        return self.answer == ACKNOWLEDGED

    @property
    def final(self) -> bool:
        return self.client.startswith(FINAL)

    def begun(self) -> Line:
        """The line before it is sent."""
        return {
            "line": self.kind,
            "id": self.id,
            "key": self.key,
            "client": self.client,
            "server": self.server,
            "invoked": round(self.invoked, 6),
        }

    def answered(self) -> Line:
        """The line once its answer is there; of a read it is the only one."""
        line = {"line": "answer", "id": self.id, "completed": round(self.completed, 6), "answer": self.answer}
        if self.kind == READ:
            line = {**line, **self.begun(), "line": READ}
        if self.acknowledged:
            line["values"] = " ".join(self.values)
        if self.why:
            line["why"] = self.why
        return line


@dataclass(frozen=True)
class History:
    """What the clients did between two moments of CLOCK_MONOTONIC; ``wall`` is the wall clock's at the first."""

    operations: tuple[Operation, ...]
    began: float
    ended: float
    wall: float = 0.0
    bounded: bool = False
    """Whether the clients ended because they had made as many operations as they were given."""
    died: tuple[str, ...] = ()
    """Clients that ended on an error of their own, each with the error."""


def read_lines(lines: Iterable[str]) -> History:
    """The history of a file's lines. A last line that was cut off is left out; any other that is none is an error."""
    made: dict[str, Operation] = {}
    began = wall = None  # type: Optional[float]
    ended: Optional[float] = None
    bounded = False
    died: list[str] = []
    last = 0.0
    # The same lists are read again and again: each is kept once.
    lists: dict[str, tuple[str, ...]] = {"": ()}

    def values(text: str) -> tuple[str, ...]:
        if text not in lists:
            lists[text] = tuple(text.split())
        return lists[text]

    for text in lines:
        if not text.endswith("\n"):
            break
        line = json.loads(text)
        what = line["line"]
        if what == "begin":
            began, wall = line["monotonic"], line["time"]
        elif what == "end":
            ended, bounded = line["monotonic"], line["bounded"]
        elif what == "died":
            died.append(line["why"])
        elif what == APPEND:
            made[line["id"]] = Operation(
                APPEND, line["id"], line["key"], line["client"], line["server"], line["invoked"]
            )
        else:
            answer = {
                "completed": line["completed"],
                "answer": line["answer"],
                "values": values(line.get("values", "")),
                "why": line.get("why", ""),
            }
            if what == READ:
                made[line["id"]] = Operation(
                    READ, line["id"], line["key"], line["client"], line["server"], line["invoked"], **answer
                )
            else:
                made[line["id"]] = replace(made[line["id"]], **answer)
            last = max(last, line["completed"])
    if began is None or wall is None:
        raise ValueError("the history has no line `begin`: nothing was recorded")
    return History(tuple(made.values()), began, last if ended is None else ended, wall, bounded, tuple(died))
