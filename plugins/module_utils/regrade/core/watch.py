# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What the watcher does with what it sees: a pure step function over samples and its children's answers.

Rules
1. At full, with the level known, nothing is asked of API or Docker: only samples are taken.
2. `settle` is run at the start until it is answered, and regularly while below full (or not known to be at
   full), without end: it ends what is open and looks for the trap (a vote must not be lost in silence). It
   is run soon where a step is open that no child of ours runs: one by hand may have died.
3. One child at a time; a decision is taken only while none runs.
4. The last step is what its note on disk says, whoever stepped: so a step by hand starts the cooldown too.
5. A refusal is retried by `policy`; a step without a note starts the cooldown all the same.
6. One line in the log for each change of verdict or reason, with the figures it was decided on.

Light: the idle loop imports it. Time, files and processes are `app.watcher`.
"""

from __future__ import annotations

from . import policy
from .digits import whole
from .levels import DOWN, FULL, LEVELS, UP
from .light import NamedTuple
from .policy import Decision, LastStep, State
from .reading import Sample
from .settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple, Union

SETTLE = "settle"
FIRST_SETTLE_SECONDS = 30.0


class Spawn(NamedTuple):
    """Start a child: SETTLE, DOWN, UP or policy.ALERT."""

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
    was_below: bool = False  # the last level known was below full
    said: str = ""  # what the last decision in the log was about
    settled: str = ""  # what the last settling in the log was about, "" where all was well


def begin(memory: dict[str, str], noted: dict[str, str], missing: str) -> Watch:
    """From what an earlier watcher remembered and the note of the last step."""
    relapses = min(whole(memory.get("relapses", "")) or 0, policy.MOST_RELAPSES)
    level = noted.get("level") or memory.get("level", "")
    state = State(last_step=last_step(noted), relapses=relapses)
    return Watch(state=state, missing=missing, was_below=level in LEVELS and level != FULL)


def memory_of(watch: Watch) -> dict[str, str]:
    """What must outlive the watcher."""
    level = watch.state.level or ("below" if watch.was_below else FULL)
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
    """Whether a step of this server is open: where no child of ours runs it is another's, or left behind."""
    if watch.busy or present == watch.open:
        return watch
    soon = min(watch.settle_at, now + FIRST_SETTLE_SECONDS) if present else watch.settle_at
    return watch._replace(open=present, settle_at=soon)


def on_sample(watch: Watch, sample: Sample, settings: Settings) -> tuple[Watch, Decision, Commands]:
    """What to do after one more sample."""
    state, decision = policy.observe(watch.state, sample, settings)
    watch = watch._replace(state=state)
    commands: Commands = ()
    if not watch.busy:
        if _settle_due(watch, sample.monotonic) and not _goes_first(watch, decision):
            watch, commands = watch._replace(busy=SETTLE), (Spawn(SETTLE),)
        elif decision.action:
            watch, commands = watch._replace(busy=decision.action), (Spawn(decision.action),)
        elif watch.missing and state.level == FULL:
            commands = (Stop(watch.missing),)
    elif decision.action == policy.ALERT:
        watch = watch._replace(
            state=state._replace(alerted=False)
        )  # asked for again once the child has ended
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
    if verb == SETTLE:
        watch = _settled(watch, result, level, message, now, settings)
    elif result == "failed":
        watch = _failed(watch, verb, message, sample, settings)
    elif result != "done":  # refused, or it could not even begin: nothing was changed
        watch = watch._replace(state=policy.after_refusal(watch.state, now, message))
        if level in LEVELS:  # it was decided at a level that is no more
            watch = watch._replace(
                state=policy.after_step(watch.state, level, None, settings),
                was_below=level != FULL,
                settle_at=now,
            )
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


def _settled(watch: Watch, result: str, level: str, message: str, now: float, settings: Settings) -> Watch:
    if result == "done" and level in LEVELS:
        state = watch.state
        if level != state.level:
            state = policy.after_step(state, level, None, settings)
        wait = settings.settle_seconds if level != FULL else float("inf")
        return watch._replace(
            state=state,
            trouble="",
            settle_wait=0.0,
            settle_at=now + wait,
            open=False,  # one that is there all the same is seen anew
            was_below=level != FULL,
        )
    # not known, busy or open: no step is decided until it is settled; asked again without end
    wait = (
        min(policy.LONGEST_RETRY_SECONDS, watch.settle_wait * 2)
        if watch.settle_wait
        else FIRST_SETTLE_SECONDS
    )
    if watch.was_below:
        wait = min(wait, settings.settle_seconds)
    known = watch.state.level if result == "refused" else ""
    trouble = "" if known == FULL and watch.open else message  # a step by hand is under way
    return watch._replace(
        state=watch.state._replace(level=known), trouble=trouble, settle_wait=wait, settle_at=now + wait
    )


def _failed(watch: Watch, verb: str, message: str, sample: Sample, settings: Settings) -> Watch:
    last = watch.state.last_step
    noted = last is not None and last.boot_id == sample.boot_id and sample.boottime - last.boottime < 5
    if not noted and verb in (DOWN, UP):
        step = LastStep(sample.boottime, sample.boot_id, verb)
        watch = watch._replace(state=policy.after_step(watch.state, watch.state.level, step, settings))
    return watch._replace(trouble=message, settle_at=sample.monotonic, settle_wait=0.0)


def _goes_first(watch: Watch, decision: Decision) -> bool:
    """Whether the step that was decided on comes before a settling that is due: it settles first itself, and
    on a host so short of memory that samples come further apart than SETTLE_SECONDS each one finds it due."""
    return decision.action in (DOWN, UP) and not watch.open


def _settle_due(watch: Watch, now: float) -> bool:
    return now >= watch.settle_at and (watch.state.level != FULL or watch.open or bool(watch.trouble))


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
        "over_for": f"{decision.over_for:.0f}",
        "calm_for": f"{decision.calm_for:.0f}",
        "cooldown_down": f"{decision.cooldown_down:.0f}",
        "cooldown_up": f"{decision.cooldown_up:.0f}",
        "relapses": str(watch.state.relapses),
        "busy": watch.busy,
        "blocked": watch.state.blocked[:500],
        "unhealthy": unhealthy(watch)[:500],
        "reason": decision.reason[:500],
    }


__all__ = (
    "DOWN",
    "SETTLE",
    "UP",
    "Say",
    "Spawn",
    "Stop",
    "Watch",
    "begin",
    "line",
    "memory_of",
    "notes",
    "on_answer",
    "on_journal",
    "on_note",
    "on_sample",
    "unhealthy",
)
