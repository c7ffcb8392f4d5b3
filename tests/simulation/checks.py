# SPDX-License-Identifier: GPL-3.0-or-later
"""The invariants of the design, checked against the true state of the simulated cluster at every effect.

Each has a name (`INVARIANTS`), under which a break is reported and by which a mutant must be caught. Nothing here looks
at what the product believes, but at what it did and when. What must happen in the end (liveness) is `history`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import lease as leases
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks, policy, step
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import (
    CONTROL_PLANE,
    DOWN,
    ETCD_ONLY,
    FULL,
    LEVELS,
    STAY,
    UP,
    direction,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease, Node, Pod
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Sample
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import StepRefused

from .cluster import RENEWAL_SECONDS, RUNNING

if TYPE_CHECKING:
    from .cluster import Host
    from .history import History
    from .process import Process
    from .watcher import Watcher

INVARIANTS = {
    "one acts": "at most one server has effects of a step in progress",
    "one below full": "at most one server is below full, unless a person forced it",
    "quorum": "no step restarts etcd without a quorum of others, asked at most 5 s before",
    "members": "no member is removed and no annotation of k3s's is written",
    "by one": "levels move by one, from the level of the step's intent to its target",
    "intent first": "journal, then intent, then effects; and every effect under the intent of its own step",
    "cordon": "a person's cordon survives",
    "labelled": "a server carries its level's label the whole time it is below full",
    "pods": "no pod is evicted, or ended by a restart, that has to stay",
    "lease held": "the Lease is this server's whenever marks change or k3s restarts, and until the step is verified",
    "takeover": "no takeover from another Node before the holder's duration on the taker's clock",
    "switches": "held, paused or dry-run nothing is begun by itself, and at STEP_UP=manual nothing upwards",
    "cooldown": "automatic steps keep the cooldown",
    "held up": "no cooldown is waited out that is none: after a refusal, or downwards after a boot",
    "sustained": "by itself it goes down only under pressure that lasted and was true",
    "calm": "by itself it goes up only after a calm that was seen throughout and was true",
    "started": "a k3s that somebody else stopped is left stopped",
    "people": "a person's command leaves a server alone that shows life, and recovers only where no API answers",
    "reasons": "every refusal has its reason",
    "converges": "once faults stop: no step is open, level, record and marks agree, nothing of ours is left over",
    "trap": "a k3s locked behind its own address is freed before it ends itself",
    "brought back": "a container that lost the link to its record goes back down to the record's level",
    "rule zero": "our own stopped k3s is started again while no API can be reached",
    "cycle": "sustained pressure steps down to etcd-only, and calm back up to full",
    "no bug": "nothing raises what is no error of ours",
}
# The figures of the design, not those of the code that is checked.
GATE_AGE_SECONDS = 5.0
TRAP_SECONDS = 900.0  # true time after which a k3s locked behind its own address ends itself
LASTING_SECONDS = 600.0  # true time after which no reading, however long its hole, shows what was before
SILENT_SECONDS = 40.0  # on the clock of who looks, for which a server must have shown no life
SLACK_SECONDS = 3.0  # true time that small calls take between the gate and the restart


class Broken(BaseException):
    """An invariant does not hold. Not an Exception: nothing of the product may catch it."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        assert invariant in INVARIANTS
        self.invariant = invariant


class Known:
    """What is true of one host for the checks alone."""

    def __init__(self) -> None:
        self.effects = ""  # id of the step that has effects in progress
        self.ended: Optional[Tuple[float, str]] = None  # boottime and boot of the last step's end
        self.note_lost = False
        self.switched: Dict[str, float] = {}  # switch -> since when it is on
        self.cordoned = False  # by a person, and still so
        self.calm = True
        self.uneasy_since = self.uneasy_until = -1e9  # true times of the last stretch without calm
        self.taken: Optional[Tuple[marks.Intent, float]] = None  # the intent a person took off, and when
        self.adopts = False  # a person has made its record or its marks other than its level: they are adopted
        self.pressed_since = self.pressed_until = -1e9  # true times of the last stretch without calm, as a whole
        self.tried: Optional[Tuple[float, str]] = None  # boottime and boot of what last began a cooldown
        self.pods_at = -1e9  # when pods last came to it
        self.trapped_since: Optional[float] = None


class Checks:
    """Told of every effect as it happens; raises Broken."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._cluster = history.cluster
        self.counts: Dict[str, int] = {}
        self.known = {name: Known() for name in history.cluster.hosts}
        self.forced = False  # a person has caused what only a person can
        self.lease_at = 0.0  # when the Lease was last written
        self.tampered_at = -1e9  # when somebody else last wrote it
        self.late = False  # the write that is told of now arrives late

    def that(self, invariant: str, holds: bool, text: str) -> None:
        self.counts[invariant] = self.counts.get(invariant, 0) + 1
        if not holds:
            raise Broken(invariant, text)

    # -- who acts

    def _acts(self, host: Host, step_id: str) -> None:
        """An effect of a step of this host."""
        known = self.known[host.name]
        known.effects = step_id
        for other in self._cluster.hosts.values():
            if other is not host:
                self.that(
                    "one acts",
                    not self.known[other.name].effects or known.adopts,
                    f"{host.name} acts while {other.name} has effects of step {self.known[other.name].effects}",
                )

    def below(self, host: Host) -> bool:
        node = self._cluster.objects.get(host.name)
        labelled = node is not None and marks.level_of(node) != FULL
        return labelled or host.running == ETCD_ONLY or host.record != FULL

    def _alone(self, host: Host) -> None:
        for other in self._cluster.hosts.values():
            if other is not host:
                self.that(
                    "one below full",
                    self.forced or not self.below(other),
                    f"{host.name} goes below full while {other.name} is",
                )

    def open_step(self, host: Host) -> Optional[marks.Intent]:
        node = self._cluster.objects.get(host.name)
        return marks.intent_of(node) if node else None

    def _under_intent(self, process: Process, what: str) -> marks.Intent:
        """The intent under which an effect on this host happens."""
        found = self.open_step(process.host)
        taken = self.known[process.host.name].taken
        if found is None and taken and self._history.now - taken[1] <= self._window(process):
            return taken[0]  # a person took it off after the gate was asked for the last time
        self.that("intent first", found is not None, f"{process.host.name}: {what} without an intent")
        assert found is not None
        journal = _journal(process.host)
        if journal is not None:
            self.that(
                "intent first",
                journal["id"] == found.id,
                f"{process.host.name}: {what} under the intent {found.id}, the journal says {journal['id']}",
            )
        return found

    # -- the cluster

    def lease_written(self, process: Process, before: Lease, after: Lease) -> None:
        mine = process.host.name
        theirs = leases.node_of(before.holder)
        if process.kind == "people" and theirs != mine and not after.holder:
            self.tampered_at = self._history.now  # who abandons a step lets its Lease go
        if before.holder and theirs != mine and after.holder != before.holder:
            given = before.duration_seconds or process.plan.settings.lease_seconds
            unchanged = (self._history.now - self.lease_at) * process.host.rate
            self.that(
                "takeover",
                unchanged >= given - 0.001,
                f"{mine} took the Lease from {before.holder} after {unchanged:.1f} s of {given} s",
            )
        self.lease_at = self._history.now

    def lease_touched(self) -> None:
        """Somebody else wrote or deleted it."""
        self.lease_at = self.tampered_at = self._history.now

    def _holds_lease(self, process: Process, when: str) -> None:
        lease = self._cluster.lease
        node = leases.node_of(lease.holder) if lease else ""
        self.that(
            "lease held",
            node == process.host.name or self.tampered_at >= process.began,
            f"{process.host.name}: the Lease is held by {node or 'nobody'} {when}",
        )

    def switches_seen(self, name: str) -> None:
        """After any write of the Node: since when each switch is on."""
        switched, node = self.known[name].switched, self._cluster.objects[name]
        for key in (marks.HOLD, marks.PAUSE, marks.DRY_RUN):
            if not marks.switch(node, key):
                switched.pop(key, None)
            else:
                switched.setdefault(key, self._history.now)

    def node_written(self, process: Process, before: Node, after: Node) -> None:
        host = self._cluster.hosts[before.name]
        known = self.known[before.name]
        self.switches_seen(before.name)
        for key in {*before.annotations, *after.annotations}:
            if key.startswith("etcd.k3s.cattle.io/"):
                self.that(
                    "members",
                    before.annotations.get(key) == after.annotations.get(key),
                    f"annotation {key} of {before.name} was changed",
                )
        if before.unschedulable and not after.unschedulable:
            self.that("cordon", not known.cordoned, f"the cordon a person set on {before.name} was taken off")
        was, now = marks.intent_of(before), marks.intent_of(after)
        if process.kind == "people":
            self._leaves_the_living(process, host, before, after)
            if was is not None and now is None:
                known.taken = (was, self._history.now)
            return
        if was is None and now is not None:
            self._intent_written(process, host, now)
        acted = was is not None and known.effects == was.id  # before this write: a mere intent taken back is no step
        moved = _marks(before) != _marks(after)
        if moved:
            self.that(
                "intent first", was is not None, f"the marks of {before.name} were changed without an intent"
            )
            assert was is not None
            self.that(
                "intent first", now is None or now.id == was.id, f"{before.name}: an intent was written over"
            )
            if was.start in LEVELS and not self.late and _journal(host) is not None:  # else a level is adopted
                self.that(
                    "by one",
                    marks.level_of(after) in (was.start, was.target),
                    f"{before.name} is marked {marks.level_of(after)} in a step from {was.start} to {was.target}",
                )
            self._acts(host, was.id)
            if marks.level_of(after) != FULL:
                self._alone(host)
            if not self.late and not self.forced:
                self._holds_lease(process, f"when it is marked {marks.level_of(after)}")
                self._keeps_label(host, marks.level_of(after))
        if was is not None and now is None:
            if acted and was.start != was.target and _journal(host) is not None:  # else a repair clears what is left
                known.ended = known.tried = (host.boottime(), host.boot_id)
            if marks.level_of(after) == was.target != was.start and not self.late and not self.forced:
                self._holds_lease(process, f"when the step to {was.target} ends")
            known.effects = ""

    def _leaves_the_living(self, process: Process, host: Host, before: Node, after: Node) -> None:
        """A person abandons the step of another server, or forgets it."""
        marked = _marks(before) != _marks(after)
        if host is process.host or self.late or not (marked or marks.intent_of(before)):
            return
        if marked and host.name in process.heard and host.name not in process.disabled:
            return  # it runs full and has no watcher: its marks may go
        self.that("people", host.name not in process.heard, f"{host.name} was told dead though it had answered")
        asked, look = SILENT_SECONDS / process.host.rate, process.looked
        if host.agent_up():  # it may have come back since
            came = max(host.ready_at, host.hung_until, host.isolated_until, host.asleep_until)
            dead, words = came + RENEWAL_SECONDS + 5.0 >= look, f"renews for {look - came:.0f} s"
        else:  # or have been back since
            silent = look - host.away_since
            dead, words = silent < 0 or silent >= asked - RENEWAL_SECONDS - 1, f"is silent for {silent:.0f} s"
        self.that("people", dead, f"{process.host.name} took {host.name} for dead as its kubelet {words}")

    def recovered(self, process: Process) -> None:
        """k3s is restarted at full, asking nobody."""
        self.that("people", not process.answered, f"{process.host.name} is recovered though an API server answers")

    def _keeps_label(self, host: Host, level: str) -> None:
        self.that(
            "labelled",
            level != FULL or self.forced or (host.running != ETCD_ONLY and host.record == FULL),
            f"{host.name} is marked full at {host.running}, its record says {host.record}",
        )

    def _intent_written(self, process: Process, host: Host, intent: marks.Intent) -> None:
        if self.late:
            return
        known, settings = self.known[host.name], process.plan.settings
        known.taken = None
        move = direction(intent.start, intent.target)
        self.that(
            "by one",
            abs(LEVELS.index(intent.start) - LEVELS.index(intent.target)) <= 1,
            f"{host.name}: an intent from {intent.start} to {intent.target}",
        )
        journal = _journal(host)
        repair = move == STAY and journal is None
        if not repair:
            self.that(
                "intent first",
                journal is not None and journal["id"] == intent.id,
                f"{host.name}: an intent without its journal",
            )
        if not process.plan.automatic:
            return
        if move != STAY or (repair and not process.found_open and not host.trapped):  # that keeps the vote
            on = [switch for switch, since in known.switched.items() if since <= process.began]
            self.that("switches", not on, f"{host.name} begins a step by itself though {on} is on")
            self.that(
                "switches",
                move != UP or settings.step_up == "automatic",
                f"{host.name} goes up by itself at STEP_UP={settings.step_up}",
            )
        if move == STAY or known.ended is None or known.note_lost:
            return
        at, boot = known.ended
        length = settings.cooldown_down_seconds if move == DOWN else settings.cooldown_up_seconds
        if boot == host.boot_id:
            served = host.boottime() - at
        elif move == DOWN:
            return
        else:
            served = host.boottime()
        self.that(
            "cooldown", served >= length - 1.0, f"{host.name} steps {move} {served:.0f} s of {length:.0f} s after"
        )

    def evicted(self, process: Process, pod: Pod) -> None:
        if self.late or self.known[process.host.name].taken or process.host.name in self._history.spoilt:
            return  # an eviction cannot be made conditional on the intent: one that arrives late ends a pod
        intent = self._under_intent(process, f"pod {pod.name} is evicted")
        self._acts(process.host, intent.id)
        stays = pod.mirror or pod.finished or pod.owner_kind == "DaemonSet"
        lost = not pod.owner_kind and process.plan.settings.drain_pods_without_owner == "refuse"
        self.that("pods", not (stays or lost), f"pod {pod.name} of {pod.owner_kind or 'no owner'} is evicted")

    # -- this server

    def noted(self, process: Process) -> None:
        """The note of a step was written."""
        known = self.known[process.host.name]
        known.tried, known.note_lost = (process.host.boottime(), process.host.boot_id), False

    def note_lost(self, process: Process) -> None:
        self.known[process.host.name].note_lost = True

    def record_written(self, process: Process, level: str) -> None:
        host = process.host
        if level == host.record or process.kind == "people":
            return
        intent = self.open_step(host)
        if intent is not None:
            self._acts(host, intent.id)
        else:  # a repair's
            for other in self._cluster.hosts.values():
                self.that(
                    "one acts",
                    other is host or not self.known[other.name].effects or self.known[host.name].adopts,
                    f"{host.name} writes its record while {other.name} acts",
                )

    def restarted(self, process: Process, level: str) -> None:
        host = process.host
        if process.kind == "people":
            return
        intent = self._under_intent(process, f"k3s is restarted for {level}")
        self.that(
            "by one",
            (level in (intent.start, intent.target) and CONTROL_PLANE in (intent.start, intent.target))
            or level == intent.start == intent.target == ETCD_ONLY,
            f"{host.name} is restarted for {level} in a step from {intent.start} to {intent.target}",
        )
        self._acts(host, intent.id)
        self._holds_lease(process, f"when k3s is restarted for {level}")
        node = self._cluster.objects.get(host.name)
        label = marks.level_of(node) if node else "not at all"
        self.that(
            "labelled", label == ETCD_ONLY or self.forced, f"{host.name} is restarted for {level}, marked {label}"
        )
        if level == ETCD_ONLY and host.running != ETCD_ONLY:
            self._ends_pods(process)
        window = self._window(process)
        others = [other for other in self._cluster.hosts.values() if other is not host]
        whole = sum(other.up() or self._history.now - other.down_at <= window for other in others)
        joined, now = self._cluster.joined_at, self._history.now
        voters = sum(
            not member.learner and now - joined.get(member.id, float("-inf")) > window
            for member in self._cluster.members
        )
        named = self._despite(process)
        if named and host.at() != "":  # a person answers for these, and for no other
            for other in others:
                self.that(
                    "quorum",
                    not other.member or other.name in named or other.up()
                    or self._history.now - other.down_at <= window,
                    f"{host.name} is restarted for {level} despite {', '.join(named)}, and {other.name} is down too",
                )  # fmt: skip
            return
        self.that(
            "quorum",
            2 * whole > voters or host.at() == "",
            f"{host.name} is restarted for {level} with {whole} of {voters - 1} others up",
        )

    def _ends_pods(self, process: Process) -> None:
        """The restart ends every pod that is still there; those that came since the process began nobody saw."""
        if self.known[process.host.name].pods_at >= process.began:
            return
        settings = process.plan.settings
        for pod in self._cluster.pods[process.host.name]:
            stays = pod.mirror or pod.finished or pod.owner_kind == "DaemonSet"
            kept = settings.drain_remaining == "refuse"
            lost = not pod.owner_kind and settings.drain_pods_without_owner == "refuse"
            self.that(
                "pods",
                stays or not (kept or lost),
                f"the restart ends pod {pod.name} of {pod.owner_kind or 'no owner'}",
            )

    def _window(self, process: Process) -> float:
        """True seconds since which the gate must have been asked, where k3s is restarted now."""
        paused = process.paused - process.paused_at_gate  # nobody can ask while it is stopped
        return GATE_AGE_SECONDS / process.host.rate + SLACK_SECONDS + paused

    def _despite(self, process: Process) -> Tuple[str, ...]:
        """The peers without which a person has said yes to the open step's restart, whoever goes on with it."""
        journal = _journal(process.host)
        return tuple(process.plan.despite if journal is None else journal.get("despite") or ())

    def applied(self, process: Process, level: str) -> None:
        if process.restarted and process.kind != "people":
            self._holds_lease(process, f"when {level} was applied")

    def started(self, process: Process) -> None:
        self.that(
            "started",
            "journal" in process.host.state or process.kind == "people",
            f"{process.host.name} was started, though no step of ours is open",
        )

    # -- deciding

    def sampled(self, watcher: Watcher, sample: Sample) -> None:
        """Before each decision: whether samples are missing, or cannot be read."""
        host, settings = watcher.host, watcher.settings
        now, boottime = host.monotonic(), host.boottime()
        before, watcher.sampled = watcher.sampled, (now, boottime)
        cut = before is None or sample.stall is None
        hole = sample.available is None
        if before is not None:
            awake = now - before[0]
            cut = cut or awake <= 0 or boottime - before[1] - awake > 5.0  # rebooted, or slept
            hole = hole or awake > 3 * settings.sample_seconds + 1
        if cut:
            watcher.seen_since = now
        elif hole:  # the stall's total goes on over it, so that the window need not begin anew
            watcher.seen_since = max(watcher.seen_since, now - settings.pressure_window_seconds)

    def answered(self, watcher: Watcher, result: str) -> None:
        """A child of the watcher has ended: what was not refused begins a cooldown, also without its note."""
        if watcher.watch.busy in (DOWN, UP) and result in ("done", "failed"):
            self.known[watcher.host.name].tried = (watcher.host.boottime(), watcher.host.boot_id)

    def decided(self, watcher: Watcher, decision: policy.Decision) -> None:
        self._waits_no_longer(watcher, decision)
        if decision.action == DOWN:
            self._goes_down(watcher)
        elif decision.action == UP:
            self._goes_up(watcher, decision)

    def _waits_no_longer(self, watcher: Watcher, decision: policy.Decision) -> None:
        host, tried = watcher.host, self.known[watcher.host.name].tried
        left = 0.0
        if tried and tried[1] == host.boot_id:
            left = max(0.0, watcher.settings.cooldown_down_seconds - (host.boottime() - tried[0]))
        self.that(
            "held up",
            decision.cooldown_down <= left + 1.0,
            f"{host.name} would wait {decision.cooldown_down:.0f} s to go down, {left:.0f} s are left of its cooldown",
        )

    def _goes_down(self, watcher: Watcher) -> None:
        host, known, now = watcher.host, self.known[watcher.host.name], self._history.now
        if watcher.watch.state.back:
            return
        if known.calm:
            truly = now - known.pressed_until
            self.that("sustained", truly < LASTING_SECONDS, f"{host.name} goes down after {truly:.0f} s of true calm")
        elif known.pressed_since - known.pressed_until > LASTING_SECONDS:  # nothing shows from before
            truly = (now - known.pressed_since) * host.rate
            self.that(
                "sustained",
                truly >= watcher.settings.sustain_down_seconds - 1.0,
                f"{host.name} goes down after {truly:.0f} s of pressure",
            )

    def _goes_up(self, watcher: Watcher, decision: policy.Decision) -> None:
        host, settings = watcher.host, watcher.settings
        known = self.known[host.name]
        asked = settings.sustain_up_seconds
        self.that(
            "calm",
            decision.reading.pressure is not None and decision.reading.available is not None,
            f"{host.name} goes up on an unknown reading",
        )
        # a reading is of a whole window: what is shorter than that need not show
        until = known.uneasy_until if known.calm else self._history.now
        lasted = (until - known.uneasy_since) * host.rate
        truly = (self._history.now - until) * host.rate
        shows = settings.pressure_window_seconds + settings.sample_seconds
        self.that(
            "calm", truly >= asked - 1 or lasted < shows, f"{host.name} goes up after {truly:.0f} s of true calm"
        )
        seen = host.monotonic() - watcher.seen_since
        asked += settings.pressure_window_seconds  # no reading before the first window is full
        self.that("calm", seen >= asked - 1, f"{host.name} goes up {seen:.0f} s after what its samples begin with")

    # -- time and again

    def looked(self) -> None:
        """Once the troubles have ended: how long k3s is locked behind its own address."""
        now = self._history.now
        within = TRAP_SECONDS * (2 if self._history.faults.active else 1)  # by then k3s ended itself, and came back
        for name, host in self._cluster.hosts.items():
            known = self.known[name]
            locked = host.trapped and host.running == ETCD_ONLY and host.k3s == RUNNING
            if not locked or host.incurable or "uncured" in host.state or self._history.faults.troubles:
                known.trapped_since = None
                continue
            known.trapped_since = now if known.trapped_since is None else known.trapped_since
            self.that(
                "trap",
                now - known.trapped_since < within,
                f"{name} is locked behind its own address for {within:.0f} s",
            )

    def raised(self, process: Process, error: BaseException) -> None:
        if isinstance(error, StepRefused):
            if process.kind == "people":
                self._history.count("refused: to a person")
                return
            self._history.count(f"refused: {error.reason}")
            self.that("reasons", error.reason != "other", f"refused without a reason: {error}")


def _journal(host: Host) -> Optional[Dict[str, Any]]:
    """The journal of an open step; that of a recovery is none."""
    found = host.state.get(step.JOURNAL)
    return found if found and found["phase"] != step.RECOVERED else None


def _marks(node: Node) -> Tuple[object, ...]:
    taints = [taint for taint in node.taints if taint.key == marks.LEVEL]
    return node.labels.get(marks.LEVEL), taints, node.unschedulable
