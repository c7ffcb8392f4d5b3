# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What only a person may ask for: holds, dead servers, the last server standing, maintenance. As generators.

| command      | what it does                                                 | what it never does              |
|--------------|--------------------------------------------------------------|---------------------------------|
| hold         | keeps automatic steps from this server                       | step it                         |
| release      | ends that hold                                               | step it                         |
| abandon-step | closes a dead server's step: its intent and its Lease        | touch its label, taint or level |
| forget       | takes our marks off a server that is gone, or full unwatched | delete the Node or its member   |
| (despite)    | asks before a step up restarts etcd without a dead peer      | leave out the Lease             |
| recover      | removes the record and restarts k3s where no API is left     | ask the cluster for anything    |
| with-lease   | runs a command under the host's lock and the Lease           | end that command                |

Rules
1. What is found is told and confirmed first, before the host's lock and the Lease; then it is looked at again.
2. Each write is conditional on what was read; after an unknown answer we read back.
3. Nothing here removes an etcd member or deletes a Node.
No I/O and no clock here: the world answers the requests.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Tuple

from . import gate, marks
from . import lease as leases
from .errors import (
    ApplyFailed,
    ClusterError,
    Conflict,
    LevelUnknown,
    Missing,
    RegradeError,
    StepFailed,
    StepRefused,
    Unreachable,
)
from .levels import ETCD_ONLY, FULL, UP, restarts
from .model import Lease, Node, NodeChange, PeerAnswer
from .requests import (
    AskPeer,
    CommandEnded,
    Confirm,
    CurrentLevel,
    Log,
    NewId,
    NoteStep,
    Now,
    ReadLease,
    ReadNode,
    ReadNodes,
    ReadRenewals,
    ReadState,
    RecordedLevel,
    Recover,
    RemoveState,
    RenewalLost,
    Say,
    Sleep,
    StartCommand,
    Steps,
    WriteLease,
    WriteState,
)
from .settings import FRESH_SECONDS
from .step import (
    FINISH_SECONDS,
    IDENTITY,
    JOURNAL,
    LOCK_SECONDS,
    POLL_SECONDS,
    RECOVERED,
    VERIFY_SECONDS,
    WRITE_TRIES,
    Open,
    Plan,
    judge_despite,
    locked,
    members_of,
    tell,
    under_lease,
    write_node,
)

LOOKS = 3  # for an API server, before this one is the last standing
COMMAND_SECONDS = 1.0  # between looks at the Lease while a command runs under it
DISABLED = "apiserver disabled"  # what k3s says at etcd-only


class Done(NamedTuple):
    """What a command did, in one line for a person."""

    changed: bool
    message: str


class Ran(NamedTuple):
    """A command that ran under the Lease."""

    code: int
    lost: str  # why the Lease was lost meanwhile, "" where it was held to the end
    message: str


# ---- hold and release


def hold(plan: Plan, check: bool = False) -> Steps[Done]:
    """Leaves this server where it is: no automatic step until `release`. Raises RegradeError."""
    return (yield from _switch_hold(plan, True, check))


def release(plan: Plan, check: bool = False) -> Steps[Done]:
    """Ends a hold: automatic steps may come again. Raises RegradeError."""
    return (yield from _switch_hold(plan, False, check))


def _switch_hold(plan: Plan, on: bool, check: bool) -> Steps[Done]:
    """`check` tells what would be done and writes nothing."""
    name = plan.node
    if check:
        node: Node = yield ReadNode(name)
        if marks.switch(node, marks.HOLD) == on:
            return Done(False, _is_so(name, on))
        return Done(True, f"{name} would be held" if on else f"the hold of {name} would be ended")
    purpose = f"holding {name}" if on else f"releasing {name}"
    return (yield from locked(purpose, _write_hold(name, on), LOCK_SECONDS))


def _is_so(name: str, on: bool) -> str:
    return f"{name} is held already" if on else f"{name} is not held"


def _write_hold(name: str, on: bool) -> Steps[Done]:
    asked = False  # a write of ours may have come through without its answer

    def build(_node: Node) -> NodeChange:
        nonlocal asked
        asked = True
        return NodeChange(annotations={marks.HOLD: "by hand" if on else None})

    try:
        node = yield from write_node(
            name, "", build, lambda found: marks.switch(found, marks.HOLD) == on, 0.0
        )
    except ClusterError as error:
        if not asked:
            raise
        failed = f"{name} could not be held" if on else f"the hold of {name} could not be ended"
        raise StepFailed(f"{failed}: {error}", left_open=False) from None
    if not asked:
        return Done(False, _is_so(name, on))
    if on:
        yield from tell(node, "Normal", "RegradeHeld", f"{name} is held by hand: it takes no automatic step")
        return Done(True, f"{name} is held")
    yield from tell(node, "Normal", "RegradeReleased", f"the hold of {name} was ended by hand")
    return Done(True, f"the hold of {name} is ended")


# ---- a dead server's step


def abandon_step(plan: Plan, name: str, step_id: str = "") -> Steps[Done]:
    """Closes the step that the dead server `name` left open; `step_id`: only that one. Raises RegradeError.

    What the server does when it comes back is `reconcile`'s: a step whose intent is gone is never resumed.
    """
    node = yield from _other(plan, name)
    intent = marks.intent_of(node)
    if intent is None:
        raise StepRefused(f"{name} shows no open step: there is nothing to abandon")
    if step_id and intent.id != step_id:
        raise StepRefused(f"{name} shows the step {intent.id or 'that cannot be read'}, expected {step_id}")
    answers = yield from _answers(node)
    if answers:
        raise StepRefused(f"{name} is alive: {answers}; `regrade settle` on that server ends its step")
    words = (
        f"its step from {intent.start} to {intent.target}" if intent.id else "its step, which cannot be read,"
    )
    yield Confirm(
        f"{words} (id {intent.id or 'unknown'}) will be closed, and its Lease let go, if {name} shows no sign of life "
        f"for {FRESH_SECONDS:.0f} s or more: only where that host is dead or cut off, as one that merely sleeps may "
        f"end a restart it was at when it wakes; it keeps the label {marks.level_of(node)!r} and its etcd member, and "
        "never goes on with that step when it comes back"
    )
    shown = node.annotations[marks.INTENT]
    body = _abandon(plan, name, node.uid, shown, words)
    return (yield from locked(f"abandoning the step of {name}", body, LOCK_SECONDS))


def _abandon(plan: Plan, name: str, uid: str, shown: str, words: str) -> Steps[Done]:
    lease: Lease = yield ReadLease()
    patience = float(lease.duration_seconds or plan.settings.lease_seconds) if _holds(lease, name) else 0.0
    alive = yield from _signs_of_life(plan, name, patience)
    if alive:
        raise StepRefused(
            f"{name} shows signs of life: {alive}; its own watcher ends its step, or `regrade settle` on that server"
        )
    freed = yield from _let_go(name, lease)
    asked = False

    def build(node: Node) -> NodeChange:
        nonlocal asked
        if node.annotations[marks.INTENT] != shown:
            raise StepRefused(
                f"{name} shows another step by now, so it is alive: nothing was changed on its Node"
            )
        asked = True
        return NodeChange(annotations={marks.INTENT: None})

    def done(node: Node) -> bool:
        return marks.INTENT not in node.annotations

    try:
        again: Lease = yield ReadLease()
        if _holds(again, name):  # who goes on with a step takes the Lease first
            raise StepRefused(f"{name} has just taken the Lease, so it is alive: its step stays open")
        node = yield from write_node(name, uid, build, done, 0.0)
    except ClusterError as error:
        raise StepFailed(
            f"{words} of {name} is not closed yet: {error}; run the same again", left_open=False
        ) from None
    if not asked:
        return Done(freed, f"{words} of {name} was ended by another hand meanwhile")
    text = (
        f"{words} was abandoned by hand from {plan.node}; {name} stays marked {marks.level_of(node)}, and adopts "
        "the level it runs at when it comes back"
    )
    yield from tell(node, "Warning", "RegradeAbandoned", text)
    return Done(True, text)


def _other(plan: Plan, name: str) -> Steps[Node]:
    if name == plan.node:
        raise StepRefused(f"{name} is this server itself: `regrade settle` ends what is open here")
    try:
        node: Node = yield ReadNode(name)
    except Missing:
        raise StepRefused(f"there is no Node {name} (any more)") from None
    return node


def _holds(lease: Lease, name: str) -> bool:
    return bool(lease.holder) and leases.node_of(lease.holder) == name


def _signs_of_life(plan: Plan, name: str, patience: float) -> Steps[str]:
    """Why `name` is alive, "" where it was silent for FRESH_SECONDS, and `patience` if that is longer.

    Its kubelet is off at etcd-only, and its step's process may be gone where k3s lives: any one sign counts.
    """
    before: Optional[Tuple[str, Lease]] = None
    begun = yield Now()
    seconds = max(FRESH_SECONDS, patience) + POLL_SECONDS
    while True:
        why = ""
        asked = yield Now()  # what is read is as old as this, however long this process is stopped before it looks
        try:
            renewals: Dict[str, str] = yield ReadRenewals()
            lease: Lease = yield ReadLease()
            seen = (renewals.get(name, ""), lease)
        except ClusterError as error:
            why = str(error)
        now = yield Now()
        if not why:
            if before is None:
                before, begun = seen, now
            elif seen[0] != before[0]:
                return "its kubelet renews its node lease"
            elif _holds(lease, name) and lease.resource_version != before[1].resource_version:
                return f"the Lease is being renewed by {lease.holder}"
            elif asked.boottime - begun.boottime >= seconds:
                return ""
        if now.boottime - begun.boottime >= seconds + FINISH_SECONDS:
            raise StepRefused(f"whether {name} is alive cannot be told: {why}")
        yield Sleep(POLL_SECONDS)


def _let_go(name: str, seen: Lease) -> Steps[bool]:
    """Whether the Lease that the dead `name` held is free now: by compare-and-swap on the record that was seen
    unchanged. Before the intent is cleared, so that a run that was cut off is made whole by the next."""
    if not _holds(seen, name):
        return False
    for _attempt in range(WRITE_TRIES):
        try:
            found: Lease = yield ReadLease()
            if not _holds(found, name):
                return found.holder == ""
            if found.resource_version != seen.resource_version:
                raise StepRefused(
                    f"the Lease is being renewed by {found.holder}: it is alive, nothing was changed"
                )
            now = yield Now()
            yield WriteLease(leases.released(found, now.text))
            return True
        except Conflict:
            continue
        except ClusterError as error:
            yield Log(f"letting go of the Lease of {name}: {error}")
            yield Sleep(POLL_SECONDS)
    raise StepFailed(f"the Lease that {name} holds could not be let go; run the same again", left_open=False)


# ---- the marks of a server that has no watcher


def forget(plan: Plan, name: str) -> Steps[Done]:
    """Takes our marks and the hold off the Node `name`. Raises RegradeError."""
    node = yield from _other(plan, name)
    _shows_no_step(node)
    if not _carries(node):
        return Done(False, f"{name} carries no mark of ours and no hold")
    answers = yield from _answers(node)
    if DISABLED in answers:
        raise StepRefused(f"{name} runs at etcd-only ({answers}): its marks protect its vote, and stay")
    full = bool(answers)
    risk = (
        "its own API answers, so its k3s runs all there is; a watcher of its own would set them again"
        if full
        else f"its API does not answer, and it is looked at for {FRESH_SECONDS:.0f} s; only where it is gone for "
        "good: a server that still runs at etcd-only loses with its label what keeps others from deleting its Node, "
        "and its etcd member with it"
    )
    yield Confirm(
        f"label, taint, hold and our cordon will be taken off Node {name} (marked {marks.level_of(node)}), which must "
        f"have no watcher any more; {risk}. Neither the Node nor its etcd member is removed"
    )
    return (yield from locked(f"forgetting {name}", _forget(plan, node, full), LOCK_SECONDS))


def _forget(plan: Plan, node: Node, full: bool) -> Steps[Done]:
    if (yield ReadState(JOURNAL)):
        raise StepRefused("a step of this server is still open; `regrade settle` ends it")
    if not full:
        alive = yield from _signs_of_life(plan, node.name, 0.0)
        if alive:
            raise StepRefused(
                f"{node.name} neither runs full nor is gone: {alive}, and its API does not answer; `regrade settle` on "
                "that server makes its marks agree"
            )

    def build(found: Node) -> NodeChange:
        _shows_no_step(found)
        change = marks.at_level(found, FULL, None)
        return change._replace(annotations={**change.annotations, marks.HOLD: None})

    def done(found: Node) -> bool:
        return marks.INTENT not in found.annotations and not _carries(found)

    def work() -> Steps[Done]:
        try:
            cleared = yield from write_node(node.name, node.uid, build, done, 0.0)
        except ClusterError as error:
            raise StepFailed(f"the marks of {node.name} stay: {error}", left_open=False) from None
        text = f"the marks of {node.name} ({marks.level_of(node)}) were taken off by hand from {plan.node}"
        yield from tell(cleared, "Warning", "RegradeForgotten", text)
        return Done(True, text)

    return (yield from under_lease(Open(plan, FULL, FULL), work()))


def _shows_no_step(node: Node) -> None:
    if marks.intent_of(node):
        raise StepRefused(
            f"{node.name} shows an open step: bring that server back, or `regrade abandon-step {node.name}` first"
        )


def _carries(node: Node) -> bool:
    return not marks.agrees(node, FULL) or marks.HOLD in node.annotations


def _answers(node: Node) -> Steps[str]:
    """What its own k3s says, which only a living one does; "" where it does not answer."""
    answer: PeerAnswer = yield AskPeer(node.addresses[0] if node.addresses else node.name)
    if DISABLED in answer.readyz_etcd:
        return answer.readyz_etcd
    return "" if answer.readyz_etcd and answer.lease_read else "its own API answers"


# ---- stepping up without a dead peer


def agreed(plan: Plan, levels: Tuple[str, ...]) -> Steps[Plan]:
    """The plan for a walk over `levels`, confirmed where etcd restarts without a peer of `plan.despite`.

    Raises StepRefused, and what Confirm raises.
    """
    pairs = list(zip(levels, levels[1:]))
    if not plan.despite or not pairs:
        return plan
    nodes: Tuple[Node, ...] = yield ReadNodes()
    for start, target in pairs:
        judge_despite(plan._replace(confirmed=True), nodes, start, target)
    if not any(restarts(start, target) for start, target in pairs):
        return plan
    facts = yield from members_of(plan, nodes)
    _members, misfit = gate.match(facts)
    if misfit:
        raise StepRefused(f"members: {misfit}", "members")
    yield Confirm(f"{plan.node} will restart its k3s to step up: {gate.risk(facts)}")
    return plan._replace(confirmed=True)


# ---- the last server standing


def recover(plan: Plan) -> Steps[Done]:
    """Runs k3s full again where no API server is left to ask. Raises RegradeError.

    The journal it leaves is that of a recovery: once an API answers, `reconcile` makes the marks agree with it,
    ends a step that was open, and a hold.
    """
    silence = yield from _nobody_answers()
    start = yield from _below_full(plan)
    yield Confirm(
        f"{silence}; the record of {start} will be removed and k3s of {plan.node} restarted at full, with no Lease and "
        "no check: while it restarts its etcd vote is away, and where no quorum of etcd's members is left it cannot "
        "serve until another one is back; no member is removed and no cluster is reset"
    )
    return (yield from locked(f"recovering {plan.node}", _recover(plan), LOCK_SECONDS))


def _nobody_answers() -> Steps[str]:
    """Why no API server of KUBE_SERVER answers. Raises StepRefused where one does, whatever it says."""
    silence = ""
    for attempt in range(LOOKS):
        if attempt:
            yield Sleep(POLL_SECONDS)
        try:
            yield ReadNodes()
            said = "answers"
        except Unreachable as error:
            silence = str(error)
            continue
        except ClusterError as error:
            said = f"answers ({error})"
        raise StepRefused(
            f"an API server of KUBE_SERVER {said}: `regrade step up` brings this server up, with --despite NODE for a "
            "peer that is dead"
        )
    return silence


def _below_full(plan: Plan) -> Steps[str]:
    """The level that is to be left. Raises StepRefused where k3s runs full and is recorded so."""
    try:
        running: str = yield CurrentLevel()
    except LevelUnknown as error:
        yield Log(f"the running level is not known: {error}")
        running = ""
    try:
        recorded: str = yield RecordedLevel()
    except RegradeError as error:
        yield Log(f"the recorded level cannot be told: {error}")
        recorded = ""
    if running == FULL and recorded in ("", FULL):
        raise StepRefused(f"{plan.node} runs full, and its record says so: there is nothing to recover")
    return next((level for level in (running, recorded) if level not in ("", FULL)), ETCD_ONLY)


def _recover(plan: Plan) -> Steps[Done]:
    yield from _nobody_answers()
    start = yield from _below_full(plan)
    before: Optional[Dict[str, object]] = yield ReadState(JOURNAL)
    if before and before.get("phase") == RECOVERED:  # a recovery that was cut off: what was open before it
        kept = before.get("before")
        before = kept if isinstance(kept, dict) else None
    known: Dict[str, object] = before or (yield ReadState(IDENTITY)) or {}
    now = yield Now()
    opened = Open(plan, start, FULL)
    opened.id, opened.phase, opened.boot_id = (yield NewId()), RECOVERED, now.boot_id
    opened.uid, opened.member = str(known.get("uid", "")), str(known.get("member", ""))
    try:
        yield WriteState(JOURNAL, {**opened.document(), "before": before})
    except RegradeError as error:
        raise StepRefused(f"the journal cannot be written: {error}") from None
    try:
        yield Recover()
    except RegradeError as error:
        if isinstance(error, ApplyFailed) and error.began:
            raise StepFailed(f"the recovery of {plan.node} stays open: {error}", left_open=True) from None
        if before:
            yield WriteState(JOURNAL, before)
        else:
            yield RemoveState(JOURNAL)
        raise StepFailed(
            f"{plan.node} was not recovered, nothing was changed: {error}", left_open=False
        ) from None
    yield from _note_recovery(opened)
    why = yield from _seen_full()
    text = f"k3s of {plan.node} was restarted at full, its record of {start} is removed"
    text += (
        f"; it is not seen running full yet ({why}): another of etcd's members may be needed" if why else ""
    )
    text += "; the marks of its Node follow once an API server of KUBE_SERVER answers"
    yield Log(text)
    return Done(True, text)


def _note_recovery(opened: Open) -> Steps[None]:
    """For the watcher: the level, and the cooldown, which begins anew."""
    now = yield Now()
    try:
        yield NoteStep(
            {
                "id": opened.id,
                "from": opened.start,
                "to": FULL,
                "level": FULL,
                "outcome": "recovered",
                "direction": UP,
                "by": "hand",
                "boottime": f"{now.boottime:.3f}",
                "boot_id": now.boot_id,
                "at": now.text,
            }
        )
    except RegradeError as error:
        yield Log(f"the recovery could not be noted: {error}")


def _seen_full() -> Steps[str]:
    """Why k3s was not seen running full within VERIFY_SECONDS, "" where it was."""
    begun = yield Now()
    while True:
        try:
            level: str = yield CurrentLevel()
            if level == FULL:
                return ""
            why = f"it runs at {level}"
        except LevelUnknown as error:
            why = str(error)
        now = yield Now()
        if now.boottime - begun.boottime >= VERIFY_SECONDS:
            return why
        yield Sleep(POLL_SECONDS)


# ---- maintenance


def with_lease(plan: Plan, words: Tuple[str, ...]) -> Steps[Ran]:
    """Runs the command `words` while no step can be taken in the cluster. Raises RegradeError."""
    purpose = f"maintenance: {words[0]}"
    return (yield from locked(purpose, _with_lease(plan, words), max(LOCK_SECONDS, plan.wait)))


def _with_lease(plan: Plan, words: Tuple[str, ...]) -> Steps[Ran]:
    if (yield ReadState(JOURNAL)):
        raise StepRefused("a step of this server is open; `regrade settle` ends it")
    return (yield from under_lease(Open(plan, FULL, FULL), _run(plan, words)))


def _run(plan: Plan, words: Tuple[str, ...]) -> Steps[Ran]:
    try:
        nodes: Tuple[Node, ...] = yield ReadNodes()
    except ClusterError as error:
        raise StepRefused(f"the cluster does not answer: {error}") from None
    stepping = next((node for node in nodes if marks.intent_of(node)), None)
    if stepping:
        raise StepRefused(
            f"{stepping.name} shows an open step: it ends it itself, or `regrade settle` on it; where it is dead, "
            f"`regrade abandon-step {stepping.name}`"
        )
    own = next((node for node in nodes if node.name == plan.node), None)
    name = words[0]
    yield StartCommand(words)
    if own:
        yield from tell(own, "Normal", "RegradeMaintenance", f"{name} runs on {plan.node} under the Lease")
    lost = ""
    while True:
        code: Optional[int] = yield CommandEnded(COMMAND_SECONDS)
        if not lost:
            lost = yield RenewalLost()
            if lost:
                yield Say(
                    f"the Lease was lost ({lost}): others may step while {name} {'ran' if code is not None else 'runs'}"
                )
        if code is not None:
            break
    text = f"{name} ended with exit code {code}"
    if lost:
        text += f", but the Lease was lost meanwhile ({lost}): another server may have stepped"
    if own:
        kind, reason = ("Warning", "RegradeLeaseLost") if lost else ("Normal", "RegradeMaintenanceEnded")
        yield from tell(own, kind, reason, f"{text} (on {plan.node}, under the Lease)")
    return Ran(code, lost, text)
