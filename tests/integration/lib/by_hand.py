# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person does by hand, as scenarios do it: the modules ad hoc, the Lease held, a switch on a Node, the report.

What must come of it is for the tests to say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

BED = Path(__file__).resolve().parents[2] / "bed"
if str(BED) not in sys.path:
    sys.path.insert(0, str(BED))

import plays  # noqa: E402
from admin_api import AdminApi  # noqa: E402
from bed import Result, Server  # noqa: E402

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/k3s-regrade"
SOMEONE = "someone-else/0a1b2c3d"
PREFIX = "github-runner.exadev.com/regrade-"

Answer = tuple[str, dict[str, Any]]


def tasks(hosts: str, arguments: str, *more: str) -> dict[str, Answer]:
    """Host -> (SUCCESS, CHANGED or FAILED!, the result) of regrade_level with these arguments."""
    return plays.answers(plays.ad_hoc(hosts, "regrade_level", arguments, "--become", *more))


def task(host: str, arguments: str, *more: str) -> Answer:
    """The same of one host."""
    return tasks(host, arguments, *more)[host]


def level(hosts: str, wanted: str, *more: str) -> dict[str, Answer]:
    return tasks(hosts, f"level={wanted}", *more)


@contextmanager
def meanwhile(host: str, arguments: str) -> Iterator[Future[Answer]]:
    """The same task while the block goes on; its answer is there after it."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool.submit(task, host, arguments)


@contextmanager
def lease_held(api: AdminApi, holder: str = SOMEONE) -> Iterator[None]:
    """The Lease is held by someone who never lets it go, until the block ends."""
    api.call("PATCH", LEASE, {"spec": {"holderIdentity": holder, "leaseDurationSeconds": 3600}})
    try:
        yield
    finally:
        api.call("PATCH", LEASE, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 60}})


def holder_of(api: AdminApi) -> str:
    return str(api.call("GET", LEASE)["spec"].get("holderIdentity") or "")


def switch(api: AdminApi, name: str, word: str, value: Optional[str]) -> None:
    """A person's annotation on a Node: hold, pause or dry-run; None takes it off."""
    annotations = {PREFIX + word: value}
    api.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"annotations": annotations}})


def is_on(api: AdminApi, name: str, word: str) -> bool:
    return PREFIX + word in (api.node(name)["metadata"].get("annotations") or {})


def on_host(server: Server, words: str, timeout: float = 300) -> Result:
    """`regrade WORDS` on the host, whatever comes of it."""
    return server.sh(f"regrade {words}", check=False, timeout=timeout)


def status(server: Server) -> dict[str, Any]:
    report = json.loads(server.sh("regrade status --json").stdout)
    assert isinstance(report, dict)
    return report
