# SPDX-License-Identifier: GPL-3.0-or-later
"""One simulated history: a cluster, its troubles, their end, and what must come of it.

1. Troubles: people and hosts do `deeds`, calls and processes fail as `faults` says.
2. Calm: nothing fails any more, and people put right what only they can. Everything must settle.
3. Cycle: one server comes under pressure and must go down to etcd-only; the pressure passes and it must come back. In
   half of the histories this is under mild faults: what fails on any day, and no deeds.

A history is wholly worked out from its seed. Breaks raise `checks.Broken`.
"""

from __future__ import annotations

import random as randoms
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import lease as leases
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import (
    marks,
    people,
    reconcile,
    step,
    walk,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import RegradeError
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import (
    CONTROL_PLANE,
    DOWN,
    ETCD_ONLY,
    FULL,
    UP,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.requests import (
    CurrentLevel,
    ReadNode,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import Settings, load

from . import deeds
from .checks import TRAP_SECONDS, Broken, Checks
from .cluster import LOOPING, RUNNING, STOPPED, TOTAL, Cluster, Host
from .faults import Faults
from .process import Process
from .scheduler import Actor, Scheduler
from .watcher import Watcher

# Short, and in the relations that `settings` asks for.
TIMES = {
    "SAMPLE_SECONDS": "30",
    "PRESSURE_WINDOW_SECONDS": "90",
    "SUSTAIN_DOWN_SECONDS": "60",
    "SUSTAIN_UP_SECONDS": "90",
    "COOLDOWN_DOWN_SECONDS": "100",
    "COOLDOWN_UP_SECONDS": "240",  # longer than a window and SUSTAIN_UP, so that it shows after a boot
    "SETTLE_SECONDS": "60",
    "DRAIN_TIMEOUT_SECONDS": "20",
    "BOOT_TIMEOUT_SECONDS": "60",
    "TRAP_WAIT_SECONDS": "60",
    "HEADROOM_ETCD_ONLY": "200MiB",
}
SETTLE_WITHIN = 6000.0  # true seconds of calm within which all must have settled
DOWN_WITHIN = 3000.0  # of pressure, within which the server must be at etcd-only
UP_WITHIN = 9000.0  # of calm again: relapses make it wait up to an hour for each level
MILD_FACTOR = 5.0  # how much longer each may take under mild faults
ALONE_SECONDS = 1200.0  # in which our own stopped k3s must be started again, whatever else fails
LOOK_SECONDS = 30.0
SCENE_SECONDS = 150.0  # a person's command that looks for signs of life takes no longer
_SETTINGS: Dict[Tuple[str, ...], Settings] = {}


class Result(NamedTuple):
    """What one history came to."""

    seed: int
    counts: Dict[str, int]
    checked: Dict[str, int]
    steps: int
    cycles: int
    simulated: float  # seconds
    events: int


def _settings(name: str, **more: str) -> Settings:
    key = (name, *more.values())
    if key not in _SETTINGS:
        pairs = {"NODE_NAME": name, "KUBE_SERVER": "https://10.0.0.9:6443", **TIMES, **more}
        _SETTINGS[key] = load("", pairs)
    return _SETTINGS[key]


class History:
    """`trace`: what is told goes into `lines`, for a person."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.random: randoms.Random = self.scheduler.random
        self.lines: List[str] = []
        self._trace = trace
        random = self.random
        count = random.choice((3, 3, 3, 3, 4, 5, 5, 7))
        self.cluster = Cluster(self.scheduler, count)
        self.faults = Faults(random)
        self.checks = Checks(self)
        self.counts: Dict[str, int] = {}
        self.steps = self.cycles = 0
        self.cycles_in_faults = 0  # of `cycles`, those that ended while calls and processes failed
        self._alone = 0  # stories the troubles wait for
        self.automatic = random.random() < 0.85
        more = {
            "STEP_UP": "automatic" if self.automatic else "manual",
            "DRAIN_REMAINING": random.choice(("end", "end", "refuse")),
            "DRAIN_PODS_WITHOUT_OWNER": random.choice(("refuse", "end")),
        }
        self.settings = {name: _settings(name, **more) for name in self.cluster.hosts}
        self.hole_rate = random.choice((0.0, 0.02, 0.2))
        self.unreadable_rate = random.choice((0.0, 0.01, 0.1))
        self.starved: Set[str] = set()  # hosts whose watcher gets the CPU seldom
        self.stopped_by_hand: Set[str] = set()
        self.spoilt: Dict[str, str] = {}  # host -> why it can never step again
        self.watchers: Dict[str, List[Watcher]] = {name: [] for name in self.cluster.hosts}
        self._begun: List[Tuple[Actor, Callable[[], Any]]] = []  # what a deed will still do
        self._processes = 0
        self._was = dict.fromkeys(self.cluster.hosts, FULL)
        self._lowest: Dict[str, bool] = dict.fromkeys(self.cluster.hosts, False)

    @property
    def now(self) -> float:
        return self.scheduler.now

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if self._trace:
            self._line(f"  ({name})")

    def told(self, process: Optional[Process], text: str) -> None:
        if self._trace:
            self._line(f"{process.plan.holder}: {text}" if process else text)

    def _line(self, text: str) -> None:
        self.lines.append(f"{self.now:10.3f}  {text}")

    # -- what deeds and processes do to it

    def later_on(self, after: float, what: Callable[[], Any]) -> None:
        """What follows from a deed; at the end of all troubles it follows at once."""
        actor = self.scheduler.call(after, what)
        self._begun.append((actor, what))

    def later(self, after: float, effect: Callable[[], Any]) -> None:
        """A write that arrives late: what it is refused with, nobody hears."""

        def arrive() -> None:
            self.checks.late = True
            try:
                effect()
            except RegradeError:
                pass
            finally:
                self.checks.late = False

        self.scheduler.call(after, arrive)

    def process(
        self, host: Host, automatic: bool, hold: bool = True, wait: float = 0.0, kind: str = "step"
    ) -> Process:
        self._processes += 1
        plan = step.Plan(
            host.name, f"{host.name}/{self._processes:04x}", self.settings[host.name], automatic, hold, wait
        )
        for watcher in self.watchers[host.name]:
            watcher.stir()
        return Process(self, host, plan, kind)

    def by_hand(
        self, host: Host, hold: bool = True, wait: float = 0.0, kind: str = "step"
    ) -> Optional[Process]:
        """A command a person runs there; None where nobody can."""
        if not host.powered or host.asleep_until > self.now:
            return None
        return self.process(host, False, hold, wait, kind)

    def by_a_person(self, about: Host) -> Optional[Process]:
        """A command about that server, run on another that lives."""
        others = [host for host in self.cluster.hosts.values() if host is not about and host.powered]
        return self.by_hand(self.random.choice(others), kind="people") if others else None

    def did(self, what: str) -> Callable[[Any, Optional[BaseException]], None]:
        """The end of a person's command: counted as done where it changed something."""

        def ended(result: Any, error: Optional[BaseException]) -> None:
            self.ended(result, error)
            if error is None and getattr(result, "changed", True):
                self.count(f"done: {what}")

        return ended

    def abandon(self, host: Host) -> bool:
        """A person closes the step that this server left open, if it seems dead."""
        process = self.by_a_person(host)
        if process is None:
            return False
        did = self.did("step abandoned")

        def ended(result: Any, error: Optional[BaseException]) -> None:
            did(result, error)
            if error is None:
                self.checks.known[host.name].effects = ""

        process.run(people.abandon_step(process.plan, host.name), ended)
        return True

    def forget(self, host: Host) -> bool:
        """A person takes the marks off a server that seems gone."""
        process = self.by_a_person(host)
        if process is None:
            return False
        self.checks.forced = True  # it may come back below full, with another there by then
        did = self.did("marks forgotten")

        def ended(result: Any, error: Optional[BaseException]) -> None:
            did(result, error)
            if error is None and result.changed:
                self.checks.known[host.name].adopts = True

        process.run(people.forget(process.plan, host.name), ended)
        return True

    def recover(self, host: Host) -> bool:
        """A person has this server run full, asking nobody."""
        process = self.by_hand(host, kind="people")
        if process is None:
            return False
        process.run(people.recover(process.plan), self.did("recovered with no API"))
        return True

    def up_despite(self, host: Host, gone: Tuple[str, ...]) -> bool:
        """A person steps this server up without those peers."""
        process = self.by_hand(host, hold=False, wait=60.0)
        if process is None:
            return False
        self.checks.forced = True
        process.plan = process.plan._replace(despite=gone)

        def ended(result: Any, error: Optional[BaseException]) -> None:
            self.ended(result, error)
            dead = not all(self.cluster.hosts[name].up() for name in gone)
            if error is None and result.start == ETCD_ONLY and dead:  # the one step up that restarts etcd
                self.count("done: step up without a dead peer")

        process.run(walk.walk(process.plan, UP), ended)
        return True

    def scene(
        self, host: Host, after: float, act: Callable[[Host], object], lasts: float = SCENE_SECONDS
    ) -> None:
        """Somebody acts in a while, and the troubles last until it has come of it what may."""
        self._alone += 1

        def over() -> None:
            self._alone -= 1

        def do() -> None:
            act(host)
            self.scheduler.call(lasts, over)

        self.scheduler.call(after, do)

    def step_begins(self, host: Host) -> None:
        """Its intent is written: at times its host dies in the middle of what follows, or etcd gets another member."""
        if not self.faults.troubles:
            return
        if self.random.random() < 0.05:
            self.scheduler.call(self.random.uniform(0.1, 20.0), lambda: self._dies_in_its_step(host))
        intent = self.checks.open_step(host)
        if intent and intent.target == ETCD_ONLY and self.random.random() < 0.1:
            self.count("fault: a member added in the middle of a step")
            deeds.odd_member(self)

    def _dies_in_its_step(self, host: Host) -> None:
        if self.faults.troubles and self.checks.open_step(host) is not None:
            deeds.host_dies(self, host)

    def ambush(self, host: Host) -> None:
        """Something is done to a step of this server just now."""
        deed = self.random.choice(deeds.AMBUSHES)
        self.count("fault: something done in the middle of a step")
        deed(self, host)

    def down_by_hand(self, host: Host, tries: int = 5) -> None:
        """A person steps it down to etcd-only, and tries again where nothing came of it."""
        process = None if host.processes else self.by_hand(host, hold=False)
        if process:
            process.run(walk.walk(process.plan, ETCD_ONLY), self.ended)

        def again() -> None:
            if self.faults.troubles and host.running != ETCD_ONLY:
                self.down_by_hand(host, tries - 1)

        if tries > 1:
            self.scheduler.call(self.random.uniform(30.0, 90.0), again)

    def step_of_a_person(self, host: Host) -> None:
        process = self.by_hand(host, hold=False)
        if process:
            process.run(walk.walk(process.plan, self.random.choice((DOWN, UP))), self.ended)

    def ended(self, result: Any, error: Optional[BaseException]) -> None:
        self.told(None, f"a command ended: {error or result}")

    def alert(self, process: Process) -> step.Steps[None]:
        yield CurrentLevel()
        node = yield ReadNode(process.host.name)
        yield from step.tell(node, "Warning", "RegradeExhausted", "at its lowest level")

    def press(self, host: Host, share: float, available: float) -> None:
        settings, known = self.settings[host.name], self.checks.known[host.name]
        counted = share if available < settings.pressure_ceiling else 0.0
        calm = counted < settings.pressure_threshold and available >= 0.35  # above each floor and headroom
        thin = host.share and host.available >= 0.35 * TOTAL  # only a stall: it shows over a window
        if not calm and (known.calm or (available >= 0.35 and not thin)):
            known.uneasy_since = self.now
        elif calm and not known.calm:
            known.uneasy_until = self.now
        if known.calm and not calm:
            known.pressed_since = self.now
        elif calm and not known.calm:
            known.pressed_until = self.now
        known.calm = calm
        host.press(share, available)
        self.told(None, f"{host.name}: pressure {share:.2f}, available {available:.2f}")

    def switch(self, host: Host, key: str, on: bool) -> bool:
        """A person's annotation on the Node; whether it was set or taken off."""
        node = self.cluster.objects.get(host.name)
        if node is None or marks.switch(node, key) == on:
            return False
        self.cluster.annotate(host.name, key, "true" if on else None)
        self.checks.switches_seen(host.name)
        self.count(f"deed: {key.rpartition('-')[2]} {'on' if on else 'off'}")
        return True

    def person_cordons(self, host: Host) -> bool:
        node = self.cluster.objects.get(host.name)
        if node is None or node.unschedulable:
            return False
        self.cluster.set_node(host.name, unschedulable=True, cordoned_by=("kubectl",))
        self.checks.known[host.name].cordoned = True
        return True

    def person_uncordons(self, host: Host) -> bool:
        node = self.cluster.objects.get(host.name)
        self.checks.known[host.name].cordoned = False
        if node is None or not node.unschedulable:
            return False
        self.cluster.set_node(host.name, unschedulable=False, cordoned_by=())
        return True

    def lease(self, lease: Optional[Lease]) -> None:
        """Somebody writes or deletes it."""
        self.cluster.set_lease(lease)
        self.checks.lease_touched()

    def spoil(self, host: Host, why: str) -> None:
        self.spoilt[host.name] = why
        self.checks.forced = True

    def kill_service(self, host: Host) -> None:
        """Every process of the service ends; Docker starts the watcher again."""
        for watcher in self.watchers[host.name]:
            watcher.die()
        had = len(self.watchers[host.name])
        self.watchers[host.name] = []
        host.kill_processes()
        if host.powered:
            self.scheduler.call(self.random.uniform(1.0, 20.0), lambda: self._watch(host, had))

    def power_off(self, host: Host) -> None:
        self.kill_service(host)
        host.power_off()

    def power_on(self, host: Host) -> None:
        if not host.powered:
            host.power_on()
            self.scheduler.call(self.random.uniform(1.0, 20.0), lambda: self._watch(host, 1))

    def _watch(self, host: Host, number: int) -> None:
        if host.powered and not self.watchers[host.name]:
            self.watchers[host.name] = [Watcher(self, host) for _each in range(max(1, number))]

    def lose_a_peer(self, host: Host) -> None:
        """A peer goes between the gate and the restart."""
        peer = deeds.another(self, host)
        self.count("fault: a peer goes after the gate")
        if peer.powered:
            peer.isolate(self.random.uniform(60.0, 200.0))

    def on_rival(self, host: Host) -> None:
        """Another server waits for the Lease, and gets it as somebody clears its holder."""
        peer = deeds.another(self, host)
        rival = self.by_hand(peer, hold=False, wait=300.0)
        if rival:
            rival.run(walk.walk(rival.plan, DOWN), self.ended)

        def clear() -> None:
            if self.cluster.lease is not None:
                self.lease(self.cluster.lease._replace(holder=""))

        self.scheduler.call(self.random.uniform(5.0, 12.0), clear)

    def on_quicker(self, host: Host) -> None:
        """Another server steps down wholly between what this one looked at first and the Lease that it takes."""
        self.count("fault: another server steps just before the Lease is taken")
        peer = deeds.another(self, host)
        rival = None if peer.processes else self.by_hand(peer, hold=False)
        if rival:
            rival.run(walk.walk(rival.plan, CONTROL_PLANE), self.ended)

    def on_ended_by_hand(self, host: Host) -> None:
        """A person takes a step for stuck, just before its restart, and takes its mark off."""
        self.count("fault: a step ended by hand just before its restart")
        self.scheduler.call(self.random.uniform(0.5, 3.0), lambda: deeds.take_intent_off(self, host))

    def on_silent(self, host: Host) -> None:
        """The process of a step gets no CPU for long once k3s is restarted, and renews no Lease: on another server a
        person begins maintenance, which waits for it."""
        self.count("fault: maintenance waits for a silent step")
        process = self.by_hand(deeds.another(self, host), wait=150.0, kind="people")
        if process:
            process.run(
                people.with_lease(process.plan, ("apt", "upgrade")), self.did("maintenance under the Lease")
            )

    def on_cut_off(self, host: Host) -> None:
        """A server that has just come to etcd-only reaches no API server for long: a person sees a step that does not
        end and a Lease that is not renewed, and takes it for dead."""
        self.count("fault: cut off at etcd-only in the middle of a step")
        self.faults.cut_until[host.name] = self.now + self.random.uniform(240.0, 300.0)
        for after in (20.0, 70.0):
            self.scene(host, after, self.abandon)

    def on_left_stopped(self, host: Host) -> None:
        """A restart has left k3s stopped: at times a peer goes too, and no API can be reached."""
        others = [other for other in self.cluster.hosts.values() if other is not host and other.powered]
        if len(self.cluster.hosts) != 3 or len(others) != 2 or self.spoilt:
            return
        peer = self.random.choice(others)
        self.count("fault: own server and a peer down with the journal open")
        self.power_off(peer)
        if self.random.random() < 0.8:
            self.scheduler.call(0.2, lambda: self.kill_service(host))
        self._alone += 1
        began = self.now
        starts = host.starts

        def look() -> None:
            if host.starts != starts or not host.powered or "journal" not in host.state:
                self._alone -= 1
                self.power_on(peer)
                self.checks.that("rule zero", True, "")
            elif self.now - began > ALONE_SECONDS and host.name not in self.stopped_by_hand:
                self.checks.that(
                    "rule zero", False, f"{host.name} is stopped with a step open, and nothing starts it"
                )
            else:
                self.scheduler.call(20.0, look)

        self.scheduler.call(20.0, look)

    # -- the history

    def run(self) -> Result:
        """Raises Broken."""
        try:
            self._run()
        except (Broken, RegradeError):
            raise
        except Exception as error:
            raise Broken("no bug", f"{type(error).__name__}: {error}") from error
        self.checks.that("no bug", True, "")
        return Result(
            self.seed, self.counts, self.checks.counts, self.steps, self.cycles, self.now, self.scheduler.events
        )

    def _run(self) -> None:
        random, cluster = self.random, self.cluster
        for host in cluster.hosts.values():
            self._watch(host, 2 if random.random() < 0.1 else 1)
            if random.random() < 0.3:
                deeds.some_pods(self, host)
        troubles = random.uniform(200.0, 1500.0)
        if random.random() < 0.7:  # most of what can go wrong does so around a restart
            begins = random.choice(list(cluster.hosts.values()))
            self.scheduler.call(random.uniform(20.0, 100.0), lambda: self.down_by_hand(begins))
        choices, weights = zip(*deeds.DEEDS)
        for deed in random.choices(choices, weights, k=random.choice((4, 10, 20, 30))):
            self.scheduler.call(random.uniform(5.0, troubles), self._doing(deed))
        self._until(troubles)
        while self._alone:
            self._until(self.now + 20.0)
        self._calm()
        if self.spoilt:
            self._until(self.now + 900.0)
            return
        self._settles()
        self.checks.forced = False  # all are at full: whatever people forced is over
        for known in self.checks.known.values():
            known.adopts = False
        self._cycle()

    def _doing(self, deed: Callable[[History], object]) -> Callable[[], None]:
        def do() -> None:
            if deed(self) is not False:  # there was something to do
                self.count(f"deed: {deed.__name__.replace('_', ' ')}")

        return do

    def _until(self, end: float) -> None:
        """Runs, and counts what the servers went through."""
        while self.now < end:
            self.scheduler.run(min(end, self.now + LOOK_SECONDS))
            self.checks.looked()
            for name, node in self.cluster.objects.items():
                level = marks.level_of(node)
                if level != self._was[name]:
                    self._was[name] = level
                    self.steps += 1
                    self._may_be_staged(self.cluster.hosts[name], level)
                    if level == ETCD_ONLY:
                        self._lowest[name] = True
                    elif level == FULL and self._lowest[name]:
                        self._lowest[name] = False
                        self.cycles += 1
                        self.cycles_in_faults += self.faults.active

    def _may_be_staged(self, host: Host, level: str) -> None:
        """At times a whole story begins as a server goes below full."""
        if not self.faults.troubles or self._alone or level == FULL:
            return
        if self.random.random() < (0.95 if level == ETCD_ONLY else 0.05):
            scenes = deeds.SCENES if level == ETCD_ONLY else (deeds.host_is_gone,)
            scene, until = self.random.choice(scenes), self.now + 240.0

            def begin() -> None:
                if not self.faults.troubles or self.now > until:
                    return
                if host.processes or "journal" in host.state:  # the step goes on: `step_begins` sees to that
                    self.scheduler.call(5.0, begin)
                else:
                    scene(self, host)

            self.scheduler.call(self.random.uniform(0.0, 20.0), begin)

    def _calm(self) -> None:
        """Nothing fails any more, and people put right what only they can."""
        self._line("all troubles end")
        cluster = self.cluster
        self.faults.end()
        self.hole_rate = self.unreadable_rate = 0.0
        for actor, what in self._begun:
            if actor.alive:
                actor.alive = False
                what()
        for host in cluster.hosts.values():
            self.power_on(host)
            host.isolated_until = min(host.isolated_until, self.now)
            host.wake()
            host.full_disk_until = host.docker_down_until = host.denied_until = host.unseen_until = 0.0
            host.recovery_ends = False
            host.loops_at, host.incurable = "", False
            host.hung_until = min(host.hung_until, self.now)
            if host.k3s == LOOPING or (host.k3s == STOPPED and "journal" not in host.state):
                host.start()
            self.press(host, 0.0, 0.6)
            self.person_uncordons(host) if self.checks.known[host.name].cordoned else None
            cluster.pods[host.name] = []
        cluster.controller_stalled_until = min(cluster.controller_stalled_until, self.now)
        if cluster.lease is None:
            self.lease(Lease("", None, "", "", 0, ""))

    def problem(self, host: Host) -> str:
        """Why this server has not settled, "" where it has."""
        node, lease = self.cluster.objects[host.name], self.cluster.lease
        if "journal" in host.state:
            return "its journal is open"
        if marks.intent_of(node):
            return "its Node shows a step"
        if lease is not None and leases.node_of(lease.holder) == host.name and lease.holder[-6:] != "/ghost":
            return f"the Lease is left with {lease.holder}"
        level = host.at()
        if host.k3s != RUNNING or not level:
            return f"k3s is {host.k3s}, its level not known"
        if host.record != level:
            return f"it runs at {level}, recorded is {host.record}"
        if not marks.agrees(node, level):
            return f"it runs at {level}, its marks say {marks.level_of(node)}"
        if level == FULL and node.unschedulable and not self.checks.known[host.name].cordoned:
            return "it is cordoned at full"
        if self.automatic and level != FULL:
            return f"it is at {level} by now"
        return ""

    def _settles(self) -> None:
        """All must settle; where STEP_UP is manual a person brings the servers back."""
        end = self.now + SETTLE_WITHIN
        while True:
            self._until(self.now + 60.0)
            for host in self.cluster.hosts.values():
                for key in (marks.PAUSE, marks.DRY_RUN, marks.HOLD):
                    self.switch(host, key, False)
            problems = {host.name: self.problem(host) for host in self.cluster.hosts.values()}
            if not any(problems.values()) and all(self._idle(host) for host in self.cluster.hosts.values()):
                break
            if self.now > end:
                self.checks.that("converges", False, "; ".join(f"{n}: {p}" for n, p in problems.items() if p))
                return
            below = [host for host in self.cluster.hosts.values() if self.checks.below(host)]
            behind = [
                host
                for host in below
                if problems[host.name].startswith("it runs at") and not host.processes
            ]
            if behind:  # somebody changed its level behind its watcher's back
                process = self.by_hand(behind[0], wait=60.0)
                if process:
                    process.run(reconcile.settle(process.plan), self.ended)
            elif len(below) > 1:
                self._people_part(below)
            elif not self.automatic and not any(problems.values()):
                self._people_bring_back()
        self.checks.that("converges", True, "")

    def _people_bring_back(self) -> None:
        for host in self.cluster.hosts.values():
            if host.at() not in ("", FULL) and not host.processes:
                process = self.by_hand(host, wait=60.0)
                if process:
                    process.run(walk.walk(process.plan, UP), self.ended)
                return

    def _people_part(self, below: List[Host]) -> None:
        """Of several below full, which only people can have caused, they step one up without the others."""
        host = next((host for host in below if not host.processes), None)
        if host is not None:
            gone = tuple(other.name for other in below if other is not host)
            self.up_despite(host, gone)

    def _idle(self, host: Host) -> bool:
        return host.at() == FULL and not host.processes

    def _cycle(self) -> None:
        """Pressure that lasts, on one server, and then its end."""
        random, cycles = self.random, self.cycles
        host = random.choice(list(self.cluster.hosts.values()))
        mild = random.random() < 0.5
        if mild:
            self.faults.mildly()
            self._docker_stutters()
        factor = MILD_FACTOR if mild else 1.0
        self._line(f"{host.name} comes under pressure{', under mild faults' if mild else ''}")
        if random.random() < 0.5:
            self.starved.add(host.name)
        kind = random.random()
        self.press(host, *((random.uniform(0.3, 0.9), 0.2) if kind < 0.6 else (0.0, random.uniform(0.01, 0.06))))
        end = self.now + factor * DOWN_WITHIN
        while self.checks.that("cycle", True, "") or marks.level_of(self.cluster.objects[host.name]) != ETCD_ONLY:
            if self.now > end:
                self.checks.that("cycle", False, f"{host.name} is under pressure and does not step down")
            self._until(self.now + LOOK_SECONDS)
        self.starved.clear()
        self._at_the_lowest(host)
        self._line(f"{host.name}: the pressure passes")
        self.press(host, 0.0, 0.6)
        end = self.now + factor * UP_WITHIN
        while self.cycles == cycles or not self._idle(host):
            if self.now > end:
                self.checks.that("cycle", False, f"{host.name} is calm and does not step up")
            self._until(self.now + LOOK_SECONDS)
            if not self.automatic and marks.level_of(self.cluster.objects[host.name]) != FULL:
                self._people_bring_back()
        self.faults.end()
        end = self.now + (SETTLE_WITHIN if mild else 60.0)  # what was killed last is ended by the watcher
        self._until(self.now + 60.0)
        while self.problem(host) and self.now < end:
            self._until(self.now + LOOK_SECONDS)
        problem = self.problem(host)
        self.checks.that("converges", not problem, f"{host.name} after its cycle: {problem}")

    def _docker_stutters(self) -> None:
        """Now and then a Docker engine is silent for some seconds."""
        if self.faults.active:
            host = self.random.choice(list(self.cluster.hosts.values()))
            host.docker_down_until = self.now + self.random.uniform(2.0, 15.0)
            self.scheduler.call(self.random.uniform(30.0, 300.0), self._docker_stutters)

    def _at_the_lowest(self, host: Host) -> None:
        """What may come to a server at etcd-only: its watcher must see to it by itself."""
        what = self.random.choices((self._locked, self._link_lost, self._relapses, None), (1, 1, 1, 5))[0]
        if what and self._level_is(host, ETCD_ONLY):
            what(host)

    def _level_is(self, host: Host, level: str) -> bool:
        """Whether it comes to that level, by its marks and with no step open."""
        end = self.now + DOWN_WITHIN
        while marks.level_of(self.cluster.objects[host.name]) != level or "journal" in host.state:
            if self.now > end:
                return False
            self._until(self.now + LOOK_SECONDS)
        return True

    def _locked(self, host: Host) -> None:
        """k3s is restarted and locks itself behind its own address."""
        self._line(f"{host.name}: k3s is restarted, locked behind its own address")
        host.restart()
        host.trapped = True
        self._until(self.now + TRAP_SECONDS + LOOK_SECONDS)

    def _link_lost(self, host: Host) -> None:
        """The container is made anew without the link to its record, while memory is calm."""
        self._line(f"{host.name}: the container is made anew and its link to the record is lost")
        self.press(host, 0.0, 0.6)
        host.linked = False
        host.restart()
        end = self.now + DOWN_WITHIN
        while host.at() != ETCD_ONLY or not host.linked:
            gone = self.now > end or marks.level_of(self.cluster.objects[host.name]) == FULL
            self.checks.that("brought back", not gone, f"{host.name} was at etcd-only and does not go back there")
            self._until(self.now + LOOK_SECONDS)
        self.checks.that("brought back", True, "")

    def _relapses(self, host: Host) -> None:
        """It goes up and is pressed again at once, twice: it must then wait for four times the calm."""
        if not self.automatic or self.faults.active:  # a step that fails changes what it waits for
            return
        self._line(f"{host.name}: the pressure passes, and comes back as soon as it has stepped up")
        for _relapse in range(2):
            self.press(host, 0.0, 0.6)
            if not self._level_is(host, CONTROL_PLANE):
                return
            self.press(host, 0.0, 0.02)
            if not self._level_is(host, ETCD_ONLY):
                return
        self.press(host, 0.0, 0.6)
        began = self.now
        asked = 4 * self.settings[host.name].sustain_up_seconds
        if self._level_is(host, CONTROL_PLANE):
            waited = (self.now - began) * host.rate
            self.checks.that("calm", waited >= asked, f"{host.name} goes up {waited:.0f} s after a relapse")
