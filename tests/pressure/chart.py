# SPDX-License-Identifier: GPL-3.0-or-later
"""Draws the curves of all loads as one plain SVG: stall and memory available over time. Pure: figures in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple, Optional

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 960, 60, 250, 60, 200, 46
# Told apart also by the colour-blind; those that must not step are dashed.
COLOURS = (
    "#999999", "#56b4e9", "#009e73", "#0072b2", "#a6761d", "#d55e00", "#e69f00", "#cc79a7", "#882255", "#000000",
    "#117733",
)  # fmt: skip


class Curve(NamedTuple):
    """Points are (seconds since the load began, %)."""

    title: str
    some: Sequence[tuple[float, float]]
    available: Sequence[tuple[float, float]]
    decided: Optional[float]
    must_step: bool


def draw(curves: Sequence[Curve], source: str, threshold: float, floor: float) -> str:
    """`threshold` and `floor` in %, as lines."""
    last = max((at for curve in curves for at, _ in (*curve.some, *curve.available)), default=1.0)
    first = min((at for curve in curves for at, _ in (*curve.some, *curve.available)), default=0.0)

    def x(at: float) -> float:
        return LEFT + (at - first) / max(last - first, 1.0) * (WIDTH - LEFT - RIGHT)

    body = [_text(LEFT, 24, "What a host short of memory shows, and one that is not", size=17)]
    body.append(_text(LEFT, 42, source, colour="#444"))
    for panel, (name, line, words) in enumerate(
        (
            ("stall over the last 60 s, %", threshold, "threshold"),
            ("memory available, % of all", floor, "floor"),
        )
    ):
        top = TOP + panel * (PANEL + GAP)

        def y(share: float, top: float = top) -> float:
            return top + PANEL - share / 100 * PANEL

        body.append(_text(LEFT, top - 4, name))
        body.append(
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL}" fill="none" stroke="#ccc"/>'
        )
        for share in (0.0, 50.0, 100.0):
            body.append(_text(LEFT - 6, y(share) + 4, f"{share:.0f}", anchor="end"))
        body.append(f'<path d="M{LEFT} {y(line):.1f}H{WIDTH - RIGHT}" stroke="#c00" stroke-dasharray="2 3"/>')
        body.append(_text(WIDTH - RIGHT - 4, y(line) - 3, words, anchor="end", colour="#c00"))
        for curve, colour in zip(curves, COLOURS):
            points = curve.available if panel else curve.some
            if not points:
                continue
            path = "M" + "L".join(f"{x(at):.0f} {y(share):.1f}" for at, share in points)
            dash = "" if curve.must_step else ' stroke-dasharray="6 3"'
            body.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.7"{dash}/>')
            if curve.decided is not None:
                share = min(points, key=lambda point: abs(point[0] - (curve.decided or 0.0)))[1]
                body.append(f'<circle cx="{x(curve.decided):.0f}" cy="{y(share):.1f}" r="4.5" fill="{colour}"/>')
    bottom = TOP + 2 * PANEL + GAP
    for seconds in range(0, int(last) + 1, 60):
        body.append(_text(x(seconds), bottom + 16, f"{seconds} s", anchor="middle"))
    for at, (curve, colour) in enumerate(zip(curves, COLOURS)):
        height = TOP + 10 + at * 20
        dash = "" if curve.must_step else ' stroke-dasharray="6 3"'
        body.append(f'<path d="M{WIDTH - RIGHT + 14} {height}h20" stroke="{colour}" stroke-width="3"{dash}/>')
        body.append(_text(WIDTH - RIGHT + 40, height + 4, curve.title))
    words = "A dot is where the watcher decided to step. Dashed: it must not."
    body.append(_text(LEFT, bottom + 36, words, colour="#444"))
    high = bottom + 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{high}" viewBox="0 0 {WIDTH} {high}" '
        'font-family="sans-serif">\n<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, size: int = 11, anchor: str = "start", colour: str = "#000") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )
