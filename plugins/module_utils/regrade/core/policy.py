# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""When to step: the decision, from samples alone.

Rules
1. A reading is *over* when its counted stall is at or above PRESSURE_THRESHOLD, or MemAvailable is below
   MEMAVAILABLE_FLOOR. Stall counts only while MemAvailable is under PRESSURE_CEILING: a container that
   thrashes at its own limit stalls the host's PSI with plenty of memory left.
2. It is *calm* when its counted stall is below the threshold and MemAvailable is at or above the floor
   plus the headroom of the next level up. Stricter than not-over: what lies *between* ends both streaks.
3. What is missing, unreadable or malformed is *unknown*: it ends both streaks and is neither. (Before the
   first window is full the pressure is not known, but a MemAvailable below the floor is over.)
4. A streak is the time since its first reading. A step down asks SUSTAIN_DOWN of over, a step up
   SUSTAIN_UP of calm, doubled for every relapse, to an hour at most. A relapse is a step down whose over
   streak began within COOLDOWN_UP of a step up (or of the boot, where the board fell over meanwhile).
5. The cooldown since the last step in either direction must have passed; each direction has its length.
   After a new boot it counts as served downwards, and begins anew (with the boot) upwards.
6. A hole in the samples while the host did not sleep is one long reading, as `total` covers it: it may
   continue an over streak, never a calm one: while it lies in the window a reading is *between* at best, as
   a stall since is thin over so long a time. Sleep and a new boot end both. No wall clock is compared.
7. A refused step starts no cooldown; it is tried again after 30 s, doubling to 5 min. It is *blocked*, for a
   reason, until a step is done or the streak it was decided on ends; the next streak begins at 30 s again,
   but has to last first. Anything else that a step ended in (done, failed, undone) is a step for rule 5.
8. A server that is to be brought back (`back`: its container lost the link to its record) steps down
   whatever is read, with the cooldown kept.

| level         | over, sustained, cooled down | calm, sustained, cooled down     | to be brought back, cooled down |
|---------------|------------------------------|----------------------------------|---------------------------------|
| full          | step down                    | nothing                          | step down                       |
| control-plane | step down                    | step up (STEP_UP=automatic)      | step down                       |
| etcd-only     | nothing: one alert           | step up (STEP_UP=automatic)      | (it is there)                   |
| unknown       | nothing                      | nothing                          | nothing                         |

Pure and light: the idle loop imports it. Values are immutable; `observe` returns the next state.
"""

from __future__ import annotations

from .levels import DOWN, FULL, UP, above, below
from .light import NamedTuple
from .reading import Reading, Sample, stall_share
from .settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

OVER = "over"
CALM = "calm"
BETWEEN = "between"
NOT_KNOWN = "unknown"
ALERT = "alert"  # an action: at the lowest level and still over

LONGEST_CALM_SECONDS = 3600.0
MOST_RELAPSES = 20  # more make no difference to the calm asked
FIRST_RETRY_SECONDS = 30.0
LONGEST_RETRY_SECONDS = 300.0


class LastStep(NamedTuple):
    """The last step that did anything, as kept on disk."""

    boottime: float
    boot_id: str
    direction: str


class State(NamedTuple):
    """All that the policy remembers. Times are CLOCK_MONOTONIC unless said otherwise."""

    level: str = ""  # "" while not known
    last_level: str = ""  # the last that was known: what is calm is judged by it meanwhile
    last_step: Optional[LastStep] = None
    relapses: int = 0
    samples: Tuple[Sample, ...] = ()  # oldest first, as many as the window needs
    over_since: Optional[float] = None
    calm_since: Optional[float] = None
    retry_at: float = 0.0
    retry_seconds: float = 0.0
    blocked: str = ""  # what the last try was refused for, in words
    blocked_reason: str = ""  # the same as one word of a closed list
    blocked_cure: str = ""  # what a person can do about it
    blocked_move: str = ""  # DOWN, UP or ALERT: which try it was
    alerted: bool = False  # the alert of this over streak was given
    back: str = ""  # the level to be brought back down to
    relapsing: bool = False  # the step down that is due is a relapse


class Decision(NamedTuple):
    """What the policy says after a sample. `action` is DOWN, UP, ALERT or "" (nothing now)."""

    action: str
    verdict: str  # OVER, CALM, BETWEEN, NOT_KNOWN
    reading: Reading
    over_for: float  # seconds, 0 without a streak
    calm_for: float
    cooldown_down: float  # seconds still to go
    cooldown_up: float
    reason: str  # one line, for a person
    over_asked: float = 0.0  # seconds of over that a step down asks
    calm_asked: float = 0.0  # seconds of calm that a step up asks, with its relapses
    retry_in: float = 0.0  # seconds until what is blocked is tried again


def judge(reading: Reading, level: str, settings: Settings) -> str:
    """OVER, CALM, BETWEEN or NOT_KNOWN: rules 1 to 3."""
    available, total = reading.available, reading.total
    if available is None or total is None:
        return NOT_KNOWN
    floor = settings.memavailable_floor.of(total)
    if available < floor:
        return OVER
    if reading.pressure is None:
        return NOT_KNOWN
    counted = reading.pressure if available < settings.pressure_ceiling * total else 0.0
    if counted >= settings.pressure_threshold:
        return OVER
    headroom = settings.headroom(level)
    return CALM if available >= floor + (headroom.of(total) if headroom else 0) else BETWEEN


def cooldown_left(
    last: Optional[LastStep], direction: str, boottime: float, boot_id: str, settings: Settings
) -> float:
    """Seconds until a step in `direction` may be taken: rule 5."""
    if last is None:
        return 0.0
    length = settings.cooldown_down_seconds if direction == DOWN else settings.cooldown_up_seconds
    if last.boot_id != boot_id or last.boottime > boottime + 1:  # one from ahead is of a boot we do not know
        return 0.0 if direction == DOWN else max(0.0, length - boottime)
    return min(length, max(0.0, last.boottime + length - boottime))


def calm_asked(relapses: int, settings: Settings) -> float:
    """Seconds of calm asked before a step up: rule 4."""
    longest = max(LONGEST_CALM_SECONDS, settings.sustain_up_seconds)
    return float(min(longest, settings.sustain_up_seconds * 2 ** min(relapses, MOST_RELAPSES)))


def observe(state: State, sample: Sample, settings: Settings) -> Tuple[State, Decision]:
    """The next state and what to do, after one more sample."""
    samples, hole, broken = _continue(state.samples, sample, settings)
    start = _start(samples, sample, settings)
    reading = Reading(stall_share(start, sample) if start else None, sample.available, sample.total)
    verdict = judge(reading, state.level or state.last_level, settings) if sample.stall is not None else NOT_KNOWN
    if verdict == CALM and start and _is_long(start, sample, settings):
        verdict = BETWEEN
    over_since = None if broken or verdict != OVER else state.over_since
    calm_since = None if broken or hole or verdict != CALM else state.calm_since
    if verdict == OVER and over_since is None:
        over_since = sample.monotonic
    if verdict == CALM and calm_since is None:
        calm_since = sample.monotonic
    state = state._replace(
        samples=_keep((*samples, sample), settings), over_since=over_since, calm_since=calm_since
    )
    if over_since is None:
        state = state._replace(alerted=False)
    if state.retry_seconds and not _goes_on(state):
        state = _unblocked(state)
    state = _forgive(state, sample, settings)
    return _decide(state, sample, reading, verdict, settings)


def _goes_on(state: State) -> bool:
    """Whether what the refused step was decided on is still there."""
    if state.blocked_move == UP:
        return state.calm_since is not None
    return state.over_since is not None or (state.blocked_move == DOWN and bool(state.back))


def _unblocked(state: State) -> State:
    return state._replace(
        retry_at=0.0, retry_seconds=0.0, blocked="", blocked_reason="", blocked_cure="", blocked_move=""
    )


def _continue(
    samples: Tuple[Sample, ...], sample: Sample, settings: Settings
) -> Tuple[Tuple[Sample, ...], bool, bool]:
    """(samples the new one goes on from, whether there is a hole before it, whether the thread is cut)."""
    if not samples:
        return (), False, False
    last = samples[-1]
    awake = sample.monotonic - last.monotonic
    slept = sample.boottime - last.boottime - awake
    if sample.boot_id != last.boot_id or awake <= 0 or slept > max(1.0, 0.01 * awake):
        return (), False, True
    if sample.stall is None or last.stall is None or sample.stall < last.stall:
        return (), False, True
    return samples, awake > _hole_seconds(settings), False


def _hole_seconds(settings: Settings) -> float:
    """What is longer than this between two samples is a hole."""
    return max(3 * settings.sample_seconds, settings.sample_seconds + 5)


def _is_long(start: Sample, sample: Sample, settings: Settings) -> bool:
    """Whether a hole lies in the reading: a stall at its end is thin over so long a time."""
    return sample.monotonic - start.monotonic > settings.pressure_window_seconds + _hole_seconds(settings)


def _start(samples: Tuple[Sample, ...], sample: Sample, settings: Settings) -> Optional[Sample]:
    """Where the window that ends with `sample` begins; None before a window is full."""
    start = None
    for earlier in samples:
        if sample.monotonic - earlier.monotonic < settings.pressure_window_seconds:
            break
        start = earlier
    return start


def _keep(samples: Tuple[Sample, ...], settings: Settings) -> Tuple[Sample, ...]:
    """Drops what no later window can begin with."""
    newest = samples[-1].monotonic
    first = 0
    while (
        first + 1 < len(samples) and newest - samples[first + 1].monotonic >= settings.pressure_window_seconds
    ):
        first += 1
    return samples[first:]


def _forgive(state: State, sample: Sample, settings: Settings) -> State:
    """A step up to full that lasted its cooldown without an over streak ends the doubling of rule 4."""
    last = state.last_step
    if (
        state.relapses
        and state.level == FULL
        and last
        and last.direction == UP
        and state.over_since is None
        and cooldown_left(last, UP, sample.boottime, sample.boot_id, settings) == 0
    ):
        return state._replace(relapses=0, relapsing=False)
    return state


def _decide(
    state: State, sample: Sample, reading: Reading, verdict: str, settings: Settings
) -> Tuple[State, Decision]:
    now = sample.monotonic
    over_for = now - state.over_since if state.over_since is not None else 0.0
    calm_for = now - state.calm_since if state.calm_since is not None else 0.0
    down_left = cooldown_left(state.last_step, DOWN, sample.boottime, sample.boot_id, settings)
    up_left = cooldown_left(state.last_step, UP, sample.boottime, sample.boot_id, settings)
    asked = calm_asked(state.relapses, settings)
    retry_in = max(0.0, state.retry_at - now)
    action, reason = "", ""
    if not state.level:
        reason = "the level is not known yet"
    elif state.back:
        reason = f"k3s came back above {state.back}, the level of its record"
        if down_left > 0:
            reason += f"; stepped down after the cooldown: {down_left:.0f} s to go"
        elif retry_in:
            reason += f", but a step down is refused ({state.blocked}); tried again in {retry_in:.0f} s"
        else:
            action = DOWN
    elif verdict == OVER:
        if over_for < settings.sustain_down_seconds:
            reason = f"over for {over_for:.0f} of {settings.sustain_down_seconds:.0f} s"
        elif not below(state.level):
            action = ALERT if not (state.alerted or retry_in) else ""
            reason = f"over for {over_for:.0f} s at the lowest level: nothing is left to step down"
            state = state._replace(alerted=state.alerted or action == ALERT)
        elif down_left > 0:
            reason = f"over, waiting out the cooldown: {down_left:.0f} s to go"
        elif retry_in:
            reason = f"over, but refused ({state.blocked}); tried again in {retry_in:.0f} s"
        else:
            action, reason = DOWN, f"over for {over_for:.0f} s"
            state = state._replace(relapsing=_over_soon(state.last_step, sample, over_for, settings))
    elif verdict == CALM and above(state.level):
        if calm_for < asked:
            reason = f"calm for {calm_for:.0f} of {asked:.0f} s"
        elif up_left > 0:
            reason = f"calm, waiting out the cooldown: {up_left:.0f} s to go"
        elif settings.step_up != "automatic":
            reason = "calm; STEP_UP=manual, so a person steps it up"
        elif retry_in:
            reason = f"calm, but refused ({state.blocked}); tried again in {retry_in:.0f} s"
        else:
            action, reason = UP, f"calm for {calm_for:.0f} s"
    elif verdict == BETWEEN:
        reason = "neither over nor calm"
    elif verdict == NOT_KNOWN:
        reason = (
            "no full window yet"
            if reading.available is not None and sample.stall is not None
            else "unreadable"
        )
    else:
        reason = "calm at full"
    return state, Decision(
        action,
        verdict,
        reading,
        over_for,
        calm_for,
        down_left,
        up_left,
        reason,
        settings.sustain_down_seconds,
        asked,
        retry_in,
    )


def _over_soon(last: Optional[LastStep], sample: Sample, over_for: float, settings: Settings) -> bool:
    """Whether the over streak began before the cooldown of the step up before it was served: rule 4."""
    if last is None or last.direction != UP:
        return False
    return cooldown_left(last, UP, sample.boottime - over_for, sample.boot_id, settings) > 0


def after_step(state: State, level: str, last: Optional[LastStep], settings: Settings) -> State:
    """The state once a step ended in anything but a refusal (or one by hand was seen): rules 4, 5 and 7.

    The streaks begin anew, as what is calm depends on the level.
    """
    relapses = state.relapses
    before = state.last_step
    if last and before and last.direction == DOWN and before.direction == UP:
        soon = last.boottime - before.boottime <= settings.cooldown_up_seconds + settings.sustain_down_seconds
        if state.relapsing or (soon and last.boot_id == before.boot_id):
            relapses = min(relapses + 1, MOST_RELAPSES)
    return _unblocked(state)._replace(
        level=level,
        last_level=level or state.last_level,
        last_step=last or before,
        relapses=relapses,
        over_since=None,
        calm_since=None,
        alerted=False,
        back="",
        relapsing=False,
    )


def after_refusal(
    state: State, now: float, why: str, reason: str = "other", cure: str = "", move: str = ""
) -> State:
    """The state once a step was refused: no cooldown, tried again later (rule 7). `now` is CLOCK_MONOTONIC.

    `move` is what was tried; "" for what the streak says. An alert that could not be given is no step, so
    nothing is blocked by it: it is given later.
    """
    wait = min(LONGEST_RETRY_SECONDS, state.retry_seconds * 2) if state.retry_seconds else FIRST_RETRY_SECONDS
    move = move or (UP if state.calm_since is not None else DOWN)
    state = state._replace(retry_at=now + wait, retry_seconds=wait, blocked_move=move)
    if move == ALERT:
        return state._replace(alerted=False)
    return state._replace(blocked=why, blocked_reason=reason, blocked_cure=cure)
