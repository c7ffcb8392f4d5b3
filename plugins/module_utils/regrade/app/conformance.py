# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Tries an executable against the contract of docs/actuators.md, one check after the other.

`look` changes nothing. `flip` applies every level and goes back, asking no other server: a person decides on that.
Nothing is printed here.
"""

from __future__ import annotations

import time
from typing import Iterator, List, NamedTuple, Tuple

from ..adapters.command import DONE, USAGE, Answer, Executable, held_against, one_level
from ..adapters.local_k3s import LocalK3s
from ..core.errors import LevelUnknown
from ..core.levels import ETCD_ONLY, FULL, LEVELS, above, below, restarts

NO_VERB, NO_LEVEL = "no-such-verb", "no-such-level"
POLL_SECONDS = 1.0


class Check(NamedTuple):
    check: str
    ok: bool
    detail: str


def look(executable: Executable, k3s: LocalK3s) -> Iterator[Check]:
    """What can be tried without a change."""
    begun = k3s.started()
    answer = executable.look("levels")
    good = answer.status == DONE and tuple(answer.output.splitlines()) == LEVELS
    said = " ".join(answer.output.split())[:100] or "nothing"
    yield Check("levels", good, _told(answer, said if good else f"{said}, expected {' '.join(LEVELS)}, one a line"))
    first = executable.look("current_level")
    yield _names_a_level("current_level", first)
    try:
        level = one_level(first)
        yield Check("current_level is what k3s shows", True, f"{held_against(k3s, level)}, and {k3s.level()[1]}")
    except LevelUnknown as error:
        yield Check("current_level is what k3s shows", False, str(error))
    second = executable.look("current_level")
    good = (second.status, second.output) == (first.status, first.output)
    said = f"{second.output.strip()[:60]!r}, and before it {first.output.strip()[:60]!r}"
    yield Check("current_level says it again", good, _told(second, "" if good else said))
    yield _refused("an unknown verb", executable.look(NO_VERB))
    yield _not_restarted(begun, k3s)


def flip(executable: Executable, k3s: LocalK3s, patience: float) -> Iterator[Check]:
    """Every level and back to the one it began at; `patience` seconds for each to be in effect. Ends at the first
    level that is not reached, after asking for the one it began at."""
    begun = k3s.started()
    try:
        start = held_against(k3s, one_level(executable.look("current_level")))
        member = _member(k3s)
    except LevelUnknown as error:
        yield Check("a level to begin at", False, f"{error}; nothing was applied")
        return
    yield _refused("apply_level without a level", executable.call(("apply_level",), executable.apply_seconds))
    yield _refused("apply_level with an unknown level", executable.apply(NO_LEVEL))
    answer = executable.apply(start)
    why = _lacking(executable, k3s, start, member)
    yield Check(f"apply_level {start}, which runs already", answer.status == DONE and not why, _told(answer, why))
    yield _not_restarted(begun, k3s)
    was = start
    for name in way(start):
        check = _flipped(executable, k3s, was, name, member, patience)
        yield check
        if not check.ok:
            back = executable.apply(start)
            why = _await(executable, k3s, start, member, patience)
            yield Check(f"back at {start}", back.status == DONE and not why, _told(back, why))
            return
        was = name


def way(start: str) -> Tuple[str, ...]:
    """Down to the lowest level, up to the highest, and back to `start`, a level at a time."""
    levels: List[str] = []
    at = start
    for goal, move in ((ETCD_ONLY, below), (FULL, above), (start, below)):
        while at != goal:
            at = move(at)
            levels.append(at)
    return tuple(levels)


def _flipped(
    executable: Executable, k3s: LocalK3s, was: str, name: str, member: str, patience: float
) -> Check:
    before = k3s.started()
    answer = executable.apply(name)
    title = f"apply_level {name} from {was}"
    if answer.status != DONE:
        return Check(title, False, _told(answer))
    began = time.monotonic()
    why = _await(executable, k3s, name, member, patience)
    after = k3s.started()
    if not why and before and after:
        restarted = before != after
        if restarted != restarts(was, name):
            why = "k3s was restarted, and must not be" if restarted else "k3s was not restarted, and has to be"
    if not why and name == ETCD_ONLY:
        try:
            why = "k3s is locked behind its own address: move its https-listen-port" if k3s.trapped() else ""
        except LevelUnknown as error:
            why = str(error)
    return Check(title, not why, _told(answer, why or f"in effect {time.monotonic() - began:.1f} s after it returned"))


def _await(executable: Executable, k3s: LocalK3s, name: str, member: str, patience: float) -> str:
    """Why the level is not in effect after `patience` seconds, "" as soon as it is."""
    end = time.monotonic() + patience
    while True:
        why = _lacking(executable, k3s, name, member)
        if not why or time.monotonic() >= end:
            return why
        time.sleep(POLL_SECONDS)


def _lacking(executable: Executable, k3s: LocalK3s, name: str, member: str) -> str:
    try:
        level = held_against(k3s, one_level(executable.look("current_level")))
        if level != name:
            return f"k3s runs at {level}"
        if not k3s.healthy():
            return "etcd is not healthy"
        now = _member(k3s)
        return "" if now == member else f"the etcd member is {now}, was {member}"
    except LevelUnknown as error:
        return str(error)


def _member(k3s: LocalK3s) -> str:
    found = k3s.own_member()
    if found is None:
        raise LevelUnknown("etcd lists no member of this host's addresses, nor one named after NODE_NAME")
    return found.id


def _names_a_level(title: str, answer: Answer) -> Check:
    try:
        return Check(title, True, _told(answer, one_level(answer)))
    except LevelUnknown as error:
        return Check(title, False, str(error))


def _refused(title: str, answer: Answer) -> Check:
    good = answer.status == USAGE and bool(answer.why)
    return Check(title, good, _told(answer, "" if good else f"expected exit status {USAGE} and a line on stderr"))


def _not_restarted(before: str, k3s: LocalK3s) -> Check:
    now = k3s.started()
    if not before or not now:
        return Check("k3s was not restarted", False, "etcd's metrics (2381) do not tell when its process was started")
    return Check(
        "k3s was not restarted", now == before, "" if now == before else "its process was started anew meanwhile"
    )


def _told(answer: Answer, *more: str) -> str:
    words = [answer.words] if answer.status != DONE else [f"in {answer.seconds:.1f} s"]
    return "; ".join((*words, *(text for text in more if text)))
