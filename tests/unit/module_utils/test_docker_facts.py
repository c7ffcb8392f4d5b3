# SPDX-License-Identifier: GPL-3.0-or-later
"""What is let through of Docker's answers, that nothing else is, and how its engines are told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils import docker_facts
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.docker_facts import Said
from hypothesis import given
from hypothesis import strategies as st

SECRET = "K10-nobody-may-read-this"
ENGINE = {
    "Client": {"Version": "27.5.1", "ApiVersion": "1.47", "Os": "linux", "Arch": "arm64"},
    "Server": {
        "Platform": {"Name": "Docker Engine - Community"},
        "Components": [{"Name": "Engine", "Version": "27.5.1"}, {"Name": "containerd"}, {"Name": "runc"}],
        "Version": "27.5.1",
        "ApiVersion": "1.47",
        "MinAPIVersion": "1.24",
    },
}
INSPECT: Dict[str, Any] = {
    "Id": "0a1b",
    "Path": "/bin/k3s",
    "Args": [
        "server", "--token", SECRET, f"--agent-token={SECRET}", "--datastore-endpoint", f"https://u:{SECRET}@db",
        "--vpn-auth", f"name=tailscale,joinKey={SECRET}", "-d", "/data", "--config=/data/config.yaml",
    ],
    "Config": {
        "Image": "rancher/k3s:v1.34.9-k3s1",
        "Env": [f"K3S_TOKEN={SECRET}", "K3S_DATA_DIR=/data", f"K3S_URL={SECRET}", "K3S_CONFIG_FILE=/c.yaml"],
        "Labels": {"com.docker.compose.project": "cluster", "com.docker.compose.config": SECRET},
        "Cmd": ["server", "--token", SECRET],
        "Healthcheck": {"Test": ["CMD", SECRET]},
    },
    "State": {"Running": True, "Status": "running", "Pid": 77, "Error": SECRET, "Health": {"Log": [SECRET]}},
    "HostConfig": {
        "NetworkMode": "host", "Memory": 2147483648, "RestartPolicy": {"Name": "unless-stopped"},
        "LogConfig": {"Type": "splunk", "Config": {"splunk-token": SECRET}}, "Tmpfs": {"/run": ""},
    },
    "Mounts": [
        {"Type": "volume", "Name": "k3s-data", "Source": "/var/lib/docker/volumes/k3s-data/_data", "Driver": SECRET,
         "Destination": "/data", "Mode": "z", "RW": True},
    ],
    "NetworkSettings": {"Networks": {"fleet_default": {
        "IPAMConfig": {"IPv4Address": "172.20.0.6", "LinkLocalIPs": [SECRET]}, "IPAddress": "172.20.0.6",
        "IPPrefixLen": 16, "DriverOpts": {"key": SECRET},
    }}},
}  # fmt: skip


def test_no_secret_is_let_through_and_what_is_needed_is() -> None:
    found = docker_facts.harmless(INSPECT)
    assert SECRET not in json.dumps(found)
    assert found["Args"] == ["server", "-d", "/data", "--config=/data/config.yaml"]
    assert found["Config"]["Env"] == ["K3S_DATA_DIR=/data", "K3S_CONFIG_FILE=/c.yaml"]
    assert found["Config"]["Labels"] == {"com.docker.compose.project": "cluster"}
    assert found["HostConfig"]["LogConfig"] == {"Type": "splunk"}
    assert found["NetworkSettings"]["Networks"]["fleet_default"]["IPAMConfig"] == {
        "IPv4Address": "172.20.0.6"
    }
    assert found["Mounts"][0]["Destination"] == "/data"


@given(
    words=st.lists(
        st.sampled_from(["server", "agent", "--token", "--debug", "-t", "--node-ip=10.0.0.1", SECRET])
    ),
    pairs=st.lists(
        st.sampled_from([f"K3S_TOKEN={SECRET}", f"A={SECRET}", f"K3S_CONFIG_FILES={SECRET}", SECRET])
    ),
)
def test_an_argument_or_variable_that_is_not_known_stays_there(words: List[str], pairs: List[str]) -> None:
    found = docker_facts.harmless({"Args": words, "Config": {"Env": pairs, "Labels": {"a": SECRET}}})
    assert SECRET not in json.dumps(found)
    assert found["Args"] == [word for word in words if word in ("server", "agent")][:1]
    assert found["Config"]["Env"] == []


@pytest.mark.parametrize(
    "odd", [{}, {"Args": "server", "Config": [], "Mounts": {}, "NetworkSettings": 3, "State": None}]
)
def test_odd_answers_are_empty_ones(odd: Dict[str, Any]) -> None:
    found = docker_facts.harmless(odd)
    assert docker_facts.of_server({"inspect": found}) == {
        "kind": "container", "error": "", "role": "", "running": False, "memory_limit": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (["server", "--node-name", "agent"], "server"),
        (["agent", "--node-label", "server"], "agent"),
        (["--debug", "server"], "server"),
        (["--config", "server", "agent"], "agent"),
        (["kubectl", "get", "nodes"], ""),
        ([], ""),
    ],
)
def test_the_role_is_k3ss_first_word(words: List[str], role: str) -> None:
    assert docker_facts.of_server({"inspect": {"Args": docker_facts.harmless_words(words)}})["role"] == role


PODMAN_ITSELF = {
    "Client": {
        "APIVersion": "4.3.1",
        "Version": "4.3.1",
        "GoVersion": "go1.19.8",
        "OsArch": "linux/amd64",
        "Os": "linux",
    }
}
PODMANS_SOCKET = {
    "Client": {"Version": "27.5.1", "ApiVersion": "1.41"},
    "Server": {
        "Components": [{"Name": "Podman Engine", "Version": "4.9.3"}],
        "Version": "4.9.3",
        "ApiVersion": "1.41",
    },
}
NOT_THERE = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
)


@pytest.mark.parametrize(
    ("said", "podman", "error"),
    [
        (Said(0, json.dumps(ENGINE), ""), False, ""),
        (Said(0, json.dumps(PODMAN_ITSELF), ""), True, ""),
        (Said(0, json.dumps(PODMANS_SOCKET), ""), True, ""),
        (
            Said(
                125,
                "",
                "Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg.\nError: no",
            ),
            True,
            "",
        ),
        (
            Said(1, json.dumps({"Client": ENGINE["Client"], "Server": None}), f"\n{NOT_THERE}\n"),
            False,
            NOT_THERE,
        ),
        (Said(-1, "", "missing"), False, "missing"),
        (Said(0, "no JSON", ""), False, "no answer"),
    ],
)
def test_who_answers_to_docker(said: Said, podman: bool, error: str) -> None:
    found = docker_facts.engine(said)
    assert (found["podman"], found["engine_error"]) == (podman, error)
    assert found["engine"] == ("27.5.1" if said.output == json.dumps(ENGINE) else found["engine"])


DOCKER = """#!/bin/sh
case "$1" in
  version) cat <<'END'
{version}
END
  ;;
  info) echo '["name=seccomp,profile=builtin"]' ;;
  compose) echo 2.40.3 ;;
  inspect) [ "$3" = k3s ] || {{ echo "Error: No such container: $3" >&2; exit 1; }}; cat <<'END'
{inspect}
END
  ;;
  ps) printf 'k3s-regrade\\tcluster-regrade\\nold\\t\\n' ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "docker"
    file.write_text(DOCKER.format(version=json.dumps(ENGINE), inspect=json.dumps([INSPECT])))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return file


def test_the_whole_look(docker: Path) -> None:
    found = docker_facts.look("k3s", str(docker))
    assert SECRET not in json.dumps(found)
    assert (found["engine"], found["api"], found["compose"]) == ("27.5.1", "1.47", "2.40.3")
    assert (found["error"], found["pid"], found["socket_there"]) == ("", 77, False)
    assert found["security"] == ["name=seccomp,profile=builtin"]
    assert found["others"] == [
        {"name": "k3s-regrade", "project": "cluster-regrade"},
        {"name": "old", "project": ""},
    ]
    assert docker_facts.of_server(found) == {
        "kind": "container", "error": "", "role": "server", "running": True, "memory_limit": 2147483648,
    }  # fmt: skip


def test_a_container_that_is_not_there(docker: Path) -> None:
    found = docker_facts.look("k4s", str(docker))
    assert (found["error"], found["inspect"], found["pid"]) == ("Error: No such container: k4s", None, 0)


def test_a_host_without_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = docker_facts.look("k3s", str(tmp_path / "socket"))
    assert (found["engine_error"], found["socket_there"], found["others"]) == ("missing", False, [])
