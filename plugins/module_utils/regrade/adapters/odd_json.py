# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""JSON of others: what is missing, null or of another type than expected reads as empty, never as a traceback.

Knows no document. Where an empty part would be dangerous, whoever reads it says so.
"""

from __future__ import annotations

import json
from typing import Any


def parsed(text: str | bytes) -> Any:
    """Raises ValueError for what is no JSON, or is nested too deep to be a document of anybody's."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def mapping(found: Any, *keys: str) -> dict[str, Any]:
    """`found`, or what lies below these keys in it."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def mappings(found: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def text(found: Any) -> str:
    return found if isinstance(found, str) else ""


def texts(found: Any) -> tuple[str, ...]:
    """The strings of a list."""
    return tuple(entry for entry in found if isinstance(entry, str)) if isinstance(found, list) else ()


def string_pairs(found: Any) -> dict[str, str]:
    """The pairs of an object whose values are strings."""
    return {key: value for key, value in mapping(found).items() if isinstance(value, str)}


def number(found: Any) -> int | None:
    return found if isinstance(found, int) and not isinstance(found, bool) else None
