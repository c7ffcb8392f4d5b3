# SPDX-License-Identifier: GPL-3.0-or-later
"""What people, other tools and hosts do in a history, besides what the product does: one function a deed.

Each is drawn by weight from `DEEDS` at random moments and sees to what follows from it; one that may find nothing to
do says whether it took effect. `SCENES` are what a whole story needs: they follow a server that goes below full. Faults
of single calls are `faults`; what the product's own commands do is driven here, but is the product's code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import (
    marks,
    people,
    reconcile,
    walk,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import (
    CONTROL_PLANE,
    DOWN,
    ETCD_ONLY,
    FULL,
    UP,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease, Member, Pod

from .cluster import RUNNING, STOPPED, Host

if TYPE_CHECKING:
    from .history import History

UNSEEN_SECONDS = 400.0  # longer than the others need to come back, and a settling to look for the level
KURED = "weave.works/kured-reboot-in-progress"


def _any(history: History) -> Host:
    return history.random.choice(list(history.cluster.hosts.values()))


def _busiest(history: History) -> Host:
    """A host that has a step open or is below full, if there is one: where deeds hurt most."""
    found = [host for host in history.cluster.hosts.values() if "journal" in host.state or history.checks.below(host)]
    return history.random.choice(found) if found and history.random.random() < 0.7 else _any(history)


def another(history: History, host: Host) -> Host:
    return history.random.choice([other for other in history.cluster.hosts.values() if other is not host])


# -- memory


def pressure(history: History) -> None:
    """Memory runs short on a host for a while, or only seems to."""
    random, host = history.random, _busiest(history)
    for _wave in range(random.randint(1, 2)):
        kind = random.choice(("stall", "floor", "thrashing container", "between"))
        share, available = {
            "stall": (random.uniform(0.25, 0.9), random.uniform(0.36, 0.48)),
            "floor": (random.uniform(0.0, 0.1), random.uniform(0.01, 0.07)),
            "thrashing container": (random.uniform(0.25, 0.9), random.uniform(0.7, 0.9)),
            "between": (random.uniform(0.0, 0.15), random.uniform(0.085, 0.13)),
        }[kind]
        history.count(f"pressure: {kind}")
        history.press(host, share, available)
    history.later_on(random.uniform(60.0, 700.0), lambda: history.press(host, 0.0, 0.6))


# -- the product's commands, by hand


def step_by_hand(history: History) -> bool:
    random, host = history.random, _busiest(history)
    where = random.choice((DOWN, UP, UP, FULL, CONTROL_PLANE, ETCD_ONLY, ETCD_ONLY, ETCD_ONLY))
    process = history.by_hand(host, hold=random.random() < 0.5, wait=random.choice((0.0, 0.0, 60.0)))
    if process:
        process.run(walk.walk(process.plan, where), history.ended)
    return process is not None


def settle_by_hand(history: History) -> bool:
    process = history.by_hand(_busiest(history))
    if process:
        process.run(reconcile.settle(process.plan), history.ended)
    return process is not None


def two_at_once(history: History) -> bool:
    """Every server is told to step in the same instant."""
    told = 0
    for host in history.cluster.hosts.values():
        process = history.by_hand(host, hold=False, wait=history.random.choice((0.0, 200.0)))
        if process:
            told += 1
            process.run(walk.walk(process.plan, DOWN), history.ended)
    return told > 1


def abandon_step(history: History) -> bool:
    """A person closes the step of a server that is taken for dead; at times it is not."""
    for host in history.cluster.hosts.values():
        node = history.cluster.objects.get(host.name)
        if node is None or marks.intent_of(node) is None:
            continue
        if not host.powered or history.random.random() < 0.3:
            return history.abandon(host)
    return False


def forget(history: History) -> bool:
    """A person clears the marks of a server that is gone, perhaps not for good; at times it is not gone."""
    for host in history.cluster.hosts.values():
        node = history.cluster.objects.get(host.name)
        if node is None or marks.level_of(node) == FULL:
            continue
        if not host.powered or history.random.random() < 0.3:
            return history.forget(host)
    return False


def up_despite(history: History) -> bool:
    """A person steps a server up though a peer is dead, or only taken for dead."""
    gone = tuple(host.name for host in history.cluster.hosts.values() if not host.powered)
    for host in history.cluster.hosts.values():
        if host.powered and history.checks.below(host):
            return history.up_despite(host, gone or (another(history, host).name,))
    return False


def last_one_standing(history: History) -> bool:
    """A server at etcd-only is alone: a person has it run full again, and later the others come back."""
    hosts = history.cluster.hosts.values()
    alone = next((host for host in hosts if host.powered and host.running == ETCD_ONLY), None)
    if alone is not None and history.random.random() < 0.3:  # or it only seems so
        return history.recover(alone)
    return alone is not None and leave_alone(history, alone)


def leave_alone(history: History, alone: Host) -> bool:
    if history.checks.known[alone.name].effects:
        return False
    _others_go(history, alone, 60.0, 900.0)
    history.scheduler.call(10.0, lambda: history.recover(alone))
    return True


def _others_go(history: History, alone: Host, least: float, most: float) -> None:
    """All but this one go down, each for so many seconds."""
    for host in history.cluster.hosts.values():
        if host is not alone:
            reboot_host(history, host, history.random.uniform(least, most))


def maintenance(history: History) -> bool:
    process = history.by_hand(_any(history), wait=60.0, kind="people")
    if process:
        process.run(people.with_lease(process.plan, ("apt", "upgrade")), history.did("maintenance under the Lease"))
    return process is not None


# -- switches, marks and Lease, by hand


def switch_on(history: History) -> bool:
    random, host = history.random, _busiest(history)
    key = random.choice((marks.HOLD, marks.PAUSE, marks.DRY_RUN))
    if history.switch(host, key, True):
        history.later_on(random.uniform(60.0, 600.0), lambda: history.switch(host, key, False))
        return True
    return False


def cordon(history: History) -> bool:
    """A person cordons a server, whatever goes on there; most take it off again."""
    return cordon_of(history, _busiest(history))


def uncordon(history: History) -> bool:
    """A person takes a cordon off, whoever set it; some set it again."""
    host = _busiest(history)
    found = history.person_uncordons(host)
    if history.random.random() < 0.5:
        history.later_on(history.random.uniform(1.0, 60.0), lambda: history.person_cordons(host))
    return found


def kured(history: History) -> bool:
    """Another tool drains and reboots a server."""
    host = _any(history)
    if host.name not in history.cluster.objects or not history.person_cordons(host):
        return False
    history.cluster.annotate(host.name, KURED, "now")

    def done() -> None:
        if host.name in history.cluster.objects:
            history.cluster.annotate(host.name, KURED, None)
        history.person_uncordons(host)

    if history.random.random() < 0.5:
        history.later_on(5.0, lambda: reboot_host(history, host))
    history.later_on(history.random.uniform(60.0, 300.0), done)
    return True


def lease_deleted(history: History) -> bool:
    cluster = history.cluster
    if cluster.lease is None:
        return False
    history.lease(None)
    history.later_on(
        history.random.uniform(1.0, 200.0), lambda: cluster.lease or history.lease(Lease("", None, "", "", 0, ""))
    )
    return True


def lease_rewritten(history: History) -> bool:
    """By hand, by another tool, or by a server that is gone."""
    random, cluster = history.random, history.cluster
    if cluster.lease is None:
        return False
    holder = random.choice(("somebody", "gone-node/1", f"{_any(history).name}/ghost", "", ""))
    history.lease(Lease(holder, random.choice((None, 30, 60, 240)), "", "", 0, ""))
    return True


def intent_deleted(history: History) -> bool:
    """A person takes the mark of an open step off."""
    return take_intent_off(history, _busiest(history))


def take_intent_off(history: History, host: Host) -> bool:
    node = history.cluster.objects.get(host.name)
    intent = marks.intent_of(node) if node else None
    if intent is None:
        return False
    history.cluster.annotate(host.name, marks.INTENT, None)
    known = history.checks.known[host.name]
    known.effects, known.taken = "", (intent, history.now)
    history.count("done: intent taken off by hand")
    return True


def node_touched(history: History) -> None:
    """kubelet and controllers write Nodes all the time: a conflict for whoever read before."""
    for name in tuple(history.cluster.objects):
        history.cluster.set_node(name)


# -- k3s and its host


def stop_by_hand(history: History) -> bool:
    """`docker stop`, and some time later `docker start`."""
    host = _busiest(history)
    if host.powered and host.k3s == RUNNING:
        host.stop()
        history.stopped_by_hand.add(host.name)

        def start() -> None:
            history.stopped_by_hand.discard(host.name)
            if host.powered and host.k3s == STOPPED:
                host.start()

        history.later_on(history.random.uniform(10.0, 500.0), start)
        return True
    return False


def restart_by_hand(history: History) -> bool:
    host = _busiest(history)
    if not host.powered or host.k3s != RUNNING:
        return False
    host.restart()
    return True


def recreated(history: History) -> bool:
    """The container is made anew and its link to the record is lost."""
    return make_anew(history, _busiest(history))


def make_anew(history: History, host: Host) -> bool:
    if not host.powered or host.k3s != RUNNING:
        return False
    if host.record != FULL:
        host.linked = False
        history.count("fault: the record's link is lost")
    host.restart()
    return True


def record_changed(history: History) -> bool:
    """Somebody writes another level into the record and restarts k3s."""
    host = _any(history)
    if not host.powered or host.k3s != RUNNING:
        return False
    level = history.random.choice((FULL, FULL, ETCD_ONLY))
    if level != FULL and "journal" in host.state:
        return False  # at a level that the open step does not touch it waits for a person for ever
    if level != FULL:
        history.checks.forced = history.checks.known[host.name].adopts = True
    host.record, host.linked = level, True
    host.restart()

    def settle() -> None:
        """A watcher at full asks nobody, so who went behind its back has it look, until it has."""
        process = history.by_hand(host, wait=60.0) if history.checks.below(host) else None
        if process:
            process.run(reconcile.settle(process.plan), ended)
        elif history.checks.below(host):  # the host is off or asleep
            history.scheduler.call(30.0, settle)

    def ended(result: Any, error: Optional[BaseException]) -> None:
        history.ended(result, error)
        if error is not None:
            history.scheduler.call(30.0, settle)

    history.later_on(history.random.uniform(30.0, 300.0), lambda: history.scheduler.call(30.0, settle))
    return True


def reboot(history: History) -> bool:
    return reboot_host(history, _busiest(history))


def reboot_host(history: History, host: Host, away: float = 0.0) -> bool:
    if not host.powered:
        return False
    history.power_off(host)
    history.later_on(away or history.random.uniform(5.0, 60.0), lambda: history.power_on(host))
    return True


def power_cut(history: History) -> bool:
    return reboot_host(history, _busiest(history), history.random.uniform(100.0, 900.0))


def sleep(history: History) -> bool:
    host = _busiest(history)
    if not host.powered or host.asleep_until > history.now:
        return False
    host.sleep(history.random.uniform(10.0, 900.0))
    return True


def isolation(history: History) -> bool:
    host = _busiest(history)
    if host.powered:
        host.isolate(history.random.uniform(10.0, 400.0))
    return host.powered


def clock_jump(history: History) -> None:
    host = _any(history)
    host.wall += history.random.choice((-1.0, 1.0)) * history.random.uniform(60.0, 1e6)


def watcher_killed(history: History) -> bool:
    """The service's container is killed, with every process in it."""
    host = _busiest(history)
    history.kill_service(host)
    return host.powered


# -- what lasts a while


def api_cut(history: History) -> None:
    host = _busiest(history)
    history.faults.cut_until[host.name] = history.now + history.random.uniform(5.0, 200.0)


def certificate_expired(history: History) -> None:
    host = _busiest(history)
    history.faults.expired_until[host.name] = history.now + history.random.uniform(30.0, 300.0)


def forbidden(history: History) -> None:
    host = _busiest(history)
    what = history.random.choice(
        ("get leases", "update leases", "list nodes", "get nodes", "patch nodes", "list leases", "list pods",
         "create pods/eviction", "create events")
    )  # fmt: skip
    history.faults.forbidden[host.name] = (what, history.now + history.random.uniform(30.0, 300.0))


def large_answers_hang(history: History) -> None:
    host = _busiest(history)
    history.faults.large_hangs_until[host.name] = history.now + history.random.uniform(20.0, 200.0)


def slow(history: History) -> None:
    host = _busiest(history)
    history.faults.slow_until[host.name] = history.now + history.random.uniform(20.0, 200.0)


def disk_full(history: History) -> None:
    host = _busiest(history)
    host.full_disk_until = history.now + history.random.uniform(10.0, 300.0)


def docker_down(history: History) -> None:
    host = _busiest(history)
    host.docker_down_until = history.now + history.random.uniform(5.0, 200.0)


def restart_denied(history: History) -> None:
    host = _busiest(history)
    host.denied_until = history.now + history.random.uniform(60.0, 600.0)


def incurable(history: History) -> None:
    host = _busiest(history)
    host.incurable = True
    history.later_on(history.random.uniform(100.0, 600.0), lambda: setattr(host, "incurable", False))


# -- pods and members


def pods(history: History) -> None:
    some_pods(history, _busiest(history))


def some_pods(history: History, host: Host) -> None:
    random = history.random
    mine = history.cluster.pods[host.name]
    history.checks.known[host.name].pods_at = history.now
    for number in range(random.randint(1, 3)):
        name = f"{host.name}-{len(mine)}-{number}-{int(history.now)}"
        kind = random.choice(
            ("plain", "plain", "budget", "endless", "endless", "ownerless", "daemon", "mirror", "finished")
        )
        owner = {"ownerless": "", "daemon": "DaemonSet", "mirror": "Node"}.get(kind, "ReplicaSet")
        mine.append(Pod("default", name, f"uid-{name}", owner, kind == "mirror", kind == "finished", False))
        if kind == "budget":
            history.cluster.stuck[name] = "Cannot evict pod as it would violate the pod's disruption budget"
        elif kind == "endless":
            history.cluster.stuck[name] = ""


def odd_member(history: History) -> None:
    """A member is added that never starts, or learns for long."""
    random, cluster = history.random, history.cluster
    learner = random.random() < 0.5
    name = "new-0" if learner else ""
    member = Member(str(random.randint(2000, 9000)), name, ("https://10.0.1.9:2380",), (), learner)
    cluster.members.append(member)
    cluster.joined_at[member.id] = history.now

    def gone() -> None:
        cluster.members = [other for other in cluster.members if other.id != member.id]

    history.later_on(random.uniform(30.0, 300.0), gone)


def voter_lost(history: History) -> bool:
    """A peer's etcd says that it is no voter."""
    host = _any(history)
    if host.name in history.cluster.objects:
        history.cluster.set_node(host.name, etcd_is_voter=False)

        def again() -> None:
            if host.name in history.cluster.objects:
                history.cluster.set_node(host.name, etcd_is_voter=True)

        history.later_on(history.random.uniform(30.0, 300.0), again)
        return True
    return False


def node_deleted(history: History) -> bool:
    """The one deed that nothing can mend: k3s removes the member."""
    host = _busiest(history)
    if history.spoilt or host.name not in history.cluster.objects or history.random.random() < 0.6:
        return False
    intent = marks.intent_of(history.cluster.objects[host.name])
    if intent is not None:
        history.checks.known[host.name].taken = (intent, history.now)
    history.checks.known[host.name].effects = ""
    history.spoil(host, "its Node was deleted")
    history.cluster.delete_node(host.name)
    return True


def kubelet_hangs(history: History) -> bool:
    """A server's kubelet renews nothing, and the node controller that should see it is stalled too."""
    cluster, host = history.cluster, _any(history)
    seconds, renewed = history.random.uniform(60.0, 300.0), host.agent_up()
    host.hang_agent(seconds)
    cluster.controller_stalled_from, cluster.controller_stalled_until = history.now, history.now + seconds
    return renewed


# -- in the middle of a step


def host_dies(history: History, host: Host) -> None:
    """For long, and somebody closes its step."""
    if reboot_host(history, host, history.random.uniform(300.0, 900.0)):
        history.scene(host, 60.0, history.abandon)


def peer_dies(history: History, host: Host) -> None:
    reboot_host(history, another(history, host), history.random.uniform(20.0, 200.0))


def peer_is_cordoned(history: History, host: Host) -> None:
    peer = another(history, host)
    if history.person_cordons(peer):
        history.later_on(history.random.uniform(30.0, 200.0), lambda: history.person_uncordons(peer))


def its_cordon_becomes_a_persons(history: History, host: Host) -> None:
    history.person_uncordons(host)
    cordon_of(history, host)


def cordon_of(history: History, host: Host) -> bool:
    if not history.person_cordons(host):
        return False
    if history.random.random() < 0.7:
        history.later_on(history.random.uniform(30.0, 400.0), lambda: history.person_uncordons(host))
    return True


def lease_is_anothers(history: History, host: Host) -> None:
    if history.cluster.lease is not None:
        history.lease(Lease(f"{another(history, host).name}/ghost", 60, "", "", 0, ""))


def api_is_cut(history: History, host: Host) -> None:
    history.faults.cut_until[host.name] = history.now + history.random.uniform(5.0, 200.0)


def disk_fills(history: History, host: Host) -> None:
    host.full_disk_until = history.now + history.random.uniform(1.0, 60.0)


def docker_ends(history: History, host: Host) -> None:
    host.docker_down_until = history.now + history.random.uniform(1.0, 100.0)


def host_sleeps(history: History, host: Host) -> None:
    if host.asleep_until <= history.now:
        host.sleep(history.random.uniform(10.0, 400.0))


AMBUSHES: Tuple[Callable[[History, Host], object], ...] = (
    host_dies,
    peer_dies,
    peer_is_cordoned,
    its_cordon_becomes_a_persons,
    lease_is_anothers,
    lease_is_anothers,
    api_is_cut,
    disk_fills,
    docker_ends,
    host_sleeps,
    reboot_host,
    lambda history, host: lease_deleted(history),
    lambda history, host: node_touched(history),
    take_intent_off,
)


# -- stories, once a server is below full


def host_is_gone(history: History, host: Host) -> None:
    """For so long that a person forgets it."""
    if reboot_host(history, host, history.random.uniform(300.0, 900.0)):
        history.scene(host, history.random.uniform(5.0, 40.0), history.forget)


def others_are_gone(history: History, host: Host) -> None:
    """It is the last one standing."""
    if host.powered and host.running == ETCD_ONLY:
        history.scene(host, 1.0, lambda alone: leave_alone(history, alone))


def a_peer_is_gone(history: History, host: Host) -> None:
    """For long, and a person steps this server up without it, trying a few times."""
    peer = another(history, host)

    def step_up(alone: Host) -> None:
        if history.faults.troubles and not peer.powered and alone.running == ETCD_ONLY:
            history.up_despite(alone, (peer.name,))
            history.scheduler.call(45.0, lambda: step_up(alone))

    if host.running == ETCD_ONLY and reboot_host(history, peer, history.random.uniform(300.0, 900.0)):
        history.scene(host, history.random.uniform(5.0, 60.0), step_up)


def recovery_is_cut_off(history: History, host: Host) -> None:
    """The last one standing is so busy that the command of the person who recovers it dies between the record and the
    restart, and that nothing tells the level for long: the others are back before it does."""

    def recovers(alone: Host) -> None:
        alone.recovery_ends = True
        alone.unseen_until = history.now + UNSEEN_SECONDS
        history.recover(alone)
        history.scheduler.call(150.0, lambda: setattr(alone, "recovery_ends", False))  # it was refused

    def begin(alone: Host) -> None:
        if history.checks.known[alone.name].effects:
            return
        _others_go(history, alone, 120.0, 180.0)
        history.scheduler.call(5.0, lambda: recovers(alone))

    if host.powered and host.running == ETCD_ONLY:
        history.scene(host, 1.0, begin, UNSEEN_SECONDS + 50.0)


def host_seems_gone(history: History, host: Host) -> None:
    """At etcd-only its Node is NotReady: a person takes it for gone."""
    if host.powered and host.running == ETCD_ONLY:
        history.scene(host, history.random.uniform(1.0, 20.0), history.forget)


def made_anew_while_still(history: History, host: Host) -> None:
    """A person wants no automatic step on it meanwhile, and makes its container anew."""
    key = history.random.choice((marks.HOLD, marks.PAUSE, marks.DRY_RUN))
    if host.powered and host.running == ETCD_ONLY and history.switch(host, key, True):
        history.scene(host, 5.0, lambda still: make_anew(history, still))
        history.later_on(history.random.uniform(120.0, 300.0), lambda: history.switch(host, key, False))


SCENES: Tuple[Callable[[History, Host], None], ...] = (
    *(host_is_gone,) * 2,
    *(host_seems_gone,) * 2,
    *(made_anew_while_still,) * 2,
    *(others_are_gone,) * 3,
    *(recovery_is_cut_off,) * 4,
    *(a_peer_is_gone,) * 10,
)


DEEDS: Tuple[Tuple[Callable[[History], object], int], ...] = (
    (pressure, 16),
    (step_by_hand, 20),
    (settle_by_hand, 2),
    (two_at_once, 4),
    (abandon_step, 4),
    (forget, 2),
    (up_despite, 3),
    (last_one_standing, 6),
    (maintenance, 3),
    (switch_on, 7),
    (cordon, 3),
    (uncordon, 3),
    (kured, 2),
    (lease_deleted, 3),
    (lease_rewritten, 3),
    (intent_deleted, 4),
    (node_touched, 3),
    (stop_by_hand, 2),
    (restart_by_hand, 1),
    (recreated, 2),
    (record_changed, 1),
    (reboot, 3),
    (power_cut, 2),
    (sleep, 2),
    (isolation, 2),
    (clock_jump, 2),
    (watcher_killed, 3),
    (api_cut, 2),
    (certificate_expired, 2),
    (forbidden, 3),
    (large_answers_hang, 2),
    (slow, 2),
    (disk_full, 4),
    (docker_down, 2),
    (restart_denied, 3),
    (incurable, 1),
    (pods, 10),
    (odd_member, 2),
    (voter_lost, 2),
    (kubelet_hangs, 3),
    (node_deleted, 1),
)
