# SPDX-License-Identifier: GPL-3.0-or-later
"""Turning off is refused, and nothing is changed by it or all is put back."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator

import images
import plays
import removal
from admin_api import AdminApi, NoAnswer
from bed import Bed, Server
from observer import at_full_again, wait_for
from removal import LEASE
from scenario import step

LEVEL = "github-runner.exadev.com/regrade-level"
HOSTS = {"server1", "server2", "server3"}
GHOST = "/api/v1/nodes/ghost"


def unchanged(run: plays.Run) -> bool:
    return all(result.changed == 0 for result in run.hosts.values())


def test_where_no_image_is_named_the_shipped_one_is_built_on_the_host(bed: Bed, server1: Server) -> None:
    """On server1 alone, and on the bed's own base: the default base comes from a registry."""
    label = f'--format={{{{index .Config.Labels "{images.BASE_LABEL}"}}}}'
    base = subprocess.run(
        ["docker", "image", "inspect", label, removal.GIVEN], capture_output=True, text=True, check=True
    ).stdout.strip()
    bed.load(base)
    turn_on(base)
    image = server1.docker("inspect", "--format={{.Config.Image}}", "k3s-regrade").stdout.strip()
    assert image != removal.GIVEN
    assert "etcd-only" in server1.sh("regrade levels").stdout


def turn_on(base: str = "") -> None:
    given = (
        f"{{{{ '' if inventory_hostname == 'server1' else '{removal.GIVEN}' }}}}" if base else removal.GIVEN
    )
    variables = {
        "github_runner_cluster_regrade_image": given,
        "github_runner_cluster_regrade_image_base": base,
    }
    run = plays.playbook("enable", variables=variables if base else None)
    assert run.code == 0, run.output


def test_a_rehearsal_tells_the_truth_and_removes_nothing(bed: Bed) -> None:
    before = {server.name: removal.on_host(server) for server in bed.servers}
    run = plays.playbook("disable", "--check", "--diff")
    assert run.code == 0, run.output
    assert set(run.hosts) == HOSTS
    assert all(result.changed for result in run.hosts.values()), run.output
    assert {server.name: removal.on_host(server) for server in bed.servers} == before


def test_a_server_below_full_refuses_it_for_those_of_a_limit_too(
    bed: Bed, server2: Server, api: AdminApi
) -> None:
    step(server2, "control-plane")
    try:
        for more in ((), ("--check",)):
            run = plays.playbook("disable", "--limit=server1", *more)
            assert run.code != 0
            assert (
                "server2: its record says control-plane. Bring it to full with `regrade step to full`"
                in run.output
            )
            assert unchanged(run), run.output
    finally:
        step(server2, "full")
    assert all(removal.service_runs(server) for server in bed.servers)
    wait_for("server2 is at full", lambda: at_full_again(api, "server2"), 60)


def test_what_comes_between_the_looks_refuses_it_and_all_is_put_back(bed: Bed, api: AdminApi) -> None:
    """A Node that is marked below full just when the Lease is taken: too late for the first look."""
    before = {server.name: removal.on_host(server) for server in bed.servers}
    metadata = {"name": "ghost", "labels": {"kubernetes.io/hostname": "ghost"}}
    api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    held: list[str] = []

    def mark() -> None:
        holder = wait_for("the Lease is taken", lambda: turning_off(api) or None, 300, pause=0.05)
        api.call("PATCH", GHOST, {"metadata": {"labels": {LEVEL: "control-plane"}}})
        held.append(holder)

    between = threading.Thread(target=mark)
    between.start()
    try:
        run = plays.playbook("disable")
        between.join()
    finally:
        api.call("PATCH", GHOST, {"metadata": {"labels": {LEVEL: None}}})
        api.call("DELETE", GHOST)
    assert run.code != 0, run.output
    assert "ghost: its Node ghost is labelled control-plane" in run.output, run.output
    assert held
    assert "Stop it" in run.output
    assert all(removal.service_runs(server) for server in bed.servers)
    assert {server.name: removal.on_host(server) for server in bed.servers} == before
    assert turning_off(api) == ""


def turning_off(api: AdminApi) -> str:
    """The Lease's holder, where it is a removal."""
    holder = str(api.call("GET", LEASE)["spec"].get("holderIdentity") or "")
    return holder if holder.startswith("turning-off/") else ""


@contextlib.contextmanager
def held_and_renewed(api: AdminApi) -> Iterator[None]:
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.5):
            with contextlib.suppress(NoAnswer):
                api.call(
                    "PATCH",
                    LEASE,
                    {"spec": {"renewTime": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())}},
                )

    api.call("PATCH", LEASE, {"spec": {"holderIdentity": "someone-else/0a1b2c3d", "leaseDurationSeconds": 3}})
    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        api.call("PATCH", LEASE, {"spec": {"holderIdentity": ""}})


def test_a_lease_that_is_renewed_by_another_refuses_it_and_names_the_holder(bed: Bed, api: AdminApi) -> None:
    with held_and_renewed(api):
        run = plays.playbook("disable")
    assert run.code != 0
    assert "is held and renewed by someone-else/0a1b2c3d" in run.output, run.output
    assert unchanged(run), run.output
    assert all(removal.service_runs(server) for server in bed.servers)
