# SPDX-License-Identifier: GPL-3.0-or-later
"""Scenarios on several beds at once: a scenario mostly waits, so that while one bed waits another can work.

Each lane is a bed of its own, whose servers its scenarios share, one after the other. What a scenario is, and how it is
run, is make.py's. Standard library only.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import ipaddress
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Optional

import parts
from layout import Settings
from report import Outcome

COUNT = 2
"""As many as a machine with two cores carries: a scenario takes most of one, and a third would make each slower by more
than it saves."""


def beds(first: Settings, count: int = COUNT) -> list[Settings]:
    """The beds of so many lanes: the one that was asked for, and others beside it, each on the next subnet."""
    network = ipaddress.IPv4Network(first.subnet)
    found = [first]
    for number in range(1, count):
        start = network.network_address + number * network.num_addresses
        found.append(
            dataclasses.replace(
                first, name=f"{first.name[:38]}-{number + 1}", subnet=f"{start}/{network.prefixlen}"
            )
        )
    return found


def environment(settings: Settings) -> dict[str, str]:
    """What tells a program to use that bed."""
    return {"REGRADE_BED_NAME": settings.name, "REGRADE_BED_SUBNET": settings.subnet}


def longest_first(names: Iterable[str], last_time: Callable[[str], Optional[float]]) -> list[str]:
    """So that the lanes end together. What never ran here may be long."""

    def seconds(name: str) -> float:
        known = last_time(name)
        return float("inf") if known is None else known

    return sorted(names, key=lambda name: (-seconds(name), name))


def run(
    names: Sequence[str],
    on: Sequence[Settings],
    scenario: Callable[[str, Settings], Outcome],
    add: Callable[[Outcome], None],
    renew: Callable[[Settings], Optional[Outcome]],
) -> None:
    """Every scenario on whichever bed is free; one that failed keeps no other from being tried.

    `renew` takes down a bed that a failed scenario left, so that the next finds servers that are well; it gives the
    outcome where that went wrong.
    """
    waiting = list(names)
    lock = threading.Lock()

    def lane(settings: Settings) -> None:
        while True:
            with lock:
                if not waiting:
                    return
                name = waiting.pop(0)
            outcome = scenario(name, settings)
            trouble = renew(settings) if outcome.failed else None
            with lock:
                add(outcome)
                if trouble is not None:
                    add(trouble)

    with concurrent.futures.ThreadPoolExecutor(max_workers=len(on)) as pool:
        try:
            for ended in concurrent.futures.as_completed([pool.submit(lane, settings) for settings in on]):
                ended.result()
        except BaseException:
            with lock:
                waiting.clear()
            parts.end_commands()  # else the lanes would be waited for
            raise
