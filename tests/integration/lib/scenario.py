# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a cycle that the scenario's side effect, its checks and the demo share.

    python3 scenario.py begin SERVER     keep what is there before, start watch and writers, and press that server first

What is done to the bed belongs here; what must come of it belongs to the checks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Optional

TESTS = Path(__file__).resolve().parents[2]
for folder in (TESTS / "bed", TESTS / "integration" / "writes"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import observer  # noqa: E402
import pressure  # noqa: E402
from admin_api import AdminApi  # noqa: E402
from bed import Bed, Result, Server  # noqa: E402
from history import History  # noqa: E402
from layout import Settings  # noqa: E402
from plays import ROOT  # noqa: E402
from writers import Writers  # noqa: E402

# Of this bed: another may go through a cycle at the same time.
FOLDER = ROOT / "build" / "molecule" / "cycle" / Settings.read(os.environ).name
BEFORE = FOLDER / "before.json"
STEP_SECONDS = 180


def keep_before(bed: Bed, api: AdminApi) -> None:
    """What the checks compare with after."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    started = {server.name: observer.started_at(server) for server in bed.servers}
    document = {"identity": observer.identity(bed, api), "started": started}
    BEFORE.write_text(json.dumps(document, indent=2), encoding="utf-8")


def before() -> dict[str, Any]:
    document = json.loads(BEFORE.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def press(bed: Bed, api: AdminApi, first: Server) -> None:
    """The same pressure on all three; on one of them first, so that it is known which one steps."""
    pressure.put(first, pressure.OVER)
    observer.wait_for(
        f"{first.name} begins a step down",
        lambda: observer.label(api, first.name) != "full" or None,
        STEP_SECONDS,
        pause=0.5,
    )
    for server in bed.servers:
        pressure.put(server, pressure.OVER)


def step(server: Server, level: str, check: bool = True) -> Result:
    """`regrade step to LEVEL --json` on the host."""
    done = server.sh(f"regrade step to {level} --json", check=False, timeout=STEP_SECONDS + 60)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def told(server: Server) -> dict[str, Any]:
    """What the service says of its server: `regrade status --json` on the host."""
    report = json.loads(server.sh("regrade status --json", timeout=90).stdout)
    assert isinstance(report, dict)
    return report


def calm(bed: Bed) -> None:
    for server in bed.servers:
        pressure.put(server, pressure.CALM)


SLEEPER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "sleeper", "image": "local/sleeper:1", "imagePullPolicy": "Never"}],
    },
}


def runs_a_pod(api: AdminApi, server: Server, name: str, seconds: float = 90) -> None:
    """A pod that the scheduler must bring to that server really runs there. Raises AssertionError."""
    pods = "/api/v1/namespaces/default/pods"
    # Chosen by label, so that cordon and taints count as they do for any pod.
    spec = {**SLEEPER["spec"], "nodeSelector": {"kubernetes.io/hostname": server.name}}  # type: ignore[dict-item]
    api.call("POST", pods, {**SLEEPER, "metadata": {"name": name}, "spec": spec})
    try:
        observer.wait_for(
            f"a pod runs on {server.name}",
            lambda: api.call("GET", f"{pods}/{name}")["status"].get("phase") == "Running" or None,
            seconds,
        )
    finally:
        api.call("DELETE", f"{pods}/{name}")


def main(arguments: Optional[list[str]] = None) -> int:
    _verb, name = arguments if arguments is not None else sys.argv[1:]
    bed = Bed()
    api = AdminApi(bed)
    keep_before(bed, api)
    history, writers = History(FOLDER), Writers(bed, FOLDER)
    try:
        history.start()
        writers.start()
        press(bed, api, next(server for server in bed.servers if server.name == name))
    except BaseException:  # else no chapter comes that ends them
        writers.stop()
        history.stop()
        raise
    print(f"{name} has begun to step; the three see the same pressure now ({pressure.SOURCE})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
