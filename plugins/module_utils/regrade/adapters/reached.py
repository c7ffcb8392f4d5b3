# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What has to be seen of a level before it counts as reached, whoever applied it: etcd, its member, the agent.

How each is asked is the adapter's that calls; how k3s is restarted does not belong here. `end` is a time.monotonic().
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Callable

from ..ports import ApplyFailed, ClusterError, LevelUnknown

if TYPE_CHECKING:
    from ..core.model import Member
    from ..ports import Cluster


def await_etcd(healthy: Callable[[], bool], end: float, pause: float) -> None:
    """Raises ApplyFailed(began=True)."""
    while not healthy():
        if time.monotonic() >= end:
            raise ApplyFailed("k3s runs, but etcd is not healthy", began=True)
        time.sleep(pause)


def await_member(own: Callable[[], Member | None], expected: str, end: float, pause: float) -> None:
    """Our etcd member is a voter, with the id `expected` ("" for any). Raises ApplyFailed(began=True)."""
    while True:
        try:
            now = own()
            why = "our member is not in etcd's list" if now is None else "it is a learner" if now.learner else ""
            if now is not None and expected and now.id != expected:
                raise ApplyFailed(
                    f"the etcd member id changed from {expected} to {now.id}: the member was removed and joined "
                    "anew; stop, and find out what removed it",
                    began=True,
                )
        except LevelUnknown as error:
            why = str(error)
        if not why:
            return
        if time.monotonic() >= end:
            raise ApplyFailed(f"etcd serves, but {why}", began=True)
        time.sleep(pause)


def await_agent(cluster: Cluster, name: str, heartbeat: str, end: float, pause: float) -> None:
    """The Node `name` is Ready on a heartbeat other than `heartbeat`. Raises ApplyFailed(began=True)."""
    while True:
        try:
            node = cluster.node(name)
            if node.ready and node.ready_heartbeat != heartbeat:
                return
            why = "is Ready only on its heartbeat from before the restart" if node.ready else "is not Ready"
        except ClusterError as error:
            why = f"cannot be read: {error}"
        if time.monotonic() >= end:
            raise ApplyFailed(f"k3s runs, but Node {name} {why}", began=True)
        time.sleep(pause)
