# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Whole numbers in the texts of others: `str.isdigit` takes "²", and `int` fails at some thousand digits.

Light: the idle loop imports it. Nothing else belongs here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

LONGEST = 20  # digits of the greatest number in 64 bits


def whole(text: str) -> Optional[int]:
    """The number that ASCII digits spell, at most 64 bits; None for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST):
        return None
    number = int(text)
    return number if number < 1 << 64 else None
