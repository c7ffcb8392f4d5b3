# SPDX-License-Identifier: GPL-3.0-or-later
"""The clients against a store that answers as an API server does, in order and out of order: what they write down is
accepted where the store keeps what it takes, and refused where it does not."""

from __future__ import annotations

import copy
import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Optional

import pytest

INTEGRATION = Path(__file__).resolve().parents[2] / "integration"
for folder in (INTEGRATION / "lib", INTEGRATION / "writes"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import judgement  # noqa: E402
import operations as ops  # noqa: E402
from admin_api import NoAnswer, NotSent  # noqa: E402
from clients import Client, Keys, Pace, Recorder, Rounds, answer_of  # noqa: E402
from judgement import Report, judge  # noqa: E402


class Named(NamedTuple):
    name: str


class Store:
    """ConfigMaps with resourceVersions; each call is made with the lock held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.items: dict[str, dict[str, Any]] = {}
        self.revision = 0

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]]) -> dict[str, Any]:
        name = body["metadata"]["name"] if body else path.rsplit("/", 1)[1]
        found = self.items.get(name)
        if method == "POST" and found:
            raise NoAnswer("already exists", 409)
        if method != "POST" and not found:
            raise NoAnswer("not found", 404)
        if method == "PUT":
            assert body is not None and found is not None
            if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                raise NoAnswer("the object has been modified", 409)
        if body is not None:
            self.revision += 1
            found = copy.deepcopy(dict(body))
            found["metadata"]["resourceVersion"] = str(self.revision)
            self.items[name] = found
        assert found is not None
        return copy.deepcopy(found)


class Unreliable:
    """A way to the store on which a call is refused, or lost before or after it took effect."""

    def __init__(self, name: str, store: Store, share: float) -> None:
        self.server = Named(name)
        self._store, self._share, self._random = store, share, Random(name)

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
        fate = self._random.random()
        if fate < self._share / 4:
            raise NotSent("refused")
        if fate < self._share / 2:
            raise NoAnswer("timed out")
        with self._store.lock:
            answer = self._store.call(method, path, body)
        if fate < self._share:
            raise NoAnswer("500 leader changed", 500)
        return answer

    def close(self) -> None:
        pass


def write(path: Path, store: Store, share: float = 0.2, limit: int = 600, length: int = 10) -> Report:
    """Six clients in threads, then the last reads."""
    recorder = Recorder(path, limit)
    recorder.begin()
    keys = Keys("run", 2)
    ended = threading.Event()
    pace = Pace(pause=0, length=length)
    threads = []
    for number in range(6):
        connection: Any = Unreliable(f"server{number % 3}", store, share)
        threads.append(Rounds(Client(f"c{number}", connection, recorder, "run"), keys, recorder, pace, ended))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    recorder.end()
    recorder.close()
    return last_reads(path, store)


def last_reads(path: Path, store: Store) -> Report:
    recorder = Recorder(path)
    connection: Any = Unreliable("server0", store, 0)
    client = Client(ops.FINAL, connection, recorder, "")
    for key in sorted({operation.key for operation in read(path).operations}):
        client.read(key)
    recorder.close()
    return judge(read(path))


def read(path: Path) -> ops.History:
    with path.open(encoding="utf-8") as lines:
        return ops.read_lines(lines)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is refused is asked again after a while; here that while is none.
    monkeypatch.setattr("clients.AWAY_SECONDS", 0.001)


def test_a_store_that_keeps_what_it_takes_is_accepted(tmp_path: Path) -> None:
    store = Store()
    report = write(tmp_path / "writes.jsonl", store)
    # It ended by its bound, and that is told; nothing else is wrong.
    assert [problem.kind for problem in report.problems] == [judgement.UNDECIDED]
    assert "not watched" in str(report.problems[0])
    assert report.acknowledged > 50
    assert report.refused > 5
    assert report.unknown > report.unknown_there > 0
    assert report.keys > 4  # full ones were left for new ones
    # By one more for each client that had read it before it was long enough.
    assert max(len(item["data"]["values"].split()) for item in store.items.values()) <= 10 + 6


class Forgetful(Store):
    """Every 20th write is taken, answered, and not kept."""

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]]) -> dict[str, Any]:
        before = copy.deepcopy(self.items)
        answer = super().call(method, path, body)
        if body is not None and self.revision % 20 == 0:
            self.items = before
        return answer


class Stale(Store):
    """Every 15th read is answered with what was there some writes ago."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.old: dict[str, list[dict[str, Any]]] = {}

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]]) -> dict[str, Any]:
        answer = super().call(method, path, body)
        old = self.old.setdefault(answer["metadata"]["name"], [])
        if body is not None:
            old.append(answer)
        else:
            self.reads += 1
            if self.reads % 15 == 0 and len(old) > 4:
                return copy.deepcopy(old[-5])
        return answer


class Twice(Store):
    """Every 10th write is done twice."""

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]]) -> dict[str, Any]:
        answer = super().call(method, path, body)
        if body is not None and self.revision % 10 == 0:
            kept = self.items[answer["metadata"]["name"]]
            kept["data"]["values"] += " " + kept["data"]["values"].split()[-1]
        return answer


class Unguarded(Store):
    """Compares no resourceVersion: of two writes at the same time one overwrites the other."""

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]]) -> dict[str, Any]:
        if method == "PUT" and body is not None and body["metadata"]["name"] in self.items:
            now = self.items[body["metadata"]["name"]]["metadata"]["resourceVersion"]
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": now}}
        return super().call(method, path, body)


class Liar(Store):
    """Says of every 10th write that another was first, and does it all the same."""

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]]) -> dict[str, Any]:
        answer = super().call(method, path, body)
        if body is not None and self.revision % 10 == 0:
            raise NoAnswer("the object has been modified", 409)
        return answer


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        (Forgetful, judgement.LOST),
        (Stale, judgement.ORDER),
        (Twice, judgement.DOUBLED),
        (Unguarded, judgement.LOST),
        (Liar, judgement.NOT_REFUSED),
    ],
)
def test_a_store_that_does_not_is_refused(tmp_path: Path, store: type[Store], kind: str) -> None:
    report = write(tmp_path / "writes.jsonl", store())
    assert kind in {problem.kind for problem in report.problems}, report.line()


class Broken(Store):
    """Answers what is no object after some calls."""

    def call(self, method: str, path: str, body: Optional[Mapping[str, Any]]) -> dict[str, Any]:
        answer = super().call(method, path, body)
        return answer if self.revision < 30 or body is None else {}


def test_a_client_that_dies_of_an_error_is_told(tmp_path: Path) -> None:
    report = write(tmp_path / "writes.jsonl", Broken(), share=0)
    assert {problem.kind for problem in report.problems} == {judgement.UNDECIDED}
    assert "a client died, so what it wrote through was not watched: c" in str(report.problems[-1])
    assert "KeyError: 'metadata'" in str(report.problems[-1])


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (NotSent("connection refused"), ops.REFUSED),
        (NoAnswer("reset by peer"), ops.UNKNOWN),
        (NoAnswer("modified", 409), ops.CONFLICT),
        (NoAnswer("too many requests", 429), ops.REFUSED),
        (NoAnswer("request timeout", 408), ops.UNKNOWN),
        (NoAnswer("leader changed", 500), ops.UNKNOWN),
        (NoAnswer("apiserver disabled", 503), ops.UNKNOWN),
    ],
)
def test_only_a_definite_no_is_one(error: NoAnswer, answer: str) -> None:
    assert answer_of(error) == answer


def test_a_line_that_was_cut_off_is_taken_away_before_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "writes.jsonl"
    whole = json.dumps({"line": "begin", "monotonic": 1.0, "time": 2.0}) + "\n"
    path.write_text(whole + '{"line": "appe', encoding="utf-8")
    recorder = Recorder(path)
    recorder.end()
    recorder.close()
    assert read(path).began == 1.0
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2
