# SPDX-License-Identifier: GPL-3.0-or-later
"""Three servers, each wrong in other ways: one message names all of it, nothing is changed, and put right it passes.

What each refusal says in full, and the twin of each, is the unit tests'; here it is seen that the role finds it out on
a real host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import listing
import plays
from admin_api import AdminApi
from bed import Bed

HOSTS = ("server1", "server2", "server3")
LEVEL = "github-runner.exadev.com/regrade-level"
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
SECRET = "K10-nobody-may-read-this"
IMPOSTOR = "unfit"
STRAY = "stray"
LEASE = "regrade-lock"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
FOREIGN = "old-regrade-1"
DIES_ON_STOP = "fleet/k3s:v1.33.4-k3s1"
VIP_LEASE = "plndr-cp-lock"  # kube-vip's
NO_NODE, NO_SOCKET = "raspberrypi", "/run/nothing.sock"
NO_NAME = "https://no-such-server.invalid:6443"
# In the place of `docker` on a host, with another answer to one question.
SHIM = """#!/bin/sh
case "$1 $2" in
  {question}*) {answer}; exit 0 ;;
esac
exec /usr/bin/docker "$@"
"""


def address(bed: Bed, last: int) -> str:
    return bed.servers[0].address.rpartition(".")[0] + f".{last}"


def by_host(**values: object) -> str:
    """A variable of the role with a value for each host."""
    return f"{{{{ ({json.dumps(values)})[inventory_hostname] }}}}"


def refused(*arguments: str, variables: dict[str, object]) -> list[str]:
    """What a run that is refused says, one line for each refusal; it changed nothing."""
    run = plays.playbook("enable", *arguments, variables=variables)
    assert run.code != 0, run.output
    assert all(result.changed == 0 for result in run.hosts.values()), run.output
    assert SECRET not in run.output
    (found,) = re.finditer(r"^fatal: \[\w+\]: FAILED! => ", run.output, re.M)
    answer, _end = json.JSONDecoder().raw_decode(run.output, found.end())
    lines: list[str] = answer["msg"].split(" | ")
    return lines


def warned(run: plays.Run) -> list[str]:
    """What a run that passes warned of; nothing where the task was skipped."""
    told = r"^TASK \[[^\n]*Warn of what may go wrong\] \**\n(?:ok|(skipping)): [^\n{]*"
    (found,) = re.finditer(told, run.output, re.M)
    if found.group(1):
        return []
    answer, _end = json.JSONDecoder().raw_decode(run.output, found.end())
    lines: list[str] = answer["msg"]
    return lines


def assert_told(lines: list[str], *expected: tuple[str, str]) -> None:
    for who, what in expected:
        assert [line for line in lines if line.startswith(who) and what in line], f"{who} ... {what}: {lines}"


# --- set wrong on the servers and in the cluster ---


@pytest.fixture(scope="class")
def unfit_servers(bed: Bed, api: AdminApi) -> Iterator[None]:
    one, two, three = bed.servers
    image = two.docker("inspect", "--format={{.Config.Image}}", "k3s").stdout.strip()
    held = f"{address(bed, 100)}/32"
    try:
        one.sh(f"ip address add {held} dev eth0")
        one.kubectl("taint", "node", "server1", f"{UNINITIALIZED}=true:PreferNoSchedule")
        # It runs and says that it is a server, and is made as none should be: of an image whose name tells a version
        # that dies when it is stopped, and at an address that Docker chose.
        two.docker("tag", image, DIES_ON_STOP)
        two.docker(
            "run", "--detach", f"--name={IMPOSTOR}", "--memory=64m", "--restart=on-failure",
            f"--env=K3S_TOKEN={SECRET}", "--entrypoint=/bin/sh", DIES_ON_STOP,
            "-c", "sleep 900", "server", f"--token={SECRET}", "--data-dir", "/data",
        )  # fmt: skip
        three.docker("create", f"--name={IMPOSTOR}", image, "agent", "--token", SECRET)
        one.docker("create", f"--name={FOREIGN}", "--label=com.docker.compose.service=regrade", image)
        api.call(
            "POST",
            LEASES,
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}},
        )
        api.call("POST", "/api/v1/nodes", {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": STRAY,
                "labels": {LEVEL: "etcd-only"},
                "annotations": {"etcd.k3s.cattle.io/removed-node-name": f"{STRAY}-535ce28c"},
            },
        })  # fmt: skip
        yield
    finally:
        one.sh(f"ip address del {held} dev eth0", check=False)
        one.kubectl("taint", "node", "server1", f"{UNINITIALIZED}-", check=False)
        for server in bed.servers:
            server.docker("rm", "--force", "--volumes", IMPOSTOR, FOREIGN, check=False)
        two.docker("rmi", DIES_ON_STOP, check=False)
        one.kubectl("delete", "lease", "--namespace=kube-system", "--ignore-not-found", LEASE)
        one.kubectl("delete", "node", "--ignore-not-found", STRAY)


def unfit(bed: Bed) -> dict[str, object]:
    """Variables that are as wrong as the servers."""
    two = bed.servers[1]
    urls = [
        f"https://{bed.servers[0].address}:6443",
        f"https://{address(bed, 100)}:6443",
        f"https://{two.host_container}:6443",
        f"https://{address(bed, 250)}:6443",
        f"https://{two.address}:2379",
        NO_NAME,
        f"https://{two.address}:6443",
    ]
    given: dict[str, object] = {
        "container_name": by_host(server1="k3s", server2=IMPOSTOR, server3=IMPOSTOR),
        "node_name": by_host(server1="server1", server2=NO_NODE, server3="server3"),
        "mesh": "headscale_in_cluster",
        "regrade_pressure_file": by_host(
            server1="/srv/fixture/nothing", server2="/srv/fixture/memory", server3="/srv/fixture/memory"
        ),
        "regrade_cooldown_down_windows": by_host(server1=1, server2=2, server3=2),
        "regrade_kube_server": by_host(server1=urls, server2=[], server3=[]),
    }
    return {f"github_runner_cluster_{name}": value for name, value in given.items()}


def of_server1(bed: Bed) -> list[tuple[str, str]]:
    two = bed.servers[1]
    return [
        (
            "server1: its memory pressure cannot be read (/srv/fixture/nothing: No such file or directory)",
            "psi=1",
        ),
        ("server1: its settings cannot be used: COOLDOWN_DOWN_SECONDS=3", "_cooldown_down_windows"),
        ("server1: a cloud provider manages its Node server1", f"taint {UNINITIALIZED}"),
        ("server1: it is the bootstrap server of a mesh", "started with cluster-init"),
        (f"server1: KUBE_SERVER https://{bed.servers[0].address}:6443", "is this server itself"),
        (f"server1: KUBE_SERVER https://{address(bed, 100)}:6443", "is a virtual address"),
        (f"server1: KUBE_SERVER https://{two.host_container}:6443", "whose certificate is not for it"),
        (
            f"server1: KUBE_SERVER https://{address(bed, 250)}:6443",
            "cannot be reached from the service's network",
        ),
        (f"server1: KUBE_SERVER https://{two.address}:2379", "not of this cluster's authority"),
        (f"server1: KUBE_SERVER {NO_NAME}", "does not resolve"),
    ]


@pytest.mark.usefixtures("unfit_servers")
class TestServersThatDoNotFit:
    def test_each_server_wrong_in_its_own_ways_is_told_in_one_message(self, bed: Bed) -> None:
        before = listing.of_bed(bed)
        lines = refused(variables=unfit(bed))
        assert_told(
            lines,
            *of_server1(bed),
            ("server2: its k3s container has the restart policy on-failure", "`restart: unless-stopped`"),
            (
                "server2: its level would be lost with the container: the data folder /data",
                '"k3s-data:/data"',
            ),
            ("server2: the address of its container on the network bridge", "is not pinned"),
            ("server2: its k3s is 1.33.4", "Take 1.33.6 or newer"),
            ("server2: its k3s runs under a memory limit of 64 MiB", "Take the limit off"),
            (f"server2: the cluster has no Node {NO_NODE}", "github_runner_cluster_node_name"),
            ("server3: its container runs `k3s agent`", "Leave"),
            (f"server1: another implementation of regrading is there: container {FOREIGN}", "docker rm"),
            (f"Node {STRAY} carries the label {LEVEL}=etcd-only", "another implementation"),
            (f"Node {STRAY} carries the annotation etcd.k3s.cattle.io/removed-node-name", "Delete it"),
            (f"The Lease kube-system/{LEASE} is of another implementation", "Turn that one off"),
        )
        # What is well is not told: the address of the peer that answers, the Node that is its own.
        assert not [line for line in lines if f"{bed.servers[1].address}:6443" in line], lines
        assert not [line for line in lines if line.startswith("server1: the Node")], lines
        assert listing.differences(before, listing.of_bed(bed)) == []

    def test_a_rehearsal_of_one_of_them_tells_the_same_of_it(self, bed: Bed, tmp_path: Path) -> None:
        """Beside one whose Docker socket is not there, and in a group that has no other server."""
        alone = tmp_path / "alone.yml"
        alone.write_text("alone: {hosts: {server1: }}\n")
        usual = "/var/run/docker.sock"
        sockets = by_host(server1=usual, server2=NO_SOCKET, server3=usual)
        before = listing.of_bed(bed)
        lines = refused(
            "--check",
            "--diff",
            "--limit=server1,server2",
            f"--inventory={alone}",
            variables={
                **unfit(bed),
                "github_runner_cluster_group": "alone",
                "github_runner_cluster_regrade_docker_socket": sockets,
            },
        )
        assert_told(
            lines,
            *of_server1(bed),
            (f"Node {STRAY} carries", "label"),
            (f"server2: there is no Docker socket at {NO_SOCKET}", "github_runner_cluster_regrade_docker_socket"),
            ("The inventory's group alone has no other server (server1)", "Name all servers"),
            ("etcd has the voter server3-", "which no host of the group alone is"),
        )
        assert not [line for line in lines if line.startswith("server3")], lines
        assert listing.differences(before, listing.of_bed(bed)) == []


@pytest.fixture(scope="class")
def unfit_engines(bed: Bed) -> Iterator[None]:
    podman = {"Client": {"APIVersion": "4.3.1", "Version": "4.3.1", "OsArch": "linux/amd64", "Os": "linux"}}
    answers = {
        "server1": ("version", f"echo '{json.dumps(podman)}'"),
        "server2": ("info", """echo '["name=seccomp,profile=default","name=rootless"]'"""),
        "server3": ('"compose version"', "echo 2.3.3"),
    }
    try:
        for server in bed.servers:
            question, answer = answers[server.name]
            shim = SHIM.format(question=question, answer=answer)
            server.sh("cat >/usr/local/bin/docker && chmod 755 /usr/local/bin/docker", input=shim)
        yield
    finally:
        for server in bed.servers:
            server.sh("rm -f /usr/local/bin/docker")


@pytest.mark.usefixtures("unfit_engines")
class TestEnginesThatDoNotFit:
    def test_engines_and_an_inventory_that_do_not_fit_are_told(self, bed: Bed) -> None:
        before = listing.of_bed(bed)
        names = by_host(server1="server1", server2="raspberrypi", server3="server1")
        lines = refused(variables={"github_runner_cluster_node_name": names})
        assert_told(
            lines,
            ("server1: podman answers to the name `docker`", "Docker's own engine"),
            ("server2: its Docker engine is rootless", "system's engine"),
            (
                "server2: the cluster has no Node raspberrypi",
                "set github_runner_cluster_node_name: server2 here",
            ),
            ("server3: Compose is 2.3.3", "2.18 or newer"),
            ("server3: the Node server1 is at", "set github_runner_cluster_node_name: server3 here"),
            ("server1, server3 all name the Node server1", "its own"),
            ("etcd has the voter server2-", "which no host of the group servers is"),
        )
        assert listing.differences(before, listing.of_bed(bed)) == []


@pytest.fixture
def virtual_address(bed: Bed, api: AdminApi) -> Iterator[None]:
    """As kube-vip writes it, on server1."""
    lease = {"metadata": {"name": VIP_LEASE}, "spec": {"holderIdentity": "server1"}}
    try:
        api.call("POST", LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease})
        yield
    finally:
        bed.servers[0].kubectl("delete", "lease", "--namespace=kube-system", "--ignore-not-found", VIP_LEASE)


@pytest.mark.usefixtures("virtual_address")
def test_put_right_the_same_run_passes(bed: Bed, api: AdminApi) -> None:
    before = listing.of_bed(bed)
    assert UNINITIALIZED not in json.dumps(api.node("server1")["spec"])
    peer = bed.servers[1].address
    # Nothing of it is wrong by itself: another mesh, and a peer that is named.
    variables = {
        "github_runner_cluster_mesh": "headscale_hosted",
        "github_runner_cluster_regrade_kube_server": by_host(
            server1=[f"https://{peer}:6443"], server2=[], server3=[]
        ),
    }
    run = plays.playbook("enable", "--check", "--diff", variables=variables)
    assert run.code == 0, run.output
    assert set(run.hosts) == set(HOSTS)
    # Of the one that holds the address, and of nothing else: the bed's k3s is none that may die on stop.
    (warning,) = warned(run)
    assert warning.startswith(f"server1: it holds kube-vip's virtual address (Lease kube-system/{VIP_LEASE})")
    assert re.search(rf"^\+KUBE_SERVER=https://{peer}:6443$", run.output, re.M), run.output
    assert listing.differences(before, listing.of_bed(bed)) == []
