# SPDX-License-Identifier: GPL-3.0-or-later
"""The field cases that the role meets before it turns regrading on: refused or passed, told in one line, by its row.

The whole table of refusals is tests/unit/filter/test_placement_refusals.py's; what a running watcher does about the
same conditions is the other files'.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils import docker_facts
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.docker_facts import Said
from ansible_collections.exadev.k3s_regrade.tests.unit.filter.placement_world import (
    GROUP,
    World,
    member,
    network,
    node,
    server,
)
from ansible_collections.exadev.k3s_regrade.tests.unit.role.test_role_files import rendered

ROLE = Path(__file__).resolve().parents[3] / "roles" / "github_runner_cluster"
# Fixture D1: the container whose k3s was given another address.
D1: Dict[str, Any] = {
    "Id": "249662c60a09",
    "Args": ["server"],
    "State": {
        "Status": "restarting",
        "Running": True,
        "Restarting": True,
        "OOMKilled": True,
        "ExitCode": 137,
    },
    "HostConfig": {
        "NetworkMode": "bridge",
        "Memory": 2147483648,
        "RestartPolicy": {"Name": "unless-stopped"},
        "LogConfig": {"Type": "none", "Config": {}},
    },
    "Config": {"StopTimeout": None, "Labels": {"com.docker.compose.project": "fleet"}},
    "NetworkSettings": {"Networks": {"fleet_default": {"IPAMConfig": None, "IPAddress": "172.20.0.6"}}},
}


def told(world: World, words: str) -> List[str]:
    return [line for line in world.refusals() if words in line]


def from_inspect(inspect: Dict[str, Any]) -> World:
    """pi-a as the module sees it on the host."""
    world = World()
    world.docker["inspect"] = docker_facts.harmless(inspect)
    world.found.update(docker_facts.of_server(world.docker))
    return world


# --- A1 and A2: no pressure to read ---


@pytest.mark.parametrize(
    ("pressure", "error", "found"),
    [
        ("", "/proc/pressure/memory: No such file or directory", "No such file or directory"),
        ("", "/proc/pressure/memory: Operation not supported", "Operation not supported"),
        ("", "/proc/pressure/memory: Permission denied", "Permission denied"),
        ("", "", "the file is empty"),
        ("\n", "", "the file is empty"),
        ("full avg10=0.00 avg60=0.00 avg300=0.00 total=3", "", "no line `some ... total=`"),
        ("some avg10=0.00 avg60=0.00 avg300=0.00 total=", "", "no line `some ... total=`"),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_a1_and_a2_a_host_without_pressure_is_refused_and_told_both_causes(
    pressure: str, error: str, found: str, number: int
) -> None:
    world = World()
    world.servers[number]["found"].update(pressure=pressure, pressure_error=error)
    (line,) = world.refusals()
    assert line.startswith(f"{GROUP[number]}: ") and found in line
    assert "CONFIG_PSI" in line and "psi=1" in line


# --- A9: a container that thrashes at its own limit ---

LIMIT = "/k3s.slice/docker-0a1b.scope"


@pytest.mark.parametrize(
    ("docker", "kernel", "file", "refused"),
    [
        (0, [], "/proc/pressure/memory", False),
        (2 << 30, [], "/proc/pressure/memory", True),
        (0, [(LIMIT, 2 << 30)], "/proc/pressure/memory", True),
        (0, [("/k3s.slice", 2 << 30)], "/proc/pressure/memory", True),
        (2 << 30, [(LIMIT, 2 << 30)], f"/sys/fs/cgroup{LIMIT}/memory.pressure", False),
        (2 << 30, [(LIMIT, 2 << 30)], "/sys/fs/cgroup/k3s.slice/memory.pressure", False),
        (2 << 30, [(LIMIT, 2 << 30)], "/sys/fs/cgroup/memory.pressure", True),
        (2 << 30, [(LIMIT, 2 << 30)], "/sys/fs/cgroup/k3s.slice/docker-0a1/memory.pressure", True),
        (2 << 30, [(LIMIT, 2 << 30)], "/sys/fs/cgroup/other.slice/memory.pressure", True),
        (2 << 30, [(LIMIT, 2 << 30)], f"/srv{LIMIT}/memory.pressure", True),
    ],
)
def test_a9_a_limit_on_k3s_is_refused_unless_its_own_pressure_is_read(
    docker: int, kernel: List[Tuple[str, int]], file: str, refused: bool
) -> None:
    world = World()
    world.found.update(
        cgroup=LIMIT,
        memory_limit=docker,
        memory_limits=[{"cgroup": at, "bytes": size} for at, size in kernel],
    )
    world.set(pressure_file=file)
    lines = world.refusals()
    assert [bool(re.search(r"memory limit of 2048 MiB.*pressure_file", line)) for line in lines] == [
        True
    ] * refused


# --- B14: how many voters ---


@pytest.mark.parametrize("voters", [1, 2])
@pytest.mark.parametrize("how", ["in the cluster", "of more Nodes", "learners", "not started"])
def test_b14_fewer_than_three_voters_are_refused_whatever_the_inventory_says(voters: int, how: str) -> None:
    world = World()
    if how == "in the cluster":
        del world.nodes[voters:], world.members[voters:], world.servers[voters:]
    elif how == "of more Nodes":
        del world.members[voters:]
    else:
        for one in world.members[voters:]:
            one.update(isLearner=True) if how == "learners" else one.update(name="")
    (line,) = told(world, "and stepping one down needs 3")
    assert line.startswith(f"etcd has {voters} voting member(s)")


@pytest.mark.parametrize("size", [3, 4, 5])
def test_b14_three_voters_and_more_pass_where_the_inventory_names_them(size: int) -> None:
    world = World()
    for number in range(14, 11 + size):
        world.nodes.append(node(f"pi-{number}", number))
        world.members.append(member(f"pi-{number}", number))
        world.group[f"host-{number}"] = f"pi-{number}"
    assert world.refusals() == []
    for number in range(14, 11 + size):
        del world.group[f"host-{number}"]
        assert told(world, f"(Node pi-{number}), which no host of the group servers is")


# --- B15: a member that was removed by an annotation (fixture N4) ---


@pytest.mark.parametrize("key", ["remove", "removed-node-name"])
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("in_this_run", [True, False])
def test_b15_a_removed_member_is_refused_wherever_its_node_is(
    key: str, number: int, in_this_run: bool
) -> None:
    world = World()
    world.annotate(f"etcd.k3s.cattle.io/{key}", "pi3-535ce28c", number)
    if not in_this_run:
        del world.servers[number]
    (line,) = world.refusals()
    assert (
        f"the annotation etcd.k3s.cattle.io/{key}" in line
        and f"`kubectl delete node {GROUP[number]}`" in line
    )


# --- B16: something deletes Nodes that are not Ready ---


@pytest.mark.parametrize(
    "provider", ["hcloud://123", "aws:///eu-1/i-0", "openstack:///1", "proxmox://a/1", "k3s:/pi-a"]
)
def test_b16_a_node_of_a_cloud_provider_is_refused_unless_it_is_allowed(provider: str) -> None:
    world = World()
    world.node["spec"] = {"providerID": provider}
    (line,) = world.refusals()
    assert provider in line and "removes its etcd member" in line and "allow_cloud_provider: true" in line
    world.servers[0]["allow_cloud_provider"] = True
    assert world.refusals() == []
    (line,) = world.warnings()
    assert provider in line


@pytest.mark.parametrize("spec", [{}, {"providerID": ""}, {"providerID": "k3s://pi-a"}, {"providerID": None}])
def test_b16_k3ss_own_and_no_provider_pass(spec: Dict[str, Any]) -> None:
    world = World()
    world.node["spec"] = spec
    assert (world.refusals(), world.warnings()) == ([], [])


# --- E37: versions of k3s that end at once when they are stopped ---


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("1.33.3", "passed"), ("1.33.4", "refused"), ("1.33.5", "refused"), ("1.33.6", "passed"),
        ("1.31.11", "passed"), ("1.31.12", "warned of"), ("1.31.13", "warned of"), ("1.31.14", "passed"),
        ("1.32.7", "passed"), ("1.32.9", "warned of"), ("1.32.10", "passed"),
        ("1.34.1", "warned of"), ("1.34.2", "passed"), ("1.34.10", "passed"), ("1.33.45", "passed"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["the Node", "the image"])
def test_e37_the_version_rule(version: str, verdict: str, where: str) -> None:
    world = World()
    if where == "the Node":
        world.node["status"]["nodeInfo"]["kubeletVersion"] = f"v{version}+k3s1"
    else:  # one that the next start will run
        world.inspect["Config"]["Image"] = f"registry.lan:5000/rancher/k3s:v{version}-k3s1"
    found = "refused" if world.refusals() else "warned of" if world.warnings() else "passed"
    assert found == verdict
    assert all(f"k3s is {version}, " in line for line in world.refusals() + world.warnings())


@pytest.mark.parametrize("said", ["v1.33.5-rc1+k3s1", "v1.33.5-rc2-k3s1"])
def test_e37_a_candidate_counts_as_its_release(said: str) -> None:
    world = World()
    world.node["status"]["nodeInfo"]["kubeletVersion"] = said
    assert told(world, "k3s is 1.33.5, ")


@pytest.mark.parametrize("image", ["rancher/k3s:latest", "rancher/k3s@sha256:0a1b", "local/k3s", ""])
def test_e37_an_image_that_tells_no_version_leaves_it_to_the_node(image: str) -> None:
    world = World()
    world.inspect["Config"]["Image"] = image
    assert (world.refusals(), world.warnings()) == ([], [])


# --- E39: the container comes back with another address ---


def test_e39_the_container_of_the_report_is_refused_with_the_lines_that_cure_it() -> None:
    world = from_inspect(D1)
    world.node["status"]["addresses"][0]["address"] = "172.20.0.6"
    world.found["addresses"] = ["172.20.0.6"]
    (line,) = told(world, "is not pinned")
    assert "`networks: {default: {ipv4_address: 172.20.0.6}}`" in line


@pytest.mark.parametrize(
    ("mode", "networks", "own", "refused"),
    [
        ("host", {"host": network("")}, "10.0.0.11", False),
        ("a", {"a": network("172.20.0.6")}, "172.20.0.6", True),
        ("a", {"a": network("172.20.0.6", pinned="172.20.0.6")}, "172.20.0.6", False),
        (
            "a",
            {"a": network("172.20.0.6", pinned="172.20.0.6"), "proxy": network("172.21.0.2")},
            "172.20.0.6",
            False,
        ),
        (
            "a",
            {"a": network("172.20.0.6", pinned="172.20.0.6"), "b": network("172.21.0.2")},
            "172.21.0.2",
            True,
        ),
        ("a", {"a": network("172.20.0.6")}, "100.64.0.1", False),  # node-ip on the mesh
        ("container:tailscale", {}, "100.64.0.1", False),
    ],
)
def test_e39_what_must_be_pinned_is_the_nodes_own_address(
    mode: str, networks: Dict[str, Any], own: str, refused: bool
) -> None:
    world = World()
    world.inspect["HostConfig"]["NetworkMode"] = mode
    world.inspect["NetworkSettings"]["Networks"] = networks
    world.node["status"]["addresses"][0]["address"] = own
    world.found["addresses"] = [own]
    assert bool(told(world, "is not pinned")) == refused
    assert len(world.refusals()) == refused


# --- E43: the client is too old or too new for the engine ---


@pytest.mark.parametrize(
    "said",
    [
        "Error response from daemon: client version 1.24 is too old. Minimum supported API version is 1.44",
        "Error response from daemon: client version 1.44 is too new. Maximum supported API version is 1.43",
    ],
)
def test_e43_the_engines_own_words_are_told_and_nothing_is_pinned(said: str) -> None:
    world = World()
    world.unable(**docker_facts.engine(Said(1, '{"Client":{"ApiVersion":"1.24"}}', said + "\n")))
    (line,) = world.refusals()
    assert f"Docker gives no answer ({said})" in line
    for file in ROLE.rglob("*"):
        if file.is_file():
            assert "DOCKER_API_VERSION" not in file.read_text(encoding="utf-8"), file


@pytest.mark.parametrize(("api", "passes"), [("1.40", False), ("1.41", True), ("1.52", True), ("2.0", True)])
def test_e43_an_engine_is_old_by_its_own_version_alone(api: str, passes: bool) -> None:
    world = World()
    world.docker["api"] = api
    assert bool(world.refusals()) != passes


# --- E45: a logging driver that cannot be read ---


@pytest.mark.parametrize("driver", ["none", "journald", "splunk", "fluentd", ""])
def test_e45_no_logging_driver_is_refused_since_no_log_is_read(driver: str) -> None:
    world = World()
    world.inspect["HostConfig"]["LogConfig"]["Type"] = driver
    assert world.refusals() == []
    tasks = "".join(file.read_text(encoding="utf-8") for file in (ROLE / "tasks").glob("regrade_*.yml"))
    assert not re.search(r"docker,? (container,? )?logs", tasks)


# --- E48: a restart policy that leaves k3s stopped ---


@pytest.mark.parametrize(
    ("policy", "refused"),
    [("", True), ("no", True), ("on-failure", True), ("unless-stopped", False), ("always", False)],
)
def test_e48_the_role_checks_the_policy(policy: str, refused: bool) -> None:
    world = from_inspect({**D1, "HostConfig": {"RestartPolicy": {"Name": policy}, "NetworkMode": "host"}})
    world.docker["inspect"]["Mounts"] = World().inspect["Mounts"]
    assert bool(told(world, "`restart: unless-stopped`")) == refused
    assert len(world.refusals()) == refused


# --- E52: the socket is somewhere else, or the engine is rootless ---

COLIMA = "/home/u/.colima/default/docker.sock"


def test_e52_a_socket_that_is_not_there_is_refused_with_the_variable_that_names_it() -> None:
    world = World()
    world.unable(
        **docker_facts.engine(Said(1, "{}", "Cannot connect to the Docker daemon")), socket_there=False
    )
    (line,) = world.refusals()
    assert "no Docker socket at /var/run/docker.sock" in line
    assert "github_runner_cluster_regrade_docker_socket" in line and "docker context inspect" in line
    # Also where something answers to the command by another way, such as a context: the service has the socket alone.
    world = World()
    world.docker["socket_there"] = False
    assert told(world, "no Docker socket")


def test_e52_the_socket_that_is_named_is_the_one_for_role_service_and_command() -> None:
    named = {"github_runner_cluster_regrade_docker_socket": COLIMA}
    compose = rendered("compose.yaml.j2", **named)
    assert f"source: {COLIMA}" in compose and "target: /var/run/docker.sock" in compose
    assert "create_host_path: false" in compose, "Docker would make a folder of it"
    command = rendered("regrade.sh.j2", __github_runner_cluster_regrade_dir="/srv/cluster/regrade", **named)
    assert f"export DOCKER_HOST=unix://{COLIMA}\n" in command
    main = (ROLE / "tasks" / "main.yml").read_text(encoding="utf-8")
    assert "DOCKER_HOST: unix://{{ github_runner_cluster_regrade_docker_socket }}" in main


@pytest.mark.parametrize(
    "options", [["name=rootless"], ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"]]
)
def test_e52_a_rootless_engine_is_refused_by_name_before_anything_is_made(options: List[str]) -> None:
    world = World()
    world.docker["security"] = options
    (line,) = world.refusals()
    assert "rootless" in line


# --- F57: a virtual address ---


@pytest.mark.parametrize("url", ["https://10.0.0.100:6443", "https://vip.lan:6443"])
@pytest.mark.parametrize("holder", [0, 1, 2])
def test_f57_a_virtual_address_is_refused_wherever_it_is_now(url: str, holder: int) -> None:
    """Every server of the fleet names it, and the run is refused for the one that holds it."""
    world = World()
    for one in world.servers:
        one["found"]["kube_server"] = [{"url": url, "addresses": ["10.0.0.100"], "problem": "", "words": ""}]
    assert world.refusals() == [], "the address of a balancer outside"
    world.servers[holder]["found"]["addresses"].append("10.0.0.100")
    (line,) = world.refusals()
    assert line.startswith(f"{GROUP[holder]}: KUBE_SERVER {url} is a virtual address")
    assert "own addresses" in line


def test_f57_another_address_of_a_peer_is_no_virtual_one() -> None:
    world = World()
    world.calls("https://100.64.0.12:6443", "100.64.0.12")  # on the mesh
    world.servers[1]["found"]["addresses"].append("100.64.0.12")
    assert world.refusals() == []


@pytest.mark.parametrize("address", ["10.0.0.11", "127.0.0.1", "127.0.1.1", "::1", "::ffff:10.0.0.11"])
def test_f57_one_that_leads_to_this_server_itself_is_refused_by_whatever_name(address: str) -> None:
    world = World()
    world.calls("https://api.lan:6443", address)
    (line,) = world.refusals()
    assert "is this server itself" in line


def test_f57_who_holds_kube_vips_address_is_warned() -> None:
    world = World()
    world.leases["plndr-cp-lock"] = "pi-b"
    assert world.refusals() == []
    (line,) = world.warnings()
    assert line.startswith("pi-b: it holds kube-vip's virtual address")


# --- H64: names in the inventory, on the host and in the cluster differ (fixture I1) ---

NODES = ("raspberrypi", "pi2", "node3.lan")
HOSTS = ("pi-a", "192.168.1.12", "node3.lan")


def fleet(*node_names: str) -> World:
    """Inventory I1, with these as github_runner_cluster_node_name."""
    world = World()
    world.servers = [
        {**server(host, number), "node_name": name}
        for number, (host, name) in enumerate(zip(HOSTS, node_names), 11)
    ]
    world.nodes = [node(name, number) for number, name in enumerate(NODES, 11)]
    world.members = [member(name, number) for number, name in enumerate(NODES, 11)]
    world.group = dict(zip(HOSTS, node_names))
    return world


def test_h64_names_that_differ_are_refused_and_each_host_is_told_its_own() -> None:
    lines = fleet(*HOSTS).refusals()
    assert (
        "The Node at this server's address is raspberrypi: set github_runner_cluster_node_name: raspberrypi"
        in lines[0]
    )
    assert "The Node at this server's address is pi2: set github_runner_cluster_node_name: pi2" in lines[1]
    assert [line.partition(": ")[0] for line in lines[:2]] == ["pi-a", "192.168.1.12"]
    assert not [line for line in lines if line.startswith("node3.lan: ")], "whose name is right"


def test_h64_named_right_they_pass_whatever_the_inventory_calls_them() -> None:
    assert fleet(*NODES).refusals() == []


def test_h64_a_wrong_node_that_is_there_is_refused_too() -> None:
    lines = fleet("pi2", "raspberrypi", "node3.lan").refusals()
    assert [line.partition(": ")[0] for line in lines] == ["pi-a", "192.168.1.12"]
    assert all("it is another server's" in line for line in lines)


def test_h64_two_hosts_that_are_one_node_are_refused() -> None:
    lines = fleet("raspberrypi", "raspberrypi", "node3.lan").refusals()
    assert [line for line in lines if line.startswith("192.168.1.12, pi-a all name the Node raspberrypi")]


def test_h64_voters_are_counted_from_etcd_and_not_from_the_inventory() -> None:
    world = fleet(*NODES)
    del world.members[2]
    assert told(world, "etcd has 2 voting member(s)")
    world = fleet(*NODES)
    del world.servers[1:]
    assert world.refusals() == [], "the others are in the group, and not in this run"
