# SPDX-License-Identifier: GPL-3.0-or-later
"""What befalls a step, on the bed: each function of a row's `fault` begins the row's step, does it, and returns once it
is done. In what state it must end is for faults.py to say."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Optional

import plays
import pressure
import scenario
from admin_api import AdminApi
from bed import Bed, Server
from held_step import FOLDER
from layout import LABEL, PROJECT_FOLDER
from observer import at_full_again, etcd_healthy, label, runs_at, started_at, wait_for
from restarts import BETWEEN
from rows import FLIPS, PRESSED_SECONDS, RACES, SOAK_SECONDS, WITHOUT_API_SECONDS, Row

SERVICE = "k3s-regrade"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/k3s-regrade"
SOMEBODY = "somebody/by-hand"
HELD_STEP = Path(__file__).with_name("held_step.py")
RACER = Path(__file__).with_name("racer.py")
LOAD = Path(__file__).resolve().parents[1] / "pressure" / "guest" / "load.py"
# As in tests/pressure: a third of the time and more something waits for memory, on a host with plenty.
THRASH_LIMIT, THRASH_FILE_MIB, THRASH_READERS = "48m", 400, 3
STEP_SECONDS = 300
NOTED = "cat /var/lib/regrade/last-step"
KNOWN = "cat /var/lib/regrade/started.json"
TOLD_SECONDS = 360
"""A service that reached no API for long tries again after five minutes at most."""
LEASES_SEEN_SECONDS = 15
BETWEEN_SEEN_SECONDS = 5
PRESSED_ON_SECONDS = 20
CUT_SECONDS = 20
CUT_AT_RESTART_SECONDS = 60
HOURS = 5 * 3600
SLOW_FILE = "/tmp/slow.sh"

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

    def go(self, check: bool = True) -> None:
        self._server.docker("exec", SERVICE, "touch", f"{FOLDER}/go", check=check)

    def __exit__(self, error: object, *_more: object) -> None:
        if error:  # which is what is told; the step is not left to wait for leave
            self.go(check=False)
            with suppress(AssertionError):
                self.ends()
        else:
            self.ends()

    def ends(self) -> None:
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


def delete_lease(bed: Bed, api: AdminApi, row: Row) -> None:
    """Who deletes it is told to run the role again: a service may not make it."""
    with HeldStep(bed.servers[0], row) as step:
        api.call("DELETE", LEASE)
        step.go()
    run = plays.playbook("enable")
    assert run.code == 0, run.output


def cut_from_one(bed: Bed, api: AdminApi, row: Row) -> None:
    with HeldStep(bed.servers[0], row) as step, _cut(bed.servers[0], *_between(bed.servers[1])):
        step.go()
        step.ends()


def cut_from_all(bed: Bed, api: AdminApi, row: Row) -> None:
    """Its etcd has no quorum and no API answers it until the step has ended, and a little longer."""
    with HeldStep(bed.servers[0], row) as step, _cut(bed.servers[0], *_between(*bed.servers[1:])):
        step.go()
        step.ends()
        time.sleep(CUT_SECONDS)


def cut_at_restart(bed: Bed, api: AdminApi, row: Row) -> None:
    """k3s is started anew where its etcd finds no quorum. A step goes on with that for as long as it takes, so that the
    cut ends before it."""
    server = bed.servers[0]
    with HeldStep(server, row) as step, _cut(server, *_between(*bed.servers[1:])):
        step.go()
        time.sleep(CUT_AT_RESTART_SECONDS)
        assert not etcd_healthy(server), f"{server.name} is not cut off"


def cut_from_own_api(bed: Bed, api: AdminApi, row: Row) -> None:
    server = bed.servers[0]
    with HeldStep(server, row) as step, _cut(server, "INPUT ! -i lo -p tcp --dport 6443"):
        assert not server.api_answers(), f"the API of {server.name} is not cut off"
        step.go()
        step.ends()


def restart_host(bed: Bed, api: AdminApi, row: Row) -> None:
    """Its Docker engine and all its containers end in order, the step's among them, and start again."""
    server = bed.servers[0]
    with HeldStep(server, row):
        server.stop_host()
        server.start_host()
    pressure.begin(server)


def slow_peer(bed: Bed, api: AdminApi, row: Row) -> None:
    """All that a peer's k3s runs is stopped (SIGSTOP) for two seconds of three until the step has ended."""
    peer = bed.servers[1]
    with HeldStep(bed.servers[0], row) as step, _slow(peer):
        wait_for(f"{peer.name} answers nothing", lambda: not peer.api_answers(timeout=1), 20, pause=0.1)
        step.go()
        step.ends()


def add_member(bed: Bed, api: AdminApi, row: Row) -> None:
    """With a restart now, two of four voters would be left: no quorum. The member goes when the step has ended."""
    server = bed.servers[0]
    with HeldStep(server, row) as step:
        made = _etcd(server, "cluster/member/add", {"peerURLs": ["https://127.0.0.1:12380"]})
        step.go()
    _etcd(server, "cluster/member/remove", {"ID": made["member"]["ID"]})


def clock_ahead(bed: Bed, api: AdminApi, row: Row) -> None:
    _clock_off(bed, row, HOURS)


def clock_back(bed: Bed, api: AdminApi, row: Row) -> None:
    _clock_off(bed, row, -HOURS)


def fill_disk(bed: Bed, api: AdminApi, row: Row) -> None:
    _with_disk_spoilt(bed, api, row, "dd if=/dev/zero of=filling bs=1k || true", "rm filling")


def read_only_disk(bed: Bed, api: AdminApi, row: Row) -> None:
    _with_disk_spoilt(bed, api, row, "mount -o remount,ro $PWD", "mount -o remount,rw $PWD")


def cordon(bed: Bed, api: AdminApi, row: Row) -> None:
    """The person's own cordon is there after the way down and up, until they take it off."""
    server = bed.servers[0]
    node = f"/api/v1/nodes/{server.name}"
    with HeldStep(server, row) as step:
        api.call("PATCH", node, {"spec": {"unschedulable": True}})
        step.go()
    assert label(api, server.name) == row.to
    scenario.step(server, row.start)
    assert api.call("GET", node)["spec"].get("unschedulable"), "the person's cordon was taken off"
    api.call("PATCH", node, {"spec": {"unschedulable": None}})


def flip(bed: Bed, api: AdminApi, row: Row) -> dict[str, Any]:
    """k3s is stopped and started as often, and its etcd is there again each time."""
    server = bed.servers[0]
    with _between_the_levels(server):
        for number in range(1, FLIPS + 1):
            for level in (row.to, row.start):
                done = server.sh(f"regrade step to {level} --hold=keep --json", check=False, timeout=STEP_SECONDS)
                assert done.returncode == 0, f"flip {number}, to {level}: {done.stderr.strip()}"
                assert label(api, server.name) == level
            wait_for(f"etcd is well after flip {number}", partial(etcd_healthy, server), 60)
    return {"flips": FLIPS}


def soak(bed: Bed, api: AdminApi, row: Row) -> dict[str, Any]:
    """Nothing may end k3s there by itself."""
    with _between_the_levels(bed.servers[0]):
        return _soaked(bed, api, row)


def soak_with_one_api(bed: Bed, api: AdminApi, row: Row) -> dict[str, Any]:
    """Nor where one of the peers' APIs is all that it reaches from its start on."""
    server, cut_off, _reached = bed.servers
    with _between_the_levels(server), _cut(server, f"OUTPUT -p tcp -d {cut_off.address} --dport 6443"):
        server.docker("restart", "--time=60", "k3s", timeout=120)
        wait_for("its etcd is well", partial(etcd_healthy, server), 60)
        return _soaked(bed, api, row)


def _soaked(bed: Bed, api: AdminApi, row: Row) -> dict[str, Any]:
    server = bed.servers[0]
    before = started_at(server)
    time.sleep(SOAK_SECONDS)
    assert started_at(server) == before, "k3s was started anew"
    assert label(api, server.name) == row.start and etcd_healthy(server)
    scenario.step(server, row.to)
    return {"restarts": 0}


def soak_without_api(bed: Bed, api: AdminApi, row: Row) -> dict[str, Any]:
    """k3s ends by itself 15 minutes after a start with no API in reach; one that had an API since its start runs on. It
    is back at its level, votes, and that is told and is no step."""
    server = bed.servers[0]
    noted = server.sh(NOTED).stdout
    (step_id,) = re.findall(r"^id=(\w+)$", noted, re.M)
    with _between_the_levels(server):
        time.sleep(BETWEEN_SEEN_SECONDS)  # calm for long, it would step up once it is free to
        server.sh("regrade release")  # of a held server the log alone tells
        wait_for("its service knows of the start that this step made", lambda: step_id in server.sh(KNOWN).stdout, 120)
        with _cut(server, *(f"OUTPUT -p tcp -d {peer.address} --dport 6443" for peer in bed.servers[1:])):
            server.docker("restart", "--time=60", "k3s", timeout=120)
            before = started_at(server)
            time.sleep(WITHOUT_API_SECONDS)
        assert started_at(server) != before, "k3s was not started anew, though it reached no API"
        wait_for("its etcd is well", partial(etcd_healthy, server), 60)
        wait_for("it runs at etcd-only", lambda: runs_at(server) == row.start or None, 60)
        told = partial(_events, api, server)
        wait_for("that it was started anew is told", lambda: "RegradeStartedAnew" in told() or None, TOLD_SECONDS)
        assert server.sh(NOTED, check=False).stdout == noted, "a step was noted"
        scenario.step(server, row.to)
    return {}


def race(bed: Bed, api: AdminApi, row: Row) -> dict[str, Any]:
    """Two servers are told the same step at the same instant: never do both, and whoever did goes back to full."""
    racers = [Racer(server) for server in bed.servers[:2]]
    overlapped = 0
    won = dict.fromkeys((racer.name for racer in racers), 0)
    try:
        for racer in racers:
            pressure.put(racer.server, BETWEEN)  # so that no watcher steps
        time.sleep(LEASES_SEEN_SECONDS)
        for number in range(1, RACES + 1):
            at = time.time() + 0.3
            for racer in racers:
                racer.tell(row.to, at)
            answers = [racer.answer() for racer in racers]
            stepped = [racer for racer, answer in zip(racers, answers) if not answer["refused"]]
            assert len(stepped) < 2, f"race {number}: both stepped"
            overlapped += max(answer["began"] for answer in answers) < min(answer["ended"] for answer in answers)
            for racer in stepped:
                won[racer.name] += 1
                racer.tell(row.start, 0)
                back = racer.answer()["refused"]
                assert not back, f"race {number}: {racer.name} did not go back: {back}"
    finally:
        for racer in racers:
            racer.end()
            pressure.put(racer.server, pressure.CALM)
    assert overlapped >= RACES * 3 // 4, f"only {overlapped} of {RACES} races overlapped"
    assert sum(won.values()) >= RACES * 3 // 4, f"too few were won: {won}"
    return {"overlapped": overlapped, **{f"won by {name}": count for name, count in won.items()}}


def press_all(bed: Bed, api: AdminApi, row: Row) -> dict[str, Any]:
    """The same pressure on all three until one is at etcd-only, and none until it is back, again and again."""
    cycles = dict.fromkeys((server.name for server in bed.servers), 0)
    until = time.monotonic() + PRESSED_SECONDS
    while time.monotonic() < until:
        stepped = _one_steps_down(bed, api)
        _and_back(bed, api, stepped)
        cycles[stepped] += 1
    return {f"cycles of {name}": count for name, count in cycles.items()}


def press_the_machine(bed: Bed, api: AdminApi, row: Row) -> dict[str, Any]:
    """The pressure that all three watchers read is the machine's own, while a container thrashes on it: one steps, and
    goes back by itself. What is available stays a fixture's, since a machine that runs this has plenty."""
    _role({"github_runner_cluster_regrade_pressure_file": "/proc/pressure/memory"})
    try:
        with _thrashing(bed):
            stepped = _one_steps_down(bed, api)
            some = re.match(r"some avg10=([\d.]+)", Path("/proc/pressure/memory").read_text(encoding="utf-8"))
            assert some is not None
        _and_back(bed, api, stepped)
    finally:
        scenario.calm(bed)
        _role({})
    return {"stepped": stepped, "pressure": f"{float(some[1]):.0f} %"}


# -- how


def _role(variables: dict[str, object]) -> None:
    """The role anew, with these besides the inventory's."""
    run = plays.playbook("enable", variables=variables)
    assert run.code == 0, f"the role failed: {run.output.strip().splitlines()[-1]}"


@contextmanager
def _thrashing(bed: Bed) -> Iterator[None]:
    """A container at its own memory limit beside the servers, from the image of their hosts; it goes with the bed."""
    image = _docker("inspect", "--format={{.Image}}", bed.servers[0].host_container)
    name = f"{bed.settings.name}-thrash"
    _docker(
        "run", "--detach", "--rm", f"--name={name}", f"--label={LABEL}={bed.settings.name}", "--network=none",
        f"--memory={THRASH_LIMIT}", f"--memory-swap={THRASH_LIMIT}", f"--volume={LOAD}:/load.py:ro",
        "--entrypoint=timeout", image,
        str(STEP_SECONDS), "python3", "-S", "/load.py", "limited", "/thrash", str(THRASH_FILE_MIB), str(THRASH_READERS),
    )  # fmt: skip
    try:
        yield
    finally:
        _docker("rm", "--force", name)


def _docker(*words: str) -> str:
    """On the engine the bed itself runs on."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"docker {words[0]} failed: {done.stderr.strip()}"
    return done.stdout.strip()


@contextmanager
def _between_the_levels(server: Server) -> Iterator[None]:
    """Neither over nor calm, so that its watcher steps nowhere."""
    pressure.put(server, BETWEEN)
    try:
        yield
    finally:
        pressure.put(server, pressure.CALM)


def _events(api: AdminApi, server: Server) -> set[str]:
    """The reasons of the Events on that server's Node."""
    items = api.call("GET", "/api/v1/namespaces/default/events")["items"]
    return {str(item["reason"]) for item in items if item["involvedObject"].get("name") == server.name}


class Racer:
    """racer.py in one server's service container."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, server.name
        words = ["docker", "exec", "-i", SERVICE, "python3", "/tmp/racer/racer.py"]
        put = "mkdir -p /tmp/racer && cat >/tmp/racer/racer.py"
        server.docker("exec", "-i", SERVICE, "sh", "-c", put, input=RACER.read_text(encoding="utf-8"))
        self._child = subprocess.Popen(
            ["docker", "exec", "-i", server.host_container, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, level: str, at: float) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{at} {level}\n")
        self._child.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f"{self.name}'s racer has ended"
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def end(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(STEP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()


def _hand_lease_to(api: AdminApi, holder: str) -> None:
    api.call("PATCH", LEASE, {"spec": {"holderIdentity": holder}})


def _one_steps_down(bed: Bed, api: AdminApi) -> str:
    """Memory gets short on all, until one is at etcd-only; a while later no other is below full. Its name."""
    for server in bed.servers:
        pressure.put(server, pressure.OVER)
    stepped = wait_for("one is at etcd-only", partial(_at_etcd_only, bed, api), STEP_SECONDS)
    time.sleep(PRESSED_ON_SECONDS)
    below = [server.name for server in bed.servers if label(api, server.name) != "full"]
    assert below == [stepped], f"below full are {', '.join(below)}"
    return stepped


def _and_back(bed: Bed, api: AdminApi, stepped: str) -> None:
    """By itself, once memory is not short any more."""
    scenario.calm(bed)
    wait_for(f"{stepped} is at full", partial(at_full_again, api, stepped), STEP_SECONDS)


def _at_etcd_only(bed: Bed, api: AdminApi) -> Optional[str]:
    return next((server.name for server in bed.servers if label(api, server.name) == "etcd-only"), None)


def _between(*others: Server) -> list[str]:
    """Rules for all traffic with those, to be dropped on one host."""
    return [rule for other in others for rule in (f"INPUT -s {other.address}", f"OUTPUT -d {other.address}")]


@contextmanager
def _cut(server: Server, *rules: str) -> Iterator[None]:
    """What the rules name is dropped on that host until the block ends."""
    server.sh("; ".join(f"iptables -w -I {rule} -j DROP" for rule in rules))
    try:
        yield
    finally:
        server.sh("; ".join(f"iptables -w -D {rule} -j DROP" for rule in rules))


SLOW = """
pids() { docker top k3s -eo pid | tail -n +2; }
trap 'kill -CONT $(pids); exit 0' TERM
while :; do
  kill -STOP $(pids) 2>/dev/null; sleep 2
  kill -CONT $(pids) 2>/dev/null; sleep 1
done
"""


@contextmanager
def _slow(server: Server) -> Iterator[None]:
    server.sh(f"cat >{SLOW_FILE}", input=SLOW)
    server.sh(f"setsid sh {SLOW_FILE} >/dev/null 2>&1 </dev/null & echo $! >{SLOW_FILE}.pid")
    try:
        yield
    finally:
        server.sh(f"kill $(cat {SLOW_FILE}.pid)")
        wait_for(f"etcd of {server.name} is well", lambda: etcd_healthy(server), 60)


# On the host, whose loopback is k3s's own: there alone k3s has etcd's JSON gateway, and its image has no Python.
ETCD = """
import http.client, json, ssl, subprocess, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    for name in ("server-ca.crt", "client.crt", "client.key"):
        with open(f"{folder}/{name}", "wb") as file:
            path = f"/var/lib/rancher/k3s/server/tls/etcd/{name}"
            subprocess.run(["docker", "exec", "k3s", "cat", path], stdout=file, check=True)
    context = ssl.create_default_context(cafile=f"{folder}/server-ca.crt")
    context.load_cert_chain(f"{folder}/client.crt", f"{folder}/client.key")
connection = http.client.HTTPSConnection("127.0.0.1", 2382, timeout=10, context=context)
connection.request("POST", "/v3/" + sys.argv[1], sys.argv[2])
answer = connection.getresponse()
text = answer.read().decode()
print(text) if answer.status == 200 else sys.exit(text)
"""


def _etcd(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    done = server.sh(f"python3 - {shlex.quote(path)} {shlex.quote(json.dumps(body))}", input=ETCD)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def _clock_off(bed: Bed, row: Row, seconds: int) -> None:
    server = bed.servers[0]
    with HeldStep(server, row) as step:
        server.docker("exec", SERVICE, "sh", "-c", f"echo {seconds} >{FOLDER}/clock")
        step.go()
    noted = dict(line.partition("=")[::2] for line in server.sh(NOTED).stdout.splitlines())
    at = datetime.strptime(noted["at"], "%Y-%m-%dT%H:%M:%S.%f%z")
    off = (at - datetime.now(timezone.utc)).total_seconds()
    assert abs(off - seconds) < STEP_SECONDS, f"the step noted a time that is {off:.0f} s off, not {seconds}"


def _with_disk_spoilt(bed: Bed, api: AdminApi, row: Row, spoil: str, mend: str) -> None:
    """The step goes on after `spoil` was run in the folder of its record, which `mend` puts right when it has ended."""
    server = bed.servers[0]
    with _small_disk(bed, api) as place, HeldStep(server, row) as step:
        server.sh(f"cd {place}; {spoil}")
        step.go()
        step.ends()
        server.sh(f"cd {place}; {mend}")


@contextmanager
def _small_disk(bed: Bed, api: AdminApi) -> Iterator[str]:
    """The first server's configuration, and with it its record, lies on a disk of its own while the block goes on."""
    server = bed.servers[0]
    place = f"{PROJECT_FOLDER}/k3s"

    def rests() -> bool:
        return runs_at(server) == "full" and all(map(etcd_healthy, bed.servers))

    def move(script: str) -> None:
        server.stop_k3s()
        server.sh(script)
        server.start_k3s()
        wait_for(f"{server.name} is back", rests, 120)

    mount = f"mount -t tmpfs -o size=64k,mode=755 tmpfs {place}"
    move(f"cp -a {place} {place}.kept && {mount} && cp -a {place}.kept/. {place}")
    try:
        yield place
    finally:
        move(f"cp -a {place}/. {place}.kept && umount {place} && cp -a {place}.kept/. {place} && rm -r {place}.kept")
