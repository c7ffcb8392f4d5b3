# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What forbids regrading on one server that runs as a unit of systemd.

Pure. What holds of any server is `placement_server`'s.
"""

from __future__ import annotations

from typing import Callable, Iterator, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.odd_json import text

from .placement import Cluster, Server

Rule = Callable[[Server, Cluster], Iterator[str]]


def restart_policy(server: Server, _cluster: Cluster) -> Iterator[str]:
    policy = text(server.found.get("restart"))
    if policy != "always":
        yield (
            f"its k3s unit has Restart={policy or 'no'}: k3s would stay away after it ends with code 0, and its vote "
            "with it. In a drop-in (`systemctl edit`) under [Service]: `Restart=always`."
        )


UNIT: Tuple[Rule, ...] = (restart_policy,)
