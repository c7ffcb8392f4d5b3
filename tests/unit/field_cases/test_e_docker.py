# SPDX-License-Identifier: GPL-3.0-or-later
"""Section E of the field cases, the Docker actuator, against an engine that speaks the real protocol (and F54, which
is k3s ending by itself). What is shown on real servers is in the table, docs/field-cases.md.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import ports
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    docker_client,
    k3s_actuator,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    level_record as record,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import settle, step_to
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.step import JOURNAL
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_docker import (
    SHORT,
    World,
    fault,
    inside,
    one_line,
    worlds,
)

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles" / "github_runner_cluster"
S = "server1"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield from worlds(tmp_path, monkeypatch)


def steps_through(world: World, cluster: Cluster) -> Any:
    """A process of that server whose platform is the Docker actuator, and all else the cluster in memory."""
    process = cluster.process(S)
    actuator = world.actuator()
    actuator._hooks, actuator._known = process.hooks, process.hooks.known
    return process._replace(world=process.world._replace(actuator=actuator, vote=actuator))


# --- E38: Docker kills what does not stop in time, or loses sight of it ---


@pytest.mark.parametrize("dead", [True, False])
def test_e38_a_restart_that_fails_half_way_is_started_again(world: World, dead: bool) -> None:
    def stop() -> None:
        if dead:
            world.engine.running, world.engine.exit_code = False, 137
            world.k3s.stop()
        else:
            threading.Timer(0.3, world.engine.boot).start()

    text = "Cannot restart container k3s: tried to kill container, but did not receive an exit event"
    fault(world, "k3s/restart", (500, {"message": text}), stop)
    world.actuator().apply_level("etcd-only")
    assert world.k3s.level == "etcd-only"
    assert world.recorded() == record.text_for("etcd-only", world.moved)
    assert ("POST /containers/k3s/start" in world.engine.calls) is dead


def test_e38_a_restart_call_without_an_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k3s_actuator, "RESTART_GRACE_SECONDS", -9.5)

    def hang() -> None:
        world.engine.boot()
        time.sleep(1)

    fault(world, "k3s/restart", (204, ""), hang)
    world.actuator(RESTART_TIMEOUT_SECONDS="10").apply_level("etcd-only")
    assert world.k3s.level == "etcd-only" and world.k3s.boots == 2


def test_e38_a_restart_that_never_happens_leaves_the_step_open(world: World) -> None:
    world.patience = SHORT
    fault(world, "k3s/restart", (500, {"message": "did not receive an exit event"}))
    with pytest.raises(
        ports.ApplyFailed,
        match=r"not reached within 1.5 s.*did not receive an exit "
        r"event",
    ) as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is True


def test_e38_docker_is_told_how_long_to_wait_and_the_call_outlasts_it(world: World) -> None:
    """A host that thrashes takes more than Docker's own 10 s to stop k3s, and a killed leader costs an election."""
    actuator = world.actuator(RESTART_TIMEOUT_SECONDS="60")
    limits: list[float] = []
    within = actuator._engine._do
    actuator._engine._do = lambda what, limit, call: (
        (  # type: ignore[method-assign]
            limits.append(limit) if what == "restart" else None
        )
        or within(what, limit, call)
    )
    actuator.apply_level("etcd-only")
    assert [call for call in world.engine.calls if "/restart" in call] == [
        "POST /containers/k3s/restart?t=60"
    ]
    assert limits == [90.0]


def test_e38_the_step_stays_open_where_the_container_cannot_be_started_and_is_resumed(world: World) -> None:
    cluster = Cluster()
    step_to(steps_through(world, cluster), "control-plane")
    world.patience = SHORT

    def stop() -> None:
        world.engine.running, world.engine.exit_code = False, 137
        world.k3s.stop()

    words = "tried to kill container, but did not receive an exit event"
    fault(world, "k3s/restart", (500, {"message": words}), stop)
    fault(world, "k3s/start", (500, {"message": words}))
    with pytest.raises(ports.StepFailed, match=r"did not receive an exit event|was found stopped") as caught:
        step_to(steps_through(world, cluster), "etcd-only")
    assert caught.value.left_open is True
    assert JOURNAL in cluster.hosts[S].disk and cluster.node(S).labels
    world.engine.faults.clear()
    world.patience = 30.0
    settled = settle(steps_through(world, cluster))
    assert (settled["action"], settled["level"]) == ("resumed", "etcd-only")
    assert JOURNAL not in cluster.hosts[S].disk and world.k3s.level == "etcd-only"


# --- E39: the container comes back with another address ---


def test_e39_another_address_after_the_restart_is_said(world: World) -> None:
    networks = world.engine.inspected["NetworkSettings"]["Networks"]
    fault(world, "k3s/restart", None, lambda: networks["net"].update(IPAddress="172.20.0.2"))
    with pytest.raises(ports.ApplyFailed, match=r"172.20.0.2, it had 127.0.0.1.*ipv4_address") as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is True


@pytest.mark.parametrize(
    "shown", [["172.20.0.2"], ["", "172.20.0.2"]], ids=["at once", "after the old record"]
)
def test_e39_it_is_said_also_where_k3s_ends_again_and_again_for_it(world: World, shown: list[str]) -> None:
    """etcd refuses a member whose address changed: no record cures that, so the address is what must be told, as soon
    as Docker shows it (a container between two starts has none)."""
    networks = world.engine.inspected["NetworkSettings"]["Networks"]

    def moved() -> None:
        networks["net"].update(IPAddress=shown.pop(0))
        world.k3s.dies_at = {"full", "etcd-only"}

    fault(world, "k3s/restart", None, moved, times=len(shown))
    with pytest.raises(ports.ApplyFailed, match=r"172.20.0.2, it had 127.0.0.1.*ipv4_address") as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is True and not shown


def test_e39_with_the_hosts_network_there_is_no_address_of_dockers_to_compare(world: World) -> None:
    world.engine.inspected["HostConfig"]["NetworkMode"] = "host"
    world.engine.inspected["NetworkSettings"]["Networks"] = {
        "host": {"IPAddress": "", "GlobalIPv6Address": ""}
    }
    world.actuator().apply_level("etcd-only")
    assert world.k3s.level == "etcd-only"


# --- E40: the restart brings into force what was waiting for one ---


@pytest.mark.parametrize("old", ["full", "control-plane"])
@pytest.mark.parametrize("exec_works", [True, False])
def test_e40_a_crash_loop_gets_the_old_record_back_and_one_start(
    world: World, old: str, exec_works: bool
) -> None:
    world.at(old)
    world.k3s.dies_at = {"etcd-only"}
    if exec_works:  # a container that lives a few seconds takes an exec between two ends
        fault(world, "k3s/exec", None, lambda: setattr(world.engine, "restarting", False))
    begun = time.monotonic()
    with pytest.raises(
        ports.ApplyFailed,
        match=r"ended . times at etcd-only.*exit code 1.*runs at .* "
        r"again",
    ) as caught:
        world.actuator().apply_level("etcd-only")
    assert time.monotonic() - begun < 20, "in seconds"
    assert caught.value.began is True
    assert world.restarts() == 2 and world.k3s.level == "full"
    assert world.actuator().recorded_level() == old
    world.actuator().apply_level(old)
    assert world.recorded() == (record.text_for(old, 0) or None)


def test_e40_a_resumed_step_puts_back_the_record_from_before_the_step(world: World) -> None:
    """The process before this one wrote the record and died before the restart."""
    world.at("etcd-only")
    Path(world.place.path).write_text(record.text_for("control-plane", 0))
    world.k3s.dies_at = {"full"}
    with pytest.raises(ports.ApplyFailed, match="runs at etcd-only again") as caught:
        world.actuator(known={"record_before": "etcd-only"}).apply_level("control-plane")
    assert caught.value.back is True
    assert world.recorded() == record.text_for("etcd-only", world.moved)
    assert world.hooks.facts[0]["record_before"] == "etcd-only"


def test_e40_a_crash_loop_at_the_old_level_too_leaves_the_step_open(world: World) -> None:
    fault(world, "k3s/restart", None, lambda: setattr(world.k3s, "dies_at", {"etcd-only", "full"}))
    with pytest.raises(ports.ApplyFailed, match=r"it ends there too.*step stays open") as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is True and world.restarts() == 2


def test_e40_a_crash_loop_found_at_the_beginning_is_started_once_with_the_wanted_level(world: World) -> None:
    world.k3s.dies_at = {"etcd-only"}
    world.at("etcd-only")
    time.sleep(0.2)
    world.actuator().apply_level("control-plane")
    assert world.k3s.level == "full" and world.restarts() == 1
    assert world.actuator().current_level() == "control-plane"


def test_e40_the_step_stays_open_and_says_how_k3s_ends(world: World) -> None:
    cluster = Cluster()
    step_to(steps_through(world, cluster), "control-plane")
    world.patience = SHORT
    fault(world, "k3s/restart", None, lambda: setattr(world.k3s, "dies_at", {"etcd-only", "full"}))
    with pytest.raises(ports.StepFailed, match=r"from control-plane to etcd-only.*exit code 1") as caught:
        step_to(steps_through(world, cluster), "etcd-only")
    assert caught.value.left_open is True
    journal = cluster.hosts[S].disk[JOURNAL]
    assert (journal["from"], journal["to"]) == ("control-plane", "etcd-only")


# --- E43: Docker's API versions ---


@pytest.mark.parametrize(
    "text",
    [
        "client version 1.24 is too old. Minimum supported API version is 1.44, please upgrade your client",
        "client version 1.44 is too new. Maximum supported API version is 1.43",
    ],
)
def test_e43_a_version_the_engine_does_not_take_is_said_as_it_is(world: World, text: str) -> None:
    fault(world, "GET /containers", (400, {"message": text}))
    with pytest.raises(ports.LevelUnknown) as caught:
        world.actuator().current_level()
    assert text in one_line(caught.value)


@pytest.mark.parametrize("version", ["1.41", "1.44", "1.51"])
def test_e43_the_version_is_negotiated(world: World, version: str) -> None:
    world.engine.version = {"ApiVersion": version, "MinAPIVersion": "1.24", "Version": "x"}
    paths: list[str] = []
    actuator = world.actuator()
    actuator.current_level()
    api = actuator._engine._client()
    paths.append(api.api_version)
    assert paths == [version]


def test_e43_no_version_is_pinned_where_it_would_outlive_an_engine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in what ships, nor by a variable that the host's own docker command is given."""
    shipped = [path for folder in ("files", "templates", "tasks") for path in (ROLE / folder).rglob("*")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in shipped if path.is_file()}
    assert "Dockerfile" in texts and "compose.yaml.j2" in texts
    assert [name for name, text in texts.items() if "DOCKER_API_VERSION" in text] == []
    monkeypatch.setenv("DOCKER_API_VERSION", "1.24")
    assert world.actuator().current_level() == "full"
    assert any(call == "GET /version" for call in world.engine.calls)


# --- E44, E45: k3s's log cannot be read ---


def test_e44_the_level_from_inside_the_server_where_no_network_reaches_it(world: World) -> None:
    actuator = world.actuator()
    inside(world, (world.api_port, 2379, 2380, 10250, 10259))
    assert actuator.current_level() == "full"
    inside(world, (world.moved, 6444, 2379, 2380, 10258))
    assert actuator.current_level() == "etcd-only"
    inside(world, (world.moved, 2379), health="wget: server returned error: HTTP/1.1 503 Service Unavailable")
    with pytest.raises(ports.LevelUnknown, match=r"etcd in container k3s is not healthy.*503"):
        actuator.current_level()
    inside(world, (world.api_port, 2379))
    with pytest.raises(ports.LevelUnknown, match=r"booting"):
        world.actuator(ETCD_ONLY_HTTPS_PORT="0").current_level()
    (world.k3s.folder / "answers" / f"{world.api_port}_readyz").write_text(
        "Error from server (ServiceUnavailable): apiserver disabled"
    )
    assert world.actuator(ETCD_ONLY_HTTPS_PORT="0").current_level() == "etcd-only"
    assert not [call for call in world.engine.calls if "/logs" in call]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("E44", "invalid character '\\x00' looking for beginning of value"),
        ("E45", "configured logging driver does not support reading"),
    ],
)
def test_e44_and_e45_no_step_and_no_look_needs_the_log(world: World, row: str, said: str) -> None:
    world.engine.inspected["HostConfig"]["LogConfig"] = {"Type": "none" if row == "E45" else "json-file"}
    fault(world, "/logs", (500, {"message": said}))
    actuator = world.actuator()
    actuator.preflight()
    for level in ("control-plane", "etcd-only", "control-plane", "full"):
        actuator.apply_level(level)
        assert actuator.current_level() == level
    assert actuator.trapped() is False
    assert not [call for call in world.engine.calls if "/logs" in call]


def test_e45_a_driver_that_cannot_be_read_does_not_hide_a_crash_loop(world: World) -> None:
    world.engine.inspected["HostConfig"]["LogConfig"] = {"Type": "none"}
    world.k3s.dies_at = {"etcd-only"}
    with pytest.raises(ports.ApplyFailed, match=r"ended . times at etcd-only.*runs at full again"):
        world.actuator().apply_level("etcd-only")


# --- E47: a pod's OOM kill takes the whole container ---


@pytest.mark.parametrize("level", ["full", "control-plane", "etcd-only"])
def test_e47_it_comes_back_at_its_level_and_that_is_no_step(world: World, level: str) -> None:
    cluster = Cluster()
    if level != "full":
        step_to(steps_through(world, cluster), level)
    noted = dict(cluster.hosts[S].noted)
    asked = len([call for call in world.engine.calls if call.startswith("POST /containers/k3s/restart")])
    world.k3s.stop()  # the kernel ended it, and Docker's policy starts it: same container, one restart more
    world.engine.exit_code, world.engine.restarts = 137, 1
    assert world.k3s.start()
    settled = settle(steps_through(world, cluster))
    assert (settled["action"], settled["level"]) == ("nothing", level)
    assert cluster.hosts[S].noted == noted, "no step is noted, so no cooldown begins"
    assert world.actuator().recorded_level() == level
    assert asked == len(
        [call for call in world.engine.calls if call.startswith("POST /containers/k3s/restart")]
    )


def test_e47_a_record_in_memory_alone_is_refused_before_any_step(world: World) -> None:
    """On a tmpfs it would be gone with the kill, and k3s back at full on a host that has no memory for it."""
    world.engine.inspected["Mounts"] = [
        {"Type": "tmpfs", "Destination": str(world.k3s.data)},
        {"Type": "tmpfs", "Destination": str(world.k3s.config.parent)},
    ]
    with pytest.raises(ports.StepRefused, match=r"a tmpfs at .*does not survive"):
        world.actuator().apply_level("etcd-only")
    assert world.restarts() == 0


# --- E48: a stop that no start follows ---


def test_e48_a_stopped_container_of_an_open_step_is_started(world: World) -> None:
    world.at("etcd-only")
    world.engine.running = False
    world.k3s.stop()
    actuator = world.actuator()
    assert actuator.start_stopped() is True
    assert actuator.start_stopped() is False
    assert actuator.current_level() == "etcd-only"
    world.engine.running = False
    world.k3s.stop()
    world.k3s.boot_seconds = 0.5
    actuator.apply_level("etcd-only")
    assert world.restarts() == 0 and "gate" not in world.engine.calls


@pytest.mark.parametrize("policy", ["no", "", "on-failure"])
def test_e48_a_policy_that_would_not_bring_k3s_back_is_refused(world: World, policy: str) -> None:
    world.engine.inspected["HostConfig"]["RestartPolicy"]["Name"] = policy
    with pytest.raises(ports.StepRefused, match=r"restart: unless-stopped"):
        world.actuator().apply_level("etcd-only")
    assert world.recorded() is None and world.restarts() == 0


def test_e48_one_call_restarts_and_nothing_stops(world: World) -> None:
    """Where the host goes down between a stop and a start, `unless-stopped` leaves it stopped."""
    actuator = world.actuator()
    for level in ("control-plane", "etcd-only", "control-plane", "full"):
        actuator.apply_level(level)
    changes = [
        call.split("?")[0] for call in world.engine.calls if re.match(r"(POST|PUT|DELETE) /containers", call)
    ]
    assert set(changes) == {"POST /containers/k3s/exec", "POST /containers/k3s/restart"}
    assert world.restarts() == 2


def test_e48_a_half_done_step_is_found_and_its_k3s_started(world: World) -> None:
    cluster = Cluster()
    step_to(steps_through(world, cluster), "control-plane")

    def power_cut() -> None:
        world.engine.running = False
        world.k3s.stop()
        raise SystemExit

    world.hooks.refuse = None
    process = steps_through(world, cluster)
    process.world.actuator._restart = power_cut
    with pytest.raises(SystemExit):
        step_to(process, "etcd-only")
    cluster.hosts[S].locked = ""
    settled = settle(steps_through(world, cluster))
    assert (settled["action"], settled["level"]) == ("resumed", "etcd-only")
    assert "POST /containers/k3s/start" in world.engine.calls and world.k3s.level == "etcd-only"


# --- E50: a proxy before the socket that does not let all through ---


def test_e50_a_restart_that_is_denied_puts_the_old_record_back(world: World) -> None:
    world.at("control-plane")
    fault(world, "k3s/restart", (403, "<html><body>403 Forbidden</body></html>"))
    with pytest.raises(
        ports.ApplyFailed,
        match=r"restart of container k3s is forbidden.*the old record is "
        r"back",
    ) as caught:
        world.actuator().apply_level("etcd-only")
    assert caught.value.began is False
    assert world.recorded() == "# regrade-level: control-plane\n"


def test_e50_preflight_tells_which_call_is_denied(world: World) -> None:
    world.actuator().preflight()
    assert world.restarts() == 0
    fault(world, "/restart", (403, "<html>403 Forbidden</html>"))
    with pytest.raises(docker_client.EngineError, match=r"restart of container k3s is forbidden"):
        world.actuator().preflight()


def test_e50_a_proxy_that_denies_exec_or_info(world: World) -> None:
    fault(world, "/info", (403, "<html>403 Forbidden</html>"))
    world.actuator().preflight()
    fault(world, "k3s/exec", (403, "<html>403 Forbidden</html>"))
    with pytest.raises(docker_client.EngineError, match=r"exec of container k3s is forbidden"):
        world.actuator().preflight()
    with pytest.raises(ports.LevelUnknown, match=r"exec of container k3s is forbidden"):
        world.actuator().current_level()


@pytest.mark.parametrize(
    ("denied", "named"),
    [
        ("/restart", "restart"),
        ("-may/start", "start"),
        ("-may/archive", "copy"),
        ("k3s/exec", "exec"),
        ("k3s/json", "inspect"),
    ],
)
def test_e50_what_is_denied_is_known_before_lease_and_drain(world: World, denied: str, named: str) -> None:
    cluster = Cluster()
    before = cluster.node(S)
    lease = cluster.api.lease
    fault(world, denied, (403, "<html><body><h1>403 Forbidden</h1></body></html>"))
    with pytest.raises((ports.StepRefused, ports.LevelUnknown)) as caught:
        step_to(steps_through(world, cluster), "control-plane")
    assert f"{named} of container k3s is forbidden (403)" in one_line(caught.value)
    assert "ALLOW_RESTARTS" in str(caught.value)
    assert cluster.node(S) == before and cluster.api.lease == lease
    assert world.recorded() is None and not world.restarts()


# --- E51: root, and yet no permission ---


def test_e51_permission_denied_names_selinux(world: World, tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if path != Path("/") and path.stat().st_uid == os.getuid() and "pytest" in str(path):
            path.chmod(0o755)
    world.engine.path.chmod(0o600)
    script = f"""
import os, sys
sys.path[:0] = {sys.path!r}
import docker, requests
from {docker_client.__name__} import Engine, EngineError
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
else:
    os.chmod({str(world.engine.path)!r}, 0)
try:
    Engine({world.engine.url!r}, "k3s", 2).inspect()
except EngineError as error:
    print(error, error.sent)
"""
    done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, check=False)
    assert "permission denied on the Docker socket" in done.stdout, done.stderr
    assert "label=disable" in done.stdout and done.stdout.strip().endswith("False")


def test_e51_where_root_is_denied_only_selinux_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modes and groups do not hold root up: advice about them would lead away from the cause."""

    def denied(_self: socket.socket, _address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("docker.transport.unixconn.socket.socket.connect", denied)
    with pytest.raises(ports.LevelUnknown, match=r"although this is root.*SELinux.*label=disable") as caught:
        world.actuator().current_level()
    assert "group" not in one_line(caught.value)


def test_e51_the_service_is_given_the_socket_where_selinux_is_enforcing() -> None:
    text = (ROLE / "templates" / "compose.yaml.j2").read_text(encoding="utf-8")
    assert re.search(r"^    security_opt: .*label=disable", text, re.M)


# --- E52: the socket is somewhere else ---


def test_e52_a_rootless_engine_is_refused_by_name(world: World) -> None:
    world.engine.info["SecurityOptions"].append("name=rootless")
    with pytest.raises(ports.StepRefused, match=r"rootless"):
        world.actuator().apply_level("etcd-only")


def test_e52_no_socket(world: World) -> None:
    with pytest.raises(ports.LevelUnknown, match=r"no Docker socket at unix:///none.sock: set DOCKER_HOST"):
        world.actuator(DOCKER_HOST="unix:///none.sock").current_level()


def test_e52_the_socket_is_the_one_that_is_named(world: World) -> None:
    assert world.actuator(DOCKER_HOST=world.engine.url).current_level() == "full"
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(ports.LevelUnknown, match=rf"tcp://127.0.0.1:{port}.*connection refused"):
        world.actuator(DOCKER_HOST=f"tcp://127.0.0.1:{port}").current_level()


def test_e52_a_folder_that_docker_made_for_a_missing_socket(world: World, tmp_path: Path) -> None:
    """What `volumes: [/var/run/docker.sock:...]` leaves on a host whose socket is elsewhere."""
    made = tmp_path / "made-by-docker.sock"
    made.mkdir()
    with pytest.raises(ports.LevelUnknown, match=r"is a folder and no Docker socket.*set DOCKER_HOST"):
        world.actuator(DOCKER_HOST=f"unix://{made}").current_level()
