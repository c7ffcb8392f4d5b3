# SPDX-License-Identifier: GPL-3.0-or-later
"""What others may hand us: any JSON, and documents of a known shape with parts missing, null or odd."""

from __future__ import annotations

from typing import Any, Dict

from hypothesis import strategies as st

# What no shape expects: each of JSON's types, numbers that no integer holds, texts that are none of ours.
ODD = st.sampled_from(
    [None, True, False, 0, -1, 2**70, 1.5, float("inf"), "", "x", "²", "9" * 5000, [], [None], {}, {"x": 1}]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def holed(whole: Any) -> st.SearchStrategy[Any]:
    """`whole`, a JSON document, with any of its parts left out, null or odd."""
    return st.integers(0, 3).flatmap(lambda holes: st.just(whole) if not holes else _holed(whole))


def _holed(whole: Any) -> st.SearchStrategy[Any]:
    if isinstance(whole, dict):
        strategies: Dict[str, st.SearchStrategy[Any]] = {key: _part(value) for key, value in whole.items()}
        return st.fixed_dictionaries({}, optional=strategies)
    if isinstance(whole, list):
        return (
            st.lists(st.sampled_from(whole).flatmap(_part), max_size=len(whole) + 1)
            if whole
            else st.just(whole)
        )
    return st.just(whole)


def _part(value: Any) -> st.SearchStrategy[Any]:
    return st.one_of(_holed(value), st.just(value), ODD)


def one_line(error: BaseException) -> str:
    """The text of an error for a person: one line, and not an empty one."""
    text = str(error)
    assert len(text.splitlines()) == 1, repr(text)
    assert text.strip()
    return text
