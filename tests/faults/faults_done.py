# SPDX-License-Identifier: GPL-3.0-or-later
"""What befalls a step, on the bed: each function of a row's `fault` begins the row's step, does it, and returns once it
is done. In what state it must end is for faults.py to say."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from admin_api import AdminApi
from bed import Bed, Server
from held_step import FOLDER
from observer import started_at, wait_for
from rows import Row

SERVICE = "k3s-regrade"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/k3s-regrade"
SOMEBODY = "somebody/by-hand"
HELD_STEP = Path(__file__).with_name("held_step.py")
STEP_SECONDS = 300

# On the host: give the step leave, wait until k3s was started anew, and end it as the kernel would.
KILL_AFTER_RESTART = f"""
started() {{ docker inspect --type=container --format='{{{{.State.StartedAt}}}} {{{{.State.Running}}}}' k3s; }}
before=$(started)
docker exec {SERVICE} touch {FOLDER}/go
until now=$(started) && [ "$now" != "$before" ] && [ "${{now#* }}" = true ]; do sleep 0.02; done
kill -9 "$(docker inspect --type=container --format='{{{{.State.Pid}}}}' k3s)"
"""


class HeldStep:
    """A step by hand in the service's container, held at the row's point; a context manager."""

    def __init__(self, server: Server, row: Row) -> None:
        self._server, self._row = server, row

    def __enter__(self) -> HeldStep:
        put = f"rm -rf {FOLDER} && mkdir {FOLDER} && cat >{FOLDER}/sitecustomize.py"
        self._server.docker(
            "exec", "-i", SERVICE, "sh", "-c", put, input=HELD_STEP.read_text(encoding="utf-8")
        )
        environment = [f"--env=PYTHONPATH={FOLDER}:/opt/regrade/lib", f"--env=HOLD_AT={self._row.at}"]
        step = ["python3", "-m", "regrade.cli", "step", "to", self._row.to, "--json"]
        self._child = subprocess.Popen(
            ["docker", "exec", self._server.host_container, "docker", "exec", *environment, SERVICE, *step],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            wait_for(f"the step is at {self._row.at}", self._is_there, STEP_SECONDS, pause=0.2)
        except BaseException:
            self._child.kill()
            raise
        return self

    def go(self) -> None:
        self._server.docker("exec", SERVICE, "touch", f"{FOLDER}/go")

    def __exit__(self, *_error: object) -> None:
        """Its end is waited for, whatever it is."""
        try:
            self._child.communicate(timeout=STEP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            raise AssertionError(
                f"the step held at {self._row.at} did not end within {STEP_SECONDS} s"
            ) from None

    def _is_there(self) -> bool:
        if self._child.poll() is not None:
            assert self._child.stdout is not None
            raise AssertionError(f"the step ended before {self._row.at}: {self._child.stdout.read().strip()}")
        there = self._server.docker("exec", SERVICE, "test", "-e", f"{FOLDER}/at", check=False)
        return there.returncode == 0


def kill_service(bed: Bed, api: AdminApi, row: Row) -> None:
    """Watcher and step die at once, as by the kernel's out-of-memory killer; Docker starts the watcher again."""
    server = bed.servers[0]
    before = started_at(server, SERVICE)
    with HeldStep(server, row):
        server.sh(f"kill -9 \"$(docker inspect --type=container --format='{{{{.State.Pid}}}}' {SERVICE})\"")
    wait_for("Docker has started the service again", lambda: started_at(server, SERVICE) != before, 60)


def kill_k3s_after_restart(bed: Bed, api: AdminApi, row: Row) -> None:
    with HeldStep(bed.servers[0], row):
        bed.servers[0].sh(KILL_AFTER_RESTART, timeout=120)


def rewrite_lease(bed: Bed, api: AdminApi, row: Row) -> None:
    """A person writes another holder into the Lease, and lets it go when the step has ended."""
    with HeldStep(bed.servers[0], row) as step:
        _hand_lease_to(api, SOMEBODY)
        step.go()
    holder = api.call("GET", LEASE)["spec"]["holderIdentity"]
    assert holder == SOMEBODY, f"the Lease of {SOMEBODY} was taken by {holder}"
    _hand_lease_to(api, "")


def sleep_past_lease(bed: Bed, api: AdminApi, row: Row) -> None:
    """Watcher and step are stopped (SIGSTOP) for longer than the Lease lasts; another has it when they go on."""
    server = bed.servers[0]
    with HeldStep(server, row) as step:
        server.docker("pause", SERVICE)
        try:
            time.sleep(api.call("GET", LEASE)["spec"]["leaseDurationSeconds"] + 5)
            _hand_lease_to(api, SOMEBODY)
        finally:
            server.docker("unpause", SERVICE)
        step.go()
    holder = api.call("GET", LEASE)["spec"]["holderIdentity"]
    assert holder == SOMEBODY, f"the Lease of {SOMEBODY} was taken by {holder}"
    _hand_lease_to(api, "")


def stop_peer(bed: Bed, api: AdminApi, row: Row) -> None:
    """A peer's k3s goes down, and comes back when the step has ended."""
    peer = bed.servers[1]
    with HeldStep(bed.servers[0], row) as step:
        peer.docker("stop", "k3s", timeout=120)
        step.go()
    peer.docker("start", "k3s")


def _hand_lease_to(api: AdminApi, holder: str) -> None:
    api.call("PATCH", LEASE, {"spec": {"holderIdentity": holder}})
