# SPDX-License-Identifier: GPL-3.0-or-later
"""Both peers are gone for good while this server is at etcd-only: no API is left, and one command brings it back.

Then two new servers join under the old names, and the marks follow: the servers are whole again, with new members.
"""

from __future__ import annotations

import by_hand
import observer
from admin_api import AdminApi
from bed import Bed, Server
from observer import wait_for

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
MARKS_SECONDS = 360
"""Its watcher tries once a minute, and an API that has just begun to serve lets it wait."""
OLD_NODES_SECONDS = 180
WRITTEN = {"metadata": {"name": "before-the-peers-went"}, "data": {"value": "kept"}}


def is_kept(api: AdminApi) -> bool:
    """Whether what was written while all were there is still there."""
    found = api.call("GET", f"{CONFIG_MAPS}/{WRITTEN['metadata']['name']}")
    return bool(found["data"] == WRITTEN["data"])


def is_gone(api: AdminApi, server: Server, through: Server) -> None:
    """That server's Node is deleted, and with it its etcd member, as one does whose host is lost."""
    name = f"/api/v1/nodes/{server.name}"
    wait_for(f"{server.name} is deleted", lambda: api.through(through, "DELETE", name) and True, 60)


def test_the_last_server_recovers_with_nobody_to_ask(
    bed: Bed, api: AdminApi, server1: Server, server2: Server, server3: Server
) -> None:
    before = observer.identity(bed, api)
    api.call("POST", CONFIG_MAPS, WRITTEN)
    alive = by_hand.on_host(server1, "recover --offline --yes")
    assert alive.returncode == 3
    assert "an API server of KUBE_SERVER answers" in alive.stderr
    assert by_hand.task("server1", "level=etcd-only")[0] == "CHANGED"

    server3.compose("down", "--volumes")
    is_gone(api, server3, through=server2)
    wait_for("its member is removed", lambda: len(observer.members(bed)) == 2, 120)
    is_gone(api, server2, through=server2)
    wait_for("so is the other's", lambda: list(members_of(server1, bed)) == [own(before, "server1")], 120)
    server2.compose("down", "--volumes")
    assert not any(server.api_answers() for server in bed.servers)

    refused = by_hand.on_host(server1, "step up")
    assert refused.returncode == 3, refused.stderr
    asked = by_hand.on_host(server1, "recover --offline")
    assert asked.returncode == 2
    assert "not confirmed, nothing was changed" in asked.stderr
    assert observer.runs_at(server1) == "etcd-only"
    done = by_hand.on_host(server1, "recover --offline --yes")
    assert done.returncode == 0, done.stderr
    wait_for("its API serves", server1.api_answers, 90)
    assert is_kept(api)
    assert api.node("server1")["metadata"]["uid"] == before["server1"]["uid"]
    assert list(observer.members(bed)) == [own(before, "server1")]
    # Their deletion was cut off with their cluster, and is ended by this server's controllers once these have begun.
    # Who joins before that under the old name takes over a Node that is being deleted, and has none afterwards.
    wait_for("the others' old Nodes are gone", lambda: list(api.nodes()) == ["server1"], OLD_NODES_SECONDS)


def members_of(server: Server, bed: Bed) -> dict[str, object]:
    """The members as that server's own etcd lists them."""
    alone = Bed(bed.settings)
    alone.servers = (server,)
    return dict(observer.members(alone))


def own(identity: dict[str, dict[str, dict[str, object]]], name: str) -> str:
    """The id of that server's member; k3s puts a random end to a member's name."""
    (found,) = [
        member
        for member, told in identity["members"].items()
        if str(told["name"]).rpartition("-")[0] == name or told["name"] == name
    ]
    return found


def test_its_marks_follow_once_new_servers_have_joined(bed: Bed, api: AdminApi, server1: Server) -> None:
    assert observer.label(api, "server1") == "etcd-only"
    bed.up()
    try:
        wait_for("its marks are those of full", lambda: observer.at_full_again(api, "server1"), MARKS_SECONDS)
    except AssertionError as error:
        said = server1.docker("logs", "--tail=20", "k3s-regrade", check=False)
        raise AssertionError(f"{error}; its watcher said:\n{said.stdout}{said.stderr}") from None
    assert len(observer.members(bed)) == 3
    assert is_kept(api)
    for name in ("server2", "server3"):
        assert not by_hand.is_on(api, name, "step")
    events = api.call("GET", "/api/v1/namespaces/default/events")["items"]
    assert "RegradeRecovered" in {event["reason"] for event in events}
    wait_for("the Lease is let go", lambda: by_hand.holder_of(api) == "", 30)
