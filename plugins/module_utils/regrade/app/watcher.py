# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The watcher's idle loop: samples, and children for all that needs a library. Standard library only.

What is decided is `core.watch` and `core.policy`. No typing, json, subprocess, argparse, logging, ssl or
http may be imported here, by whatever way: the loop lives where memory is short.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from ..adapters import pair_files, priority, psi
from ..core import pairs, policy, watch
from ..core.errors import SettingsWrong
from ..core.reading import Sample, parse_meminfo
from ..core.settings import Settings, check_memory, child_seconds, require_cluster
from .log_lines import encoded
from .watcher_notes import Notes

STOP_SECONDS = 25.0  # a stop waits this long for a step under way; compose.yaml grants 30
WAKERS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

COMMAND = ("-m", __name__.rsplit(".app.", 1)[0] + ".cli")
VERBS = {
    watch.SETTLE: ("settle", "--automatic"),
    watch.DOWN: ("step", "down", "--automatic"),
    watch.UP: ("step", "up", "--automatic"),
    policy.ALERT: ("alert", "--automatic"),  # a verb of its own: `step down` would step if the level rose
    watch.BLOCKED: ("blocked", "--automatic"),
}


class Log:
    """Lines to stdout, or one JSON object a line; whoever collects them adds the time."""

    def __init__(self, server: str, as_json: bool) -> None:
        self._server, self.as_json = server, as_json

    def say(self, text: str) -> None:
        try:
            if self.as_json:
                os.write(1, encoded({"server": self._server, "message": text}))
            else:
                os.write(1, f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError:
            return  # a log that is gone must not end what keeps a vote


class Child:
    """One `regrade` process; its answer is KEY=VALUE lines on its stdout. Raises OSError."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        reader, writer = os.pipe()
        self.pid = 0
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, *COMMAND, *arguments],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)],
                setsigmask=(),
            )
        finally:
            os.close(writer)
            if not self.pid:
                os.close(reader)
        self._reader = reader
        self.started = time.clock_gettime(time.CLOCK_MONOTONIC)

    def answer(self) -> dict[str, str] | None:
        """None while it runs; {} where it ended without an answer."""
        pid, _status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        os.set_blocking(self._reader, False)  # whoever else still holds the other end must not hold us up
        text = b""
        try:
            while chunk := os.read(self._reader, 65536):
                text += chunk
        except BlockingIOError:
            pass
        os.close(self._reader)
        try:
            return pairs.parse(text.decode("utf-8", "replace"))
        except ValueError:
            return {}

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Loop:
    """The files and processes around `core.watch`."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self._settings = settings
        self._log = log
        self._boot = psi.boot_id()
        self._child: Child | None = None
        self._note_path = os.path.join(settings.state_dir, pair_files.LAST_STEP)
        self._memory_path = os.path.join(settings.state_dir, pair_files.MEMORY)
        self._below_path = os.path.join(settings.state_dir, pair_files.BELOW)
        self._open_paths = tuple(os.path.join(settings.state_dir, name) for name in pair_files.OPEN)
        self._note_seen = self._note_mark()
        missing = psi.missing_pressure(settings.pressure_file) or psi.missing_memory(settings.meminfo_file)
        self._memory = self._kept(self._memory_path)
        self._unwritten = False  # what it remembers could not be written
        self._noted = self._kept(self._note_path)
        self._watch = watch.begin(self._memory, self._noted, missing)
        self._notes = Notes(settings)
        self._textfile = None
        if settings.metrics_file:
            from .metrics import Textfile  # what does not write it shall not carry it

            self._textfile = Textfile(settings)

    def run(self) -> int:
        """Until SIGTERM (0), or until there is nothing it could watch (2)."""
        signal.pthread_sigmask(signal.SIG_BLOCK, WAKERS)
        due = time.clock_gettime(time.CLOCK_MONOTONIC)
        while True:
            stopped = self._sample()
            if stopped is not None:
                return stopped
            due = max(due + self._settings.sample_seconds, time.clock_gettime(time.CLOCK_MONOTONIC))
            while (left := due - time.clock_gettime(time.CLOCK_MONOTONIC)) > 0:
                woken = signal.sigtimedwait(WAKERS, left)
                if woken is None:
                    break
                if woken.si_signo != signal.SIGCHLD:
                    return self._stop()
                stopped = self._listen()
                if stopped is not None:
                    return stopped

    def _take(self) -> Sample:
        return psi.sample(self._settings.pressure_file, self._settings.meminfo_file, self._boot)

    def _sample(self) -> int | None:
        self._look_at_note()
        stopped = self._listen()
        if stopped is not None:
            return stopped
        sample = self._take()
        if self._child is None:
            self._watch = watch.on_journal(self._watch, self._step_open(), sample.monotonic)
        self._watch, decision, commands = watch.on_sample(self._watch, sample, self._settings)
        notes = watch.notes(self._watch, decision, sample)
        self._notes.write(notes)
        failed = self._textfile.write(notes, watch.memory_of(self._watch)) if self._textfile else ""
        if failed:
            self._log.say(failed)
        return self._do(commands)

    def _listen(self) -> int | None:
        """Takes the child's answer where it has ended."""
        child = self._child
        if child is None:
            return None
        answer = child.answer()
        if answer is None:
            if time.clock_gettime(time.CLOCK_MONOTONIC) - child.started > child_seconds(
                self._settings
            ):
                child.kill()
            return None
        self._child = None
        self._look_at_note()
        return self._answered(answer)

    def _answered(self, answer: dict[str, str]) -> int | None:
        self._watch, commands = watch.on_answer(self._watch, answer, self._take(), self._settings)
        return self._do(commands)

    def _do(self, commands: watch.Commands) -> int | None:
        self._remember()
        for command in commands:
            if isinstance(command, watch.Say):
                self._log.say(command.text)
            elif isinstance(command, watch.Stop):
                self._log.say(f"stopped: {command.text}")
                return 2
            elif self._child is None:
                try:
                    self._child = Child(self._arguments(command.verb))
                except OSError as error:  # EAGAIN, ENOMEM: where memory is short they are to be expected
                    return self._answered(
                        {
                            "result": "unknown",
                            "reason": "process",
                            "message": f"no process could be started: {os.strerror(error.errno or 0)}",
                        }
                    )
        return None

    def _arguments(self, verb: str) -> tuple[str, ...]:
        words = VERBS[verb]
        if verb in (watch.DOWN, watch.UP):  # by the time it has the host's lock another may have stepped
            words = (*words, "--from", self._watch.state.level, f"--after={self._noted.get('id', '')}")
        elif verb == watch.BLOCKED:
            state = self._watch.state
            move, text = f"--move={state.blocked_move}", f"--text={state.blocked[:500]}"
            words = (*words, move, f"--reason={self._watch.tell}", text)
        return (*words, "--json") if self._log.as_json else words

    def _step_open(self) -> bool:
        """Whether a step is open here; also where the server went below full and no note of it came through."""
        paths = self._open_paths if watch.known_below(self._watch) else (*self._open_paths, self._below_path)
        for path in paths:
            try:
                os.stat(path)
            except OSError:
                continue
            return True
        return False

    def _note_mark(self) -> tuple[int, int]:
        try:
            found = os.stat(self._note_path)
        except OSError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)

    def _kept(self, path: str) -> dict[str, str]:
        """What an earlier watcher or a step left; what cannot be read must not end what keeps a vote."""
        try:
            return pair_files.read(path)
        except OSError as error:
            self._log.say(f"{path} cannot be read: {error.strerror}; the next settling tells the level")
            return {}

    def _look_at_note(self) -> None:
        mark = self._note_mark()
        if mark != self._note_seen:
            self._note_seen, self._noted = mark, self._kept(self._note_path)
            self._watch = watch.on_note(self._watch, self._noted, self._settings)

    def _remember(self) -> None:
        memory = watch.memory_of(self._watch)
        if memory != self._memory:
            try:
                pair_files.write(self._memory_path, memory)
                self._memory, self._unwritten = memory, False
            except OSError as error:  # tried again at the next sample, and told once
                if self._unwritten:
                    return
                self._unwritten = True
                self._log.say(
                    f"{self._memory_path} cannot be written: {error.strerror}; relapses are forgotten at "
                    "a restart"
                )

    def _stop(self) -> int:
        """At once, or after the step under way, bounded: a step that is cut off is ended by the next
        watcher."""
        if self._textfile:
            self._textfile.remove()
        if self._child is None:
            return 0
        self._log.say(f"stopping: waiting up to {STOP_SECONDS:.0f} s for {self._watch.busy}")
        end = time.clock_gettime(time.CLOCK_MONOTONIC) + STOP_SECONDS
        while (left := end - time.clock_gettime(time.CLOCK_MONOTONIC)) > 0:
            answer = self._child.answer()
            if answer is not None:
                self._log.say(f"{self._watch.busy}: {answer.get('result', '')}: {answer.get('message', '')}")
                return 0
            signal.sigtimedwait((signal.SIGCHLD,), min(left, 5.0))
        self._log.say(f"stopped during {self._watch.busy}; the next watcher ends it")
        return 0


def main(settings: Settings, as_json: bool = False) -> int:
    """Runs the watcher. Raises SettingsWrong where it cannot begin."""
    log = Log(settings.node_name, as_json)
    require_cluster(settings)
    missing = psi.missing_memory(settings.meminfo_file)
    total = 0
    if not missing:
        total = parse_meminfo(psi.read_text(settings.meminfo_file))[1] or 0
        check_memory(settings, total)
    elif not os.path.exists(os.path.join(settings.state_dir, pair_files.BELOW)):
        raise SettingsWrong(missing)  # below full it stays: the server's vote has to be looked after
    try:
        os.makedirs(settings.state_dir, mode=0o700, exist_ok=True)
        loop = Loop(settings, log)
    except OSError as error:
        raise SettingsWrong(
            f"STATE_DIR={settings.state_dir} or the folder of LOCK_FILE={settings.lock_file} cannot be "
            f"used: {error.filename}: {error.strerror}"
        ) from None
    log.say(
        f"watching {settings.node_name} every {settings.sample_seconds:g} s: down at pressure "
        f"{settings.pressure_threshold * 100:g}% over {settings.pressure_window_seconds:g} s or available "
        "below "
        f"{settings.memavailable_floor.of(total) >> 20}MiB of {total >> 20}MiB; step up is {settings.step_up}"
    )
    log.say(priority.protect())
    return loop.run()
