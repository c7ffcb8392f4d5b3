"""Servers that change: etcd-only and back, the own-address trap, stops, kills, lost quorum, removed members.

The tests share one cluster; each leaves it at full. Figures named "measured" are those of k3s 1.34.10.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator

import pytest
from bedcluster import (
    AVOIDING,
    BALANCER_FILE,
    DROP_IN,
    ETCD_ONLY,
    TRAPPED,
    Cluster,
    Server,
    docker,
    until,
)


@pytest.fixture(autouse=True)
def settled(cluster: Cluster) -> Iterator[None]:
    """Whatever a test did, or how it failed, the next finds three servers at full."""
    yield
    cluster.settle()


def write_through(server: Server, name: str, timeout: str = "5s") -> str:
    """Write a ConfigMap through one server; what kubectl said."""
    return server.kubectl("create", "configmap", name, f"--request-timeout={timeout}", check=False)


def ids(server: Server) -> dict[str, int]:
    return {member["name"]: member["ID"] for member in server.members()}


def balancer_url(server: Server) -> str:
    found: str = json.loads(server.exec("cat", BALANCER_FILE))["ServerURL"]
    return found


def timed(start: float) -> float:
    return time.monotonic() - start


def ended(server: Server) -> float:
    """When its process ended, by the engine's word: seconds of the wall clock."""
    return datetime.datetime.fromisoformat(server.state()["FinishedAt"]).timestamp()


def test_etcd_only_and_back(cluster: Cluster, one: Server, two: Server) -> None:
    """The flip: probes by level, what is taken down, what stays, member ids.

    Measured on a machine that did nothing else: down in 2.2 s (probe) and 3.2 s (etcd); up in 8.6 s (probe), 14.1 s
    (Node Ready). The waits are about twice that, and the times are printed.
    """
    before, uid = ids(one), one.object("node", two.node)["metadata"]["uid"]
    password = two.exec("cat", "/etc/rancher/node/password")
    start = time.monotonic()
    two.level(ETCD_ONLY)
    stop_and_start = timed(start)
    until(6, "apiserver disabled on 6443", lambda: two.serves("etcd-only"), every=0.05)
    until(6, "etcd healthy", two.etcd_healthy, every=0.05)
    down = timed(start)
    assert two.probe("/ping") == (200, "pong")
    assert two.probe("/db/info")[0] == 403
    for port in (10250, 10248, 10257, 10259):
        assert two.inside(port, "/healthz")[0] == 0, f"{port} must be refused at etcd-only"
    for port, scheme in ((10258, "https"), (2381, "http")):
        assert two.inside(port, "/health" if port == 2381 else "/healthz", scheme=scheme)[0] == 200
    until(15, "an API behind 6444", lambda: two.inside(6444, "/readyz")[0] == 401)
    assert "server: https://127.0.0.1:6444\n" in two.exec("cat", "/etc/rancher/k3s/k3s.yaml")
    assert two.kubectl("get", "--raw", "/readyz") == "ok", "kubectl goes through the balancer"
    assert "created" in write_through(one, "written-while-down")
    assert ids(one) == before
    node = one.object("node", two.node)["metadata"]
    assert node["labels"]["node-role.kubernetes.io/control-plane"] == "true", "labels stay as at full"
    until(30, "its address leaves the endpoints", lambda: two.address not in cluster.endpoints())
    until(
        10, "and the list", lambda: two.address not in one.inside(6443, "/v1-k3s/apiservers", user="node")[1]
    )

    start = time.monotonic()
    two.level(None)
    until(18, "401 on 6443", lambda: two.serves("full"), every=0.05)
    up = timed(start)
    until(18, "Node Ready", lambda: cluster.ready(two))
    assert ids(one) == before and one.object("node", two.node)["metadata"]["uid"] == uid
    assert two.exec("cat", "/etc/rancher/node/password") == password
    assert two.object("configmap", "written-while-down")
    assert "server: https://127.0.0.1:6443\n" in two.exec("cat", "/etc/rancher/k3s/k3s.yaml")
    print(f"\netcd-only: restart {stop_and_start:.1f} s, down {down:.1f} s; up {up:.1f} s")


@pytest.mark.parametrize(
    ("drop_in", "order"),
    [
        (None, ["starting", "apiserver not ready", "401"]),
        (ETCD_ONLY, ["starting", "apiserver disabled"]),
    ],
    ids=["full", "etcd-only"],
)
def test_the_boot_order_on_6443(two: Server, drop_in: str | None, order: list[str]) -> None:
    """Refused; 503 starting; then 503 apiserver not ready and the API, or 503 apiserver disabled (measured)."""
    if drop_in is not None:
        two.write(DROP_IN, drop_in)
    docker("stop", two.container)
    assert two.probe("/readyz")[0] == 0
    docker("start", two.container)
    seen: list[str] = []
    ends = time.monotonic() + 60
    settled = None
    while time.monotonic() < (ends if settled is None else settled):
        status, body = two.probe("/readyz", timeout=1)
        message = json.loads(body)["message"] if status == 503 else str(status)
        if status and message not in seen[-1:]:  # not while refused, nor while the machine is too busy
            seen.append(message)
        if settled is None and order[-1] in seen:
            settled = time.monotonic() + 3  # what it says last it must go on saying
        time.sleep(0.01)
    assert seen == order


def test_the_own_address_first_traps_and_the_process_ends_with_code_0(three: Server) -> None:
    """6444 answers 503 for good, the file names the server itself, kubectl fails, and exit 0 (measured)."""
    three.level(ETCD_ONLY)
    until(10, "the file names itself", lambda: balancer_url(three) == f"https://{three.address}:6443")
    until(5, "etcd healthy", three.etcd_healthy)
    for _ in range(3):
        status, body = three.inside(6444, "/readyz")
        assert status == 503 and "apiserver disabled" in body, f"{status}: {body}"
        time.sleep(0.5)
    assert not three.kubectl("get", "--raw", "/readyz", check=False)
    until(40, "the process ends", lambda: not three.state()["Running"])
    assert three.state()["ExitCode"] == 0
    assert "failed to wait for API server to become ready" in three.logs()


def test_another_https_port_avoids_the_trap(cluster: Cluster, three: Server) -> None:
    """https-listen-port 16443: the own address at 6443 refuses, so the balancer moves on (4 of 4 measured)."""
    three.level(AVOIDING)
    until(10, "apiserver disabled on 16443", lambda: three.serves("etcd-only", 16443))
    assert three.probe("/readyz") == (0, "refused")
    until(10, "an API behind 6444", lambda: three.inside(6444, "/readyz")[0] == 401)
    assert balancer_url(three) == f"https://{three.address}:6443", "its own address came first all the same"
    until(30, "its address leaves the endpoints", lambda: three.address not in cluster.endpoints())
    time.sleep(float(TRAPPED["BED_API_TIMEOUT_SECONDS"]) / 2)
    assert three.state()["Running"] and three.inside(6444, "/readyz")[0] == 401, "and it stays good"
    three.level(None)
    until(30, "full again", lambda: three.serves("full"))


def test_the_cure_is_a_restart_once_the_list_is_without_the_own_address(
    cluster: Cluster, one: Server, three: Server
) -> None:
    """One more restart, once the list no longer holds this address, is good (6 of 6 measured)."""
    three.level(ETCD_ONLY)
    until(10, "trapped", lambda: balancer_url(three) == f"https://{three.address}:6443")
    until(
        70,
        "the list without this address",
        lambda: three.address not in one.inside(6443, "/v1-k3s/apiservers", user="node")[1],
    )
    docker("restart", three.container)
    until(15, "an API behind 6444", lambda: three.inside(6444, "/readyz")[0] == 401)
    assert three.address not in balancer_url(three)


def test_a_configuration_file_elsewhere_moves_the_drop_ins_too(cluster: Cluster, two: Server) -> None:
    """K3S_CONFIG_FILE on the data volume: config.yaml.d beside that file counts (measured)."""
    moved = "/var/lib/rancher/k3s/own/config.yaml"
    before = ids(cluster.servers[0])
    two.write(f"{moved}.d/50.yaml", AVOIDING)
    two.destroy()
    two.create(environment={"K3S_CONFIG_FILE": moved})
    until(15, "apiserver disabled on 16443", lambda: two.serves("etcd-only", 16443))
    until(10, "etcd healthy", two.etcd_healthy)
    assert ids(cluster.servers[0]) == before, "recreation with the same volumes keeps the member"
    two.exec("rm", "-r", f"{moved}.d")
    two.destroy()
    two.create()


def test_sigterm_ends_cleanly_and_sigkill_loses_nothing(cluster: Cluster, one: Server, two: Server) -> None:
    """docker stop: it ends by itself, code 0 (measured: 0.9 to 1.8 s); after SIGKILL the same member comes back."""
    before = ids(one)
    docker("stop", two.container)
    assert two.state()["ExitCode"] == 0, "not killed by the engine at its 10 s"
    docker("start", two.container)
    until(30, "etcd healthy", two.etcd_healthy)
    docker("kill", two.container)
    docker("start", two.container)
    until(30, "etcd healthy after SIGKILL", two.etcd_healthy)
    assert ids(one) == before


def test_without_quorum_etcd_only_stays_and_says_so(
    cluster: Cluster, one: Server, two: Server, three: Server
) -> None:
    """At etcd-only without quorum: /ping 200, /db/info 500, 2381 503 RAFT NO LEADER; it recovers (measured)."""
    two.level(AVOIDING)
    until(15, "etcd healthy", two.etcd_healthy)
    docker("stop", one.container, three.container)
    assert two.probe("/ping", 16443)[0] == 200
    assert two.inside(16443, "/db/info")[0] == 500
    until(30, "no leader", lambda: "RAFT NO LEADER" in two.inside(2381, "/health", scheme="http")[1])
    assert two.inside(2381, "/health", scheme="http")[0] == 503
    assert two.state()["Running"]
    docker("start", one.container, three.container)
    until(40, "etcd healthy again", two.etcd_healthy)


def test_one_etcd_only_and_one_full_still_take_writes_and_a_full_one_alone_exits(
    cluster: Cluster, one: Server, two: Server, three: Server
) -> None:
    """Two alive: writes go on. Alone at full: writes fail, and about 11 s later exit 1 (measured)."""
    three.level(AVOIDING)
    until(15, "etcd healthy", three.etcd_healthy)
    docker("stop", two.container)
    until(30, "writes go on", lambda: "created" in write_through(one, f"two-alive-{time.monotonic_ns()}"))
    lease = ("-n", "kube-system", "lease", "kube-scheduler")
    until(40, "leadership", lambda: one.object(*lease)["spec"]["holderIdentity"].startswith(one.node))
    docker("stop", three.container)
    assert "created" not in write_through(one, "alone", "3s")
    until(30, "the process ends", lambda: not one.state()["Running"])
    assert one.state()["ExitCode"] == 1
    assert "leaderelection lost" in one.logs()
    alone = ended(one) - ended(three)
    assert alone > 5, "it goes on trying before it gives up"
    print(f"\nalone for {alone:.1f} s")
    docker("start", one.container, two.container, three.container)


def test_deleting_a_node_removes_its_member_and_a_restart_joins_anew(
    cluster: Cluster, one: Server, two: Server
) -> None:
    """Within 6 s; the process stays up with a dead etcd; a restart joins with a new member id (measured)."""
    before = ids(one)
    gone = next(name for name in before if name.startswith(f"{two.node}-"))
    start = time.monotonic()
    one.kubectl("delete", "node", two.node)
    until(6, "the member is removed", lambda: gone not in ids(one))
    print(f"\nmember removed {timed(start):.1f} s after its Node")
    until(10, "etcd is dead", lambda: two.inside(2381, "/health", scheme="http")[0] == 0)
    assert two.state()["Running"]
    docker("restart", two.container)
    until(60, "the Node is back", lambda: cluster.ready(one))
    after = ids(one)
    (new,) = after.keys() - before.keys()
    assert new.startswith(f"{two.node}-") and after[new] not in before.values()


def test_another_node_password_is_refused(cluster: Cluster, one: Server, two: Server) -> None:
    """A node whose password does not match its Secret: NodePasswordValidationFailed, no kubelet."""
    kept = two.exec("cat", "/etc/rancher/node/password")
    two.write("/etc/rancher/node/password", "another\n")
    docker("restart", two.container)
    until(40, "refused", lambda: "Node password rejected" in two.logs())
    events = until(
        20,
        "the event",
        lambda: one.object("events", "--field-selector", "reason=NodePasswordValidationFailed")["items"],
    )
    assert events[0]["involvedObject"]["name"] == two.node
    assert two.inside(10250, "/healthz")[0] == 0, "the kubelet must not run"
    two.write("/etc/rancher/node/password", kept)
    docker("restart", two.container)


def test_a_changed_address_is_refused_and_the_old_one_works_again(cluster: Cluster, two: Server) -> None:
    """Refused for ever: "not a member of the etcd cluster" (k3s#2732)."""
    two.destroy()
    two.create(address=f"{cluster.subnet}.99")
    until(30, "refused", lambda: "this server is a not a member of the etcd cluster" in two.logs())
    time.sleep(3)
    assert "Kube API server is now running" not in two.logs()
    two.destroy()
    two.create()
    until(40, "full at the old address", lambda: two.serves("full"))
    assert not two.exec("ls", DROP_IN, check=False)
