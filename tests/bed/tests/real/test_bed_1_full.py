"""Three servers at full: members, ports, probes, files, Node metadata, pods. Nothing here restarts a server."""

from __future__ import annotations

import json
import re
import socket
import subprocess

import pytest
from bedcluster import TOKEN, Cluster, Server, docker, until


def test_servers_join_as_learners_and_become_voters(cluster: Cluster, one: Server, three: Server) -> None:
    """Join: member add as learner, then promotion; names are <node>-<8 hex> (k3s source, pkg/etcd)."""
    assert "to etcd cluster as a learner" in three.logs()
    members = until(
        30, "three voters", lambda: [m for m in one.members() if "isLearner" not in m][2:] and one.members()
    )
    nodes = sorted(re.fullmatch(r"(server\d)-[0-9a-f]{8}", member["name"])[1] for member in members)
    assert nodes == ["server1", "server2", "server3"]
    assert {url for member in members for url in member["peerURLs"]} == {
        f"https://{server.address}:2380" for server in cluster.servers
    }


def test_etcd_speaks_tls_only_on_the_node_address_and_plain_http_on_loopback_2381(one: Server) -> None:
    """2379 and 2380 on the node address and loopback want client certificates, 2381 is plain on loopback."""
    for port in (2379, 2380):
        with socket.create_connection((one.address, port), 3) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert b"HTTP/1.0 200" not in connection.recv(200)
    assert one.probe("/health", 2379)[0] == 0, "no client certificate, no answer"
    assert one.inside(2381, "/health", scheme="http") == (200, '{"health":"true","reason":""}')
    assert "etcd_server_is_leader" in one.inside(2381, "/metrics", scheme="http")[1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((one.address, 2381), 3)


def test_heartbeat_and_election_timeouts_are_k3ss(one: Server) -> None:
    """500 ms and 5,000 ms."""
    config = one.exec("cat", "/var/lib/rancher/k3s/server/db/etcd/config")
    assert "heartbeat-interval: 500\n" in config and "election-timeout: 5000\n" in config


@pytest.mark.parametrize(("path", "status"), [("/readyz", 401), ("/ping", 200), ("/db/info", 403)])
def test_probes_from_outside(one: Server, path: str, status: int) -> None:
    """Measured, without credentials: /readyz 401, /ping 200, /db/info 403."""
    assert one.probe(path)[0] == status


@pytest.mark.parametrize(
    ("port", "path", "user", "status"),
    [
        (6443, "/readyz", "", 401),
        (6443, "/db/info", "", 200),
        (6444, "/readyz", "", 401),
        (10258, "/healthz", "", 200),
        (6443, "/v1-k3s/apiservers", "", 403),
        (6443, "/v1-k3s/apiservers", "node", 200),
    ],
)
def test_probes_from_loopback(one: Server, port: int, path: str, user: str, status: int) -> None:
    """Measured on loopback; the address list wants basic auth node:<token>."""
    assert one.inside(port, path, user=user)[0] == status


def test_a_wrong_token_gets_no_list(one: Server) -> None:
    assert one.inside(6443, "/v1-k3s/apiservers", user="node", password="wrong")[0] == 403


def test_the_address_list_holds_all_three_in_random_order(cluster: Cluster, one: Server) -> None:
    """etcd key k3s/apiaddresses, written from the endpoints by the holder of Lease k3s-etcd."""
    wanted = sorted(f"{server.address}:6443" for server in cluster.servers)

    def listed() -> list[str]:
        return json.loads(one.inside(6443, "/v1-k3s/apiservers", user="node")[1])

    until(30, "all three in the list", lambda: sorted(listed()) == wanted)
    assert until(20, "another first entry", lambda: listed()[0] != wanted[0])
    assert until(20, "the first entry", lambda: listed()[0] == wanted[0])
    lease = one.object("-n", "kube-system", "lease", "k3s-etcd")["spec"]
    assert lease["leaseDurationSeconds"] == 45 and lease["holderIdentity"].startswith("server")


def test_certificate_authorities_are_the_same_on_all_servers(cluster: Cluster) -> None:
    """/cacerts is the cluster's, as in k3s."""
    answers = {server.probe("/cacerts") for server in cluster.servers}
    assert len(answers) == 1 and answers.pop()[0] == 200


def test_the_path_offers_only_what_the_stock_image_has(one: Server) -> None:
    """No python, no curl; busybox's wget without TLS; docker exec kubectl works."""
    search = "for tool in {}; do command -v $tool; done; true"
    there = "k3s kubectl crictl ctr sh cat cp mv sync wget"
    assert one.exec("sh", "-c", search.format(there)).count("\n") == len(there.split())
    assert one.exec("sh", "-c", search.format("python python3 curl bash apt openssl perl")) == ""
    assert (
        one.exec("sh", "-c", "wget -qO- --no-check-certificate https://127.0.0.1:6443/ping || echo no")
        == "no\n"
    )
    assert one.exec("wget", "-qO-", "http://127.0.0.1:2381/health").startswith('{"health":"true"')
    assert one.kubectl("get", "--raw", "/readyz") == "ok"
    assert one.exec("k3s", "kubectl", "get", "--raw", "/readyz") == "ok"
    assert "v1.34" in one.exec("k3s", "--version")
    assert "local/sleeper:1" in one.exec("ctr", "images", "ls")


def test_an_unknown_flag_is_an_error(cluster: Cluster) -> None:
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", cluster.image, "server", "--no-such"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "flag provided but not defined: -no-such" in done.stdout
    assert done.stdout.count("\n") == 1, "one line, no traceback"


def test_the_image_declares_the_stock_volumes_and_entry_point(cluster: Cluster) -> None:
    config = json.loads(docker("image", "inspect", cluster.image))[0]["Config"]
    assert set(config["Volumes"]) == {"/var/lib/kubelet", "/var/lib/rancher/k3s", "/var/lib/cni", "/var/log"}
    assert (config["Entrypoint"], config["Cmd"]) == (["/bin/k3s"], ["agent"])


def test_k3s_yaml_names_6443_and_is_for_root_alone(one: Server) -> None:
    assert "server: https://127.0.0.1:6443\n" in one.exec("cat", "/etc/rancher/k3s/k3s.yaml")
    assert one.exec("stat", "-c", "%a", "/etc/rancher/k3s/k3s.yaml") == "600\n"


def test_the_node_carries_k3ss_labels_annotations_and_condition(one: Server, two: Server) -> None:
    """Labels etcd and control-plane true, etcd annotations, node-args without the token, EtcdIsVoter."""

    def voter() -> dict | None:
        conditions = one.object("node", two.node)["status"]["conditions"]
        return next((condition for condition in conditions if condition["type"] == "EtcdIsVoter"), None)

    condition = until(40, "the condition", lambda: (found := voter()) and found["status"] == "True" and found)
    assert condition["reason"] == "MemberNotLearner"
    node = one.object("node", two.node)
    labels, annotations = node["metadata"]["labels"], node["metadata"]["annotations"]
    assert labels["node-role.kubernetes.io/etcd"] == labels["node-role.kubernetes.io/control-plane"] == "true"
    assert annotations["etcd.k3s.cattle.io/node-address"] == two.address
    assert annotations["etcd.k3s.cattle.io/node-name"] in {member["name"] for member in one.members()}
    assert json.loads(annotations["k3s.io/node-args"])[0] == "server"
    assert TOKEN not in annotations["k3s.io/node-args"]
    assert "taints" not in node["spec"], "no taint of a cloud provider is left over"
    assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.34.")


def test_the_node_password_has_its_secret(one: Server, two: Server) -> None:
    """/etc/rancher/node/password and Secret <node>.node-password.k3s."""
    assert len(two.exec("cat", "/etc/rancher/node/password").strip()) == 32
    assert one.object("-n", "kube-system", "secret", f"{two.node}.node-password.k3s")["data"]["hash"]


def test_manifests_are_applied_and_applied_again_when_changed(one: Server) -> None:
    """Files under server/manifests."""
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-manifest}\ndata: {value: %s}\n"
    for value in ("first", "second"):
        one.write("/var/lib/rancher/k3s/server/manifests/test.yaml", text % value)
        until(30, value, lambda v=value: one.object("configmap", "from-manifest")["data"]["value"] == v)


POD = """
apiVersion: v1
kind: Pod
metadata: {name: sleeper, labels: {app: sleeper}}
spec:
  terminationGracePeriodSeconds: 2
  containers: [{name: c, image: "local/sleeper:1", imagePullPolicy: Never}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: sleeper}
spec: {minAvailable: 1, selector: {matchLabels: {app: sleeper}}}
"""
EVICTION = json.dumps(
    {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "sleeper", "namespace": "default"}}
)


def test_a_pod_runs_and_a_budget_answers_its_eviction_with_429(one: Server, two: Server) -> None:
    """A real pod: exec through a server's 6443 (an upgrade), Eviction API, 429 while a budget holds."""
    until(20, "the service account", lambda: one.object("serviceaccount", "default"))
    one.kubectl("apply", "-f", "-", content=POD)
    until(40, "the pod runs", lambda: one.object("pod", "sleeper")["status"]["phase"] == "Running")
    assert two.kubectl("exec", "sleeper", "--", "echo", "hello") == "hello\n"
    until(20, "the budget counts", lambda: one.object("pdb", "sleeper")["status"].get("currentHealthy") == 1)

    def evict() -> str:
        command = ["exec", "-i", one.container, "kubectl", "create", "--raw"]
        done = subprocess.run(
            ["docker", *command, "/api/v1/namespaces/default/pods/sleeper/eviction", "-f", "-"],
            capture_output=True,
            text=True,
            input=EVICTION,
        )
        return done.stdout + done.stderr

    assert "TooManyRequests" in evict() or "disruption budget" in evict()
    one.kubectl("delete", "pdb", "sleeper")
    until(20, "the pod is evicted", lambda: '"status":"Success"' in evict().replace(" ", ""), every=1)
    until(30, "the pod is gone", lambda: "NotFound" in _stderr(one, "get", "pod", "sleeper"))


def _stderr(server: Server, *arguments: str) -> str:
    command = ["docker", "exec", server.container, "kubectl", *arguments]
    return subprocess.run(command, capture_output=True, text=True).stderr
