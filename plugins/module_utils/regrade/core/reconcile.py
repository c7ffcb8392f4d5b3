# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What to do with a server as it is found: after a crash, a reboot, a lost disk, or another hand at work.

One table, `ROWS`, over what is observed; the first row that fits gives the action. The rest of the file
observes and acts.

Rules
1. Starting our own stopped k3s while our journal is open only adds a voter: it is done first, and needs
   no Lease, gate or API.
2. An open step whose intent is still there goes on (or is undone where nothing had begun). One whose
   intent is gone is never resumed: somebody ended it (`abandon-step`), and the running level is adopted.
3. A level changed by anything but a step is adopted, not fought: marks and record follow what runs.
4. But a record *below* the running level, with no step open, is that of a container made anew, which lost
   the link to it. Nobody chose that level: the server is marked control-plane, which runs the same k3s as
   full, and what it had is noted (BRING_BACK). The watcher steps it down to there again, through the
   whole gate. Not counted as a step, and no cooldown begins.
5. A changed Node uid or member id stops everything.
6. An unknown level is never taken for any level: wait.
7. Held, paused or in dry-run (`still`), the watcher writes nothing, but for what ends an open step, and for
   what keeps the vote: rule 1, and freeing k3s from the trap. A person who settles by hand is not held up.
No I/O and no clock here: the world answers the requests.
"""

from __future__ import annotations

from typing import Callable, Dict, NamedTuple, Optional, Tuple, Union

from . import lease as leases
from . import marks
from .cures import cure
from .errors import ClusterError, Conflict, LevelUnknown, RegradeError, StepFailed, StepRefused
from .levels import CONTROL_PLANE, DOWN, ETCD_ONLY, FULL, LEVELS, STAY, direction
from .model import Lease, Member, Node, NodeChange
from .requests import (
    Apply,
    CurrentLevel,
    Log,
    NewId,
    Now,
    ReadLease,
    ReadMembers,
    ReadNode,
    ReadNote,
    ReadState,
    RecordedLevel,
    RemoveState,
    Sleep,
    Started,
    StartStopped,
    Steps,
    T,
    Trapped,
    WriteLease,
    WriteState,
)
from .settings import LATE_SECONDS
from .step import (
    BRING_BACK,
    EFFECTS,
    FINISH_SECONDS,
    HELD,
    IDENTITY,
    INTENT,
    JOURNAL,
    LATE,
    POLL_SECONDS,
    REACHED,
    RECOVERED,
    Open,
    Plan,
    close,
    forget_held,
    go_on,
    lock_patience,
    locked,
    no_restart,
    note_end,
    opened_note,
    step,
    tell,
    under_lease,
    undo,
    write_intent,
    write_level,
    write_node,
)
from .step import UNCURED as LAST_CURE

STARTED = "started"  # state, below full: the start of k3s that was seen last, and after which step, in which boot
UNCURED_SECONDS = 1800.0  # between cures, where the last did not help: k3s ends by itself after 900
BOOT_POLLS = 30  # looks at a booting k3s, POLL_SECONDS apart, before settle gives up for now


class Situation(NamedTuple):
    """What was found. Each field is one of the words of its comment."""

    identity: str  # same, changed
    journal: str  # none, bare (nothing had begun), begun, recovered (by hand, with no API: no step is open)
    intent: str  # none, same (the journal's), other
    running: str  # unknown, start, target (of the journal; see `_as_start`), or else the level's name
    marks: str  # agree, differ (with the running level)
    record: str  # agree, above, below (the running level; agree where it is not known)
    trapped: str  # no, yes, uncured (a restart did not help, and the next is not due)
    still: str  # no, or the person's switch: hold, pause, dry-run; no for a person who settles by hand


class Row(NamedTuple):
    """`when` names the fields that matter and the words they may have."""

    action: str
    when: Dict[str, Tuple[str, ...]]
    words: str


# actions
NOTHING, WAIT, ALARM, UNDO, RESUME, CLOSE, ADOPT, RECOVER, REVERT, REPAIR, CURE, RETURN, CLEAR, LEFT, UNCURED = (
    "nothing",
    "waiting",
    "alarm",
    "undone",
    "resumed",
    "closed",
    "adopted",
    "recovered",
    "reverted",
    "repaired",
    "cured",
    "returning",
    "cleared",
    "left",
    "uncured",
)
STILL = ("hold", "pause", "dry-run")

ROWS: Tuple[Row, ...] = (
    Row(
        ALARM,
        {"identity": ("changed",)},
        "this server's Node or etcd member is not the one that stepped down",
    ),
    Row(WAIT, {"running": ("unknown",)}, "the level k3s runs at is not known"),
    Row(
        RECOVER,
        {"journal": ("recovered",), "running": ("target",)},
        "this server was put back to full by hand while no API answered, and its marks follow",
    ),
    Row(REVERT, {"journal": ("recovered",)}, "a recovery was cut off before k3s ran full"),
    Row(
        ALARM,
        {"journal": ("begun",), "intent": ("other",)},
        "the Node shows another step than the journal",
    ),
    Row(UNDO, {"journal": ("bare",)}, "a step that had not begun is taken back"),
    Row(
        RESUME,
        {"journal": ("begun",), "intent": ("same",), "running": ("start", "target")},
        "an open step goes on",
    ),
    Row(
        CLOSE,
        {"journal": ("begun",), "intent": ("none",), "running": ("start", "target"), "marks": ("agree",)},
        "the step had ended on the Node, by its last write or by `abandon-step`: its journal is closed",
    ),
    Row(
        ADOPT,
        {"journal": ("begun",), "intent": ("none",)},
        "the open step was ended by another hand (`abandon-step`), and the level k3s runs at is adopted",
    ),
    Row(
        ADOPT,
        {"journal": ("begun",)},
        "another hand put k3s at a level that the open step does not touch: that step ends, and the level is adopted",
    ),
    Row(
        RETURN,
        {"record": ("below",), "still": ("no",)},
        "k3s came back without the link to its record: it is stepped down to the record's level again",
    ),
    Row(
        CLEAR,
        {"intent": ("other",), "still": STILL},
        "the Node shows a step that this host has no journal of: its mark alone is cleared",
    ),
    Row(
        REPAIR,
        {"intent": ("other",)},
        "the Node shows a step that this host has no journal of: its mark is cleared",
    ),
    Row(
        REPAIR,
        {"marks": ("differ",), "trapped": ("yes",)},
        "the Node's marks are made those of the level k3s runs at, so that it can be freed from the trap",
    ),
    Row(LEFT, {"marks": ("differ",), "still": STILL}, "the Node's marks stay as they are"),
    Row(
        LEFT,
        {"record": ("above", "below"), "trapped": ("no", "uncured"), "still": STILL},
        "the record stays as it is",
    ),
    Row(REPAIR, {"marks": ("differ",)}, "the Node's marks are made those of the level k3s runs at"),
    Row(
        REPAIR,
        {"record": ("above",), "trapped": ("no", "uncured")},
        "the record is made that of the level k3s runs at",
    ),
    Row(CURE, {"trapped": ("yes",)}, "k3s is locked behind its own address and is restarted"),
    Row(UNCURED, {"trapped": ("uncured",)}, "k3s is locked behind its own address"),
    Row(NOTHING, {}, "level and marks agree, no step is open"),
)


class Settled(NamedTuple):
    """What settling did. `level` is the running level, "" where not known; `back` the level that the server
    is to be stepped down to again (rule 4), "" for none."""

    action: str
    level: str
    message: str
    back: str = ""


def choose(situation: Situation) -> Row:
    """The first row that fits; the last fits always."""
    found = situation._asdict()
    return next(row for row in ROWS if all(found[field] in words for field, words in row.when.items()))


def settle(plan: Plan, cure: bool = True) -> Steps[Settled]:
    """Looks at this server and ends what is open. Raises StepRefused, StepFailed, LevelUnknown,
    ClusterError. Not `cure`: the trap is not looked for, as the step that comes next restarts k3s anyway."""
    settled: Settled = yield from locked(f"settling {plan.node}", _settle(plan, cure), lock_patience(plan))
    if settled.action != CURE:
        return settled
    try:
        outcome = yield from step(plan, STAY, settled.level)  # a step of its own, with its own lock
    except (StepRefused, StepFailed) as error:
        raise _with_level(error, settled.level) from None
    return settled._replace(message=f"{settled.message}: {outcome.message}")


def _with_level(error: Union[StepRefused, StepFailed], level: str) -> Union[StepRefused, StepFailed]:
    """What went wrong does not make the running level unknown."""
    if not (error.level or getattr(error, "left_open", False)):
        error.level = level
    return error


def _settle(plan: Plan, look_for_trap: bool) -> Steps[Settled]:
    document: Optional[Dict[str, object]] = yield ReadState(JOURNAL)
    opened = Open.from_document(plan, document) if document else None
    level, unknown = yield from _level(opened)
    late = yield from _may_land(LATE)  # asked before the Node is read: what lands in between is seen the next time
    try:
        node: Node = yield ReadNode(plan.node)
    except ClusterError as error:
        raise (
            LevelUnknown(f"{unknown}; and the cluster does not answer: {error}") if unknown else error
        ) from None
    kept: Optional[Dict[str, object]] = yield ReadState(IDENTITY)
    member = yield from _member(opened, kept)
    trapped = "yes" if look_for_trap and (yield from _is_trapped(opened, level)) else "no"
    uncured = (yield from _uncured()) if trapped == "yes" and plan.automatic else ""
    if uncured:
        trapped = "uncured"
    recorded = level if opened or not level else (yield from _recorded(level))
    found = situation(opened, kept, node, member, level, recorded, trapped, plan.automatic)
    row = choose(found)
    text = uncured if row.action == UNCURED else row.words
    if row.action == WAIT:
        raise LevelUnknown(unknown)
    if row.action == ALARM:
        reason = "identity" if found.identity == "changed" else "two-steps"
        text = f"{row.words}: {_facts(opened, node, level, member, kept)}; {cure(reason)}"
        yield from tell(node, "Warning", "RegradeAlarm", text)
        raise StepFailed(text, left_open=True, reason=reason)
    if row.action == UNDO and opened:
        opened.unsure = True  # who left it may have died with the write of its intent under way
        yield from undo(opened, "found open at the start", began=False)
    elif row.action == RESUME and opened:
        effects: Tuple[Callable[[Open], Steps[None]], ...] = REACHED
        if level != opened.target:
            effects = EFFECTS[opened.start, opened.target]
            opened.restarted = opened.restarted and not opened.restart_is_off((yield Now()))
        opened.plan = opened.plan._replace(wait=max(plan.wait, FINISH_SECONDS))
        outcome = yield from _keep_open(opened, under_lease(opened, go_on(opened, effects)))
        level, text = outcome.target, outcome.message
    elif row.action in (CLOSE, ADOPT) and opened:
        if _as_start(opened, level):  # it was abandoned before its restart: the record is taken back too
            yield Apply(opened.start, no_restart, opened_note(opened), {})
            level = opened.start
        how = "done" if level == opened.target else "undone"
        if row.action == CLOSE:
            yield from close(opened, level, how)
        else:
            yield from note_end(opened, level, how)
            yield RemoveState(JOURNAL)
        text = f"{row.words}: {opened.words}, k3s runs at {level}"
        if row.action == ADOPT:  # what is left of it now is a level that differs from its marks
            yield from tell(node, "Warning", "RegradeAdopted", text)
            try:
                yield from _repair(plan, node, level, member or opened.member)
            except (StepRefused, StepFailed) as error:
                raise _with_level(error, level) from None
    elif row.action == RECOVER and opened:
        try:
            yield from _repair(plan, node, level, member, hold=False)
        except (StepRefused, StepFailed) as error:
            raise _with_level(error, level) from None
        yield RemoveState(JOURNAL)
        yield from tell(node, "Normal", "RegradeRecovered", text)
    elif row.action == REVERT and document:
        yield Log(f"{row.words}: k3s runs at {level}")
        before = document.get("before")
        if isinstance(before, dict):
            yield WriteState(JOURNAL, before)
        else:
            yield RemoveState(JOURNAL)
        return (yield from _settle(plan, look_for_trap))
    elif row.action in (REPAIR, RETURN, CLEAR):
        known = str(kept.get("member", "")) if kept else ""  # etcd's list may not have been read now
        try:
            if row.action == CLEAR:
                yield from under_lease(Open(plan, level, level), _clear(plan, node))
            elif row.action == RETURN:
                level = yield from _bring_back(plan, node, recorded, member or known)
            else:
                yield from _repair(plan, node, level, member or known)
        except (StepRefused, StepFailed) as error:
            raise _with_level(error, level) from None
        text = f"{row.words}: {recorded if row.action == RETURN else level}"
    elif row.action == LEFT:
        would = choose(found._replace(still="no"))
        text = f"{marks.STILL_WORDS[found.still]}: {row.words}; without that: {would.words}"
    elif row.action == NOTHING and level == FULL and kept:  # who made it full was killed before this
        yield RemoveState(IDENTITY)
    if row.action in (NOTHING, UNDO, CLOSE, LEFT, UNCURED):
        yield from _free_left_over(plan)
    if not late:
        yield from _forget_late()
    if row.action in (NOTHING, LEFT, UNCURED) and level != FULL:
        yield from _tell_of_start(node, level, found.still)
    if row.action != NOTHING:
        yield Log(f"settled: {text}")
    back = "" if row.action == LEFT else (yield from _back(level))
    return Settled(row.action, level, text, back)


def _tell_of_start(node: Node, level: str, still: str) -> Steps[None]:
    """Says so where k3s was started anew below full by no step (k3s#7085). It has its level and its vote again, and
    that is no step: nothing is noted as one. Under a switch only the log tells."""
    try:
        seen = {
            "started": (yield Started()),
            "after": (yield ReadNote()).get("id", ""),
            "boot_id": (yield Now()).boot_id,
        }
        known: Dict[str, object] = (yield ReadState(STARTED)) or {}
        if not seen["started"] or seen == known:
            return
        yield WriteState(STARTED, seen)
        if {**seen, "started": ""} != {**known, "started": ""}:  # a step or a boot of the host began it
            return
        text = (
            f"k3s was started anew at {level}, by no step of ours: it ended by itself (at etcd-only it does where it "
            "reaches no API server for 15 minutes), was killed, or a person restarted it; it is back at its level. "
            "Look at its log, and at the servers that KUBE_SERVER names"
        )
        yield Log(text)
        if still == "no":
            yield from tell(node, "Warning", "RegradeStartedAnew", text)
    except RegradeError as error:
        yield Log(f"whether k3s was started anew cannot be told: {error}")


def _back(level: str) -> Steps[str]:
    """The level to be stepped down to again, while the server is above it and below full; else that is over:
    it is there, or a person stepped it up."""
    try:
        noted: Optional[Dict[str, object]] = yield ReadState(BRING_BACK)
        wanted = to_return_to(level, noted)
        if wanted:
            return wanted
        if noted is not None:
            yield RemoveState(BRING_BACK)
    except RegradeError as error:
        yield Log(f"whether this server is to be stepped down again cannot be told: {error}")
    return ""


def to_return_to(level: str, noted: Optional[Dict[str, object]]) -> str:
    """The level that the note BRING_BACK still asks for of a server that runs at `level`, "" for none."""
    wanted = str(noted.get("level", "")) if noted else ""
    return wanted if wanted in LEVELS and level != FULL and direction(level, wanted) == DOWN else ""


def _free_left_over(plan: Plan) -> Steps[None]:
    """Lets go of a Lease that a killed process of this server still holds: we have the host's lock, and no
    step is open, so nobody will."""
    late = yield from _may_land(HELD)  # asked before the Lease is read, as above
    try:
        found: Lease = yield ReadLease()
        if found.holder and leases.node_of(found.holder) == plan.node:
            now = yield Now()
            yield WriteLease(leases.released(found, now.text))
            yield Log(f"released the Lease that {found.holder} left behind")
        if not late:
            yield from forget_held()
    except ClusterError as error:
        yield Log(f"looking for a Lease left behind: {error}")


def _may_land(name: str) -> Steps[bool]:
    """Whether what the note `name` tells of may still come through: then it is looked at again."""
    try:
        noted: Optional[Dict[str, object]] = yield ReadState(name)
    except RegradeError as error:
        yield Log(str(error))
        return False
    if noted is None:
        return False
    now = yield Now()
    at = noted.get("boottime") if noted.get("boot_id") == now.boot_id else 0.0  # of an earlier boot: before this one
    return isinstance(at, (int, float)) and 0 <= now.boottime - at < LATE_SECONDS


def _forget_late() -> Steps[None]:
    """Ends the look-out for an intent that was taken back, once it cannot land any more."""
    if (yield from _may_land(LATE)):
        return
    try:
        yield RemoveState(LATE)
    except RegradeError as error:
        yield Log(str(error))


def _keep_open(opened: Open, body: Steps[T]) -> Steps[T]:
    """A resumed step that cannot even begin to go on is still open."""
    try:
        return (yield from body)
    except (StepRefused, ClusterError) as error:
        raise StepFailed(f"{opened.words} stays open: {error}", left_open=True) from None


def situation(
    opened: Optional[Open],
    kept: Optional[Dict[str, object]],
    node: Node,
    member: str,
    level: str,
    recorded: str,
    trapped: str,
    automatic: bool,
) -> Situation:
    """The words of the table for what was found."""
    uid, known = "", ""
    if opened:
        uid, known = opened.uid, opened.member
    elif kept:
        uid, known = str(kept.get("uid", "")), str(kept.get("member", ""))
    changed = bool(uid and node.uid != uid) or bool(known and member and member != known)
    intent = marks.intent_of(node)
    journal = "none" if not opened else {INTENT: "bare", RECOVERED: "recovered"}.get(opened.phase, "begun")
    if not level:
        running = "unknown"
    elif opened and level in (opened.start, opened.target):
        running = "target" if level == opened.target else "start"
    elif _as_start(opened, level):
        running, level = "start", CONTROL_PLANE
    else:
        running = level
    return Situation(
        identity="changed" if changed else "same",
        journal=journal,
        intent="none" if not intent else "same" if opened and intent.id == opened.id else "other",
        running=running,
        marks="agree" if marks.agrees(node, level) else "differ",
        record=_beside(recorded, level),
        trapped=trapped,
        still=(marks.stilled(node) if automatic else "") or "no",
    )


def _beside(recorded: str, level: str) -> str:
    """Where the record lies beside the running level."""
    if recorded == level or recorded not in LEVELS:
        return "agree"
    return "below" if direction(level, recorded) == DOWN else "above"


def _as_start(opened: Optional[Open], level: str) -> bool:
    """Whether what reads as full is the start of a step from control-plane to etcd-only, cut off between its
    record and its restart: both run the same k3s, and the record that tells them apart is etcd-only's."""
    return bool(opened and level == FULL and (opened.start, opened.target) == (CONTROL_PLANE, ETCD_ONLY))


def _level(opened: Optional[Open]) -> Steps[Tuple[str, str]]:
    """(the running level or "", why it is not known), after starting a k3s that our open step left
    stopped."""
    why = ""
    for attempt in range(BOOT_POLLS if opened else 1):
        if opened:
            try:
                if (yield StartStopped()):
                    yield Log("started our stopped k3s: a step of ours is open")
            except RegradeError as error:
                why = str(error)
        try:
            level: str = yield CurrentLevel()
            return level, ""
        except LevelUnknown as error:
            why = str(error)
        if opened and attempt + 1 < BOOT_POLLS:
            yield Sleep(POLL_SECONDS)
    return "", why


def _recorded(level: str) -> Steps[str]:
    """The level of the record, `level` where none is kept: then nothing differs. Raises LevelUnknown.

    A record that cannot be told is not one that agrees: marks that were made to agree with what runs would be lost
    where a container came back without its link.
    """
    try:
        found: str = yield RecordedLevel()
        return found or level
    except RegradeError as error:
        raise LevelUnknown(f"the recorded level cannot be told: {error}") from None


def _is_trapped(opened: Optional[Open], level: str) -> Steps[bool]:
    """Asked only where nothing is open: an open step looks for the trap itself."""
    if opened or level != ETCD_ONLY:
        return False
    try:
        return bool((yield Trapped()))
    except LevelUnknown as error:
        yield Log(f"whether k3s is locked behind its own address cannot be told: {error}")
        return False


def _uncured() -> Steps[str]:
    """Each cure restarts etcd: after one that did not help the next waits, for these words; "" where it is
    due."""
    document: Optional[Dict[str, object]] = yield ReadState(LAST_CURE)
    now = yield Now()
    at = document.get("boottime") if document and document.get("boot_id") == now.boot_id else None
    if isinstance(at, (int, float)) and 0 <= now.boottime - at < UNCURED_SECONDS:
        return (
            "k3s is locked behind its own address, and a restart did not cure it "
            f"(the next comes {UNCURED_SECONDS:.0f} s after it): {cure('trap')}"
        )
    return ""


def _member(opened: Optional[Open], kept: Optional[Dict[str, object]]) -> Steps[str]:
    """The member id we know, where etcd still lists it; "gone" where it does not; "" where not known."""
    known = opened.member if opened else str(kept.get("member", "")) if kept else ""
    if not known:
        return ""
    try:
        members: Tuple[Member, ...] = yield ReadMembers()
    except LevelUnknown:
        return ""
    return known if known in [member.id for member in members] else "gone"


def _facts(
    opened: Optional[Open], node: Node, level: str, member: str, kept: Optional[Dict[str, object]]
) -> str:
    text = f"k3s runs at {level}, label {marks.level_of(node)}, Node uid {node.uid}"
    text += f", etcd member {member or 'not known'}"
    if opened:
        text += f", journal: {opened.words} ({opened.phase}), uid {opened.uid}, member {opened.member}"
    elif kept:
        text += f", stepped down as uid {kept.get('uid')}, member {kept.get('member')}"
    return text


def _no_note(_facts: Dict[str, str]) -> Steps[None]:
    """A repair has no journal."""
    yield from ()


def _bring_back(plan: Plan, node: Node, recorded: str, member: str) -> Steps[str]:
    """Marks, record and link of control-plane, which runs the same k3s, and the note of what is to come again.

    The note comes first: from then on any process of this server knows it, and a settling that is cut off
    is done once more. Gives the level the server is at now.
    """
    try:
        yield WriteState(BRING_BACK, {"level": recorded})
    except RegradeError as error:
        raise StepRefused(f"that {plan.node} was at {recorded} cannot be noted: {error}", "storage") from None
    yield from _repair(plan, node, CONTROL_PLANE, member)
    return CONTROL_PLANE


def _clear(plan: Plan, node: Node) -> Steps[None]:
    """Takes an intent off that no journal of ours is of, and nothing else."""
    intent = marks.intent_of(node)

    def build(_node: Node) -> NodeChange:
        return NodeChange(annotations={marks.INTENT: None})

    def done(found: Node) -> bool:
        return marks.intent_of(found) != intent

    try:
        yield from write_node(plan.node, node.uid, build, done, 0.0)
    except Conflict:
        raise StepRefused(
            f"the mark of a step on {plan.node} could not be cleared: others write it meanwhile", "cluster"
        ) from None


def _repair(plan: Plan, node: Node, level: str, member: str, hold: Optional[bool] = None) -> Steps[None]:
    """Record and marks of the running level, under the Lease: the record, then our own intent, then the marks
    and its end in one write. `hold` False ends a hold with them.

    What was recorded is not what runs where the container was made anew without its link to the record, or by
    another hand. A record left as it was would come into force at some later restart, ungated.
    """
    opened = Open(plan, level, level)
    opened.uid = node.uid
    intent = marks.intent_of(node)
    opened.id = intent.id if intent else (yield NewId())

    def work() -> Steps[None]:
        if (yield from _recorded(level)) != level:
            try:
                yield Apply(level, no_restart, _no_note, {}, may_start=False)
            except RegradeError as error:
                raise StepRefused(f"the record of {level} could not be laid: {error}", "platform") from None
        if level != FULL:  # before the marks: at whatever moment it is killed, the watcher knows
            try:
                yield WriteState(IDENTITY, {"uid": node.uid, "member": member})
            except RegradeError as error:
                raise StepRefused(f"what this server is cannot be noted: {error}", "storage") from None
        held = hold is False and marks.HOLD in node.annotations
        if marks.agrees(node, level) and not intent and not held:
            return
        if not intent:
            yield from write_intent(opened)
        done = yield from write_level(opened, level, True, FINISH_SECONDS, hold)
        yield from tell(done, "Normal", "RegradeRepaired", f"the Node's marks were made those of {level}")

    yield from under_lease(opened, work())
    if level == FULL:
        yield RemoveState(IDENTITY)
