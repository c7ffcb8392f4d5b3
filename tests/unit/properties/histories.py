# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as a watcher sees them: any course of samples, and a second, naive reading of the rules for it.

The naive one keeps every sample and looks back through all of them each time. It shares no line with
`core.policy`, so where the two agree neither has forgotten a rule.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Sample
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import Settings, load
from hypothesis import strategies as st

MIB = 1 << 20
TOTAL = 4000 * MIB
SAMPLE, WINDOW, THRESHOLD, FLOOR, CEILING = 5.0, 20.0, 0.2, 320, 2000  # memory in MiB
HOLE = max(3 * SAMPLE, SAMPLE + 5)  # seconds between two samples beyond which it is one
HEADROOM = {"full": 0, "control-plane": 64, "etcd-only": 300}


def settings(**changes: str) -> Settings:
    """Short times, so that a history of some dozens of samples sees several steps."""
    given = {
        "NODE_NAME": "pi1", "STEP_UP": "automatic", "SAMPLE_SECONDS": "5", "PRESSURE_WINDOW_SECONDS": "20",
        "SUSTAIN_DOWN_SECONDS": "10", "SUSTAIN_UP_SECONDS": "20", "COOLDOWN_DOWN_SECONDS": "30",
        "COOLDOWN_UP_SECONDS": "60", "SETTLE_SECONDS": "5", **changes,
    }  # fmt: skip
    return load("", given)


SHORT = settings()


class Event(NamedTuple):
    """What happens up to a sample."""

    stall: Optional[int] = 0  # percent of the time awake since the last sample; None: PSI cannot be read
    available: Optional[int] = 3500  # MiB; None: meminfo cannot be read
    awake: int = 5  # seconds
    slept: int = 0
    boots: bool = False  # with `slept`: so long ago that its clocks and totals are ahead again
    falls: bool = False  # PSI's total goes back


def samples(events: List[Event], monotonic: float = 5000.0, boottime: float = 9000.0) -> List[Sample]:
    """The clocks begin where it is said; all numbers are whole, so that nothing is rounded."""
    found, boot, total = [], 1, 10**9
    for event in events:
        if event.boots:
            boot += 1
            if not event.slept:  # else the new boot is older by now than the last one was
                monotonic, boottime, total = 10.0, 10.0, 0
        monotonic += event.awake
        boottime += event.awake + event.slept
        total += (event.stall or 0) * event.awake * 10_000
        if event.falls:
            total //= 2
        found.append(Sample(
            monotonic, boottime, f"boot {boot}", None if event.stall is None else total,
            None if event.available is None else event.available * MIB, None if event.available is None else TOTAL,
        ))  # fmt: skip
    return found


EVENTS = st.builds(
    Event,
    stall=st.sampled_from([0, 0, 0, 10, 25, 90, None]),
    available=st.sampled_from([3500, 3500, 100, 100, 330, 390, 500, 1900, None]),
    awake=st.sampled_from([5, 5, 5, 5, 5, 1, 16, 240]),
    slept=st.sampled_from([0] * 9 + [3600]),
    boots=st.sampled_from([False] * 19 + [True]),
    falls=st.sampled_from([False] * 19 + [True]),
)
# Long spells of one condition are what makes a step; single odd samples are what must spoil it.
SPELLS = st.tuples(
    st.sampled_from([Event(), Event(available=100), Event(stall=90, available=1000)]), st.integers(1, 16)
).map(lambda spell: [spell[0]] * spell[1])
HISTORIES = st.lists(SPELLS | SPELLS | EVENTS.map(lambda event: [event]), max_size=10).map(
    lambda parts: [event for part in parts for event in part]
)


def cut(earlier: Sample, later: Sample) -> bool:
    """Sleep, a boot, what cannot be read or a total that fell between them: nothing is carried over."""
    awake = later.monotonic - earlier.monotonic
    return (
        earlier.boot_id != later.boot_id
        or later.boottime - earlier.boottime - awake > max(1.0, 0.01 * awake)
        or earlier.stall is None
        or later.stall is None
        or later.stall < earlier.stall
    )


class Naive:
    """The rules, by looking back through everything."""

    def __init__(self) -> None:
        self.seen: List[Sample] = []
        self.said: List[str] = []  # of each sample
        self.begun = 0  # before it a step was taken: streaks begin anew

    def verdict(self, at: int, level: str) -> str:
        now = self.seen[at]
        if now.stall is None or now.available is None:
            return "unknown"
        available = now.available // MIB
        if available < FLOOR:
            return "over"
        pressure, span = None, 0.0
        for earlier in range(at - 1, -1, -1):
            if cut(self.seen[earlier], self.seen[earlier + 1]):
                break
            span = now.monotonic - self.seen[earlier].monotonic
            if span >= WINDOW:
                pressure = ((now.stall or 0) - (self.seen[earlier].stall or 0)) / 1e6 / span
                break
        if pressure is None:
            return "unknown"
        if available < CEILING and min(1.0, pressure) >= THRESHOLD:
            return "over"
        thin = span > WINDOW + HOLE  # a stall at its end is thin over so long a time
        return "calm" if available >= FLOOR + HEADROOM.get(level, 0) and not thin else "between"

    def see(self, sample: Sample, level: str) -> Tuple[str, float, float]:
        """(verdict, seconds of over, seconds of calm) after one more sample."""
        self.seen.append(sample)
        self.said.append(self.verdict(len(self.seen) - 1, level))
        return (
            self.said[-1],
            self._for("over", SAMPLE * 10**9),
            self._for("calm", HOLE),
        )

    def _for(self, word: str, longest_hole: float) -> float:
        at = len(self.seen) - 1
        if self.said[at] != word:
            return 0.0
        while (
            at - 1 >= self.begun
            and self.said[at - 1] == word
            and not cut(self.seen[at - 1], self.seen[at])
            and self.seen[at].monotonic - self.seen[at - 1].monotonic <= longest_hole
        ):
            at -= 1
        return self.seen[-1].monotonic - self.seen[at].monotonic

    def stepped(self) -> None:
        self.begun = len(self.seen)
