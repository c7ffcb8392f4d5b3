# SPDX-License-Identifier: GPL-3.0-or-later
"""Draws the samples of a cycle as one plain SVG: levels, pressure, write latency. Pure: samples in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT, TOP = 960, 130, 30, 84
LANE, GAP, PANEL = 56, 36, 110
LEVELS = ("full", "control-plane", "etcd-only")
COLOURS = ("#0072b2", "#d55e00", "#009e73")  # told apart also by the colour-blind
LATENCY = "#555555"


def draw(samples: Sequence[dict[str, Any]], source: str) -> str:
    """The plot. `source` is the sentence that says where the pressure came from."""
    servers = sorted({sample["server"] for sample in samples})
    first = min(sample["time"] for sample in samples)
    span = max(max(sample["time"] for sample in samples) - first, 1.0)

    def x(at: float) -> float:
        return float(LEFT + (at - first) / span * (WIDTH - LEFT - RIGHT))

    body = [
        _text(LEFT, 26, "One server down to etcd-only and back to full, its etcd vote kept", size=17),
        _text(LEFT, 46, source, size=12, colour="#444"),
    ]
    top = TOP
    for server, colour in zip(servers, COLOURS):
        body += _lane(top, server, [s for s in samples if s["server"] == server], colour, x)
        top += LANE + GAP
    highest = max([25.0] + [s["pressure"] for s in samples if s["pressure"] is not None])
    body += _frame(top, "pressure", f"{highest:.0f} % of time stalled", "0 %")
    for server, colour in zip(servers, COLOURS):
        points = [(x(s["time"]), s["pressure"]) for s in samples if s["server"] == server]
        body += _lines(top, points, highest, colour)
    top += PANEL + GAP
    slowest = max([0.1] + [s["write_latency"] for s in samples if s["write_latency"] is not None])
    body += _frame(top, "slowest write", f"{slowest:.2f} s", "0 s")
    body += _lines(
        top,
        [(x(s["time"]), s["write_latency"]) for s in samples if s["server"] == servers[0]],
        slowest,
        LATENCY,
    )
    top += PANEL + 8
    step = next(step for step in (10, 20, 30, 60, 120, 300, 600) if span / step <= 12)
    for seconds in range(0, int(span) + 1, step):
        at = x(first + seconds)
        body.append(f'<path d="M{at:.1f} {TOP}V{top - 8}" stroke="#ddd" stroke-dasharray="2 3"/>')
        body.append(_text(at, top + 8, f"{seconds} s", anchor="middle", colour="#444"))
    top += 34
    place = float(LEFT)
    for name, colour in [*zip(servers, COLOURS), ("writes through the other two servers", LATENCY)]:
        body.append(f'<path d="M{place:.0f} {top}h24" stroke="{colour}" stroke-width="3"/>')
        body.append(_text(place + 30, top + 4, name))
        place += 120
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 20}" viewBox="0 0 {WIDTH} {top + 20}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "start", colour: str = "#000") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _lane(top: int, server: str, samples: list[dict[str, Any]], colour: str, x: Any) -> list[str]:
    """One server's level over time; between two levels there is no line."""
    height = {level: top + place * LANE / (len(LEVELS) - 1) for place, level in enumerate(LEVELS)}
    body = [_text(8, top - 9, server, size=13, colour=colour)]
    for level, y in height.items():
        body.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#eee"/>')
        body.append(_text(LEFT - 8, int(y) + 4, level, anchor="end", size=11))
    runs: list[list[tuple[float, float]]] = [[]]
    for sample in samples:
        if sample["level"] is None:
            runs.append([])
        else:
            runs[-1].append((x(sample["time"]), height[sample["level"]]))
    for run in runs:
        if run:
            path = f"M{run[0][0]:.1f} {run[0][1]:.1f}" + "".join(f"H{at:.1f}V{y:.1f}" for at, y in run)
            # A run of one sample is a dot: its line has no length of its own.
            body.append(
                f'<path d="{path}h0.1" fill="none" stroke="{colour}" stroke-width="3" stroke-linecap="round"/>'
            )
    return body


def _frame(top: int, name: str, high: str, low: str) -> list[str]:
    return [
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL}" fill="none" stroke="#ccc"/>',
        _text(8, top - 9, name, size=13),
        _text(LEFT - 8, top + 10, high, anchor="end", size=11),
        _text(LEFT - 8, top + PANEL, low, anchor="end", size=11),
    ]


def _lines(top: int, points: list[tuple[float, float | None]], highest: float, colour: str) -> list[str]:
    """One line, broken where nothing was read."""
    path, pen_up = "", True
    for at, value in points:
        if value is None:
            pen_up = True
            continue
        path += f"{'M' if pen_up else 'L'}{at:.1f} {top + PANEL - value / highest * PANEL:.1f}"
        pen_up = False
    return [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'] if path else []
