# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""One step: its whole order and every decision, as a generator of requests.

Rules
1. Host lock, then Lease, then gate, then intent (journal on disk first, then the mark on our Node),
   *then* the Lease read again and the gate asked again, and only then the first effect. Who takes the
   Lease reads the intents after; who writes an intent reads the Lease after. Exclusion needs no clock.
2. Every write to our Node is conditional on the resourceVersion it was worked out from and on our own
   intent in it; after an unknown answer we read back. A late write of an older step changes nothing.
3. Before the restart anything that goes wrong undoes the step; from the restart on it only goes forward. One
   that was asked for and certainly did not begin counts as not asked for.
4. The gate is asked again at most 5 s before each restart the actuator asks for.
5. The Lease is released only after the verify; a step left open keeps its intent, its journal and the
   Lease, and `reconcile` ends it.
6. Cheap checks come first, so that a refusal is immediate and writes nothing.

The effects of a step, in order (`EFFECTS` below is this table):

| from -> to                 | effects                                                              |
|----------------------------|----------------------------------------------------------------------|
| full -> control-plane      | mark (one write: cordon, taint, label, ours), drain, apply, verify, finish |
| control-plane -> etcd-only | drain again, mark (label and taint), apply with restart, verify, finish |
| etcd-only -> control-plane | apply with restart, verify, finish (label and taint)                 |
| control-plane -> full      | apply, verify, finish (uncordon if ours, taint and label away)       |
| etcd-only -> etcd-only     | apply with restart (cures the own-address trap), verify, finish      |

`finish` is the last write, which clears the intent; then Event, note, journal closed, Lease and lock let go.
No I/O and no clock here: the world answers the requests.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from . import gate, marks
from . import lease as leases
from .cures import setting
from .errors import (
    ApplyFailed,
    ClusterError,
    Conflict,
    Forbidden,
    HostBusy,
    LevelMoved,
    LevelUnknown,
    Missing,
    RegradeError,
    StepFailed,
    StepRefused,
)
from .levels import CONTROL_PLANE, DOWN, ETCD_ONLY, FULL, STAY, UP, above, below, direction, restarts
from .model import Eviction, Lease, Member, Node, NodeChange, Pod
from .requests import (
    Apply,
    AskPeer,
    BeginRenewal,
    ChangeNode,
    CurrentLevel,
    EndRenewal,
    Evict,
    FreeLock,
    Instant,
    ListPods,
    Log,
    NewId,
    NoteStep,
    Now,
    Preflight,
    ReadLease,
    ReadMembers,
    ReadNode,
    ReadNodes,
    ReadNote,
    ReadRenewals,
    ReadState,
    RecordEvent,
    RemoveState,
    RenewalLost,
    Sleep,
    Steps,
    T,
    TakeLock,
    WriteLease,
    WriteState,
)
from .settings import FRESH_SECONDS, GATE_AGE_SECONDS, RESTART_GRACE_SECONDS, Settings

JOURNAL = "journal"  # state: the open step
# state: what at full nothing else tells of
HELD = "lease-held"  # the Lease is ours, or may be
LATE = "intent-late"  # the write of an intent that was taken back may yet land
SEEN = "lease-seen"  # state: since when another's Lease was seen unchanged
UNCURED = "uncured"  # state: when a restart last did not free k3s from the trap
IDENTITY = "identity"  # state, while below full: Node uid and member id, which must never change
BRING_BACK = "bring-back"  # state: the level to step back to, once a container came back without its record's link

POLL_SECONDS = 2.0
LOCK_SECONDS = 30.0  # patience of a person's command with the host's lock: the watcher looks after a server for seconds
OTHERS_AT_WORK = ("lease", "full", "intent")  # the reasons that end by themselves once another server is done
WRITE_TRIES = 8
FINISH_SECONDS = 120.0  # patience with the API for the last write of a step, and for an undo
VERIFY_SECONDS = 60.0
APPLY_TRIES = 3

# phases of a journal, in order; nothing has happened before MARK
INTENT, EFFECTS_BEGUN, RESTART = "intent", "effects", "restart"
RECOVERED = (
    "recovered"  # no step: k3s was put back to full by hand, with no API to write to (`people.recover`)
)


class Plan(NamedTuple):
    """Who steps, and how."""

    node: str
    holder: str  # `<node>/<random id of this process>`
    settings: Settings
    automatic: bool = False
    hold: bool = True  # a step by hand below full sets a hold, at full clears it
    wait: float = 0.0  # seconds to wait for a held Lease
    despite: Tuple[str, ...] = ()  # dead peers a person leaves out of the gate: by hand and upwards only
    confirmed: bool = False  # a person said yes to restarting etcd without them
    after: Optional[str] = None  # id of the last step it was decided after, "" for none; None: whatever came since


class IntentGone(StepRefused):
    """Our intent is not on our Node any more (or never came there)."""


class Outcome(NamedTuple):
    """What a whole step did."""

    start: str
    target: str
    remaining: Tuple[str, ...]  # pods that were not evicted, each with why
    taints: Tuple[str, ...]  # of others, that keep pods away from a Node that is back at full
    message: str


class Open:
    """An open step: what its parts share. The journal is what of it outlives the process."""

    def __init__(self, plan: Plan, start: str, target: str) -> None:
        self.plan, self.start, self.target = plan, start, target
        self.id = ""
        self.uid = ""
        self.member = ""
        self.members: Tuple[str, ...] = ()
        self.boot_id = ""
        self.facts: Dict[str, str] = {}
        self.phase = ""
        self.unsure = False  # a write of the intent whose answer was lost may still land
        self.restarted = False  # a restart was asked for, or may have been
        self.restart_at = 0.0  # CLOCK_BOOTTIME at which it was last asked for
        self.restart_boot = ""  # and the boot
        self.drained = False  # by who runs its effects now
        self.watch = gate.Watch()
        self.asked = 0.0  # CLOCK_BOOTTIME at which the last asking of the whole gate began
        self.remaining: Tuple[str, ...] = ()
        self.taints: Tuple[str, ...] = ()
        self.stuck = ""  # the level is reached, but k3s is trapped there and was not freed

    def document(self) -> Dict[str, object]:
        return {
            "id": self.id,
            "from": self.start,
            "to": self.target,
            "holder": self.plan.holder,
            "uid": self.uid,
            "member": self.member,
            "members": list(self.members),
            "boot_id": self.boot_id,
            "phase": self.phase,
            "restart_at": self.restart_at,
            "restart_boot": self.restart_boot,
            "automatic": self.plan.automatic,
            "hold": self.plan.hold,
            "despite": list(self.plan.despite),
            "confirmed": self.plan.confirmed,
            "facts": self.facts,
        }

    @classmethod
    def from_document(cls, plan: Plan, document: Dict[str, object]) -> Open:
        """An open step as an earlier process left it. Raises RegradeError where the journal is no journal."""
        try:
            despite = document.get("despite")
            opened = cls(
                plan._replace(
                    automatic=bool(document.get("automatic")),
                    hold=bool(document.get("hold")),
                    despite=tuple(map(str, despite)) if isinstance(despite, list) else (),
                    confirmed=bool(document.get("confirmed")),
                ),
                str(document["from"]),
                str(document["to"]),
            )
            opened.id, opened.uid = str(document["id"]), str(document["uid"])
            opened.member, opened.phase = str(document["member"]), str(document["phase"])
            members, facts = document.get("members"), document.get("facts")
            opened.members = tuple(map(str, members)) if isinstance(members, list) else ()
            opened.facts = {str(k): str(v) for k, v in facts.items()} if isinstance(facts, dict) else {}
            opened.boot_id = str(document.get("boot_id", ""))
            opened.restart_at = float(str(document.get("restart_at", 0.0)))
            opened.restart_boot = str(document.get("restart_boot", ""))
            direction(opened.start, opened.target)
        except (KeyError, ValueError) as error:
            raise RegradeError(
                f"the journal in STATE_DIR cannot be understood ({error!r}); look at it, compare the "
                "Node's marks with the level k3s runs at, and remove it by hand"
            ) from None
        opened.restarted = opened.phase == RESTART
        return opened

    def restart_is_off(self, now: Instant) -> bool:
        """Whether the restart that was asked for certainly did not begin, where k3s still runs at `start`: a
        call that was under way when its process died has ended by now."""
        settings = self.plan.settings
        longest = settings.restart_timeout_seconds + RESTART_GRACE_SECONDS
        return self.restart_boot != now.boot_id or now.boottime - self.restart_at > longest

    @property
    def words(self) -> str:
        if self.start == self.target:
            return f"the restart at {self.target}"
        return f"the step from {self.start} to {self.target}"


def always(body: Steps[T], after: Callable[[], Steps[None]]) -> Steps[T]:
    """`body`, then `after` whether it raised or not.

    Not `finally`: a generator that is dropped, as a process that is killed, asks for nothing any more.
    """
    try:
        result = yield from body
    except Exception:
        yield from after()
        raise
    yield from after()
    return result


def locked(purpose: str, body: Steps[T], patience: float) -> Steps[T]:
    """`body` under the host's lock, waited for `patience` seconds. Raises HostBusy naming who has it."""
    begun = yield Now()
    while True:
        try:
            yield TakeLock(purpose)
            break
        except HostBusy:
            now = yield Now()
            if now.boottime - begun.boottime >= patience:
                raise
            yield Sleep(POLL_SECONDS / 2)

    def free() -> Steps[None]:
        yield FreeLock()

    return (yield from always(body, free))


def step(plan: Plan, move: str, expected: str) -> Steps[Outcome]:
    """One whole step from `expected`, `move` DOWN, UP or STAY (the cure of the trap).

    Refused where k3s runs at another level than the one it was decided at: who held the host's lock before
    may have stepped. Where others are at work it is tried again for as long as `plan.wait`: the host's lock is let
    go between, so that the watcher looks after this server meanwhile. Raises StepRefused (nothing changed),
    StepFailed, LevelUnknown, ClusterError before anything began.
    """
    once = plan._replace(wait=0.0)
    if not plan.wait:
        return (yield from _step_once(once, move, expected))
    begun = yield Now()
    while True:
        try:
            return (yield from _step_once(once, move, expected))
        except StepRefused as error:
            now = yield Now()
            over = now.boottime - begun.boottime >= plan.wait
            if over or error.undone or error.reason not in OTHERS_AT_WORK:
                raise
        yield Sleep(POLL_SECONDS)


def _step_once(plan: Plan, move: str, expected: str) -> Steps[Outcome]:
    body = _step(plan, move, expected)
    return (yield from locked(f"a step {move} of {plan.node}", body, lock_patience(plan)))


def lock_patience(plan: Plan) -> float:
    """Seconds to wait for the host's lock: the watcher tries again by itself, a person should not have to."""
    return 0.0 if plan.automatic else LOCK_SECONDS


def _step(plan: Plan, move: str, expected: str) -> Steps[Outcome]:
    if (yield ReadState(JOURNAL)):
        raise StepRefused("a step of this server is still open; `regrade settle` ends it", "open-step")
    start: str = yield CurrentLevel()
    if start != expected:
        raise LevelMoved(plan.node, start, expected)
    if plan.after is not None and (yield ReadNote()).get("id", "") != plan.after:
        raise StepRefused(
            f"{plan.node} was stepped meanwhile, and is at {start} again: decide anew", "level", start
        )
    target = start if move == STAY else below(start) if move == DOWN else above(start)
    if not target:
        raise StepRefused(f"{plan.node} is at {start} already: there is no level further {move}", "level", start)
    opened = Open(plan, start, target)
    try:
        yield from _preflight(opened)
    except ClusterError as error:
        raise StepRefused(f"the cluster does not answer: {error}", error.reason) from None
    return (yield from under_lease(opened, _act(opened)))


def foretell(plan: Plan, levels: Tuple[str, ...]) -> Steps[str]:
    """What a walk over `levels`, the running one first, would wait for now, "" for nothing.

    It looks at all that the first step asks before its intent, and at what can be known of the steps after it. Writes
    nothing, and takes neither lock nor Lease. Raises StepRefused where the walk would be refused.
    """
    opened = Open(plan._replace(confirmed=True), levels[0], levels[1])  # what is not done needs no confirmation
    try:
        yield from _preflight(opened, note=False)
        yield from ask_gate(opened)
        if levels[1:3] == (CONTROL_PLANE, ETCD_ONLY):
            _judge_pods(plan.settings, (yield ListPods(plan.node)), final=False)
    except ClusterError as error:
        raise StepRefused(f"the cluster does not answer: {error}", error.reason) from None
    except StepRefused as error:
        if plan.wait and error.reason in OTHERS_AT_WORK:
            return str(error)
        if error.reason != "pods" or opened.start != FULL:
            raise
        raise StepRefused(
            f"{plan.node} would come from {FULL} to {CONTROL_PLANE}, then: {error}", error.reason
        ) from None
    return ""


def _preflight(opened: Open, note: bool = True) -> Steps[None]:
    """What refuses at once and writes nothing, the cheapest first: marks, switches, peers, the Lease, the
    platform, pods, and the checks of the gate that need no waiting. `note`: since when another's Lease was seen
    unchanged is kept on this host."""
    plan = opened.plan
    nodes: Tuple[Node, ...] = yield ReadNodes()
    own = next((node for node in nodes if node.name == plan.node), None)
    if own is None:
        raise StepRefused(
            f"NODE_NAME={plan.node} is no Node with the etcd role; there are "
            f"{', '.join(node.name for node in nodes) or 'none'}",
            "node",
        )
    if plan.automatic and opened.start != opened.target:  # curing the trap keeps a vote: no switch forbids it
        word = marks.stilled(own)
        if word:
            would = f"; it would step {direction(opened.start, opened.target)} to {opened.target} now"
            raise StepRefused(
                f"{plan.node} is {marks.STILL_WORDS[word]} (annotation {marks.SWITCHES[word]}): no automatic step"
                + (would if word == "dry-run" else ""),
                word,
                opened.start,
            )
    judge_marks(own, opened.start)
    judge_despite(plan, nodes, opened.start, opened.target)
    busy = gate.busy(nodes, plan.node, plan.despite)
    if busy:
        raise StepRefused(busy, gate.reason_of(busy))
    opened.watch = yield from _look(opened.watch)  # from here on: the first gate has less to wait for
    yield from _look_at_lease(plan, note=note)
    try:
        yield Preflight()
    except RegradeError as error:
        raise StepRefused(str(error), "platform") from None
    if opened.start == CONTROL_PLANE and opened.target == ETCD_ONLY:
        _judge_pods(plan.settings, (yield ListPods(plan.node)), final=False)
    _refuse((yield from members_of(plan, nodes)), strict=False)


def judge_marks(own: Node, level: str) -> None:
    """Whether the Node shows no step, and the marks of the running `level`. Raises StepRefused."""
    if marks.intent_of(own):
        raise StepRefused(
            f"{own.name} shows an open step that this host has no journal of; `regrade settle` looks at it",
            "open-step",
        )
    _marks_agree(own, level)


def _marks_agree(own: Node, level: str) -> None:
    if not marks.agrees(own, level):
        raise StepRefused(
            f"k3s runs at {level} but the Node's marks say {marks.level_of(own)}; "
            "`regrade settle` makes them agree",
            "marks",
        )


def judge_despite(plan: Plan, nodes: Tuple[Node, ...], start: str, target: str) -> None:
    """Whether the peers to leave out may be. Raises StepRefused."""
    if not plan.despite:
        return
    if plan.automatic or direction(start, target) != UP:
        raise StepRefused("--despite leaves a dead peer out of a step up by hand, and of no other", "despite")
    others = [node.name for node in nodes if node.name != plan.node]
    for name in plan.despite:
        if name not in others:
            raise StepRefused(
                f"--despite {name} names no other server of the cluster; there are {', '.join(others) or 'none'}",
                "despite",
            )
    if restarts(start, target) and not plan.confirmed:
        raise StepRefused(
            "etcd restarts in this step, and to do so without a peer was not confirmed (--yes)", "despite"
        )


def _act(opened: Open) -> Steps[Outcome]:
    """The step under the Lease, from the first gate to the last write."""
    facts = yield from ask_gate(opened)
    own = _own(facts)
    _marks_agree(own, opened.start)  # who held the Lease before may have changed them (`people.forget`)
    member = gate.own_member(facts)
    now = yield Now()
    opened.id = yield NewId()
    opened.uid, opened.boot_id = own.uid, now.boot_id
    opened.member = member.id if member else ""
    opened.members = _ids(facts.members or ())
    try:
        if opened.start == FULL:
            yield WriteState(IDENTITY, {"uid": opened.uid, "member": opened.member})
        yield from _journal(opened, INTENT)
    except RegradeError as error:
        yield RemoveState(JOURNAL)
        raise StepRefused(f"the journal cannot be written: {error}", "storage") from None
    try:
        yield from write_intent(opened)
        yield from _still_ours(opened)
        yield from ask_gate(opened)
        yield from _not_lost(opened)
        yield from _journal(opened, EFFECTS_BEGUN)
    except RegradeError as error:
        yield from undo(opened, str(error), began=False)
        raise StepRefused(str(error), error.reason, opened.start, undone=True) from None
    return (yield from go_on(opened, EFFECTS[opened.start, opened.target]))


def go_on(opened: Open, effects: Tuple[Callable[[Open], Steps[None]], ...]) -> Steps[Outcome]:
    """Runs effects to the end. Until a restart was asked for, what goes wrong undoes the step."""
    try:
        for effect in effects:
            yield from effect(opened)
    except RegradeError as error:
        if opened.restarted or (isinstance(error, StepFailed) and error.left_open):
            yield from _tell_trouble(opened, f"{opened.words} stays open: {error}")
            raise StepFailed(
                f"{opened.words} is not finished and stays open: {error}", left_open=True
            ) from None
        yield from undo(opened, str(error), began=True)
        raise StepFailed(f"{opened.words} was undone: {error}", left_open=False) from None
    if opened.stuck:
        raise StepFailed(f"{opened.words} has ended, but {opened.stuck}", left_open=False)
    return Outcome(opened.start, opened.target, opened.remaining, opened.taints, done_words(opened))


def _tell_trouble(opened: Open, text: str) -> Steps[None]:
    yield Log(text)
    try:
        node: Node = yield ReadNode(opened.plan.node)
    except ClusterError:
        return
    yield from tell(node, "Warning", "RegradeStepOpen", text)


def done_words(opened: Open) -> str:
    if opened.start == opened.target:
        return f"{opened.plan.node} was restarted at {opened.target}"
    move = direction(opened.start, opened.target)
    text = f"{opened.plan.node} stepped {move} from {opened.start} to {opened.target}"
    if opened.remaining:
        ended = "ended by the restart" if opened.target == ETCD_ONLY else "drain incomplete"
        text += f" ({ended}: {'; '.join(opened.remaining)})"
    if opened.taints:
        text += f"; {marks.taint_words(opened.taints)}"
    return text


# ---- the Lease


def under_lease(opened: Open, body: Steps[T]) -> Steps[T]:
    """`body` with the Lease held and renewed; a step left open keeps it."""
    yield from take_lease(opened.plan)
    yield BeginRenewal(opened.plan.holder)
    try:
        result = yield from body
    except RegradeError as error:
        yield EndRenewal()
        if not (isinstance(error, StepFailed) and error.left_open):
            yield from _release(opened.plan)
        raise
    except Exception:  # a bug of ours: what is open stays open, with its Lease, for `settle`
        yield EndRenewal()
        raise
    yield EndRenewal()
    yield from _release(opened.plan)
    return result


def take_lease(plan: Plan) -> Steps[None]:
    """Takes the Lease, or raises StepRefused naming its holder and its age as we saw it."""
    begun = yield Now()
    tries = 0
    while True:
        now = yield Now()
        wait = begun.boottime + plan.wait - now.boottime
        found = yield from _look_at_lease(plan, refuse=wait <= 0)
        if found is None:
            yield Sleep(POLL_SECONDS)
            continue
        record = leases.taken(found, plan.holder, now.text, plan.settings.lease_seconds)
        why = yield from _note_now(HELD)
        if why:
            raise StepRefused(f"that the Lease is taken cannot be noted: {why}", "storage")
        if (yield from _swap_lease(plan, found, record)):
            return
        tries += 1
        if tries >= WRITE_TRIES:
            raise StepRefused(f"the Lease was written by others {tries} times just before us", "lease")


def _look_at_lease(plan: Plan, refuse: bool = True, note: bool = True) -> Steps[Optional[Lease]]:
    """The record, where we may take it; None where we may not (yet) and `refuse` is False. `note`: since when it
    was seen unchanged is kept for the next look."""
    try:
        found: Lease = yield ReadLease()
        now = yield Now()
        before = yield from _seen_before()
        seen = leases.see(found, before, now.boottime, now.boot_id)
        verdict = leases.judge(found, plan.holder, seen, now.boottime, plan.settings.lease_seconds)
        if note and verdict.kind == leases.HELD and seen != before:
            yield from _keep_seen(seen)
        nodes: Tuple[Node, ...] = (yield ReadNodes()) if verdict.kind == leases.EXPIRED else ()
    except Missing:
        raise StepRefused(
            f"the Lease kube-system/{plan.settings.lease_name} does not exist; the role makes it: run it",
            "lease-missing",
        ) from None
    except RegradeError as error:
        raise StepRefused(f"whether the Lease is free cannot be told: {error}", error.reason) from None
    holder = leases.node_of(found.holder)
    if any(node.name == holder and marks.intent_of(node) for node in nodes):
        raise StepRefused(
            f"the Lease is held by {found.holder}, which is silent, and its Node shows an open step: bring that "
            f"server back, it ends its step itself; where it is dead, `regrade abandon-step {holder}` closes it",
            "lease",
        )
    if verdict.kind != leases.HELD:
        return found
    if refuse:
        raise StepRefused(
            f"the Lease is held by {found.holder}, seen unchanged for {verdict.age:.0f} s "
            f"(taken over after {verdict.duration:.0f} s unchanged)",
            "lease",
        )
    return None


def _seen_before() -> Steps[Optional[leases.Seen]]:
    """What was seen of another's Lease; what cannot be read counts as never seen: it only waits for longer."""
    try:
        return leases.seen_from((yield ReadState(SEEN)))
    except RegradeError as error:
        yield Log(str(error))
        return None


def _keep_seen(seen: leases.Seen) -> Steps[None]:
    try:
        yield WriteState(SEEN, leases.seen_document(seen))
    except RegradeError as error:
        yield Log(str(error))


def _swap_lease(plan: Plan, found: Lease, record: Lease) -> Steps[bool]:
    """Whether the compare-and-swap took it; False: somebody was first, look again."""
    try:
        yield WriteLease(record)
        return True
    except Conflict:
        yield from _not_taken(plan, found)
        return False
    except Forbidden as error:
        yield from _not_taken(plan, found)
        raise StepRefused(str(error), error.reason) from None
    except ClusterError as error:  # it may still land: the note of it stays, see `reconcile`
        try:
            if (yield ReadLease()).holder == plan.holder:
                return True
        except ClusterError:
            pass
        raise StepRefused(f"the Lease was asked for, but not given: {error}", "cluster") from None


def _not_taken(plan: Plan, found: Lease) -> Steps[None]:
    """The note goes, unless a dead process of this server has the Lease: then nobody else would let it go."""
    if leases.node_of(found.holder) != plan.node:
        yield from forget_held()


def _still_ours(opened: Open) -> Steps[None]:
    found: Lease = yield ReadLease()
    if found.holder != opened.plan.holder:
        raise StepRefused(
            f"the Lease was lost to {found.holder or 'nobody (it was cleared)'} meanwhile", "lease-lost"
        )


def _not_lost(opened: Open) -> Steps[None]:
    lost = yield RenewalLost()
    if lost:
        raise StepRefused(f"the Lease's renewal was lost: {lost}", "lease-lost")


def _release(plan: Plan) -> Steps[None]:
    """Clears the holder. Where the API is gone, the next process of this server re-enters the Lease."""
    for _attempt in range(WRITE_TRIES):
        try:
            found: Lease = yield ReadLease()
            if found.holder == plan.holder:
                now = yield Now()
                yield WriteLease(leases.released(found, now.text))
            yield from forget_held()
            return
        except Conflict:
            continue
        except ClusterError as error:
            yield Log(f"releasing the Lease: {error}")
            yield Sleep(POLL_SECONDS)
    yield Log("the Lease could not be released; the next settling does, or this server's next step re-enters it")


def _note_now(name: str) -> Steps[str]:
    """Notes in HELD or LATE since when it may be so: why it could not be, or ""."""
    now = yield Now()
    try:
        yield WriteState(name, {"boottime": now.boottime, "boot_id": now.boot_id})
    except RegradeError as error:
        return str(error)
    return ""


def forget_held() -> Steps[None]:
    try:
        yield RemoveState(HELD)
    except RegradeError as error:
        yield Log(f"the Lease is let go, but its note stays until the next settling: {error}")


# ---- the gate


def members_of(plan: Plan, nodes: Tuple[Node, ...]) -> Steps[gate.Facts]:
    """Facts with etcd's own member list in them."""
    try:
        members: Optional[Tuple[Member, ...]] = yield ReadMembers()
        error = ""
    except LevelUnknown as unknown:
        members, error = None, str(unknown)
    return gate.Facts(plan.node, nodes, members, error, despite=plan.despite)


def _look(watch: gate.Watch) -> Steps[gate.Watch]:
    now = yield Now()  # before it is read: this process may be stopped for long with the answer in its hands
    try:
        renewals: Dict[str, str] = yield ReadRenewals()
    except Forbidden:
        raise
    except ClusterError:
        return watch
    return gate.look(watch, renewals, now.boottime)


def ask_gate(opened: Open, restart: bool = False) -> Steps[gate.Facts]:
    """The whole gate. Before a restart its answers are no older than GATE_AGE_SECONDS. Raises StepRefused."""
    for _attempt in range(3):
        facts, began = yield from _gate_round(opened)
        now = yield Now()
        if not restart or now.boottime - began <= GATE_AGE_SECONDS:
            opened.asked = began
            return facts
        # waiting for a node lease took its time: ask the rest again, now that it is seen
    raise StepRefused(
        f"the checks took longer than {GATE_AGE_SECONDS:.0f} s three times: the cluster answers too slowly",
        "cluster",
    )


def _gate_round(opened: Open) -> Steps[Tuple[gate.Facts, float]]:
    """The facts, all refused on in turn, and when the asking of peers began. etcd's own list comes first: it
    takes longest, and changes only by hand."""
    try:
        facts = yield from members_of(opened.plan, ())
        began = yield Now()
        facts = facts._replace(nodes=(yield ReadNodes()))
        _refuse(facts, strict=False)
        _same_identity(opened, facts)
        peers = gate.peer_nodes(facts)
        answers = {}
        for node in peers:
            answers[node.name] = yield AskPeer(node.addresses[0] if node.addresses else node.name)
        facts = facts._replace(peers=answers)
        _refuse(facts, strict=False)
        facts = facts._replace(ages=(yield from _watch_leases(opened, tuple(node.name for node in peers))))
        _refuse(facts, strict=True)
    except ClusterError as error:
        raise StepRefused(f"the cluster does not answer: {error}", error.reason) from None
    return facts, began.boottime


def _watch_leases(opened: Open, names: Tuple[str, ...]) -> Steps[Dict[str, Optional[float]]]:
    """Ages of the node leases; returns as soon as all of `names` are fresh, after FRESH_SECONDS in any
    case."""
    begun = yield Now()
    while True:
        opened.watch = yield from _look(opened.watch)
        now = yield Now()
        seen = gate.ages(opened.watch, now.boottime)
        ages = [seen.get(name) for name in names]
        if all(age is not None and age <= FRESH_SECONDS for age in ages):
            return seen
        if now.boottime - begun.boottime >= FRESH_SECONDS:
            return seen
        yield Sleep(POLL_SECONDS)


def _refuse(facts: gate.Facts, strict: bool) -> None:
    why = gate.refusal(gate.check(facts), strict)
    if why:
        raise StepRefused(why, gate.reason_of(why))


def _same_identity(opened: Open, facts: gate.Facts) -> None:
    member = gate.own_member(facts)
    if opened.phase:
        _our_intent(opened, _own(facts))
    if opened.uid and _own(facts).uid != opened.uid:
        raise StepRefused(
            f"Node {opened.plan.node} was made anew (uid {_own(facts).uid}, was {opened.uid}): its etcd "
            "member may be gone; do not restart this server, look at `etcdctl member list`",
            "identity",
        )
    if opened.member and (member is None or member.id != opened.member):
        raise StepRefused(
            f"this server's etcd member is {member.id if member else 'gone'}, was {opened.member}",
            "identity",
        )


def _own(facts: gate.Facts) -> Node:
    return next(node for node in facts.nodes if node.name == facts.own)


def _ids(members: Tuple[Member, ...]) -> Tuple[str, ...]:
    return tuple(sorted(member.id for member in members))


# ---- journal, intent and writes to our Node


def _journal(opened: Open, phase: str) -> Steps[None]:
    opened.phase = phase
    yield WriteState(JOURNAL, opened.document())


def _intent(opened: Open) -> marks.Intent:
    changes = "cordon,taint,label" if FULL in (opened.start, opened.target) else "taint,label"
    return marks.Intent(opened.id, opened.start, opened.target, opened.plan.holder, changes)


def _our_intent(opened: Open, node: Node) -> marks.Intent:
    """The intent our Node shows, where it is this step's. Raises IntentGone."""
    found = marks.intent_of(node)
    if not found or found.id != opened.id:
        raise IntentGone(
            f"the intent of {opened.words} is gone from {node.name}: somebody abandoned it", "abandoned"
        )
    return found


def write_intent(opened: Open) -> Steps[None]:
    intent = _intent(opened)
    asked = 0

    def build(node: Node) -> NodeChange:
        nonlocal asked
        found = marks.intent_of(node)
        if found:
            raise StepRefused(
                f"{node.name} shows another open step, by {found.holder or 'nobody we can read'}",
                "open-step",
            )
        asked += 1
        return NodeChange(annotations={marks.INTENT: marks.intent_text(intent)})

    try:
        yield from write_node(
            opened.plan.node, opened.uid, build, lambda node: marks.intent_of(node) == intent, 0.0
        )
    except ClusterError:  # once it is there, or another write is, an earlier try meets another resourceVersion
        opened.unsure = asked > 0
        raise


def write_level(
    opened: Open, level: str, clear: bool, patience: float, hold: Optional[bool] = None
) -> Steps[Node]:
    """One conditional write that makes the Node's marks those of `level`, keeping or clearing our intent.

    `hold` True sets the hold annotation, False takes it away, None leaves it. Raises IntentGone where the
    Node does not show our intent (any more), StepRefused where it was made anew, ClusterError.
    """

    now = yield Now()

    def build(node: Node) -> NodeChange:
        found = _our_intent(opened, node)
        change = marks.at_level(node, level, None if clear else found, now.text)
        if hold is not None:
            word = marks.hold_words(level) if hold else None
            change = change._replace(annotations={**change.annotations, marks.HOLD: word})
        return change

    def done(node: Node) -> bool:
        found = marks.intent_of(node)
        return marks.agrees(node, level) and (
            found is None if clear else found is not None and found.id == opened.id
        )

    return (yield from write_node(opened.plan.node, opened.uid, build, done, patience))


def write_node(
    name: str,
    uid: str,
    build: Callable[[Node], NodeChange],
    done: Callable[[Node], bool],
    patience: float,
) -> Steps[Node]:
    """Read, work out, write conditionally; again on a conflict or an unknown answer, after reading back.

    `uid` is the Node's that is meant, "" for any; `build` may raise to forbid the write. Raises StepRefused
    where the Node was made anew, ClusterError.
    """
    begun = yield Now()
    tries = 0
    while True:
        tries += 1
        try:
            node: Node = yield ReadNode(name)
            if uid and node.uid != uid:
                raise StepRefused(f"Node {name} was made anew (uid {node.uid}, was {uid})", "identity")
            if done(node):
                return node
            changed: Node = yield ChangeNode(name, build(node), node.resource_version)
            return changed
        except (Missing, Forbidden):
            raise
        except ClusterError as error:
            now = yield Now()
            if tries >= WRITE_TRIES and now.boottime - begun.boottime >= patience:
                raise
            if not isinstance(error, Conflict):
                yield Log(f"writing Node {name}: {error}")
            yield Sleep(min(POLL_SECONDS, 0.1 * tries) if isinstance(error, Conflict) else POLL_SECONDS)


def undo(opened: Open, why: str, began: bool) -> Steps[None]:
    """Back to where the step began: record (no restart), marks and intent in one write, journal closed.

    Where nothing had `began` the marks are as they were, and the intent alone goes: below full a person may
    have taken the cordon off, which is not set again for a step that never was.
    Raises StepFailed, left open, where that cannot be done now.
    """
    yield Log(f"undoing {opened.words}: {why}")
    try:
        if began and opened.start != opened.target:  # at the same level to apply would be to cure again
            yield Apply(opened.start, no_restart, opened_note(opened), {})
        if began:
            yield from write_level(opened, opened.start, True, FINISH_SECONDS)
        else:
            yield from _take_back(opened)
    except IntentGone as error:
        if began:
            raise StepFailed(f"{opened.words} ({why}) is left open: {error}", True) from None
    except RegradeError as error:
        raise StepFailed(
            f"{opened.words} ({why}) is left open, as it could not be undone: {error}", True
        ) from None
    if opened.unsure and not began:
        why_not = yield from _note_now(LATE)
        if why_not:  # its journal stays in its place, and the next settling does this again
            yield Log(f"that its intent may yet land could not be noted: {why_not}")
            return
    yield from close(opened, opened.start, "undone" if began else "")


def _take_back(opened: Open) -> Steps[None]:
    """Our intent off the Node, and nothing else."""

    def build(node: Node) -> NodeChange:
        _our_intent(opened, node)
        return NodeChange(annotations={marks.INTENT: None})

    def done(node: Node) -> bool:
        return marks.intent_of(node) is None

    yield from write_node(opened.plan.node, opened.uid, build, done, FINISH_SECONDS)


def close(opened: Open, level: str, outcome: str) -> Steps[None]:
    """After the last write: the note of the step (where there is an `outcome`) and its journal. The step has
    ended on the Node, so nothing here may undo it; what is left over, the next settling closes."""
    if outcome:
        yield from note_end(opened, level, outcome)
    for name in (BRING_BACK, IDENTITY, JOURNAL) if level == FULL else (JOURNAL,):
        try:
            yield RemoveState(name)
        except RegradeError as error:
            yield Log(f"{opened.words} has ended, but its {name} stays until the next settling: {error}")
            return


def note_end(opened: Open, level: str, outcome: str) -> Steps[None]:
    """The note that a step has ended, which begins the cooldown; one to the same level is none."""
    if opened.start == opened.target:
        return
    try:
        yield from _note(opened, level, outcome)
    except RegradeError as error:
        yield Log(f"{opened.words} could not be noted: {error}")


def no_restart() -> Steps[None]:
    raise StepRefused("undoing a step restarts nothing")
    yield  # pragma: no cover  # what makes this a generator


def opened_note(opened: Open) -> Callable[[Dict[str, str]], Steps[None]]:
    def note(facts: Dict[str, str]) -> Steps[None]:
        opened.facts.update(facts)
        yield WriteState(JOURNAL, opened.document())

    return note


def _note(opened: Open, level: str, outcome: str) -> Steps[None]:
    now = yield Now()
    yield NoteStep(
        {
            "id": opened.id,
            "from": opened.start,
            "to": opened.target,
            "level": level,
            "outcome": outcome,
            "direction": direction(opened.start, opened.target),
            "by": "watcher" if opened.plan.automatic else "hand",
            "boottime": f"{now.boottime:.3f}",
            "boot_id": now.boot_id,
            "at": now.text,
        }
    )


# ---- effects


def _mark(opened: Open) -> Steps[None]:
    yield from _not_lost(opened)
    yield from write_level(opened, opened.target, False, 0.0)


def _drain(opened: Open) -> Steps[None]:
    """Evicts what can be evicted, for DRAIN_TIMEOUT_SECONDS at most; what stays is named.

    A pod that cannot be evicted, be it for its budget, a webhook or an API in trouble, keeps no other one here.
    """
    settings = opened.plan.settings
    begun = yield Now()
    end = begun.boottime + settings.drain_timeout_seconds
    left: Optional[Tuple[Pod, ...]] = None  # as last listed
    reasons: Dict[str, str] = {}
    unlisted = ""
    while True:
        yield from _not_lost(opened)
        try:
            pods: Tuple[Pod, ...] = yield ListPods(opened.plan.node)
            left = tuple(pod for pod in pods if _must_go(pod))
            going = [pod for pod in left if _may_evict(pod, settings)]
            if not going:
                break
            yield from _evict_all(going, reasons, end)
        except Forbidden as error:
            raise StepRefused(str(error), error.reason) from None
        except ClusterError as error:
            unlisted = f"the pods could not be listed: {error}"
            yield Log(f"drain: {unlisted}")
        now = yield Now()
        if now.boottime >= end:
            break
        opened.watch = yield from _look(opened.watch)
        yield Sleep(POLL_SECONDS)
    opened.remaining = (unlisted,) if left is None else tuple(_staying(pod, reasons, settings) for pod in left)
    if opened.remaining:
        yield Log(f"drain incomplete: {'; '.join(opened.remaining)}")


def _evict_all(pods: List[Pod], reasons: Dict[str, str], end: float) -> Steps[None]:
    """One try for each, noting why a pod stays. Raises Forbidden where the API has forbidden every one."""
    refusals: List[Forbidden] = []
    for pod in pods:
        now = yield Now()
        if now.boottime >= end:
            return
        if pod.terminating:
            reasons.setdefault(_pod_name(pod), "is ending")
            continue
        try:
            answer: Eviction = yield Evict(pod)
            reasons[_pod_name(pod)] = "is ending" if answer.accepted else answer.reason
        except ClusterError as error:
            reasons[_pod_name(pod)] = str(error)
            if isinstance(error, Forbidden):
                refusals.append(error)
    if refusals and len(refusals) == len(reasons):
        raise refusals[0]


def _pod_name(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


def _staying(pod: Pod, reasons: Dict[str, str], settings: Settings) -> str:
    """A pod that stays, and why."""
    why = reasons.get(_pod_name(pod), "not evicted") if _may_evict(pod, settings) else "has no owner"
    return f"{_pod_name(pod)}: {why}"


def _drain_again(opened: Open) -> Steps[None]:
    yield from _drain(opened)
    _judge_pods(opened.plan.settings, (yield ListPods(opened.plan.node)), final=True)
    opened.drained = True


def _not_above(opened: Open) -> Steps[None]:
    """Refuses a restart into etcd-only of a k3s that was seen there, and so was not drained, and runs above it now:
    somebody made its container anew. The next settling drains it first."""
    if opened.drained or opened.start == ETCD_ONLY or opened.target != ETCD_ONLY:
        return
    try:
        level = yield CurrentLevel()
    except LevelUnknown:
        return  # it runs nothing that could be drained
    if level != ETCD_ONLY:
        raise StepRefused(f"k3s runs at {level} again, and its pods are not drained", "level")


def _must_go(pod: Pod) -> bool:
    """DaemonSet, mirror and finished pods stay."""
    return not (pod.mirror or pod.finished or pod.owner_kind == "DaemonSet")


def _may_evict(pod: Pod, settings: Settings) -> bool:
    """A pod without an owner would be lost for good."""
    return bool(pod.owner_kind) or settings.drain_pods_without_owner == "end"


def _judge_pods(settings: Settings, pods: Tuple[Pod, ...], final: bool) -> None:
    """Refuses a restart that would end pods which must not be. `final`: after the drain, before the
    restart."""
    left = [pod for pod in pods if _must_go(pod)]
    lost = [_pod_name(pod) for pod in left if not _may_evict(pod, settings)]
    if lost:
        raise StepRefused(
            f"pods without an owner would be lost for good: {', '.join(lost)}; move them, or set "
            f"{setting('DRAIN_PODS_WITHOUT_OWNER', 'end')}",
            "pods",
        )
    if final and left and settings.drain_remaining == "refuse":
        names = ", ".join(map(_pod_name, left))
        raise StepRefused(f"pods are still on the Node and DRAIN_REMAINING=refuse: {names}", "pods")


def _apply(opened: Open) -> Steps[None]:
    """The actuator's part. Once a restart was asked for it is asked again rather than undone."""

    def before_restart() -> Steps[None]:
        yield from _not_above(opened)
        if not opened.restarted:
            yield from _not_lost(opened)
            try:
                yield from _still_ours(opened)
            except ClusterError as error:
                raise StepRefused(f"the Lease cannot be read: {error}", error.reason) from None
        yield from ask_gate(opened, restart=True)
        opened.facts["restart"] = "asked"
        now = yield Now()
        opened.restart_at, opened.restart_boot = now.boottime, now.boot_id
        try:
            yield from _journal(opened, RESTART)
        except RegradeError as error:
            raise StepRefused(f"the journal cannot be written: {error}", "storage") from None
        now = yield Now()
        if now.boottime - opened.asked > GATE_AGE_SECONDS:  # the write took its time, as a busy card does
            try:
                yield from ask_gate(opened, restart=True)
            except RegradeError:
                if not opened.restarted:
                    yield from _journal(opened, EFFECTS_BEGUN)
                raise
        opened.restarted = True

    for attempt in range(APPLY_TRIES):
        before = opened.restarted
        try:
            yield Apply(opened.target, before_restart, opened_note(opened), dict(opened.facts))
            return
        except RegradeError as error:
            if isinstance(error, ApplyFailed) and error.stuck:  # asked again it would restart etcd again
                opened.stuck = str(error)
                yield from _note_uncured()
                return
            began = isinstance(error, ApplyFailed) and error.began
            if isinstance(error, ApplyFailed) and (error.back or not (error.began or before)):
                opened.restarted = False  # no restart began, or k3s runs where it did before: undo
                raise
            if not (opened.restarted or began):
                raise
            yield Log(f"{opened.words}: {error}")
            failed, trapped = str(error), isinstance(error, ApplyFailed) and error.trapped
        if attempt + 1 < APPLY_TRIES:
            yield Sleep(5 * POLL_SECONDS)
    if not trapped:
        raise StepFailed(failed, left_open=True)
    opened.stuck = failed  # an open step would hold the cluster up; settling frees k3s, by a step of its own


def _note_uncured() -> Steps[None]:
    now = yield Now()
    try:
        yield WriteState(UNCURED, {"boottime": now.boottime, "boot_id": now.boot_id})
    except RegradeError as error:
        yield Log(f"that the restart did not help could not be noted: {error}")


def _verify(opened: Open) -> Steps[None]:
    """The level runs, and our member and our Node are the same.

    A peer's member that changed meanwhile is told and no more: the gate judges peers, before a restart, and
    a step that is open would wait for the old list for ever.
    """
    begun = yield Now()
    while True:
        try:
            level = yield CurrentLevel()
            members: Tuple[Member, ...] = yield ReadMembers()
            node: Node = yield ReadNode(opened.plan.node)
            break
        except (LevelUnknown, ClusterError) as error:
            now = yield Now()
            if now.boottime - begun.boottime >= VERIFY_SECONDS:
                raise StepFailed(f"cannot be verified: {error}", opened.restarted) from None
            yield Sleep(POLL_SECONDS)
    if node.uid != opened.uid or opened.member not in _ids(members):
        raise StepFailed(
            f"identity changed: Node uid {node.uid} (was {opened.uid}), etcd members "
            f"{', '.join(_ids(members))} (ours was {opened.member})",
            left_open=True,
        )
    if _ids(members) != opened.members:
        text = f"etcd's members changed during {opened.words}: {', '.join(_ids(members))}, were "
        text += ", ".join(opened.members)
        yield Log(text)
        yield from tell(node, "Warning", "RegradeMembersChanged", text)
    if level != opened.target:
        raise StepFailed(f"k3s runs at {level}, expected {opened.target}", opened.restarted)
    if marks.LEVEL not in node.labels:  # nobody else would set it while the step is open
        yield Log(f"the label {marks.LEVEL} was taken off {node.name} by another hand, and is set again")


def _finish(opened: Open) -> Steps[None]:
    """The last write, which clears the intent; then what tells of the step, and the journal closed."""
    hold = None
    if not opened.plan.automatic and opened.plan.hold and opened.start != opened.target:
        hold = opened.target != FULL
    try:
        node = yield from write_level(opened, opened.target, True, FINISH_SECONDS, hold)
    except (StepRefused, ClusterError) as error:
        raise StepFailed(
            f"the level is reached, but its last write is not done: {error}", left_open=True
        ) from None
    if opened.target == FULL:
        opened.taints = marks.foreign_taints(node)
    yield from tell(node, "Normal", "Regraded", done_words(opened))
    yield from close(opened, opened.target, "done")


def tell(node: Node, kind: str, reason: str, message: str) -> Steps[None]:
    """An Event on the Node; one that cannot be written is only logged."""
    try:
        yield RecordEvent(node, kind, reason, message)
    except ClusterError as error:
        yield Log(f"the Event {reason} could not be written: {error}")


EFFECTS: Dict[Tuple[str, str], Tuple[Callable[[Open], Steps[None]], ...]] = {
    (FULL, CONTROL_PLANE): (_mark, _drain, _apply, _verify, _finish),
    (CONTROL_PLANE, ETCD_ONLY): (_drain_again, _mark, _apply, _verify, _finish),
    (ETCD_ONLY, CONTROL_PLANE): (_apply, _verify, _finish),
    (CONTROL_PLANE, FULL): (_apply, _verify, _finish),
    (ETCD_ONLY, ETCD_ONLY): (_apply, _verify, _finish),
}
REACHED = (_apply, _verify, _finish)  # what is left where k3s runs at the target already
