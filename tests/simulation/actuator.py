# SPDX-License-Identifier: GPL-3.0-or-later
"""The platform's part of a step, as the Docker actuator does it, with the platform's own accidents.

It keeps the contract of `ports.Actuator`: facts noted before the restart, the record written whole, the hook asked
before each restart, the old record put back where the restart certainly did not begin. The real actuator is tested on
a stub engine and on real servers; here it is only as good, and as unlucky, as the contract allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generator

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import requests as ask
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.ports import (
    ApplyFailed,
    ClusterError,
    LevelUnknown,
    RegradeError,
)

from .cluster import ETCD_ONLY, FULL, LOOPING, RUNNING, STOPPED, Host
from .scheduler import Killed

if TYPE_CHECKING:
    from .process import Process

Answers = Generator[float, None, Any]
POLL_SECONDS = 2.0


def apply(process: Process, request: ask.Apply) -> Answers:
    try:
        yield from _apply(process, request)
    except LevelUnknown as error:
        raise ApplyFailed(str(error), began=process.restart_began) from None
    process.checks.applied(process, request.level)


def recover(process: Process, _request: ask.Recover) -> Answers:
    """The record is removed and k3s restarted, asking nobody."""
    host = process.host
    yield from process.wait(0.01, 0.2)
    if host.docker_down_until > process.cluster.now or host.full_disk_until > process.cluster.now:
        raise ApplyFailed("the record could not be removed; k3s was not restarted", began=False)
    process.checks.recovered(process)
    host.record, host.linked = FULL, True
    yield from process.wait(0.01, 0.2)
    if host.recovery_ends:
        process.history.count("fault: a recovery ends before its restart")
        host.recovery_ends = False
        raise Killed
    host.restart()
    yield from process.wait(0.5, 2.0)


def _apply(process: Process, request: ask.Apply) -> Answers:
    host, level = process.host, request.level
    process.restart_began = process.restarted = False
    yield from process.engine()
    if host.k3s == STOPPED and request.may_start:
        process.checks.started(process)
        host.start()
        process.restart_began = True
    yield from _await_known(process, level)
    running = host.seen_at()
    if level != running and ETCD_ONLY in (level, running):
        yield from _restart_into(process, request, running)
    else:
        if host.record != level or not host.linked:
            yield from _write_record(process, level, process.restart_began)
        if request.facts.get("restart") == "asked":
            yield from _await_up(process, level)
    if level == ETCD_ONLY and host.trapped:
        yield from _cure(process, request)


def _await_known(process: Process, level: str) -> Answers:
    host = process.host
    end = host.boottime() + process.plan.settings.boot_timeout_seconds
    tried = False
    while not host.seen_at():
        if host.boottime() >= end:
            raise ApplyFailed("the running level did not become known", began=process.restart_began)
        if host.k3s == LOOPING and not tried and not process.restart_began:
            tried = True
            yield from _write_record(process, level, False)
            host.restart()
        yield from process.wait(POLL_SECONDS, POLL_SECONDS + 0.1)


def _write_record(process: Process, level: str, began: bool) -> Answers:
    host = process.host
    yield from process.wait(0.01, 0.2)
    if host.full_disk_until > process.cluster.now:
        process.history.count("fault: disk full")
        raise ApplyFailed("the record could not be written: No space left on device", began=began)
    process.checks.record_written(process, level)
    host.record, host.linked = level, True
    yield from process.wait(0.001, 0.02)


def _restart_into(process: Process, request: ask.Apply, running: str) -> Answers:
    host, level = process.host, request.level
    old = request.facts.get("record_before") or host.record
    if old == level:
        old = host.record
    yield from process.drive(request.note({"started_at": str(host.starts), "record_before": old}))
    try:
        yield from _write_record(process, level, False)
        if process.faults.active and process.faults.at_a_mark():
            process.history.count("fault: process stopped just before the restart")
            process.history.lose_a_peer(host)
            yield from process.stopped_for(process.random.uniform(12.0, 40.0))
        elif process.faults.troubles and process.faults.at_a_mark():
            process.history.on_ended_by_hand(host)
            yield from process.stopped_for(process.random.uniform(15.0, 40.0))
        process.paused_at_gate = process.paused
        yield from process.drive(request.before_restart())
    except RegradeError:
        if host.full_disk_until <= process.cluster.now:
            host.record = old
        yield from process.wait(0.01, 0.05)
        raise
    process.restart_began = True
    accident = process.faults.accident(process)
    if accident:
        process.history.count(f"fault: {accident}")
    if accident == "restart not begun":
        yield from _put_back(process, old)
        process.restart_began = False
        raise ApplyFailed("Docker refused the restart; the old record is back", began=False)
    process.checks.restarted(process, level)
    process.restarted = True
    host.restart()
    if accident == "restart leaves k3s stopped":
        host.stop()
        process.history.on_left_stopped(host)
    elif accident == "crash loop":
        host.loops_at = level if process.random.random() < 0.8 else "every"
        host.k3s = LOOPING
    yield from process.wait(0.5, 2.0)
    if accident == "restart answers late":
        raise ApplyFailed("Docker did not answer the restart", began=True)
    yield from _verify_boot(process, request, old)


def _put_back(process: Process, old: str) -> Answers:
    yield from process.wait(0.01, 0.05)
    process.host.record = old


def _verify_boot(process: Process, request: ask.Apply, old: str) -> Answers:
    host, level = process.host, request.level
    end = host.boottime() + process.plan.settings.boot_timeout_seconds
    if process.faults.troubles:
        yield from _alone_with_its_step(process, level)
    while host.boottime() < end:
        yield from process.engine()
        if host.k3s == LOOPING:
            process.host.record = old
            host.restart()
            yield from process.wait(8.0, 12.0)
            back = host.k3s == RUNNING
            raise ApplyFailed("k3s ended again and again; the old record was put back", began=True, back=back)
        if host.k3s == STOPPED:
            process.checks.started(process)
            host.start()
        elif host.seen_at() == level and host.up() and host.cluster.quorum():
            if level == ETCD_ONLY:
                return
            yield from _await_ready(process, host, end)
            return
        yield from process.wait(1.0, POLL_SECONDS)
    raise ApplyFailed(f"{level} was not reached in time", began=True)


def _alone_with_its_step(process: Process, level: str) -> Answers:
    """At times nobody hears any more of a step once k3s is restarted."""
    what = process.random.random()
    if what < 0.25 and level == ETCD_ONLY:
        process.history.on_cut_off(process.host)
    elif what > 0.8:
        process.history.on_silent(process.host)
        yield from process.stopped_for(process.random.uniform(110.0, 170.0))


def _await_ready(process: Process, host: Host, end: float) -> Answers:
    """The Node is Ready on a heartbeat of this start."""
    while host.boottime() < end:
        try:
            node = yield from process.call("get nodes", lambda: process.cluster.node(host.name))
            if node.ready and node.ready_heartbeat == f"start {host.starts}":
                return
        except ClusterError:
            pass
        yield from process.wait(1.0, POLL_SECONDS)
    raise ApplyFailed("k3s runs, but its Node is not Ready", began=True)


def _await_up(process: Process, level: str) -> Answers:
    host = process.host
    end = host.boottime() + process.plan.settings.boot_timeout_seconds
    while not (host.up() and host.cluster.quorum()):
        if host.boottime() >= end:
            raise ApplyFailed("k3s runs, but etcd is not healthy", began=True)
        yield from process.wait(1.0, POLL_SECONDS)
    if level != ETCD_ONLY:
        yield from _await_ready(process, host, end)


def _cure(process: Process, request: ask.Apply) -> Answers:
    host = process.host
    process.history.count("fault: trapped behind its own address")
    yield from process.wait(10.0, 60.0)
    if process.faults.troubles and process.random.random() < 0.2:
        raise ApplyFailed("a restart would not free k3s yet", began=process.restart_began, trapped=True)
    yield from process.drive(request.note({"cure": "own-address trap"}))
    try:
        yield from process.drive(request.before_restart())
    except RegradeError as error:
        why = f"the restart that frees k3s is refused: {error}"
        raise ApplyFailed(why, began=process.restart_began, trapped=True) from None
    process.checks.restarted(process, ETCD_ONLY)
    host.restart()
    host.trapped = host.incurable
    process.restart_began = process.restarted = True
    yield from _verify_boot(process, request, host.record)
    if host.trapped:
        raise ApplyFailed("k3s at etcd-only is still locked behind its own address", began=True, stuck=True)
