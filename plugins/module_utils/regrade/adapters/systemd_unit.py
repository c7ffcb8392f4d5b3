# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The actuator of a k3s server that systemd runs on this host: what `k3s_actuator` asks, asked of its unit.

What makes a step safe is there. Here is what a unit is: its invocation, the restarts systemd counts, the one
job that restarts it, and the pods that outlive a restart. k3s's unit has KillMode=process, so a stop leaves its
shims and their pods running (k3s-io/k3s#2624): at etcd-only they are ended here, one by one, by what they run.
`k3s-killall.sh` is never used: it stops every unit named `k3s*`, and older ones unmount below the data folder.

What `systemctl show` prints is read by `systemctl`.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Callable, NamedTuple

from ..core.cures import setting
from ..core.digits import whole
from ..core.levels import FULL
from ..ports import ApplyFailed, Cluster, StepHooks, StepRefused
from . import docker_probe as probe
from . import level_record as record
from .bounded import OutOfTime, within
from .k3s_actuator import LOOK_SECONDS, POLL_SECONDS, K3sActuator, PlatformError, Result, Server, State
from .local_k3s import LOOPBACK, METRICS_PORT, get, socket_tables
from .systemctl import Systemctl, Unit, environment_of

if TYPE_CHECKING:
    from ..core.settings import Settings

LEAST_STOP_SECONDS = (
    10.0  # k3s stops in 2 s; one that is killed while it leads etcd costs the cluster 5 to 10
)
LEFTOVER_SECONDS = 15.0
SHIM = "containerd-shim"  # how the names of containerd's shims begin
MEMBER = "server/db/etcd/member"


class SystemdActuator(K3sActuator):
    """Of the unit that UNIT names, on this host."""

    kind = "unit"

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        hooks: StepHooks | None = None,
        known: Callable[[], dict[str, str]] = dict,
        proc: str = "/proc",
    ) -> None:
        super().__init__(settings, cluster, hooks, known)
        self.name = settings.unit
        self.logs = f"journalctl -u {settings.unit}"
        self._systemctl = Systemctl(settings.unit, settings.call_timeout_seconds)
        self._proc = proc
        self._counted = 0  # restarts of its own, up to a restart of ours, which does not end systemd's count
        self._device: int | None = None  # what the etcd member lay on when it was first looked at

    def _inspect(self) -> Unit:
        return self._systemctl.show()

    def _state_in(self, found: Unit) -> State:
        return state_of(found)

    def _config_files_in(self, found: Unit) -> str:
        return record.config_file(found.words, environment_of(found))

    def _server_in(self, found: Unit, configured: dict[str, str]) -> Server:
        words, environment = found.words, environment_of(found)
        node_ip = record.flag(words, "--node-ip", "-i") or configured.get("node-ip", "")
        port = whole(record.flag(words, "--https-listen-port") or configured.get("https-listen-port", ""))
        return Server(
            of=found.name,
            place=record.Place(record.drop_in_folder(words, environment)),
            data=self._settings.data_dir
            or record.data_folder(words, environment, configured.get("data-dir", "")),
            addresses=tuple(probe.plain_address(part.strip()) for part in node_ip.split(",") if part),
            api_port=port if port and port < 65536 else probe.API_PORT,
            near=True,
        )

    def _refuse_unfit(self) -> None:
        unit = self._systemctl.show()
        if not unit.loaded:
            raise StepRefused(
                f"systemd has no unit {self.name} to run ({unit.load_state}); set "
                f"{setting('UNIT')} to the name of k3s's unit"
            )
        if unit.restart != "always":
            raise StepRefused(
                f"unit {self.name} has Restart={unit.restart}: k3s would stay away after it ends with code 0, and "
                f"its vote with it; set `Restart=always` under [Service] with `systemctl edit {self.name}`"
            )
        if unit.stop_seconds < LEAST_STOP_SECONDS:
            raise StepRefused(
                f"unit {self.name} has a stop time-out of {unit.stop_seconds:g} s, after which systemd kills k3s: "
                f"set `TimeoutStopSec={self._settings.restart_timeout_seconds:.0f}` under [Service] with "
                f"`systemctl edit {self.name}`"
            )
        try:
            self._refuse_moved(self._server(unit))
        except record.RecordRefused as error:
            raise StepRefused(str(error)) from None

    def _refuse_moved(self, server: Server) -> None:
        """A k3s that starts without its data founds a cluster of its own, or joins as another member."""
        path = posixpath.join(server.data, MEMBER)
        try:
            found = os.stat(path).st_dev
        except OSError as error:
            raise StepRefused(
                f"{path} cannot be looked at ({error.strerror}), where etcd's member should be: is the storage of "
                "k3s's data mounted? Where its data lies elsewhere set DATA_DIR"
            ) from None
        if self._device is not None and found != self._device:
            raise StepRefused(
                f"{path} lies on another device than when the step began (number {found}, it was {self._device}): "
                "mount the storage of k3s's data again"
            )
        self._device = found

    def _may_restart(self) -> None:
        # The same right as a restart's. What runs is left alone; the count of its restarts begins anew.
        self._systemctl.call("reset-failed")

    def _run(self, script: str, seconds: float) -> Result:
        """By this host's own shell, with its children in a group of their own, which ends with it."""

        def call() -> Result:
            child = subprocess.Popen(
                ["sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            try:
                output, errors = child.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                raise
            return Result(child.returncode, output, errors)

        try:
            return within(seconds + 1, call)
        except (OutOfTime, subprocess.TimeoutExpired):
            raise PlatformError(f"a shell on this host did not end within {seconds:g} s", sent=True) from None
        except OSError as error:
            raise PlatformError(f"no shell could be started: {error.strerror}", sent=False) from None

    def _call_restart(self, stop_seconds: float, seconds: float) -> None:
        """One job for systemd, which stops k3s with the unit's own time-out and starts it at once. It is not
        waited for here: a unit of Type=notify is started only once k3s says so, which it may never do."""
        self._begin()
        try:
            self._systemctl.call("restart", "--no-block")
        finally:
            with contextlib.suppress(PlatformError):
                self._counted = self._systemctl.show().restarts

    def _start(self, seconds: float) -> None:
        self._begin()
        self._systemctl.call("start", "--no-block")

    def _begin(self) -> None:
        """Before k3s is started by us: its data is there, and systemd starts it also where it failed too often."""
        try:
            self._refuse_moved(self._server())
            self._systemctl.call("reset-failed")
        except (StepRefused, PlatformError, record.RecordRefused) as error:
            raise PlatformError(str(error), sent=False) from None

    def _same(self, before: State, now: State) -> None:
        return  # a unit is what its name says, and the addresses are the host's

    def _crashes(self, before: State, now: State) -> int:
        return 0 if now.started == before.started else max(0, now.restarts - self._counted)

    def _lay_anyhow(self, server: Server, text: str | None) -> None:
        self._lay(server, text)  # the files are this host's, whatever k3s does

    def _inside(self) -> tuple[str, str]:
        return socket_tables(), get(METRICS_PORT, "/health", False, self._light_seconds())[1]

    def _raw(self, port: int, path: str) -> str:
        return get(port, path, True, self._light_seconds())[1]

    def _balancer(self, server: Server) -> tuple[bool, str, float]:
        seen = probe.look(LOOPBACK, probe.BALANCER_PORT, LOOK_SECONDS)
        return seen.level == FULL, str(seen), POLL_SECONDS

    def _hostname(self) -> str:
        return socket.gethostname()

    def _end_leftovers(self, server: Server) -> None:
        """The pods first and then their shims, which inherit what a process that ends leaves behind."""
        end = time.monotonic() + LEFTOVER_SECONDS
        while True:
            found = processes(self._proc)
            shims = [pid for pid in found if is_shim(executable(self._proc, pid), server.data)]
            if not shims:
                return
            pods = [pid for pid in descendants(found, shims) if found[pid].state != "Z"]
            for pid in pods or shims:
                kill(self._proc, pid, found[pid])
            if time.monotonic() >= end:
                raise ApplyFailed(
                    f"etcd serves, but {len(pods)} processes of pods and {len(shims)} shims did not end within "
                    f"{LEFTOVER_SECONDS:g} s and hold their memory (such as process {(pods or shims)[0]}): what do "
                    "they wait for? A restart of the host ends them",
                    began=self._began,
                )
            time.sleep(POLL_SECONDS / 10)


class Process(NamedTuple):
    """Of /proc/PID/stat."""

    parent: int
    state: str
    born: str  # in ticks since the boot: a number that is given again is born later


def state_of(unit: Unit) -> State:
    """Of what `systemctl show` says."""
    alive = unit.main_pid > 0 and unit.active in ("active", "activating", "reloading", "refreshing")
    waits = unit.sub.startswith("auto-restart")
    between = not alive and (waits or unit.active in ("activating", "deactivating") or unit.job)
    why = ""
    if waits:
        why = f"the unit is restarting ({unit.ended}, {unit.restarts} times)"
    elif not alive:
        why = f"the unit is {unit.active} ({unit.sub}{', ' + unit.ended if unit.ended else ''})"
    return State(
        id=unit.name,
        started=unit.invocation,
        running=alive,
        restarting=between,
        restarts=unit.restarts if alive or waits else 0,  # on its way up or down it tells of no crash
        why=why,
        end="" if alive or not unit.ended else f" with {unit.ended}",
    )


def processes(proc: str) -> dict[int, Process]:
    """All that run now; one that ends meanwhile is left out."""
    found = {}
    for name in os.listdir(proc):
        if name.isdigit():
            read = _stat(proc, int(name))
            if read is not None:
                found[int(name)] = read
    return found


def _stat(proc: str, pid: int) -> Process | None:
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name stands in brackets and may hold any of them: what counts comes after the last one.
            fields = file.read().rpartition(")")[2].split()
        return Process(parent=int(fields[1]), state=fields[0], born=fields[19])
    except (OSError, IndexError, ValueError):
        return None


def executable(proc: str, pid: int) -> str:
    """What the process runs, "" where that cannot be told (a kernel thread)."""
    try:
        path = os.readlink(f"{proc}/{pid}/exe")
    except PermissionError:  # without CAP_SYS_PTRACE; containerd calls a shim by its whole path
        path = _called(proc, pid)
    except OSError:
        return ""
    return path[: -len(" (deleted)")] if path.endswith(" (deleted)") else path  # k3s was upgraded


def _called(proc: str, pid: int) -> str:
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            return file.read(4096).partition(b"\0")[0].decode("utf-8", "replace")
    except OSError:
        return ""


def is_shim(path: str, data: str) -> bool:
    """Whether it is a shim of that k3s's own containerd: <data>/data/*/bin/containerd-shim*."""
    parts = posixpath.relpath(path, data).split("/") if path.startswith("/") else []
    return len(parts) == 4 and (parts[0], parts[2]) == ("data", "bin") and parts[3].startswith(SHIM)


def descendants(found: dict[int, Process], roots: list[int]) -> list[int]:
    """All below the roots, without them."""
    below: list[int] = []
    last = set(roots)
    while last:
        last = {pid for pid, process in found.items() if process.parent in last and pid not in roots}
        last -= set(below)
        below += sorted(last)
    return below


def kill(proc: str, pid: int, known: Process) -> None:
    """SIGKILL, to that process and none that was given its number since."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            now = _stat(proc, pid)
            if now is not None and now.born == known.born:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
