# SPDX-License-Identifier: GPL-3.0-or-later
"""The ways a server goes away and comes back, and what must be the same each time. Which server goes how, and when,
is the scenario's.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import observer
import pressure
from admin_api import AdminApi
from bed import Bed, Machine, Server
from cycle_checks import assert_marked
from observer import wait_for

# Neither over nor calm, so that no watcher steps by itself: above the floor of 8 % of 2048 MiB, and with less than
# the headroom of either level above it.
BETWEEN = pressure.Wanted(0, 200)
RECORDS = {
    # Each of the bed's servers lays k3s's configuration in another way, and so has its record in another place; a
    # machine has it where server1 has.
    "server1": "/etc/rancher/k3s/config.yaml.d/90-regrade.yaml",
    "server2": "/var/lib/rancher/k3s/config/config.yaml.d/90-regrade.yaml",
    "server3": "/var/lib/rancher/k3s/regrade/90-regrade.yaml",
}
OVERRIDE = "/srv/cluster/compose.override.yaml"  # of the fleet's own project
BOOT_ID = f"{pressure.FOLDER}/boot_id"
COMES_BACK_SECONDS = 120

Way = Callable[[Server], None]


# -- the ways


def docker_restart(server: Server) -> None:
    server.docker("restart", "--time=60", "k3s", timeout=120)


def stop_and_start(server: Server) -> None:
    server.docker("stop", "--time=60", "k3s", timeout=120)
    server.docker("start", "k3s")


def kill(server: Server) -> None:
    """As the kernel does it where memory is out: Docker, or systemd, knows of nobody who asked for it."""
    if isinstance(server, Machine):
        server.systemctl("kill", "--signal=SIGKILL", "--kill-who=main", "k3s.service")
        return
    server.sh("kill -9 $(docker inspect --format='{{.State.Pid}}' k3s)")


def reboot(server: Server) -> None:
    """The host's engine and all its containers end, or its systemd and all units; /run and /tmp are empty after it."""
    server.stop_host()
    server.start_host()
    new_boot_id(server)
    between(server)


def recreate(server: Server) -> None:
    """As Compose does it where the definition or the image has changed: another container, the same volumes."""
    server.compose("up", "--detach", "--force-recreate", timeout=180)


def between(server: Server) -> None:
    pressure.begin(server)
    pressure.put(server, BETWEEN)


# -- the boot id: the hosts share a kernel, and with it one that never changes


def boot_id_by_fixture(server: Server) -> None:
    """From now on the service's clock reads the boot id of a file of this host, which a reboot writes anew."""
    new_boot_id(server)
    _read_boot_id_from(server, BOOT_ID)


def boot_id_of_the_kernel(server: Server) -> None:
    """As it was shipped."""
    _read_boot_id_from(server, "/proc/sys/kernel/random/boot_id")


def _read_boot_id_from(server: Server, path: str) -> None:
    files = "/srv/cluster/regrade/lib/*/regrade/adapters"
    server.sh(f"sed -i 's,^BOOT_ID_FILE = .*,BOOT_ID_FILE = \"{path}\",' {files}/clock.py {files}/psi.py")
    counted = server.sh(f"grep -c '{path}' {files}/clock.py {files}/psi.py").stdout.split()
    assert counted and all(line.endswith(":1") for line in counted), counted
    server.docker("restart", "k3s-regrade")


def new_boot_id(server: Server) -> None:
    server.sh(f"echo {uuid.uuid4()} >{BOOT_ID}")


# -- what must be the same


def heartbeat(api: AdminApi, server: Server) -> str:
    """The Node's newest sign of life while it is Ready, else empty."""
    conditions = {item["type"]: item for item in api.node(server.name)["status"]["conditions"]}
    ready = conditions.get("Ready", {})
    return str(ready.get("lastHeartbeatTime")) if ready.get("status") == "True" else ""


def runs(level: str) -> str:
    """What k3s itself tells of a level: full and control-plane run the same."""
    return level if level == "etcd-only" else "full"


def record(server: Server) -> str:
    """The level of the record, full without one."""
    path = RECORDS["server1" if isinstance(server, Machine) else server.name]
    found = server.k3s_file(path, check=False)
    first = found.stdout.splitlines()[0] if found.returncode == 0 else "# regrade-level: full"
    return first.partition(": ")[2]


class Gone:
    """Taken before a server is sent away: what must differ once it is back."""

    def __init__(self, api: AdminApi, server: Server) -> None:
        self.api, self.server = api, server
        self.container, self.started = self._started()
        self.heartbeat = heartbeat(api, server)

    def _started(self) -> tuple[str, str]:
        which, _space, when = observer.started_at(self.server).partition(" ")
        return which, when

    def is_back(self, level: str, recreated: bool = False) -> None:
        """It was started anew, in the same container unless it was made anew, and runs what that level runs."""
        server = self.server

        def anew() -> bool:
            container, started = self._started()
            if isinstance(server, Machine):  # whose id is of this start alone; 0 where it has not begun yet
                return started not in ("0", self.started)
            return started != self.started and (container != self.container) == recreated

        wait_for(f"{server.name} was started anew", anew, COMES_BACK_SECONDS)
        wait_for(
            f"{server.name} runs at {level}",
            lambda: observer.runs_at(server) == runs(level) and observer.etcd_healthy(server),
            COMES_BACK_SECONDS,
        )
        if level != "etcd-only":
            wait_for(
                f"{server.name} is Ready anew",
                lambda: heartbeat(self.api, server) not in ("", self.heartbeat),
                COMES_BACK_SECONDS,
            )


def away_and_back(
    bed: Bed, api: AdminApi, server: Server, level: str, way: Way, before: dict[str, Any]
) -> None:
    """It goes, comes back at the level it had, and is the server it was."""
    gone = Gone(api, server)
    way(server)
    gone.is_back(level, recreated=way is recreate)
    is_at(bed, api, server, level, before)


def is_at(bed: Bed, api: AdminApi, server: Server, level: str, before: dict[str, Any]) -> None:
    """Record, label, cordon and taint name the level; members, Node and node password are those of before."""
    assert record(server) == level
    assert observer.label(api, server.name) == level
    if level == "full":
        wait_for("nothing of a step is on its Node", lambda: observer.at_full_again(api, server.name), 60)
    else:
        assert_marked(api.node(server.name), level)
    now = observer.identity(bed, api, (server,))
    assert now == {key: before[key] for key in now}


def steps_to(bed: Bed, api: AdminApi, server: Server, level: str, before: dict[str, Any]) -> None:
    """By hand and without a hold, so that nothing but memory keeps the server where it is."""
    done = server.sh(f"regrade step to {level} --hold=keep --json", check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for(f"etcd serves on {server.name}", lambda: observer.etcd_healthy(server), 60)
    assert observer.runs_at(server) == runs(level)
    is_at(bed, api, server, level, before)


def in_a_step(api: AdminApi, server: Server) -> bool:
    return "github-runner.exadev.com/regrade-step" in (
        api.node(server.name)["metadata"].get("annotations") or {}
    )
