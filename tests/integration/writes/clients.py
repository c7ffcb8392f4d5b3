# SPDX-License-Identifier: GPL-3.0-or-later
"""The clients: each reads and appends through one server's API without end, and writes down what it was answered.

A key is a ConfigMap that holds a list, and every append of it is a compare-and-swap: a PUT with the resourceVersion
that was read, or the POST that makes it. So an acknowledged append took effect once, on the very list it was made of.
A key that is long enough is left for a new one, so that each key's history is short. No judgement belongs here.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Optional

import operations as ops
from admin_api import Connection, NoAnswer, NotSent
from operations import Operation

NAMESPACE = "write-check"
RUN = "write-check/run"
FOLDER = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
AWAY_SECONDS = 0.5
"""Before one is asked again that did not take the call; many would only be many lines."""


class Pace(NamedTuple):
    """How much is asked for."""

    clients: int = 2
    """Through each server."""
    keys: int = 3
    """Written to at any time."""
    length: int = 50
    """Values, after which a key is left for a new one."""
    pause: float = 0.75
    """Seconds between two rounds of a client; a round is a read and an append."""
    timeout: float = 3
    """Seconds after which an answer is not waited for any more."""
    operations: int = 100_000
    """After so many the clients end, and the judgement says so: some 30 MB, or almost two hours of three servers."""


class Recorder:
    """The history file. Lines are whole, also where a process was killed while it wrote the one before."""

    def __init__(self, path: Path, limit: int = 0) -> None:
        self._file = path.open("ab+", buffering=0)
        self._file.seek(0)
        whole = self._file.read()
        self._file.truncate(whole.rfind(b"\n") + 1)
        self._lock = threading.Lock()
        self._left = limit

    def write(self, line: ops.Line) -> None:
        with self._lock:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def take(self, count: int) -> bool:
        """Whether so many more operations may be made."""
        with self._lock:
            if self._left < count:
                self._left = 0
                return False
            self._left -= count
            return True

    def begin(self) -> None:
        self.write({"line": "begin", "monotonic": time.monotonic(), "time": time.time()})

    def died(self, why: str) -> None:
        self.write({"line": "died", "why": why})

    def end(self) -> None:
        self.write({"line": "end", "monotonic": time.monotonic(), "bounded": self._left <= 0})

    def close(self) -> None:
        self._file.close()


class Keys:
    """Which keys are written to now."""

    def __init__(self, run: str, count: int) -> None:
        self._run = run
        self._generations = [0] * count
        self._lock = threading.Lock()

    def choose(self, random: Random) -> str:
        with self._lock:
            number = random.randrange(len(self._generations))
            return self._name(number)

    def leave(self, key: str) -> None:
        """The key is long enough; nothing where another client has found that before."""
        with self._lock:
            for number in range(len(self._generations)):
                if self._name(number) == key:
                    self._generations[number] += 1

    def _name(self, number: int) -> str:
        return f"{self._run}-k{number}-{self._generations[number]}"


class Held(NamedTuple):
    """What a key held when it was last answered; no resourceVersion where it was not there."""

    values: tuple[str, ...]
    version: Optional[str]


class Client:
    """One client's operations through one server."""

    def __init__(self, name: str, connection: Connection, recorder: Recorder, run: str) -> None:
        self.name = name
        self._connection, self._recorder, self._run = connection, recorder, run
        self._made = 0

    def read(self, key: str) -> tuple[Operation, Optional[Held]]:
        """A quorum read: a GET that names no resourceVersion."""
        return self._ask(self._operation(ops.READ, key), "GET", f"{FOLDER}/{key}", None)

    def append(self, key: str, held: Held) -> tuple[Operation, Optional[Held]]:
        operation = self._operation(ops.APPEND, key)
        self._recorder.write(operation.begun())
        metadata: dict[str, Any] = {"name": key, "labels": {RUN: self._run}}
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"values": " ".join((*held.values, operation.id))},
        }
        if held.version is None:
            return self._ask(operation, "POST", FOLDER, body)
        metadata["resourceVersion"] = held.version
        return self._ask(operation, "PUT", f"{FOLDER}/{key}", body)

    def close(self) -> None:
        self._connection.close()

    def _operation(self, kind: str, key: str) -> Operation:
        self._made += 1
        value = f"{self.name}.{self._made}"
        return Operation(kind, value, key, self.name, self._connection.server.name, time.monotonic())

    def _ask(
        self, operation: Operation, method: str, path: str, body: Optional[dict[str, Any]]
    ) -> tuple[Operation, Optional[Held]]:
        held, why = None, ""  # type: Optional[Held], str
        try:
            found = self._connection.call(method, path, body)
            held = Held(
                tuple(found.get("data", {}).get("values", "").split()), found["metadata"]["resourceVersion"]
            )
            answer = ops.ACKNOWLEDGED
        except NoAnswer as error:
            why = str(error)
            answer = answer_of(error)
            if operation.kind == ops.READ and error.status == 404:
                held, answer, why = Held((), None), ops.ACKNOWLEDGED, ""
        values = held.values if held else ()
        answered = replace(operation, completed=time.monotonic(), answer=answer, values=values, why=why[:200])
        self._recorder.write(answered.answered())
        return answered, held


def answer_of(error: NoAnswer) -> str:
    """What an append's error says of its effect. A 4xx is the API server's own no, given before or instead of the
    write; behind a 5xx the write may be done, or may yet be."""
    if isinstance(error, NotSent):
        return ops.REFUSED
    if error.status == 409:
        return ops.CONFLICT
    return ops.REFUSED if 400 <= error.status < 500 and error.status != 408 else ops.UNKNOWN


class Rounds(threading.Thread):
    """A client's rounds, until it is told to end or no more may be made."""

    def __init__(
        self, client: Client, keys: Keys, recorder: Recorder, pace: Pace, ended: threading.Event
    ) -> None:
        super().__init__(daemon=True, name=client.name)
        self._client, self._keys, self._recorder = client, keys, recorder
        self._pace, self._ended = pace, ended
        self._random = Random(client.name)
        self._held: dict[str, Held] = {}

    def run(self) -> None:
        try:
            self._rounds()
        except Exception as error:  # a client that is silent would look like one that has nothing to tell
            self._recorder.died(f"{self.name}: {type(error).__name__}: {error}")
        finally:
            self._client.close()

    def _rounds(self) -> None:
        while not self._ended.is_set() and self._recorder.take(2):
            answered = self._round()
            # Not all at the same beat.
            pause = self._pace.pause * self._random.uniform(0.5, 1.5)
            self._ended.wait(pause if answered else max(pause, AWAY_SECONDS))

    def _round(self) -> bool:
        """Read a key and append to it; whether both were answered. Where the read is not, the append is tried all the
        same with what the key held before: it is writes that are watched."""
        key = self._keys.choose(self._random)
        read, held = self._client.read(key)
        # One that was never seen is taken not to be there: where it is, that is a conflict.
        before = held or self._held.get(key) or Held((), None)
        if held is not None and len(held.values) >= self._pace.length:
            self._keys.leave(key)
            self._held.pop(key, None)
            return True
        appended, after = self._client.append(key, before)
        if after is not None:
            self._held[key] = after
        elif held is not None:
            self._held[key] = held
        return read.acknowledged and appended.answer in (ops.ACKNOWLEDGED, ops.CONFLICT)
