# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""`NamedTuple` for what the idle loop imports: typing.NamedTuple to a type checker, light at run time.

Importing `typing` costs the watcher 2 MiB of resident memory, so `light.NamedTuple` builds the same
`collections.namedtuple` from the class body without it. Nothing else belongs here.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False  # `typing` is not imported; type checkers take any name TYPE_CHECKING for true

if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class _Builder(type):
        def __new__(cls, name, bases, body):
            if not bases:
                return super().__new__(cls, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            built = namedtuple(
                name,
                fields,
                defaults=[body[field] for field in fields if field in body],
                module=body["__module__"],
            )
            built.__doc__ = body.get("__doc__")
            for key, value in body.items():
                if key not in fields and not key.startswith("__"):
                    setattr(built, key, value)
            return built

    class NamedTuple(metaclass=_Builder):
        """Base of a named tuple; the class body's annotations are its fields, values their defaults."""


__all__ = ("NamedTuple",)
