# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings: any text gives settings or one line, and what contradicts is refused naming both and why."""

from __future__ import annotations

import operator
from typing import Callable, Dict, List, Tuple
from urllib.parse import urlsplit

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import SettingsWrong
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import (
    KEYS,
    STEP_PEAK_BYTES,
    Settings,
    check_memory,
    load,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.properties.shapes import one_line
from hypothesis import assume, example, given
from hypothesis import strategies as st

MIB = 1 << 20
NUMBER = st.integers(0, 700).map(str) | st.sampled_from(
    ["2.5", "1e3", "nan", "inf", "-1", "9" * 5000, "²", ""]
)
VALUE = st.one_of(
    st.text(max_size=20),
    NUMBER,
    st.tuples(NUMBER, st.sampled_from(["%", "MiB", "GiB", "KiB", " MiB", "B"])).map("".join),
    st.sampled_from(["manual", "automatic", "https://a", "a\nb", "x\u2028y", "\ud800"]),
    st.tuples(st.sampled_from(["https://", "http://"]), st.text("[]:/@?#0123456789a.-% ", max_size=12)).map(
        "".join
    ),
)


@given(st.dictionaries(st.sampled_from(sorted(KEYS)), VALUE, max_size=4))
@example({"ETCD_ONLY_HTTPS_PORT": "9" * 5000})
@example({"SAMPLE_SECONDS": "5\n6"})
@example({"NODE_NAME": "pi1\u2028pi2"})
@example({"KUBE_SERVER": "https://[::1"})
@example({"KUBE_SERVER": "https://a:99999"})
@example({"KUBE_SERVER": "https://a:b"})
@example({"KUBE_SERVER": "https://a@b:6443"})
def test_any_environment_gives_settings_or_one_line(environment: Dict[str, str]) -> None:
    try:
        made = load("", {"NODE_NAME": "pi1", **environment})
    except SettingsWrong as error:
        assert any(key in one_line(error) for key in environment)
        return
    for url in made.kube_server:  # the adapters take it apart without looking again
        parts = urlsplit(url)
        assert parts.hostname and (parts.port is None or 0 < parts.port < 65536) and not parts.username
    for amount in (made.memavailable_floor, made.headroom_etcd_only, made.headroom_control_plane):
        assert amount.of(4 << 30) >= 0


@given(
    st.text()
    | st.lists(st.tuples(st.sampled_from([*sorted(KEYS), "SAMPLE", "#", ""]), VALUE).map("=".join)).map(
        "\n".join
    )
)
def test_any_file_gives_settings_or_one_line(text: str) -> None:
    try:
        load(text, {"NODE_NAME": "pi1"})
    except SettingsWrong as error:
        one_line(error)


# The table of the design, written a second time: (one setting, how it must stand, to what, times how much).
Relation = Tuple[str, Callable[[float, float], bool], str, float]
RELATIONS: List[Relation] = [
    ("PRESSURE_WINDOW_SECONDS", operator.ge, "SAMPLE_SECONDS", 3),
    ("SUSTAIN_DOWN_SECONDS", operator.ge, "SAMPLE_SECONDS", 2),
    ("SUSTAIN_UP_SECONDS", operator.ge, "SAMPLE_SECONDS", 2),
    ("SUSTAIN_UP_SECONDS", operator.ge, "SUSTAIN_DOWN_SECONDS", 1),
    ("COOLDOWN_DOWN_SECONDS", operator.gt, "PRESSURE_WINDOW_SECONDS", 1),
    ("COOLDOWN_UP_SECONDS", operator.ge, "COOLDOWN_DOWN_SECONDS", 1),
    ("PRESSURE_CEILING", operator.gt, "MEMAVAILABLE_FLOOR", 1),
]
BOUNDS = {
    "SAMPLE_SECONDS": (1, 30), "PRESSURE_WINDOW_SECONDS": (3, 120), "SUSTAIN_DOWN_SECONDS": (2, 90),
    "SUSTAIN_UP_SECONDS": (2, 200), "COOLDOWN_DOWN_SECONDS": (3, 200), "COOLDOWN_UP_SECONDS": (3, 400),
    "PRESSURE_CEILING": (1, 100), "MEMAVAILABLE_FLOOR": (1, 100),
}  # fmt: skip
CHOSEN = st.fixed_dictionaries({key: st.integers(*bounds) for key, bounds in BOUNDS.items()})


def text_of(key: str, number: int) -> str:
    return f"{number}%" if key in ("PRESSURE_CEILING", "MEMAVAILABLE_FLOOR") else str(number)


def loaded(chosen: Dict[str, int]) -> Settings:
    return load("", {"NODE_NAME": "pi1", **{key: text_of(key, number) for key, number in chosen.items()}})


def broken(chosen: Dict[str, int]) -> List[Relation]:
    return [rule for rule in RELATIONS if not rule[1](chosen[rule[0]], rule[3] * chosen[rule[2]])]


@given(CHOSEN)
def test_settings_that_contradict_are_refused_naming_both_and_why_and_no_others_are(
    chosen: Dict[str, int],
) -> None:
    wrong = broken(chosen)
    if not wrong:
        loaded(chosen)
        return
    with pytest.raises(SettingsWrong) as caught:
        loaded(chosen)
    told = one_line(caught.value)
    named = [rule for rule in wrong if rule[0] in told and rule[2] in told]
    assert named, f"{told!r} names none of {wrong}"
    assert any(str(chosen[rule[0]]) in told and str(rule[3] * chosen[rule[2]]) in told for rule in named)
    assert len(told.rpartition(": ")[2]) > 20, "why"


GOOD = {
    "SAMPLE_SECONDS": 5, "PRESSURE_WINDOW_SECONDS": 60, "SUSTAIN_DOWN_SECONDS": 60, "SUSTAIN_UP_SECONDS": 90,
    "COOLDOWN_DOWN_SECONDS": 120, "COOLDOWN_UP_SECONDS": 200, "PRESSURE_CEILING": 50, "MEMAVAILABLE_FLOOR": 8,
}  # fmt: skip


IMPLIED = ("SUSTAIN_UP_SECONDS", "SAMPLE_SECONDS")  # by SUSTAIN_DOWN_SECONDS between them


@pytest.mark.parametrize(
    "rule", [rule for rule in RELATIONS if rule[::2] != IMPLIED], ids=lambda rule: f"{rule[0]}-{rule[2]}"
)
@given(data=st.data())
def test_each_relation_is_refused_alone_and_kept_at_its_edge(rule: Relation, data: st.DataObject) -> None:
    """One setting is moved to just where the relation holds, then one further."""
    key, compare, other, times = rule
    chosen = {**GOOD, other: data.draw(st.integers(*BOUNDS[other]))}
    edge = int(times * chosen[other]) + (1 if compare is operator.gt else 0)
    low, high = BOUNDS[key]
    assume(low < edge <= high)
    kept, further = {**chosen, key: edge}, {**chosen, key: edge - 1}
    assume(not broken(kept) and broken(further) == [rule])
    loaded(kept)
    with pytest.raises(SettingsWrong) as caught:
        loaded(further)
    assert key in one_line(caught.value) and other in str(caught.value)


@given(
    total=st.integers(256, 65536),
    floor=st.integers(1, 99).map(lambda share: f"{share}%")
    | st.integers(1, 4000).map(lambda size: f"{size}MiB"),
    headroom=st.integers(1, 100).map(lambda share: f"{share}%")
    | st.integers(1, 4000).map(lambda size: f"{size}MiB"),
    key=st.sampled_from(["HEADROOM_ETCD_ONLY", "HEADROOM_CONTROL_PLANE"]),
)
def test_memory_that_can_never_be_calm_is_refused_on_this_host(
    total: int, floor: str, headroom: str, key: str
) -> None:
    others = {"HEADROOM_ETCD_ONLY": "1MiB", "HEADROOM_CONTROL_PLANE": "1MiB", key: headroom}
    made = load("", {"NODE_NAME": "pi1", "PRESSURE_CEILING": "100%", "MEMAVAILABLE_FLOOR": floor, **others})
    size = total * MIB
    least = made.memavailable_floor.of(size)
    asked = least + made.headroom(key[9:].lower().replace("_", "-")).of(size)  # type: ignore[union-attr]
    fits = STEP_PEAK_BYTES < least < size and asked <= 0.6 * size and least + MIB <= 0.6 * size
    try:
        check_memory(made, size)
    except SettingsWrong as error:
        assert not fits
        assert "MEMAVAILABLE_FLOOR" in one_line(error) and f"{total}MiB" in str(error)
    else:
        assert fits
