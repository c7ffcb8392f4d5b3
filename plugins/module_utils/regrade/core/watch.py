# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What the watcher does with what it sees: a pure step function over samples and its children's answers.

Rules
1. At full, with the level known, nothing is asked of API or Docker: only samples are taken.
2. `settle` is run at the start until it is answered, and regularly while below full (or not known to be at
   full), without end: it ends what is open and looks for the trap (a vote must not be lost in silence). It
   is run soon where a step is open that no child of ours runs: one by hand may have died. It is run again,
   less and less often, where a person's switch made it leave something as it was. And it is run once more,
   LATE_SECONDS on, after a step that was taken back before its first effect, or whose child was killed and
   tells nothing of that: a write of its intent whose
   answer was lost may land after that, and at full nobody else would look. An API server ends a request
   within 60 s, and a call of ours ends within 60 s at most: after both, nothing of it is under way.
3. One child at a time; a decision is taken only while none runs.
4. The last step is what its note on disk says, whoever stepped: so a step by hand starts the cooldown too.
5. A refusal is retried by `policy`; a step without a note starts the cooldown all the same. A step that is
   blocked is told by an Event, by a child of its own: once for each reason until it is blocked no more. Not
   where a person's own switch is the reason.
6. One line in the log for each change of verdict or reason, with the figures it was decided on.

Light: the idle loop imports it. Time, files and processes are `app.watcher`.
"""

from __future__ import annotations

from . import policy
from .digits import whole
from .levels import DOWN, FULL, LEVELS, UP, below
from .light import NamedTuple
from .policy import Decision, LastStep, State
from .reading import Sample
from .settings import LATE_SECONDS, Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple, Union

SETTLE = "settle"
BLOCKED = "blocked"  # tell by an Event what the step is blocked by
FIRST_SETTLE_SECONDS = 30.0
OPEN_RETRY_SECONDS = 60.0  # between two tries to end an open step, which the other servers wait for
NEVER = float("inf")
BELOW = "below"  # remembered for a level that is not known, but was below full
QUIET = ("hold", "pause", "dry-run", "level")  # a person's own doing, or decided anew at once: no Event


class Spawn(NamedTuple):
    """Start a child: SETTLE, BLOCKED, DOWN, UP or policy.ALERT."""

    verb: str


class Say(NamedTuple):
    """One line for the log."""

    text: str


class Stop(NamedTuple):
    """End the watcher, saying why."""

    text: str


if TYPE_CHECKING:
    Command = Union[Spawn, Say, Stop]
    Commands = Tuple[Command, ...]


class Watch(NamedTuple):
    """All that the watcher remembers. Times are CLOCK_MONOTONIC."""

    state: State = State()
    missing: str = ""  # why there is no pressure to read
    busy: str = ""  # the child that runs
    settle_at: float = 0.0
    settle_wait: float = 0.0
    trouble: str = ""  # what a person should look at
    open: bool = False  # a step's journal is there while no child of ours runs
    left: bool = False  # settling left something as it was, for a person's switch
    look_at: float = NEVER  # when to settle once more for a write that came late
    tell: str = ""  # the reason that is to be told by an Event
    told: Tuple[str, ...] = ()  # the reasons that were, since it is blocked
    before: Optional[LastStep] = None  # the last step when the child was started, or a step was seen open
    was_below: bool = False  # the last level known was below full
    said: str = ""  # what the last decision in the log was about
    settled: str = ""  # what the last settling in the log was about, "" where all was well


def begin(memory: dict[str, str], noted: dict[str, str], missing: str) -> Watch:
    """From what an earlier watcher remembered and the note of the last step."""
    relapses = min(whole(memory.get("relapses", "")) or 0, policy.MOST_RELAPSES)
    below_full = any(level in (*LEVELS[1:], BELOW) for level in (noted.get("level"), memory.get("level")))
    state = State(last_step=last_step(noted), relapses=relapses)
    return Watch(state=state, missing=missing, was_below=below_full)


def memory_of(watch: Watch) -> dict[str, str]:
    """What must outlive the watcher."""
    level = watch.state.level or (BELOW if watch.was_below else FULL)
    return {"relapses": str(watch.state.relapses), "level": level}


def last_step(noted: dict[str, str]) -> Optional[policy.LastStep]:
    """The last step of a note, None where it is none."""
    try:
        boottime = float(noted["boottime"])
        if not 0 <= boottime < float("inf"):  # a time that no clock shows: no cooldown would ever end
            return None
        return LastStep(boottime, noted["boot_id"], noted["direction"])
    except (KeyError, ValueError):
        return None


def on_note(watch: Watch, noted: dict[str, str], settings: Settings) -> Watch:
    """A step was noted on disk, by a child of ours or by hand."""
    last = last_step(noted)
    level = noted.get("level", "")
    if last is None or level not in LEVELS or last == watch.state.last_step:
        return watch
    return watch._replace(
        state=policy.after_step(watch.state, level, last, settings),
        was_below=level != FULL,
        settle_at=0.0 if level != FULL and watch.state.level in ("", FULL) else watch.settle_at,
    )


def on_journal(watch: Watch, present: bool, now: float) -> Watch:
    """Whether a step of this server is open, or a Lease held: without a child of ours it is another's, or left
    behind."""
    if watch.busy or present == watch.open:
        return watch
    if present:
        soon = min(watch.settle_at, now + FIRST_SETTLE_SECONDS)
        if watch.left:  # what a switch left at full looks open for as long as it is on: no reason to hurry
            soon = watch.settle_at
        return watch._replace(open=True, settle_at=soon, before=watch.state.last_step)
    noted = watch.state.last_step != watch.before  # it had its effect, so its intent came through
    return watch._replace(open=False, look_at=watch.look_at if noted else min(watch.look_at, now + LATE_SECONDS))


def on_sample(watch: Watch, sample: Sample, settings: Settings) -> tuple[Watch, Decision, Commands]:
    """What to do after one more sample."""
    state, decision = policy.observe(watch.state, sample, settings)
    watch = watch._replace(state=state)
    if not state.blocked:
        watch = watch._replace(tell="", told=())
    commands: Commands = ()
    if not watch.busy:
        if _settle_due(watch, sample.monotonic) and not _goes_first(watch, decision):
            late = NEVER if sample.monotonic >= watch.look_at else watch.look_at
            watch, commands = watch._replace(busy=SETTLE, look_at=late), (Spawn(SETTLE),)
        elif watch.tell:
            watch, commands = watch._replace(busy=BLOCKED), (Spawn(BLOCKED),)
        elif decision.action:
            watch = watch._replace(busy=decision.action, before=state.last_step)
            commands = (Spawn(decision.action),)
        elif watch.missing and state.level == FULL and not (watch.open or watch.left):
            commands = (Stop(watch.missing),)
    if decision.action == policy.ALERT and commands != (Spawn(policy.ALERT),):
        watch = watch._replace(state=state._replace(alerted=False))  # asked for again once the child has ended
    about = f"{state.level}|{decision.verdict}|{decision.action}|{_without_figures(decision.reason)}"
    if about != watch.said or (commands and decision.action):
        watch = watch._replace(said=about)
        commands = (Say(line(state, decision, settings)), *commands)
    return watch, decision, commands


def on_answer(
    watch: Watch, answer: dict[str, str], sample: Sample, settings: Settings
) -> tuple[Watch, Commands]:
    """What to do once the child has ended; `answer` is {} where it gave none."""
    verb, now = watch.busy, sample.monotonic
    result = answer.get("result", "failed")
    message = answer.get("message", "the child ended without an answer")
    level = answer.get("level", "")
    watch = watch._replace(busy="")
    if answer.get("undone") == "true" or (not answer and verb in (DOWN, UP)):  # killed: it may have been
        watch = watch._replace(look_at=now + LATE_SECONDS)
    if verb == BLOCKED:
        return _told(watch, result, message)
    if verb == SETTLE:
        watch = _settled(watch, answer, result, message, now, settings)
    elif result == "failed":
        watch = _failed(watch, verb, message, sample, settings)
    elif result != "done":  # refused, or it could not even begin: nothing was changed
        watch, message = _refused(watch, verb, answer, message, now)
        if level in LEVELS and level != watch.state.level:  # it was decided at a level that is no more
            watch = watch._replace(
                state=policy.after_step(watch.state, level, None, settings),
                was_below=level != FULL,
                settle_at=now,
            )
        elif answer.get("reason") == "level":  # what it was decided on is not so: settling tells what is
            watch = watch._replace(settle_at=now)
    elif level in LEVELS and level != watch.state.level:
        # where it stepped, its note did not come: the disk may be full
        stepped = verb in (DOWN, UP) and answer.get("from") != level
        step = LastStep(sample.boottime, sample.boot_id, verb) if stepped else None
        watch = watch._replace(
            state=policy.after_step(watch.state, level, step, settings), was_below=level != FULL
        )
    if verb == SETTLE:
        about = "" if result == "done" and answer.get("action") == "nothing" else message
        if about == watch.settled:
            return watch, ()
        watch = watch._replace(settled=about)
    return watch, (Say(f"{verb}: {result}: {message}"),)


def _told(watch: Watch, result: str, message: str) -> Tuple[Watch, Commands]:
    """An Event that did not come about is tried again with the next refusal."""
    reason, watch = watch.tell, watch._replace(tell="")
    if result == "done":
        return watch._replace(told=(*watch.told, reason)), ()
    return watch, (Say(f"{BLOCKED}: {result}: {message}"),)


def _refused(
    watch: Watch, verb: str, answer: dict[str, str], message: str, now: float
) -> Tuple[Watch, str]:
    """(blocked, what to say of it: with the cure where the reason is new)."""
    reason, cure = answer.get("reason", "other"), answer.get("cure", "")
    new = reason != watch.state.blocked_reason
    watch = watch._replace(
        state=policy.after_refusal(watch.state, now, message, reason, cure, verb),
        tell=reason if verb in (DOWN, UP) and reason not in (*watch.told, *QUIET) else "",
    )
    return watch, f"{message} (blocked by {reason}; cure: {cure})" if new and cure else message


def _settled(
    watch: Watch, answer: dict[str, str], result: str, message: str, now: float, settings: Settings
) -> Watch:
    level, action = answer.get("level", ""), answer.get("action", "")
    # Others wait for an open step, and after a recovery the marks are wrong until an API answers. Not so for what a
    # switch left.
    waited_for = watch.open and not watch.left and action != "left"
    longest = OPEN_RETRY_SECONDS if waited_for else policy.LONGEST_RETRY_SECONDS
    later = (
        min(longest, watch.settle_wait * 2)
        if watch.settle_wait
        else FIRST_SETTLE_SECONDS
    )
    if result == "done" and level in LEVELS:
        state = _at(watch, level, settings)
        left = action == "left"
        wait = settings.settle_seconds if level != FULL else later if left else NEVER
        back = answer.get("back", "")
        return watch._replace(
            state=state._replace(back=back if back in LEVELS else ""),
            trouble=message if action == "uncured" else "",
            settle_wait=later if left else 0.0,
            settle_at=now + wait,
            open=False,  # one that is there all the same is seen anew
            left=left,
            look_at=now + LATE_SECONDS if action == "undone" else watch.look_at,
            was_below=level != FULL,
        )
    # not known, busy or open: no step is decided until it is settled; asked again without end
    wait = min(later, settings.settle_seconds) if watch.was_below else later
    if level not in LEVELS:  # what went wrong may tell it all the same
        level = watch.state.level if result == "refused" else ""
    state = _at(watch, level, settings) if level else watch.state
    trouble = "" if level == FULL and watch.open else message  # a step by hand is under way
    return watch._replace(
        state=state._replace(level=level, last_level=level or state.last_level),
        trouble=trouble,
        settle_wait=later,
        settle_at=now + wait,
        was_below=level != FULL if level else watch.was_below,
    )


def _at(watch: Watch, level: str, settings: Settings) -> State:
    """The state at that level. One that was not known for a while and is the same again keeps its streaks: where
    Docker or an API is slow now and then, they would never last."""
    if level == (watch.state.level or watch.state.last_level):
        return watch.state._replace(level=level, last_level=level)
    return policy.after_step(watch.state, level, None, settings)


def _failed(watch: Watch, verb: str, message: str, sample: Sample, settings: Settings) -> Watch:
    noted = watch.state.last_step != watch.before  # while the child ran
    if not noted and verb in (DOWN, UP):
        step = LastStep(sample.boottime, sample.boot_id, verb)
        watch = watch._replace(state=policy.after_step(watch.state, watch.state.level, step, settings))
    return watch._replace(trouble=message, settle_at=sample.monotonic, settle_wait=0.0)


def _goes_first(watch: Watch, decision: Decision) -> bool:
    """Whether the step that was decided on comes before a settling that is due: it settles first itself, and
    on a host so short of memory that samples come further apart than SETTLE_SECONDS each one finds it due."""
    return decision.action in (DOWN, UP) and not watch.open


def _settle_due(watch: Watch, now: float) -> bool:
    if now >= watch.look_at:
        return True
    return now >= watch.settle_at and (
        watch.state.level != FULL or watch.open or watch.left or bool(watch.trouble)
    )


def known_below(watch: Watch) -> bool:
    """Whether this server is known to be below full."""
    return watch.state.level not in ("", FULL)


def _without_figures(text: str) -> str:
    return "".join(character for character in text if not character.isdigit())


def unhealthy(watch: Watch) -> str:
    """Why a person should look at this watcher, "" where all is well."""
    if watch.missing:
        return f"no step up by itself: {watch.missing}"
    return watch.trouble


def line(state: State, decision: Decision, settings: Settings) -> str:
    """The decision with all it was taken on, in one line."""
    reading = decision.reading
    pressure = "unknown" if reading.pressure is None else f"{reading.pressure * 100:.1f}%"
    if reading.available is None or reading.total is None:
        memory = "unknown"
    else:
        memory = (
            f"{reading.available >> 20}MiB of {reading.total >> 20}MiB (floor "
            f"{settings.memavailable_floor.of(reading.total) >> 20}MiB)"
        )
    return (
        f"{decision.action or 'stay'} at {state.level or 'unknown'}: {decision.reason}; "
        f"{decision.verdict}, pressure "
        f"{pressure} (threshold {settings.pressure_threshold * 100:g}%), available {memory}, over "
        f"{decision.over_for:.0f}s, calm {decision.calm_for:.0f}s, cooldown down "
        f"{decision.cooldown_down:.0f}s up "
        f"{decision.cooldown_up:.0f}s"
    )


def _exhausted(state: State, decision: Decision) -> bool:
    """Over for long enough to step down, with no level below."""
    lowest = state.level in LEVELS and not below(state.level)
    return lowest and decision.verdict == policy.OVER and decision.over_for >= decision.over_asked


def notes(watch: Watch, decision: Decision, sample: Sample) -> dict[str, str]:
    """What others may know of the watcher, as text."""
    reading = decision.reading
    return {
        "boottime": f"{sample.boottime:.1f}",
        "boot_id": sample.boot_id,
        "level": watch.state.level,
        "verdict": decision.verdict,
        "pressure": "" if reading.pressure is None else f"{reading.pressure:.4f}",
        "mem_available": "" if reading.available is None else str(reading.available),
        "mem_total": "" if reading.total is None else str(reading.total),
        "over_for": f"{decision.over_for:.0f}",
        "over_asked": f"{decision.over_asked:.0f}",
        "calm_for": f"{decision.calm_for:.0f}",
        "calm_asked": f"{decision.calm_asked:.0f}",
        "cooldown_down": f"{decision.cooldown_down:.0f}",
        "cooldown_up": f"{decision.cooldown_up:.0f}",
        "relapses": str(watch.state.relapses),
        "busy": watch.busy,
        "back": watch.state.back,
        "exhausted": "yes" if _exhausted(watch.state, decision) else "",
        "blocked_reason": watch.state.blocked_reason,
        "blocked_move": watch.state.blocked_move if watch.state.blocked else "",
        "retry_in": f"{decision.retry_in:.0f}" if watch.state.blocked else "",
        "blocked": watch.state.blocked[:500],
        "blocked_cure": watch.state.blocked_cure[:400],
        "settled": watch.settled[:300],
        "unhealthy": unhealthy(watch)[:500],
        "reason": decision.reason[:500],
    }


__all__ = (
    "BLOCKED",
    "DOWN",
    "SETTLE",
    "UP",
    "Say",
    "Spawn",
    "Stop",
    "Watch",
    "begin",
    "known_below",
    "line",
    "memory_of",
    "notes",
    "on_answer",
    "on_journal",
    "on_note",
    "on_sample",
    "unhealthy",
)
