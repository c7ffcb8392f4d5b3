# SPDX-License-Identifier: GPL-3.0-or-later
"""A server below full whose peer has died: refused by name, and brought up by a person who is told the risk."""

from __future__ import annotations

import by_hand
import observer
from admin_api import AdminApi
from bed import Bed, Server
from observer import wait_for


def test_a_step_up_despite_a_dead_peer(bed: Bed, api: AdminApi, server2: Server, server3: Server) -> None:
    identity = observer.identity(bed, api)
    assert by_hand.task("server2", "level=etcd-only")[0] == "CHANGED"
    server3.docker("stop", "k3s", timeout=120)
    try:
        refused = by_hand.on_host(server2, "step up")
        assert refused.returncode == 3, refused.stderr
        assert "server3" in refused.stderr
        verdict, result = by_hand.task("server2", "level=full wait=true wait_timeout=300")
        assert (verdict, result["kind"]) == ("FAILED!", "refused"), "a dead voter is not waited for"
        asked = by_hand.on_host(server2, "step up --despite server3")
        assert asked.returncode == 2
        assert "not confirmed, nothing was changed" in asked.stderr
        assert "of 3 voters server3 is left out and this one restarts, so 1 stays meanwhile" in asked.stderr
        assert observer.runs_at(server2) == "etcd-only"
        stepped = by_hand.on_host(server2, "step to full --despite server3 --yes")
        assert stepped.returncode == 0, stepped.stderr
        assert observer.runs_at(server2) == "full"
        assert observer.label(api, "server2") == "full"
    finally:
        server3.docker("start", "k3s")
    bed.wait_ready()
    wait_for("nothing of it is left", lambda: observer.at_full_again(api, "server2"), 60)
    assert observer.identity(bed, api) == identity
