# SPDX-License-Identifier: GPL-3.0-or-later
"""One server's part in the races, in its service's container: it steps when it is told to, and says what came of it.

    python3 racer.py        a line `AT LEVEL` on stdin, AT in seconds of the wall clock, is answered by a line of JSON

The gate wants to see each peer's node lease change. Here they are watched the whole time, as for a watcher that has
been there for long, so that two steps told at the same instant really meet at the Lease. The product knows nothing of
it. Standard library and the core only; what must come of a race is faults_done.py's.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

from regrade import cli  # type: ignore[import-not-found]
from regrade.app import operations  # type: ignore[import-not-found]
from regrade.core import gate, step  # type: ignore[import-not-found]
from regrade.core.errors import RegradeError  # type: ignore[import-not-found]

LOOK_SECONDS = 2.0


class Gate:
    """The core's gate, but that a new step knows what was seen of the node leases so far."""

    def __init__(self) -> None:
        self._seen = gate.Watch()

    def __getattr__(self, name: str) -> Any:
        return getattr(gate, name)

    def Watch(self) -> Any:
        return self._seen

    def follow(self, world: Any) -> None:
        while True:
            try:
                renewals = world.cluster.node_lease_renewals()
                self._seen = gate.look(self._seen, renewals, world.clock.boottime())
            except RegradeError:
                pass
            time.sleep(LOOK_SECONDS)


def main() -> None:
    options = argparse.Namespace(verbose=False, automatic=False, json=False, kubeconfig="")

    def server() -> Any:
        return cli._compose(cli._settings(""), options)

    known = Gate()
    step.gate = known
    threading.Thread(target=known.follow, args=(server().world,), daemon=True).start()
    for line in sys.stdin:
        at, level = line.split()
        mine = server()
        time.sleep(max(0.0, float(at) - time.time()))
        told = {"began": time.time(), "refused": ""}
        try:
            operations.step_to(mine, level, held=False)
        except RegradeError as error:
            told["refused"] = str(error)
        print(json.dumps({**told, "ended": time.time()}), flush=True)


if __name__ == "__main__":
    main()
