# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What forbids regrading on one server that runs as a unit of systemd.

Pure. What holds of any server is `placement_server`'s.
"""

from __future__ import annotations

from typing import Callable, Iterator, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.odd_json import text
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.systemctl import (
    seconds_of,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.systemd_unit import (
    LEAST_STOP_SECONDS,
)

from .placement import Cluster, Server

Rule = Callable[[Server, Cluster], Iterator[str]]


def restart_policy(server: Server, _cluster: Cluster) -> Iterator[str]:
    policy = text(server.found.get("restart"))
    if policy != "always":
        yield (
            f"its k3s unit has Restart={policy or 'no'}: k3s would stay away after it ends with code 0, and its vote "
            f"with it. {_drop_in(server, 'Restart=always')}"
        )


def stop_time(server: Server, _cluster: Cluster) -> Iterator[str]:
    """What every step of the actuator would refuse."""
    said = text(server.found.get("stop"))
    if seconds_of(said) < LEAST_STOP_SECONDS:
        yield (
            f"its k3s unit has a stop time-out of {said or '0'}, after which systemd kills k3s, and "
            f"{LEAST_STOP_SECONDS:g} s are the least it is given. {_drop_in(server, 'TimeoutStopSec=60')}"
        )


def _drop_in(server: Server, line: str) -> str:
    edit = f"systemctl edit {text(server.found.get('unit'))}".rstrip()
    return f"In a drop-in (`{edit}`, which restarts nothing) under [Service]: `{line}`."


UNIT: Tuple[Rule, ...] = (restart_policy, stop_time)
