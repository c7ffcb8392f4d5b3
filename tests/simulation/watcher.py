# SPDX-License-Identifier: GPL-3.0-or-later
"""The watcher of one simulated host: the real `core.watch` and `core.policy`, with simulated files and children.

What `app.watcher` does with real ones stands here in the same order, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generator, Optional, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import cli
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import (
    reconcile,
    step,
    walk,
    watch,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import FULL
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Sample

from .cluster import TOTAL, Host

if TYPE_CHECKING:
    from .history import History
    from .process import Process

IDLE_SECONDS = 240.0  # between samples where nothing goes on, to save time: to the policy a hole in calm samples


class Watcher:
    """Killed by `die`, with its child; a new one begins where its files left off."""

    def __init__(self, history: History, host: Host) -> None:
        self.history, self.host, self.settings = history, host, history.settings[host.name]
        self.alive = True
        self.child: Optional[Process] = None
        self.sampled: Optional[Tuple[float, float]] = None  # the last sample's monotonic and boottime
        self.seen_since = 0.0  # what its readings can go back to (monotonic)
        self._idles = False
        self._noted = host.noted
        self.watch = watch.begin(host.memory, host.noted, "")
        self._next = history.scheduler.call(history.random.uniform(0.0, 5.0), self._sample, host)

    def die(self) -> None:
        self.alive = self._next.alive = False
        if self.child:
            self.child.die()

    # -- the loop

    def _sample(self) -> None:
        history, host = self.history, self.host
        self._look_at_note()
        self._listen_to_the_dead()
        sample = self._take()
        history.checks.sampled(self, sample)
        if self.child is None:
            self.watch = watch.on_journal(self.watch, self._open(), sample.monotonic)
        self.watch, decision, commands = watch.on_sample(self.watch, sample, self.settings)
        history.checks.decided(self, decision)
        self._do(commands)
        if not self.alive:
            return
        pause, self._idles = self.settings.sample_seconds / host.rate, False
        if (history.faults.active and history.random.random() < history.hole_rate) or host.name in history.starved:
            pause *= history.random.uniform(2.0, 12.0)
            history.count("fault: hole in the samples")
        elif self._idle():
            pause, self._idles = IDLE_SECONDS, True
        self._next = history.scheduler.call(pause, self._sample, host)

    def stir(self) -> None:
        """Something begins on this host: from now on the samples come as they do."""
        if self._idles:
            self._idles = self._next.alive = False
            pause = self.history.random.uniform(0.0, self.settings.sample_seconds / self.host.rate)
            self._next = self.history.scheduler.call(pause, self._sample, self.host)

    def _idle(self) -> bool:
        return (
            self.host.share == 0.0
            and self.child is None
            and self.watch.state.level == FULL
            and not self.watch.trouble
            and not self.host.processes
            and not self._open()
        )

    def _open(self) -> bool:
        names = (step.JOURNAL, step.HELD, step.LATE)
        if not watch.known_below(self.watch):
            names = (*names, step.IDENTITY)
        return any(name in self.host.state for name in names)

    def _take(self) -> Sample:
        host, history = self.host, self.history
        stall: Optional[int] = int(host.stall())
        available: Optional[int] = host.available
        if history.faults.active and history.random.random() < history.unreadable_rate:
            history.count("fault: reading unknown")
            if history.random.random() < 0.5:
                stall = None
            else:
                available = None
        return Sample(
            host.monotonic(), host.boottime(), host.boot_id, stall, available, TOTAL if available else None
        )

    def _look_at_note(self) -> None:
        if self.host.noted is not self._noted:
            self._noted = self.host.noted
            self.watch = watch.on_note(self.watch, self._noted, self.settings)

    def _listen_to_the_dead(self) -> None:
        if self.child is not None and not self.child.alive:  # killed: it ended without an answer
            self._answered({})

    def _answered(self, answer: dict[str, str]) -> None:
        self.child = None
        self._look_at_note()
        self.history.checks.answered(self, answer.get("result", "failed"))
        self.watch, commands = watch.on_answer(self.watch, answer, self._take(), self.settings)
        self._do(commands)

    def _do(self, commands: watch.Commands) -> None:
        if self.host.full_disk_until <= self.history.now:
            self.host.memory = watch.memory_of(self.watch)
        for command in commands:
            if isinstance(command, watch.Say):
                self.history.told(None, f"{self.host.name} watcher: {command.text}")
            elif isinstance(command, watch.Stop):
                self.history.told(None, f"{self.host.name} watcher stopped: {command.text}")
                self.die()
            elif self.child is None:
                self._spawn(command.verb)

    def _spawn(self, verb: str) -> None:
        process = self.history.process(self.host, automatic=True)
        self.child = process
        steps: Generator[Any, Any, Any]
        if verb == watch.SETTLE:
            steps = reconcile.settle(process.plan)
        elif verb in (watch.DOWN, watch.UP):
            plan = process.plan._replace(after=self._noted.get("id", ""))
            steps = walk.walk(plan, verb, self.watch.state.level)
        else:
            steps = self.history.alert(process)

        def ended(result: Any, error: Optional[BaseException]) -> None:
            if self.alive and self.child is process:
                self._answered(answer_of(result, error))

        late = 0.0
        if verb in (watch.DOWN, watch.UP) and self.history.faults.troubles and self.history.random.random() < 0.25:
            late = self.history.random.uniform(5.0, 90.0)  # the child is slow to start, and a person is quicker
            self.history.step_of_a_person(self.host)
        process.run(steps, ended, late)


def answer_of(result: Any, error: Optional[BaseException]) -> dict[str, str]:
    """What the child's command prints for the watcher (`cli`)."""
    if error is not None:
        return cli.automatic_answer(error)
    if isinstance(result, reconcile.Settled):
        return {"result": "done", "action": result.action, "level": result.level, "message": result.message,
                "back": result.back}  # fmt: skip
    if isinstance(result, walk.Walked):
        return {"result": "done", "from": result.start, "to": result.end, "level": result.end, "message": ""}
    return {"result": "done", "message": ""}


__all__ = ("Watcher", "answer_of")
