# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""Levels by an executable of somebody else's with the verbs `levels`, `current_level` and `apply_level NAME`
(`ports.Platform`). The contract it has to keep is docs/actuators.md; `check-actuator` tries it.

What an executable does cannot be seen from outside, so as little as can be is left to its word:

- Its `current_level` is held against what k3s itself shows on this host; where the two differ, the level is unknown.
- The gate is asked before every call that restarts k3s: those between etcd-only and another level. The other calls
  must not restart it, and where one did, that is an error that names the contract.
- Its success is not believed: the level must run, etcd serve with the same member, k3s have been started anew (by
  the start time in etcd's metrics), and the Node be Ready on a heartbeat that differs.
- What was asked of it last is noted in the state folder before (ASKED) until it is seen to be so. From that a k3s
  that an open step left stopped is started again, by the same call, which only adds a voter.
- Where a level is not reached and k3s is away, the level of before is asked for, once: it adds a voter.

It has no verb for a restart at the same level, so a k3s trapped behind its own address is told, not cured.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Callable, NamedTuple

from ..core.levels import ETCD_ONLY, FULL, LEVELS, restarts
from ..core.model import Member
from ..core.settings import RESTART_GRACE_SECONDS
from ..ports import (
    ApplyFailed,
    Cluster,
    ClusterError,
    LevelUnknown,
    RegradeError,
    StateStore,
    StepHooks,
    StepRefused,
)
from . import reached
from .local_k3s import LocalK3s

if TYPE_CHECKING:
    from ..core.settings import Settings

DONE, USAGE, UNTOUCHED, FAILED, UNKNOWN = 0, 2, 3, 4, 5  # its exit statuses; any other counts as FAILED
ASKED = "asked"  # state: what was asked of it last, and is not seen to be so
END_SECONDS = 10.0  # between SIGTERM and SIGKILL, once its time is over
OUTPUT_BYTES = 64 << 10  # the rest is read and dropped
READ_SECONDS = 5.0  # patience with the last words of one that has ended: a host that thrashes is slow to read them
POLL_SECONDS = 1.0


class Answer(NamedTuple):
    """Of one call. `status` None: it could not be run, or did not end in its time, and `why` says so."""

    status: int | None
    output: str
    why: str  # one line: the last of its stderr
    began: bool  # False where it certainly did not run
    seconds: float

    @property
    def words(self) -> str:
        return (
            self.why
            if self.status is None
            else f"exit status {self.status}: {self.why or 'no word on stderr'}"
        )


class Executable:
    """The executable, called with an end. Knows nothing of levels."""

    def __init__(self, path: str, environment: dict[str, str], look: float, apply: float) -> None:
        """`look` and `apply`: how long the verbs that look and that apply may take, in seconds."""
        self.path, self.look_seconds, self.apply_seconds = path, look, apply
        self._environment = {**os.environ, **environment}

    @classmethod
    def of(cls, settings: Settings, path: str = "") -> Executable:
        return cls(
            path or settings.actuator_command,
            {"NODE_NAME": settings.node_name, "ETCD_ONLY_HTTPS_PORT": str(settings.etcd_only_https_port)},
            settings.call_timeout_seconds,
            settings.restart_timeout_seconds + RESTART_GRACE_SECONDS,
        )

    def look(self, verb: str) -> Answer:
        return self.call((verb,), self.look_seconds)

    def apply(self, level: str) -> Answer:
        return self.call(("apply_level", level), self.apply_seconds)

    def call(self, words: tuple[str, ...], seconds: float) -> Answer:
        """Run it in a session of its own, so that what ends us does not end it half-way."""
        begun = time.monotonic()
        name = " ".join((os.path.basename(self.path), *words))
        try:
            child = subprocess.Popen(
                (self.path, *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            return Answer(None, "", f"{self.path} cannot be run: {error.strerror or error}", False, 0.0)
        output, errors = _Tail(child.stdout), _Tail(child.stderr)
        late = ""
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            late = f"{name} did not end within {seconds:g} s, and was ended"
            status = _end(child)
        last = [" ".join(line.split()) for line in errors.text().splitlines() if line.strip()][-1:]
        why = late + (f" (its last word: {last[0][:300]})" if late and last else "") or "".join(last)[:300]
        return Answer(None if late else status, output.text(), why, True, time.monotonic() - begun)


class _Tail:
    """Reads a pipe beside the call. A process that the executable left behind may hold it open: it is not waited
    for."""

    def __init__(self, pipe: object) -> None:
        self._pipe, self._kept = pipe, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            chunk: bytes = self._pipe.read1(OUTPUT_BYTES)  # type: ignore[attr-defined]  # a BufferedReader
            if not chunk:
                return
            self._kept = (self._kept + chunk)[-OUTPUT_BYTES:]

    def text(self) -> str:
        self._thread.join(READ_SECONDS)
        return self._kept.decode("utf-8", "replace")


def _end(child: subprocess.Popen[bytes]) -> int:
    """SIGTERM to all of its session, and where it does not end by that, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            return child.wait(END_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    return child.wait()


def one_level(answer: Answer) -> str:
    """The level that `current_level` names. Raises LevelUnknown."""
    if answer.status != DONE:
        raise LevelUnknown(f"the executable's current_level: {answer.words}")
    said = answer.output.strip()
    if said not in LEVELS:
        raise LevelUnknown(
            f"the executable's current_level says {said[:60]!r}, expected one of {', '.join(LEVELS)}"
        )
    return said


def held_against(k3s: LocalK3s, said: str) -> str:
    """`said`, where k3s itself does not show otherwise. Raises LevelUnknown."""
    shown, words = k3s.level()
    if shown and (shown == ETCD_ONLY) != (said == ETCD_ONLY):
        raise LevelUnknown(
            f"the executable says {said}, but k3s on this host answers as one at {shown} ({words})"
        )
    if not shown and not k3s.healthy():
        raise LevelUnknown(f"the executable says {said}, but k3s is booting or away: {words}")
    return said


class _Before(NamedTuple):
    """What is compared after a restart."""

    level: str
    member: str
    heartbeat: str
    started: str


class CommandActuator:
    """Built for one step or one look; `hooks` are the step's, None where nothing is to be applied."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        store: StateStore,
        hooks: StepHooks | None = None,
        known: Callable[[], dict[str, str]] = dict,
        k3s: LocalK3s | None = None,
    ) -> None:
        """`known` gives what was noted of the step so far, also by a process before this one."""
        self._settings, self._cluster, self._store = settings, cluster, store
        self._hooks, self._known = hooks, known
        self._executable = Executable.of(settings)
        self._k3s = k3s or LocalK3s(
            settings.node_name, settings.etcd_only_https_port, settings.call_timeout_seconds
        )

    # --- ports.Actuator ---

    def levels(self) -> tuple[str, ...]:
        answer = self._executable.look("levels")
        if answer.status != DONE:
            raise StepRefused(f"the executable's levels: {answer.words}", "platform")
        said = tuple(answer.output.split())
        if said != LEVELS:
            raise StepRefused(
                f"the executable's levels are {' '.join(said)[:200] or 'none'}, expected {' '.join(LEVELS)}",
                "platform",
            )
        return said

    def current_level(self) -> str:
        return held_against(self._k3s, one_level(self._executable.look("current_level")))

    def apply_level(self, name: str) -> None:
        if name not in LEVELS:
            raise ApplyFailed(f"{name!r} is no level; levels are {', '.join(LEVELS)}", began=False)
        if self._hooks is None:
            raise ApplyFailed("this actuator was built to look only", began=False)
        running = self._await_known()
        if name != running and restarts(running, name):
            self._restart_into(name, running, self._hooks)
        else:
            if name != running or self._asked():
                self._change(name)
            # Where a process before this one asked for the restart, nobody has seen yet that it is good.
            known = self._known()
            if known.get("restart") == "asked":
                end = self._patience()
                self._await_etcd(end)
                if name != ETCD_ONLY:
                    self._await_agent(known.get("heartbeat", ""), end)
        self._forget_asked()
        if name == ETCD_ONLY:
            self._refuse_trap()

    # --- ports.VoteKeeper ---

    def recorded_level(self) -> str:
        """The record is the executable's own: it has no verb that tells it, so nothing is held against it."""
        return ""

    def trapped(self) -> bool:
        return self._k3s.trapped()

    def start_stopped(self) -> bool:
        asked = self._asked()
        if not asked or self._k3s.runs():
            return False
        answer = self._executable.apply(asked)
        if answer.status != DONE:
            raise RegradeError(
                f"k3s is stopped, and apply_level {asked}, which starts it, failed: {answer.words}"
            )
        return True

    def started(self) -> str:
        """An executable has no verb for it."""
        return ""

    def preflight(self) -> None:
        """Raises StepRefused where the executable does not answer as the contract says."""
        self.levels()
        try:
            self.current_level()
        except LevelUnknown as error:
            raise StepRefused(str(error), "level-unknown") from None

    def recover(self) -> None:
        before = self._k3s.started()
        answer = self._executable.apply(FULL)
        if not answer.began or answer.status in (USAGE, UNTOUCHED):
            raise ApplyFailed(f"apply_level {FULL}: {answer.words}; k3s was not restarted", began=False)
        end = self._patience()
        while True:
            now = self._k3s.started()
            if now != before if now else not before and self._k3s.runs():
                break
            if time.monotonic() >= end:
                doubt = f" (apply_level {FULL}: {answer.words})" if answer.status != DONE else ""
                raise ApplyFailed(
                    f"k3s was not started anew within {self._settings.boot_timeout_seconds:g} s{doubt}",
                    began=True,
                )
            time.sleep(POLL_SECONDS)
        self._forget_asked()

    # --- ports.LocalEtcd ---

    def members(self) -> tuple[Member, ...]:
        return self._k3s.members()

    def healthy(self) -> bool:
        return self._k3s.healthy()

    # --- what was asked ---

    def _asked(self) -> str:
        """The level asked for last that is not seen to be reached, "" for none."""
        document = self._store.read(ASKED)
        level = str(document.get("level", "")) if document else ""
        return level if level in LEVELS else ""

    def _note_asked(self, name: str) -> None:
        try:
            self._store.write(ASKED, {"level": name})
        except RegradeError as error:
            raise ApplyFailed(f"{error}; the executable was not called", began=False) from None

    def _forget_asked(self) -> None:
        """A note that stays has the level applied once more, which changes nothing."""
        try:
            self._store.remove(ASKED)
        except RegradeError as error:
            raise ApplyFailed(str(error), began=True) from None

    # --- applying ---

    def _patience(self) -> float:
        return time.monotonic() + self._settings.boot_timeout_seconds

    def _await_known(self) -> str:
        """The running level, waiting while k3s boots; one that our open step left stopped is started."""
        end = self._patience()
        while True:
            try:
                return self.current_level()
            except LevelUnknown as error:
                why = str(error)
            began = False
            if self._hooks is not None and self._hooks.may_start():
                try:
                    began = self.start_stopped()
                except RegradeError as error:
                    began, why = True, str(error)
            if time.monotonic() >= end:
                raise ApplyFailed(
                    f"the running level did not become known within {self._settings.boot_timeout_seconds:g} s: {why}",
                    began=began,
                )
            time.sleep(POLL_SECONDS)

    def _change(self, name: str) -> None:
        """A call that must not restart k3s. Raises ApplyFailed."""
        before = self._k3s.started()
        self._note_asked(name)
        answer = self._executable.apply(name)
        if answer.status != DONE:
            raise ApplyFailed(f"apply_level {name}: {answer.words}", began=False)
        end = self._patience()
        self._await_level(name, end)
        now = self._k3s.started()
        if not before or not now or now == before:
            return
        self._await_etcd(end)
        self._forget_asked()  # asked again, it might restart k3s again
        raise ApplyFailed(
            f"apply_level {name} restarted k3s, and no check had allowed it: between full and control-plane, and at a "
            "level that runs already, the executable must not; `check-actuator --apply` shows it",
            began=True,
        )

    def _restart_into(self, name: str, running: str, hooks: StepHooks) -> None:
        """The gate, one call, and all that must hold after it. Raises ApplyFailed, StepRefused."""
        known = self._known()
        first = known.get("record_before", "")
        before = self._before(name, first if first in LEVELS else running)
        hooks.note(
            {
                "started_at": before.started,
                "record_before": before.level,
                "member": before.member,
                "heartbeat": before.heartbeat,
            }
        )
        again = bool(self._asked())
        self._note_asked(name)
        try:
            hooks.before_restart()
        except RegradeError as error:
            if not again:  # nothing of it was done
                self._forget_asked()
            text = f"{error}; the executable was not called"
            raise (
                StepRefused(text, error.reason)
                if isinstance(error, StepRefused)
                else ApplyFailed(text, False)
            ) from None
        answer = self._executable.apply(name)
        if not answer.began or answer.status in (USAGE, UNTOUCHED):
            self._forget_asked()
            raise ApplyFailed(f"apply_level {name}: {answer.words}; k3s was not touched", began=False)
        self._verify(name, before, "" if answer.status == DONE else f"apply_level {name}: {answer.words}")

    def _before(self, name: str, level: str) -> _Before:
        """Raises ApplyFailed(began=False) where something cannot be read that is to be compared."""
        try:
            member = self._k3s.own_member()
            heartbeat = (
                "" if name == ETCD_ONLY else self._cluster.node(self._settings.node_name).ready_heartbeat
            )
        except (LevelUnknown, ClusterError) as error:
            raise ApplyFailed(f"{error}; k3s was not restarted", began=False) from None
        if member is None:
            raise ApplyFailed(
                f"no etcd member is this host's or has the name of Node {self._settings.node_name}; k3s was not "
                "restarted",
                began=False,
            )
        return _Before(level, member.id, heartbeat, self._k3s.started())

    def _verify(self, name: str, before: _Before, doubt: str) -> None:
        """Wait for every condition in turn. Raises ApplyFailed(began=True)."""
        end = self._patience()
        while True:
            lacking = self._lacking(name, before)
            if not lacking:
                break
            failed = f"{doubt}; {lacking}" if doubt else lacking
            if doubt and lacking == self._still(before):  # it says that it failed, and nothing has happened
                raise ApplyFailed(failed, began=True)
            if time.monotonic() >= end:
                self._go_back(name, before, failed)
                raise ApplyFailed(
                    f"{name} was not reached within {self._settings.boot_timeout_seconds:g} s: {failed}",
                    began=True,
                )
            time.sleep(POLL_SECONDS)
        reached.await_member(self._k3s.own_member, before.member, end, POLL_SECONDS)
        if name != ETCD_ONLY:
            self._await_agent(before.heartbeat, end)

    def _lacking(self, name: str, before: _Before) -> str:
        """What k3s still lacks of the level, "" for nothing."""
        started = self._k3s.started()
        if before.started and started == before.started:
            return self._still(before)
        try:
            level = self.current_level()
        except LevelUnknown as error:
            return str(error)
        if level != name:
            return f"k3s runs at {level}, expected {name}"
        return "" if self.healthy() else "etcd is not healthy"

    def _still(self, before: _Before) -> str:
        return f"k3s was not restarted, and runs at {before.level}"

    def _go_back(self, name: str, before: _Before, failed: str) -> None:
        """Where nothing of k3s is there: the level of before, once. Raises ApplyFailed(back=True) where it is
        reached."""
        if self._k3s.runs():
            return
        answer = self._executable.apply(before.level)
        end = self._patience()
        while time.monotonic() < end:
            try:
                if self.current_level() == before.level and self.healthy():
                    self._forget_asked()
                    raise ApplyFailed(
                        f"{name} was not reached: {failed}; apply_level {before.level} brought k3s back to it",
                        began=True,
                        back=True,
                    )
            except LevelUnknown:
                pass  # it boots
            time.sleep(POLL_SECONDS)
        raise ApplyFailed(
            f"{name} was not reached: {failed}; nor was {before.level} after it ({answer.words}): the step stays open, "
            "its vote is away",
            began=True,
        )

    def _await_level(self, name: str, end: float) -> None:
        while True:
            try:
                level = self.current_level()
                why = "" if level == name else f"k3s runs at {level}"
            except LevelUnknown as error:
                why = str(error)
            if not why:
                return
            if time.monotonic() >= end:
                raise ApplyFailed(f"apply_level {name} ended well, but {why}", began=False)
            time.sleep(POLL_SECONDS)

    def _await_etcd(self, end: float) -> None:
        reached.await_etcd(self.healthy, end, POLL_SECONDS)

    def _await_agent(self, heartbeat: str, end: float) -> None:
        reached.await_agent(self._cluster, self._settings.node_name, heartbeat, end, POLL_SECONDS)

    def _refuse_trap(self) -> None:
        """There is no verb that restarts k3s at its level. Raises ApplyFailed(stuck=True)."""
        try:
            trapped = self._k3s.trapped()
        except LevelUnknown as error:
            raise ApplyFailed(str(error), began=True) from None
        if trapped:
            raise ApplyFailed(
                "k3s at etcd-only is locked behind its own address and would end after 15 minutes, and an executable "
                "has no verb that restarts it there: step up, and have its etcd-only move k3s's https-listen-port",
                began=True,
                stuck=True,
            )
