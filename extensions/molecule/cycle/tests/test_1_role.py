# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role put on every host, and that no k3s was restarted for it."""

from __future__ import annotations

import json
import time

import pytest
import testinfra
from testinfra.host import Host

from bed import Bed, Server
from scenario import before

PLACE = "/srv/cluster/regrade"


@pytest.fixture(params=range(3), ids=["server1", "server2", "server3"])
def server(request: pytest.FixtureRequest, bed: Bed) -> Server:
    found: Server = bed.servers[request.param]
    return found


@pytest.fixture
def target(server: Server) -> Host:
    return testinfra.get_host(f"docker://{server.host_container}")


def test_the_kubeconfig_is_for_root_alone_and_holds_no_administrator(target: Host) -> None:
    kubeconfig = target.file(f"{PLACE}/kube/config")
    assert (kubeconfig.user, kubeconfig.group, kubeconfig.mode) == ("root", "root", 0o600)
    assert target.file(f"{PLACE}/kube").mode == 0o700
    assert "token:" in kubeconfig.content_string
    assert "client-certificate-data" not in kubeconfig.content_string


def test_the_settings_name_the_peers_and_never_the_server_itself(
    target: Host, server: Server, bed: Bed
) -> None:
    settings = dict(
        line.split("=", 1)
        for line in target.file(f"{PLACE}/settings.env").content_string.splitlines()
        if "=" in line
    )
    assert settings["NODE_NAME"] == server.name
    peers = [f"https://{peer.address}:6443" for peer in bed.servers if peer is not server]
    assert settings["KUBE_SERVER"].split(",") == peers
    window = int(settings["PRESSURE_WINDOW_SECONDS"])
    assert window % int(settings["SAMPLE_SECONDS"]) == 0
    for key in ("SUSTAIN_DOWN_SECONDS", "SUSTAIN_UP_SECONDS", "COOLDOWN_DOWN_SECONDS", "COOLDOWN_UP_SECONDS"):
        assert int(settings[key]) % window == 0


def test_the_service_runs_by_itself_and_can_write_little(server: Server) -> None:
    (found,) = json.loads(server.docker("inspect", "k3s-regrade").stdout)
    labels = found["Config"]["Labels"]
    assert labels["com.docker.compose.project"] == "cluster-regrade"
    assert labels["com.docker.compose.service"] == "regrade"
    assert found["State"]["Running"] is True
    assert found["RestartCount"] == 0
    assert found["HostConfig"]["ReadonlyRootfs"] is True
    assert found["HostConfig"]["NetworkMode"] == "host"
    writable = sorted(mount["Destination"] for mount in found["Mounts"] if mount["RW"])
    assert writable == ["/run/k3s-regrade", "/run/lock", "/var/lib/regrade", "/var/run/docker.sock"]


def test_the_metrics_are_there_for_node_exporter(server: Server, target: Host) -> None:
    """On the host, and for others than root to read."""
    written = target.file("/run/k3s-regrade/k3s_regrade.prom")
    assert (written.user, written.mode) == ("root", 0o644)
    text = written.content_string
    assert f'k3s_regrade_info{{server="{server.name}",runtime="docker",step_up="automatic"}} 1\n' in text
    assert f'k3s_regrade_memory_available_bytes{{server="{server.name}"}} ' in text


def test_it_has_no_right_that_it_does_not_use(server: Server) -> None:
    lines = server.docker("exec", "k3s-regrade", "cat", "/proc/1/status").stdout.splitlines()
    status = {line.split(":")[0]: line.split(":")[1].strip() for line in lines if ":" in line}
    lock_memory = 1 << 14  # CAP_IPC_LOCK
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {lock_memory}
    assert status["NoNewPrivs"] == "1"
    (found,) = json.loads(server.docker("inspect", "k3s-regrade").stdout)
    assert found["HostConfig"]["Privileged"] is False
    assert "label=disable" in found["HostConfig"]["SecurityOpt"]  # else SELinux keeps it from the socket


def test_it_can_write_no_file_of_its_image_and_16_mib_of_its_own(server: Server) -> None:
    script = "touch /opt/here; cd /tmp && head -c 20000000 /dev/zero >full; wc -c <full; rm full"
    done = server.docker("exec", "k3s-regrade", "sh", "-c", script, check=False)
    assert "Read-only file system" in done.stderr
    assert "No space left on device" in done.stderr
    assert int(done.stdout) == 16 << 20


def test_the_kernel_holds_it_to_its_memory_and_processes(server: Server) -> None:
    read = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max 2>/dev/null || "
    read += "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/pids/pids.max"
    found = server.docker("exec", "k3s-regrade", "sh", "-c", read).stdout.split()
    assert found == [str(256 << 20), "128"]


def test_it_listens_on_no_port(server: Server) -> None:
    script = """
import os, pathlib
listening = set()
for table in ("tcp", "tcp6", "udp", "udp6"):
    for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" or table.startswith("udp"):
            listening.add(f"socket:[{words[9]}]")
ours = set()
for name in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
    try:
        ours.add(os.readlink(name))
    except OSError:
        pass
assert listening and os.readlink("/proc/1/fd/1") in ours
print(sorted(listening & ours))
"""
    assert server.docker("exec", "k3s-regrade", "python3", "-S", "-c", script).stdout.strip() == "[]"
    (found,) = json.loads(server.docker("inspect", "k3s-regrade").stdout)
    assert not found["HostConfig"]["PortBindings"]


def test_docker_finds_it_healthy(server: Server) -> None:
    """Docker asks once a minute, first after one."""
    end = time.monotonic() + 120
    while (health := server.docker("inspect", "--format={{.State.Health.Status}}", "k3s-regrade").stdout.strip()) == (
        "starting"
    ):
        assert time.monotonic() < end
        time.sleep(2)
    assert health == "healthy"


def test_the_watchers_memory_is_locked_and_no_more_than_it_may_take(server: Server) -> None:
    lines = server.docker("exec", "k3s-regrade", "cat", "/proc/1/status").stdout.splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmLck", "VmRSS"))}
    assert kib["VmLck"] > 0
    assert kib["VmRSS"] <= 12 << 10


def test_without_its_profile_the_project_has_no_service(server: Server) -> None:
    compose = ("compose", f"--project-directory={PLACE}")
    assert server.docker(*compose, "config", "--services").stdout.split() == []
    assert server.docker(*compose, "--profile=regrade", "config", "--services").stdout.split() == ["regrade"]


def test_the_core_lies_there_compiled_for_the_service(server: Server) -> None:
    script = (
        "import importlib.util, pathlib, regrade.cli as cli\n"
        "print(pathlib.Path(importlib.util.cache_from_source(cli.__file__)).is_file())"
    )
    assert server.docker("exec", "k3s-regrade", "python3", "-c", script).stdout.strip() == "True"
    assert len(server.sh(f"ls {PLACE}/lib").stdout.split()) == 1


def test_the_command_names_the_levels(target: Host) -> None:
    levels = target.run("regrade levels --json")
    assert levels.rc == 0
    assert json.loads(levels.stdout) == {"levels": ["full", "control-plane", "etcd-only"]}


def test_no_k3s_was_restarted_for_it(server: Server) -> None:
    # Its container is older than the role's files, and was the same one when the pressure began.
    started = before()["started"][server.name]
    container, at = started.split()
    created = server.sh(f"stat --format=%W {PLACE}/core.zip").stdout.strip()
    began = server.sh(f"date --date={at} +%s").stdout.strip()
    assert int(began) < int(created)
    assert server.docker("inspect", "--format={{.Id}}", "k3s").stdout.strip() == container
