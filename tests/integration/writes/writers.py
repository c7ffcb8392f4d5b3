# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes through every server of the bed while something else goes on, and tells in the end whether one was lost.

    python3 writers.py start FOLDER      begin, in the background, into FOLDER/writes.jsonl
    python3 writers.py verdict FOLDER    end them, read every key, and say what was found; exit code 1 where it is bad
    python3 writers.py run FILE          write into that file until SIGTERM

From a test: `with Writers(bed, folder) as writers: ...; report = writers.verdict()`. The clients are clients.py's and
the judgement is judgement.py's.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

HERE = Path(__file__).resolve().parent
for folder in (HERE.parents[1] / "bed", HERE.parent / "lib", HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import operations as ops  # noqa: E402
from admin_api import AdminApi, NoAnswer  # noqa: E402
from background import Background  # noqa: E402
from bed import Bed  # noqa: E402
from clients import FOLDER, NAMESPACE, RUN, Client, Keys, Pace, Recorder, Rounds  # noqa: E402
from judgement import Report, judge  # noqa: E402
from operations import FINAL  # noqa: E402

FINAL_SECONDS = 60
SHOWN = 20
LONGEST_SECONDS = 4 * 3600
"""Forgotten clients end by themselves."""


class Writers:
    """The clients as a process of their own, and the judgement over what they wrote down in ``FOLDER/writes.jsonl``.

    ``servers`` are the names of those that are written through, all of them where none is given.
    """

    def __init__(
        self, bed: Bed, folder: Path, servers: Sequence[str] = (), pace: Optional[Pace] = None
    ) -> None:
        self.path = folder / "writes.jsonl"
        self._bed, self._servers, self._pace = bed, tuple(servers), pace or Pace()
        self._clients = Background(self.path)

    def __enter__(self) -> Writers:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin anew, and return once an append was acknowledged. Raises RuntimeError."""
        words = [f"--{name}={value}" for name, value in self._pace._asdict().items()]
        words += [f"--server={name}" for name in self._servers]
        command = [str(HERE / "writers.py"), "run", str(self.path), *words]
        self._clients.start(command, begun=self._writes, seconds=90)

    def running(self) -> bool:
        return self._clients.running()

    def stop(self) -> None:
        """End the clients in order: what they have asked is answered first, or given up."""
        self._clients.stop(self._pace.timeout * 2 + 5)

    def kill(self) -> None:
        """End the clients at once: what they have asked is never answered."""
        self._clients.stop(numbers=(signal.SIGKILL,))

    def history(self) -> ops.History:
        """All up to now."""
        with self.path.open(encoding="utf-8") as lines:
            return ops.read_lines(lines)

    def answers(self, since: float) -> Counter[str]:
        """How the appends were answered that were sent after that moment of CLOCK_MONOTONIC."""
        return Counter(
            operation.answer
            for operation in self.history().operations
            if operation.kind == ops.APPEND and operation.invoked > since
        )

    def taken(self, since: float) -> int:
        """How many of them were acknowledged."""
        return self.answers(since)[ops.ACKNOWLEDGED]

    def verdict(self) -> Report:
        """End the clients, read every key through each server that answers, and judge. The report is kept beside the
        history; the keys go where it is good."""
        self.stop()
        api = AdminApi(self._bed)
        recorder = Recorder(self.path)
        _read_all(api, recorder, {operation.key for operation in self.history().operations})
        recorder.close()
        report = judge(self.history())
        document = json.dumps(report.document(), indent=1, sort_keys=True)
        self.path.with_name("writes.json").write_text(document + "\n", encoding="utf-8")
        if report.ok:
            forget(api)
        return report

    def _writes(self) -> bool:
        try:
            operations = self.history().operations
        except ValueError:  # nothing is written yet
            return False
        return any(operation.kind == ops.APPEND and operation.acknowledged for operation in operations)


def _read_all(api: AdminApi, recorder: Recorder, keys: set[str]) -> None:
    """Every key through every server that answers; one that no server gives is asked for again for a while."""
    clients = [
        Client(f"{FINAL}-{server.name}", api.connection(server), recorder, "") for server in api.servers
    ]
    until = time.monotonic() + FINAL_SECONDS
    missing = keys
    while missing:
        given = set()
        for client in clients:
            for key in sorted(missing):
                answered, _held = client.read(key)
                if not answered.acknowledged:
                    break  # it is away, and each key would be waited for
                given.add(key)
        missing = missing - given
        if not missing or time.monotonic() > until:
            break
        time.sleep(1)
    for client in clients:
        client.close()


def forget(api: AdminApi) -> None:
    """Remove what the clients of any run have written."""
    api.call("DELETE", f"{FOLDER}?labelSelector={RUN}", timeout=30)


def make_namespace(api: AdminApi) -> None:
    try:
        api.call(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        )
    except NoAnswer as error:
        if error.status != 409:
            raise


def write(path: Path, servers: Sequence[str], pace: Pace) -> None:
    """Run the clients here until SIGTERM, SIGINT or their bound."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    bed = Bed()
    api = AdminApi(bed)
    make_namespace(api)
    run = secrets.token_hex(3)
    chosen = [server for server in bed.servers if not servers or server.name in servers]
    recorder = Recorder(path, pace.operations)
    keys = Keys(run, pace.keys)
    recorder.begin()
    rounds = [
        Rounds(
            Client(f"c{number}", api.connection(server, pace.timeout), recorder, run),
            keys, recorder, pace, ended,
        )
        for number, server in enumerate(chosen * pace.clients)
    ]  # fmt: skip
    for thread in rounds:
        thread.start()
    until = time.monotonic() + LONGEST_SECONDS
    while any(thread.is_alive() for thread in rounds) and time.monotonic() < until and not ended.is_set():
        ended.wait(1)
    recorder.end()
    ended.set()
    for thread in rounds:
        thread.join(pace.timeout * 2 + 2)
    recorder.close()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="writers.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("start", "verdict", "run"))
    parser.add_argument("where", type=Path, help="the folder, or for run the file")
    parser.add_argument(
        "--server", action="append", default=[], help="write through this one only; repeatable"
    )
    for name, value in Pace()._asdict().items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help="default: %(default)s")
    given = parser.parse_args(arguments)
    pace = Pace(**{name: getattr(given, name) for name in Pace._fields})
    if given.verb == "run":
        write(given.where, given.server, pace)
        return 0
    writers = Writers(Bed(), given.where, given.server, pace)
    if given.verb == "start":
        writers.start()
        print(f"clients write; {writers.path}")
        return 0
    report = writers.verdict()
    for problem in report.problems[:SHOWN]:
        print(problem)
    print(("good: " if report.ok else f"{len(report.problems)} problems: ") + report.line())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
