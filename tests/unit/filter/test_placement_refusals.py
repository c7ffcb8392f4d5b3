# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of what the role refuses to be turned on for, each with a twin that passes, and the page that tells it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.plugin_utils import placement
from ansible_collections.exadev.k3s_regrade.tests.unit.filter.placement_world import (
    DATA,
    GROUP,
    World,
    member,
    network,
    node,
    server,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "refusals.md"
LEVEL, OURS = "github-runner.exadev.com/regrade-level", "github-runner.exadev.com/regrade-ours"
NO_DAEMON = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
)
TOO_OLD_A_CLIENT = (
    "Error response from daemon: client version 1.24 is too old. Minimum supported API version is 1.44, "
    "please upgrade your client to a newer version"
)
ANONYMOUS = "0123456789ab" + "c" * 52

Change = Callable[[World], object]


def both(*changes: Change) -> Change:
    return lambda world: [change(world) for change in changes]


def joined(name: str, number: int, host: str = "") -> Change:
    """One more server is in the cluster, and in the inventory as `host`."""

    def change(world: World) -> None:
        world.nodes.append(node(name, number))
        world.members.append(member(name, number))
        if host:
            world.group[host] = name

    return change


def other_host(host: str, node_name: str) -> Change:
    def change(world: World) -> None:
        world.servers.append({**server("pi-c", 13), "host": host, "node_name": node_name})
        world.group[host] = node_name

    return change


def renamed(world: World, name: str) -> None:
    """pi-a's Node has another name than the inventory says."""
    world.node["metadata"]["name"] = name
    world.group = {**world.group, "pi-a": name}


def only(count: int) -> Change:
    """The group has so few hosts, and the cluster so few servers."""

    def change(world: World) -> None:
        del world.servers[count:], world.nodes[count:], world.members[count:]
        world.group = {name: name for name in GROUP[:count]}

    return change


def in_network(name: str, **found: Any) -> Change:
    def change(world: World) -> None:
        world.inspect["HostConfig"]["NetworkMode"] = name
        world.inspect["NetworkSettings"]["Networks"] = {name: network(**found)}
        world.node["status"]["addresses"][0]["address"] = found["address"]
        world.found["addresses"] = [found["address"]]

    return change


def container(**host_config: object) -> Change:
    return lambda world: world.inspect["HostConfig"].update(host_config)


def mounted(kind: str, **mount: object) -> Change:
    return lambda world: world.inspect.update(
        Mounts=[{"Type": kind, "Destination": DATA, "RW": True, **mount}]
    )


def version(found: str) -> Change:
    return lambda world: world.node["status"]["nodeInfo"].update(kubeletVersion=found)


def started(*words: str, number: int = 0) -> Change:
    args = '["server","%s"]' % '","'.join(words)
    return lambda world: world.annotate("k3s.io/node-args", args, number)


def meshed(kind: str) -> Change:
    return lambda world: [one.update(mesh=kind) for one in world.servers]


def labelled(number: int, level: str, ours: bool) -> Change:
    def change(world: World) -> None:
        world.nodes[number]["metadata"]["labels"][LEVEL] = level
        if ours:
            world.annotate(OURS, "cordon,taint", number)

    return change


# What is wrong, and a twin beside it that is not.
CASES: Dict[str, Tuple[Change, Change]] = {
    # -- what cannot keep its vote
    "an agent": (lambda w: w.found.update(role="agent"), lambda w: None),
    "no other server in the group": (only(1), lambda w: w.servers.__delitem__(slice(1, 3))),
    "two hosts in the group": (only(2), lambda w: w.servers.pop()),
    "two voters, and a learner": (
        lambda w: w.members[2].update(isLearner=True),
        both(joined("pi-d", 14, "pi-d"), lambda w: w.members[3].update(isLearner=True)),
    ),
    "a voter that the inventory does not know": (joined("pi-d", 14), joined("pi-d", 14, "192.168.1.14")),
    "a voter that is no Node": (
        lambda w: w.members.append(member("pi-d", 14)),
        lambda w: w.members.append({"ID": 7, "name": "", "peerURLs": ["https://10.0.0.14:2380"]}),
    ),
    "no API": (
        lambda w: w.silent("E0101 memcache.go:265]\nThe connection to the server 127.0.0.1:6443 was refused.\n"),
        lambda w: None,
    ),
    "no API, where k3s is a unit": (
        lambda w: (
            w.as_unit(), w.servers.__delitem__(slice(1, 3)), w.silent("/usr/local/bin/k3s: No such file or directory")
        ),
        lambda w: w.as_unit(),
    ),
    "an API that does not tell the voters": (
        lambda w: (w.members.clear(), w.unread.update(members="Error from server (ServiceUnavailable): no leader")),
        lambda w: None,
    ),
    "an API that tells nothing more": (
        lambda w: (w.members.clear(), w.leases.clear(), w.unread.update(dict.fromkeys(
            ("authority", "leases", "members"), "Unable to connect to the server: net/http: TLS handshake timeout"
        ))),
        lambda w: None,
    ),
    "a host that cannot be reached": (
        lambda w: w.lose(
            1,
            "Task failed: Failed to connect to the host via ssh: ssh: connect to host 10.0.0.12 port 22: "
            "No route to host",
            away=True,
        ),
        lambda w: w.servers.pop(1),  # of --limit
    ),
    "a host that the look failed on": (
        lambda w: w.lose(1, "The module interpreter '/usr/bin/python3' was not found."),
        lambda w: w.servers.pop(1),
    ),
    "a host that failed earlier in this run": (
        lambda w: w.lose(1, gone=True),
        lambda w: w.servers.pop(1),
    ),
    "no etcd on the Node": (
        lambda w: w.node["metadata"]["labels"].clear(),
        lambda w: w.nodes.append(node("worker", 20, "false")),
    ),
    "two hosts that are one Node": (other_host("pi-c.lan", "pi-c"), joined("pi-d", 14, "pi-d")),
    "the same where this run leaves them out": (
        lambda w: (other_host("pi-c.lan", "pi-c")(w), w.servers.__delitem__(slice(1, 4))),
        lambda w: w.servers.__delitem__(slice(1, 3)),
    ),
    "a Node of another name": (
        lambda w: renamed(w, "raspberrypi"),
        lambda w: (renamed(w, "raspberrypi"), w.servers[0].update(node_name="raspberrypi")),
    ),
    "the Node of another server": (
        lambda w: (w.servers[0].update(node_name="pi-d"), joined("pi-d", 14, "pi-d")(w)),
        joined("pi-d", 14, "pi-d"),
    ),
    "a Node that cannot be told": (
        lambda w: (renamed(w, "raspberrypi"), w.found.update(addresses=["192.168.1.11"])),
        lambda w: w.found.update(addresses=["192.168.1.11", "10.0.0.11"]),
    ),
    "a member that was removed on purpose": (
        lambda w: w.annotate("etcd.k3s.cattle.io/removed-node-name", "pi-a-535ce28c"),
        lambda w: w.annotate("etcd.k3s.cattle.io/node-address", "10.0.0.11"),
    ),
    "the same on a Node outside this run": (
        both(joined("pi-d", 14, "pi-d"), lambda w: w.annotate("etcd.k3s.cattle.io/remove", "true", 3)),
        joined("pi-d", 14, "pi-d"),
    ),
    # -- what would lose its vote or its level
    "a restart policy that leaves it stopped": (
        container(RestartPolicy={"Name": "on-failure"}),
        container(RestartPolicy={"Name": "always"}),
    ),
    "an address that is not pinned": (
        in_network("cluster_default", address="172.20.0.6"),
        in_network("cluster_default", address="172.20.0.6", pinned="172.20.0.6"),
    ),
    "an address on Docker's own network": (
        in_network("bridge", address="172.17.0.2"),
        in_network("container:0a1b", address=""),
    ),
    "a data volume without a name": (
        mounted("volume", Name=ANONYMOUS),
        mounted("volume", Name="k3s-data"),
    ),
    "data in the container itself": (
        lambda w: w.inspect.update(Mounts=[]),
        lambda w: w.inspect.update(
            Args=["server", "--config=/etc/k3s/config.yaml"],
            Mounts=[{"Type": "bind", "Source": "/srv/k3s", "Destination": "/etc/k3s", "RW": True}],
        ),
    ),
    "data elsewhere than the volume": (
        started("--data-dir", "/data"),
        both(started("--data-dir", "/data"), mounted("volume", Name="k3s-data", Destination="/data")),
    ),
    "configuration that is read-only": (
        lambda w: w.inspect["Mounts"].append(
            {"Type": "bind", "Source": "/srv/k3s", "Destination": "/etc/rancher/k3s", "RW": False}
        ),
        lambda w: w.inspect["Mounts"].append(
            {"Type": "bind", "Source": "/srv/k3s", "Destination": "/etc/rancher/k3s", "RW": True}
        ),
    ),
    "k3s that dies on stop": (version("v1.33.5+k3s1"), version("v1.33.6+k3s1")),
    "a cloud provider": (
        lambda w: w.node["spec"].update(providerID="hcloud://123"),
        lambda w: (
            w.node["spec"].update(providerID="hcloud://123"),
            w.servers[0].update(allow_cloud_provider=True),
        ),
    ),
    "a cloud provider that has not come yet": (
        lambda w: w.node["spec"].update(
            providerID="",
            taints=[{"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}],
        ),
        lambda w: w.node["spec"].update(
            providerID="", taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
        ),
    ),
    "the bootstrap server of Headscale": (
        both(meshed("headscale_in_cluster"), started("--cluster-init", "true")),
        both(meshed("headscale_in_cluster"), started("--cluster-init", number=1), lambda w: w.servers.pop(1)),
    ),
    "the same where no server says that it founded": (
        meshed("headscale_in_cluster"),
        meshed("headscale_hosted"),
    ),
    # -- what could not decide
    "no pressure": (
        lambda w: w.found.update(
            pressure="", pressure_error="/proc/pressure/memory: No such file or directory"
        ),
        lambda w: w.found.update(pressure="some avg10=1.00 avg60=0.00 avg300=0.00 total=0"),
    ),
    "a memory limit": (
        lambda w: w.found.update(
            memory_limits=[{"cgroup": "/k3s.slice/docker-0a1b.scope", "bytes": 2 << 30}],
            cgroup="/k3s.slice/docker-0a1b.scope",
        ),
        lambda w: (
            w.found.update(
                memory_limits=[{"cgroup": "/k3s.slice/docker-0a1b.scope", "bytes": 2 << 30}],
                cgroup="/k3s.slice/docker-0a1b.scope",
            ),
            w.set(pressure_file="/sys/fs/cgroup/k3s.slice/memory.pressure"),
        ),
    ),
    "a memory limit under cgroup version 1": (
        lambda w: w.found.update(memory_limit=2 << 30, cgroup=""),
        lambda w: w.found.update(memory_limit=0, cgroup=""),
    ),
    "a memory limit on a unit": (
        lambda w: w.as_unit(
            memory_limits=[{"cgroup": "/system.slice/k3s.service", "bytes": 2 << 30}],
            cgroup="/system.slice/k3s.service",
        ),
        lambda w: w.as_unit(cgroup="/system.slice/k3s.service"),
    ),
    "times that contradict each other": (
        lambda w: w.set(cooldown_down_windows=1),
        lambda w: w.set(cooldown_up_windows=2),
    ),
    "a floor that this host's memory does not allow": (
        lambda w: w.found.update(memory_total=512 << 20),
        lambda w: (
            w.found.update(memory_total=512 << 20),
            w.set(memavailable_floor="64MiB", headroom_etcd_only="200MiB"),
        ),
    ),
    "a port at etcd-only that is the API's own": (
        started("--https-listen-port", "16443"),
        lambda w: (started("--https-listen-port", "16443")(w), w.set(etcd_only_https_port=0)),
    ),
    # -- what could not act
    "no docker": (lambda w: w.unable(engine_error="missing", socket_there=False), lambda w: None),
    "no Docker socket": (
        lambda w: w.unable(
            engine_error=NO_DAEMON,
            socket_there=False,
        ),
        lambda w: None,
    ),
    "Docker may not be asked": (
        lambda w: w.unable(
            engine_error="permission denied while trying to connect to the Docker daemon socket"
        ),
        lambda w: None,
    ),
    "Docker gives no answer": (
        lambda w: w.unable(engine_error=TOO_OLD_A_CLIENT),
        lambda w: w.docker.update(api="1.44"),
    ),
    "podman": (lambda w: w.unable(podman=True), lambda w: None),
    "rootless": (
        lambda w: w.docker.update(
            security=["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"]
        ),
        lambda w: w.docker.update(security=["name=seccomp,profile=builtin", "name=userns"]),
    ),
    "Docker too old": (
        lambda w: w.docker.update(engine="19.03.15", api="1.40"),
        lambda w: w.docker.update(engine="20.10.24", api="1.41"),
    ),
    "no Compose": (lambda w: w.docker.update(compose=""), lambda w: w.docker.update(compose="v2.18.1")),
    "Compose too old": (
        lambda w: w.docker.update(compose="2.3.3"),
        lambda w: w.docker.update(compose="dev"),
    ),
    "no such container": (
        lambda w: w.unable(error="Error: No such container: k3s"),
        lambda w: None,
    ),
    "another container": (lambda w: w.found.update(role=""), lambda w: None),
    "k3s does not run": (lambda w: w.found.update(running=False, addresses=[]), lambda w: None),
    "no such unit": (
        lambda w: w.as_unit(role="", running=False, addresses=[], error="k4s is not-found"),
        lambda w: w.as_unit(),
    ),
    "a unit that is no k3s server": (lambda w: w.as_unit(role=""), lambda w: w.as_unit()),
    "a unit that is an agent's": (lambda w: w.as_unit(role="agent"), lambda w: w.as_unit()),
    "a unit that does not run": (lambda w: w.as_unit(running=False, addresses=[]), lambda w: w.as_unit()),
    "a unit that stays stopped": (
        lambda w: w.as_unit(restart="on-failure"),
        lambda w: w.as_unit(restart="always"),
    ),
    "a unit that is killed too soon": (
        lambda w: w.as_unit(stop="9s 999ms"),
        lambda w: w.as_unit(stop="10s"),
    ),
    "a unit that is wrong in both": (
        lambda w: w.as_unit(restart="no", stop="5s"),
        lambda w: w.as_unit(stop="infinity"),
    ),
    "a host that cannot run the service": (
        lambda w: w.as_unit(
            unfit="/usr/bin/python3 is 3.9, and the service needs 3.10 or newer. Name such a Python in "
            "github_runner_cluster_regrade_python."
        ),
        lambda w: w.as_unit(),
    ),
    "KUBE_SERVER is this server": (
        lambda w: w.calls("https://pi-a.lan:6443", "10.0.0.11"),
        lambda w: w.calls("https://pi-b.lan:6443", "10.0.0.12"),
    ),
    "a virtual address that it holds": (
        lambda w: (
            w.calls("https://10.0.0.100:6443", "10.0.0.100"),
            w.found["addresses"].append("10.0.0.100"),
        ),
        lambda w: w.calls("https://10.0.0.100:6443", "10.0.0.100"),
    ),
    "a name that does not resolve": (
        lambda w: w.calls("https://pi-x.lan:6443", "", "name", "Name or service not known"),
        lambda w: w.calls("https://pi-b.lan:6443", "10.0.0.12"),
    ),
    "another server's API cannot be reached": (
        lambda w: w.calls("https://10.0.0.12:6443", "10.0.0.12", "network", "no answer within 5 s"),
        both(
            labelled(1, "etcd-only", True),
            lambda w: w.calls("https://10.0.0.12:6443", "10.0.0.12", "network", "Connection refused"),
        ),
    ),
    "a name that is not in the certificate": (
        lambda w: w.calls(
            "https://api.lan:6443",
            "10.0.0.12",
            "certificate",
            "Hostname mismatch, certificate is not valid for 'api.lan'.",
        ),
        lambda w: w.calls("https://api.lan:6443", "10.0.0.12"),
    ),
    "another authority": (
        lambda w: w.calls(
            "https://10.0.0.12:6443", "10.0.0.12", "authority", "self-signed certificate in certificate chain"
        ),
        lambda w: None,
    ),
    "a certificate that has expired": (
        lambda w: w.calls("https://10.0.0.12:6443", "10.0.0.12", "validity", "certificate has expired"),
        lambda w: None,
    ),
    "an API that does not serve": (
        lambda w: w.calls("https://10.0.0.12:6443", "10.0.0.12", "answer", "503 apiserver not ready"),
        both(
            labelled(1, "etcd-only", True),
            lambda w: w.calls("https://10.0.0.12:6443", "10.0.0.12", "answer", "503 apiserver disabled"),
        ),
    ),
    # -- another implementation of regrading
    "another service on the host": (
        lambda w: w.docker["others"].append({"name": "cluster-regrade-1", "project": "cluster"}),
        lambda w: w.docker["others"].append(
            {"name": "cluster-regrade-regrade-run-1", "project": "cluster-regrade"}
        ),
    ),
    "another unit on the host": (
        lambda w: w.found.update(units=["k3s-regrade.service"]),
        lambda w: w.as_unit(units=["regrade.service"]),
    ),
    "another service beside a unit": (
        lambda w: w.as_unit(others=[{"name": "cluster-regrade-1", "project": "cluster"}]),
        lambda w: w.as_unit(),
    ),
    "the unit of this role's other runtime": (
        lambda w: w.found.update(units=["regrade.service"]),
        lambda w: w.found.update(units=[]),
    ),
    "the service of this role's other runtime": (
        lambda w: w.as_unit(
            others=[{"name": "k3s-regrade", "project": "cluster-regrade"}], compose_folder="/srv/cluster/regrade"
        ),
        lambda w: w.as_unit(),
    ),
    "what is left of it where Docker gives no answer": (
        lambda w: w.as_unit(compose_folder="/srv/cluster/regrade"),
        lambda w: w.as_unit(),
    ),
    "another Lease": (
        lambda w: w.leases.update({"regrade-lock": "pi-b"}),
        lambda w: w.leases.update({"plndr-cp-lock": "pi-a"}),
    ),
    "a level that is not ours": (labelled(0, "etcd-only", False), labelled(0, "etcd-only", True)),
    "the same on a server outside this run": (
        both(joined("pi-d", 14, "pi-d"), labelled(3, "control-plane", False)),
        both(joined("pi-d", 14, "pi-d"), labelled(3, "control-plane", True)),
    ),
}

WARNED: Dict[str, Tuple[Change, Change]] = {
    "k3s that may die on stop": (version("v1.34.1+k3s1"), version("v1.34.2+k3s1")),
    "kube-vip's address": (
        lambda w: w.leases.update({"plndr-cp-lock": "pi-a"}),
        lambda w: w.leases.update({"plndr-cp-lock": "pi-x"}),
    ),
    "a cloud provider that is allowed": (
        lambda w: (
            w.node["spec"].update(providerID="aws:///a/i-1"),
            w.servers[0].update(allow_cloud_provider=True),
        ),
        lambda w: w.servers[0].update(allow_cloud_provider=True),
    ),
}


def page(heading: str) -> Dict[str, List[str]]:
    part = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", part, re.M)
    return {name: line.split("<br>") for name, line in rows if name not in ("case", "---")}


def changed(change: Change) -> World:
    world = World()
    change(world)
    return world


def row(name: str, lines: List[str]) -> str:
    return f"| {name} | {'<br>'.join(lines)} |"


def test_three_voting_servers_are_allowed_and_nothing_is_said() -> None:
    world = World()
    assert (world.refusals(), world.warnings()) == ([], [])


@pytest.mark.parametrize("name", CASES)
def test_refusals(name: str) -> None:
    wrong, twin = CASES[name]
    lines = changed(wrong).refusals()
    assert lines == page("Refused").get(name), f"in {PAGE.name} it should be:\n{row(name, lines)}"
    assert changed(twin).refusals() == [], "the twin"


@pytest.mark.parametrize("name", WARNED)
def test_warnings(name: str) -> None:
    wrong, twin = WARNED[name]
    world = changed(wrong)
    assert world.warnings() == page("Warned of").get(name), row(name, world.warnings())
    assert world.refusals() == []
    assert changed(twin).warnings() == [], "the twin"


def test_the_page_tells_these_and_no_others() -> None:
    assert list(page("Refused")) == list(CASES)
    assert list(page("Warned of")) == list(WARNED)


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_one_line_that_names_the_host(name: str) -> None:
    for line in changed(CASES[name][0]).refusals():
        assert "\n" not in line and line.endswith(".")
        assert re.search(r"\b(pi-[a-d]|group)\b", line) or "etcd has" in line or "kube-system/" in line


def test_every_host_is_told_at_once_and_everything_of_it() -> None:
    world = World()
    container(RestartPolicy={"Name": "no"})(world)
    world.found.update(pressure="")
    world.servers[1]["found"]["role"] = "agent"
    world.servers[2]["found"]["running"] = False
    del world.members[2]
    told = [line.split(": ")[0] for line in world.refusals()]
    assert told[:4] == ["pi-a", "pi-a", "pi-b", "pi-c"]
    assert len(told) == 5 and told[4].startswith("etcd has 2 voting member(s)")


def test_hosts_that_are_lost_are_told_beside_what_is_wrong_with_the_others() -> None:
    world = World()
    container(RestartPolicy={"Name": "no"})(world)
    for number in (2, 1):
        world.lose(number, "", away=True)
    told = [line.split(" (")[0] for line in world.refusals()[1:]]
    assert told == ["pi-c: could not be looked at", "pi-b: could not be looked at"]
    # What is left of such a host from an earlier play of the same run is not judged, and warns of nothing.
    world.servers.append({"host": "pi-b"})
    assert len(world.refusals()) == 3 and world.warnings() == []


def test_that_no_api_answers_is_told_unless_no_server_could_be_looked_at() -> None:
    world = World()
    world.silent("refused")
    container(RestartPolicy={"Name": "no"})(world)
    assert [line for line in world.refusals() if line.startswith("No server of the group")], "others could be"
    for server_of in world.servers:
        server_of["found"].update(role="")
    assert not [line for line in world.refusals() if line.startswith("No server of the group")]


@pytest.mark.parametrize("name", CASES)
def test_a_cure_that_takes_k3s_down_is_done_on_one_server_after_the_other(name: str) -> None:
    for line in changed(CASES[name][0]).refusals():
        if re.search(r"in Compose|reboot|Take 1\.33|Install 20", line, re.I):
            assert "one server after the other, waiting until each is Ready before the next" in line, line


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "no answer"),
        ("E0101 memcache.go:287] ...\n\nThe connection was refused.\n", "The connection was refused"),
        ("x" * 300, "x" * 200 + "..."),
    ],
)
def test_what_another_program_said_is_told_in_a_few_words(said: str, told: str) -> None:
    assert placement.short(said) == told


@pytest.mark.parametrize("key", ["pressure", "kube_server", "docker", "addresses", "cgroup", "memory_total"])
def test_what_a_host_did_not_tell_is_no_traceback(key: str) -> None:
    world = World()
    del world.found[key]
    assert all(line.startswith("pi-a: ") for line in world.refusals())


def test_a_node_that_is_odd_is_no_traceback() -> None:
    world = World()
    world.nodes.append(
        {"metadata": {"name": "odd", "labels": None, "annotations": {"k3s.io/node-args": "[[["}}}
    )
    world.nodes.append(
        {"metadata": {"name": "odder", "annotations": {"k3s.io/node-args": '{"a":1}'}}, "status": None}
    )
    meshed("headscale_in_cluster")(world)
    assert len(world.refusals()) == 1
