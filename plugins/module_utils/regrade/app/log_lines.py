# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""One flat JSON object on one line, written without json: importing that costs the idle loop 1 MiB.

Light: the idle loop imports it. Nested values belong to the verbs that may import json.
"""

from __future__ import annotations

ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", **{code: f"\\u{code:04x}" for code in range(32)}}


def encoded(values: dict[str, str]) -> bytes:
    """Keys and values as one JSON object and a line break, in UTF-8."""
    inside = ", ".join(
        f'"{key.translate(ESCAPES)}": "{value.translate(ESCAPES)}"' for key, value in values.items()
    )
    # half a surrogate pair (a file name that is no UTF-8) has no bytes in UTF-8; its escape is JSON's own
    return f"{{{inside}}}\n".encode("utf-8", "backslashreplace")
