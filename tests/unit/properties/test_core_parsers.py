# SPDX-License-Identifier: GPL-3.0-or-later
"""What the core reads from outside: no text or document makes it fail, and what it takes is what was meant."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Optional

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import (
    lease as leases,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import (
    marks,
    pairs,
    policy,
    watch,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import RegradeError
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import (
    LEVELS,
    direction,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease, Node
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import (
    parse_meminfo,
    parse_pressure,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import load
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.step import Open, Plan
from ansible_collections.exadev.k3s_regrade.tests.unit.properties.shapes import JSON, holed, one_line
from hypothesis import example, given
from hypothesis import strategies as st

PLAN = Plan("pi1", "pi1/0a", load("", {"NODE_NAME": "pi1"}))
NUMBERS = st.integers(0, 2**64 - 1)
SHARES = st.floats(0, 100).map(lambda share: f"{share:.2f}")
WORDS = st.text(max_size=40)


# --- PSI and meminfo ---


@given(
    NUMBERS,
    NUMBERS,
    SHARES,
    st.booleans(),
    st.lists(st.sampled_from(["", "other avg10=1 total=3", "\x00"]), max_size=3),
)
def test_pressure_is_the_total_of_some_wherever_its_line_stands(
    some: int, full: int, share: str, swapped: bool, others: List[str]
) -> None:
    lines = [
        f"{kind} avg10={share} avg60={share} avg300=0.00 total={total}"
        for kind, total in (("some", some), ("full", full))
    ]
    if swapped:
        lines.reverse()
    assert parse_pressure("\n".join([*others, *lines]) + "\n") == some


@given(NUMBERS, st.integers(0, 120))
def test_pressure_that_breaks_off_is_unknown_or_a_shorter_number_and_never_zero(some: int, at: int) -> None:
    """A file that is cut is no zero: that would be calm."""
    text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={some}"
    found = parse_pressure(text[:at])
    assert found is None or (str(some).startswith(str(found)) and (found or some == 0))


@given(
    st.text() | st.sampled_from(["some total=", "some total=-1", "some total=1e3", "some total=٣"]), st.text()
)
@example("some total=" + "9" * 5000, "")
@example("some total=٣", "")
def test_no_pressure_text_fails_or_makes_a_negative(before: str, after: str) -> None:
    found = parse_pressure(before + after)
    assert found is None or 0 <= found < 2**64


@given(
    st.integers(1, 2**40),
    st.integers(0, 2**40),
    st.permutations(["MemTotal", "MemFree", "MemAvailable", "Buffers"]),
)
def test_memory_is_told_in_bytes_whatever_the_order(total: int, available: int, order: List[str]) -> None:
    values = {"MemTotal": total, "MemAvailable": available, "MemFree": 1, "Buffers": 2}
    found = parse_meminfo("".join(f"{key}:       {values[key]} kB\n" for key in order))
    assert found == ((available * 1024, total * 1024) if available <= total else (None, None))


@given(
    st.text() | st.sampled_from(["MemTotal: 5 kB\n", "MemAvailable: 4 kB\n"]),
    st.text() | st.sampled_from(["MemAvailable: 4 kB"]),
)
@example("MemTotal: " + "9" * 5000 + " kB\n", "MemAvailable: 4 kB")
def test_no_memory_text_fails_and_half_of_it_is_nothing(before: str, after: str) -> None:
    available, total = parse_meminfo(before + after)
    assert (available is None) == (total is None)
    if available is not None and total is not None:
        assert 0 <= available <= total < 2**80


# --- KEY=VALUE, and what the watcher remembers in it ---

KEYS = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(st.dictionaries(KEYS, st.text(), max_size=6))
@example({"a": "'x'"})
@example({"a": '"'})
@example({"a": "\u2028#\x85"})
def test_pairs_read_back_every_text_but_for_its_white_space(values: Dict[str, str]) -> None:
    assert pairs.parse(pairs.dump(values)) == {key: " ".join(value.split()) for key, value in values.items()}


@given(st.text() | st.lists(st.tuples(KEYS, st.text(max_size=5)).map("=".join), max_size=4).map("\n".join))
def test_pairs_of_any_text_are_pairs_or_one_line(text: str) -> None:
    try:
        found = pairs.parse(text)
    except ValueError as error:
        one_line(error)
    else:
        assert all(key and len(value.splitlines()) <= 1 for key, value in found.items())


NOTES = st.dictionaries(
    st.sampled_from(["boottime", "boot_id", "direction", "level", "relapses"]),
    st.sampled_from(
        [
            "",
            "1.5",
            "-3",
            "nan",
            "inf",
            "-inf",
            "1e999",
            "b1",
            "up",
            "down",
            "full",
            "etcd-only",
            "²",
            "9" * 5000,
            "3",
        ]
    )
    | WORDS,
)


@given(NOTES, NOTES, st.floats(0, 1e6))
@example({"relapses": "²"}, {}, 0.0)
@example({}, {"boottime": "inf", "boot_id": "b1", "direction": "down"}, 100.0)
@example({}, {"boottime": "nan", "boot_id": "b1", "direction": "down"}, 100.0)
def test_no_note_stops_the_watcher_or_holds_it_for_longer_than_a_cooldown(
    memory: Dict[str, str], noted: Dict[str, str], boottime: float
) -> None:
    begun = watch.begin(memory, noted, "")
    assert 0 <= begun.state.relapses <= 20
    last = begun.state.last_step
    assert last is None or math.isfinite(last.boottime)
    for move in ("up", "down"):
        length = PLAN.settings.cooldown_up_seconds if move == "up" else PLAN.settings.cooldown_down_seconds
        assert 0 <= policy.cooldown_left(last, move, boottime, "b1", PLAN.settings) <= length
    watch.on_note(watch.Watch(), noted, PLAN.settings)


# --- the Lease ---

LEASES = st.builds(
    Lease,
    holder=st.sampled_from(["", "pi1/0a", "pi1/0b", "pi1", "pi10/0a", "pi2/ff", "/", "gone-node"]),
    duration_seconds=st.none() | st.integers(-5, 10**6),
    acquire_time=WORDS,
    renew_time=WORDS,
    transitions=st.integers(0, 9),
    resource_version=st.sampled_from(["90", "91"]),
)


@given(LEASES, LEASES, st.floats(0, 1e6), st.floats(0, 1e6))
def test_another_nodes_lease_is_free_only_after_its_own_duration_unchanged(
    first: Lease, second: Lease, begin: float, passed: float
) -> None:
    seen = leases.see(second, leases.see(first, None, begin, "boot"), begin + passed, "boot")
    verdict = leases.judge(second, "pi1/0a", seen, begin + passed, 60.0)
    others = bool(second.holder) and leases.node_of(second.holder) != "pi1"
    assert (verdict.kind in (leases.HELD, leases.EXPIRED)) == others
    if verdict.kind == leases.EXPIRED:
        same = (first.holder, first.resource_version) == (second.holder, second.resource_version)
        given_seconds = second.duration_seconds
        assert same, "a record that was written meanwhile has a holder that lives"
        assert verdict.age >= (given_seconds if given_seconds and given_seconds > 0 else 60)


@given(LEASES, st.floats(0, 1e6), st.floats(0, 1e6), WORDS, WORDS)
def test_no_time_in_the_record_is_compared_with_anything(
    lease: Lease, begin: float, passed: float, acquired: str, renewed: str
) -> None:
    other = lease._replace(acquire_time=acquired, renew_time=renewed)
    one, two = (
        leases.judge(
            found,
            "pi1/0a",
            leases.see(found, leases.see(found, None, begin, "b"), begin + passed, "b"),
            begin + passed,
            60.0,
        )
        for found in (lease, other)
    )
    assert one == two


SEEN = leases.seen_document(leases.Seen("91", "pi2", 12.5, "boot"))


@given(holed(SEEN) | st.dictionaries(st.text(max_size=8), JSON), st.floats(0, 1e6))
@example({**SEEN, "boottime": float("-inf")}, 100.0)
@example({**SEEN, "boottime": -5000.0}, 100.0)
@example({**SEEN, "boottime": float("nan")}, 100.0)
def test_an_observation_on_disk_is_whole_or_none(document: Any, now: float) -> None:
    seen = leases.seen_from(document)
    if seen is not None:
        assert 0 <= seen.boottime < math.inf
        assert leases.seen_from(leases.seen_document(seen)) == seen


# --- marks ---

INTENT = json.loads(
    marks.intent_text(marks.Intent("1f", "full", "control-plane", "pi1/0a", "cordon,taint,label"))
)


def node(**annotations: str) -> Node:
    """A Node with these annotations of ours; keywords spell dashes as underscores."""
    ours = {marks.PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    return Node("pi1", "u", "1", "", (), {}, ours, (), False, (), True, "", True)


@given(
    st.sampled_from(LEVELS),
    st.sampled_from(LEVELS),
    st.from_regex(r"[0-9a-f]{1,16}", fullmatch=True),
    WORDS,
    WORDS,
)
def test_an_intent_reads_back_as_it_was_written(
    start: str, target: str, name: str, holder: str, changes: str
) -> None:
    intent = marks.Intent(name, start, target, holder, changes)
    assert marks.intent_of(node(regrade_step=marks.intent_text(intent))) == intent


@given(WORDS | (JSON | holed(INTENT)).map(json.dumps))
@example('{"id":"1","from":"full","to":"full","holder":"x","protocol":1e999}')
@example('{"id":"1","from":"full","to":"full","holder":"x","protocol":' + "9" * 5000 + "}")
@example("[" * 100_000)
def test_any_annotation_in_the_intents_place_is_an_open_step(text: str) -> None:
    """One that cannot be read may be a newer version's: it must never be taken for none."""
    found = marks.intent_of(node(regrade_step=text))
    assert (found is None) == (text == "")


@given(st.sampled_from(["", "false", "No", " 0 ", "FALSE"]) | WORDS)
def test_a_persons_switch_is_on_unless_it_says_no(text: str) -> None:
    found = marks.switch(node(regrade_hold=text), marks.HOLD)
    assert found == (text.strip().lower() not in ("", "no", "false", "0"))


# --- the journal ---

JOURNAL = {
    **Open(PLAN, "full", "control-plane").document(),
    "id": "1f", "uid": "u", "member": "1000", "members": ["1000", "2000"], "phase": "effects",
    "facts": {"restart": "asked"},
}  # fmt: skip


@given(holed(JOURNAL) | st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_any_journal_is_an_open_step_or_one_line(document: Dict[str, object]) -> None:
    try:
        opened = Open.from_document(PLAN, document)
    except RegradeError as error:
        assert "remove it by hand" in one_line(error)
        return
    assert direction(opened.start, opened.target) in ("up", "down", "stay")
    assert Open.from_document(PLAN, opened.document()).document() == opened.document()


def test_the_journal_above_is_one() -> None:
    opened: Optional[Open] = Open.from_document(PLAN, JOURNAL)
    assert opened is not None and opened.document()["members"] == ["1000", "2000"]
