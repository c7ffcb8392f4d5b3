# SPDX-License-Identifier: GPL-3.0-or-later
"""What the adapters read from Docker, k3s, the API, the kubeconfig and the disk: no shape of it makes them fail."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
import yaml
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    docker_engine,
    kubernetes_api,
    level_record,
    pair_files,
    psi,
    systemctl,
    systemd_unit,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import docker_probe as probe
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    docker_record as record,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.state_files import (
    StateFiles,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import gate
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    ClusterError,
    RegradeError,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import LEVELS
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease, Node, Pod
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Authority
from ansible_collections.exadev.k3s_regrade.tests.unit.properties.shapes import JSON, holed, one_line
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


# --- the drop-in record ---


@given(st.sampled_from(LEVELS), st.just(0) | st.integers(1024, 65535))
def test_a_record_names_its_level_and_port(level: str, port: int) -> None:
    text = level_record.text_for(level, port) or None
    assert level_record.level_of(text) == level
    assert level_record.port_of(text) == (port if level == "etcd-only" else 0)


RECORD_LINES = st.lists(
    st.sampled_from([
        "# regrade-level: etcd-only", "# regrade-level: full", "# regrade-level: off", "# regrade-level:",
        "disable-agent: true", "https-listen-port: 16443", "https-listen-port: 99999", "https-listen-port: ٣٣٣٣٣",
        "https-listen-port: " + "9" * 5000, "\x00",
    ])
).map("\n".join)  # fmt: skip


@given(st.text() | RECORD_LINES)
@example("https-listen-port: " + "9" * 5000)
@example("https-listen-port: 99999")
def test_any_record_is_a_level_or_one_line(text: str) -> None:
    assert 0 <= level_record.port_of(text) < 65536
    try:
        assert level_record.level_of(text) in LEVELS
    except level_record.RecordWrong as error:
        one_line(error)


# --- docker inspect ---

INSPECT: Dict[str, Any] = {
    "Id": "249662c60a09",
    "Name": "/249662c60a09_k3s-1",
    "RestartCount": 4,
    "Args": ["server", "--config", "/data/config.yaml", "--node-ip=10.0.0.11"],
    "State": {
        "Status": "restarting", "Running": True, "Restarting": True, "OOMKilled": True, "ExitCode": 137,
        "StartedAt": "2026-09-20T10:39:58Z", "FinishedAt": "2026-09-20T10:39:50Z",
    },
    "HostConfig": {
        "NetworkMode": "bridge", "Memory": 2147483648, "RestartPolicy": {"Name": "unless-stopped"},
        "LogConfig": {"Type": "none", "Config": {}}, "Tmpfs": {"/run": ""},
    },
    "Config": {"StopTimeout": None, "Env": ["K3S_CONFIG_FILE=/data/config.yaml", "PATH=/bin"], "Labels": {"a": "b"}},
    "Mounts": [
        {"Type": "volume", "Name": "k3s-data", "Destination": "/var/lib/rancher/k3s", "RW": True},
        {"Type": "bind", "Source": "/srv", "Destination": "/etc/rancher/k3s", "RW": False},
    ],
    "NetworkSettings": {"Networks": {"fleet_default": {"IPAMConfig": None, "IPAddress": "172.20.0.6"}}},
}  # fmt: skip


@given(holed(INSPECT) | st.dictionaries(st.sampled_from(sorted(INSPECT)), JSON))
def test_whatever_docker_inspect_says_the_record_has_a_place_or_the_refusal_is_one_line(found: Any) -> None:
    found = found if isinstance(found, dict) else {}
    data = record.data_folder(found)
    assert data.startswith("/") or data == record.flag(found, "--data-dir", "-d")
    try:
        place = record.place(found, data)
    except level_record.RecordRefused as error:
        one_line(error)
    else:
        assert place.path.endswith("/" + level_record.NAME)


@given(holed(INSPECT) | st.dictionaries(st.sampled_from(sorted(INSPECT)), JSON))
def test_whatever_docker_inspect_says_the_container_has_a_state(found: Any) -> None:
    state = docker_engine._state_of(found if isinstance(found, dict) else {})
    assert not (state.running and state.restarting)
    assert all(isinstance(address, str) and address for address in state.addresses)


# --- systemctl show ---

SHOWN = {
    "LoadState": ["loaded", "not-found", "masked", ""],
    "ActiveState": ["active", "activating", "deactivating", "inactive", "failed", "reloading", ""],
    "SubState": ["running", "start", "auto-restart", "auto-restart-queued", "start-pre", "stop-sigterm", "dead", ""],
    "Job": ["", "0", "77"],
    "InvocationID": ["", "7304"],
    "MainPID": ["0", "4711", "", "x"],
    "NRestarts": ["0", "7", "[not set]"],
    "Result": ["success", "exit-code", "start-limit-hit"],
    "ExecMainCode": ["0", "1", "2"],
    "ExecMainStatus": ["0", "1", "9"],
    "Restart": ["always", "no"],
    "TimeoutStopUSec": ["1min 30s", "infinity", "5s", "0", "1.2.3s", "500ms"],
    "ExecStart": ["", "{ path=/k3s ; argv[]=/k3s server --data-dir=/d ; ignore_errors=no ; pid=0 }", "{"],
    "Environment": ["", "A=b \"C=d e\"", "'"],
    "EnvironmentFiles": ["", "/nowhere (ignore_errors=yes)"],
}
LINES = st.tuples(*(st.sampled_from(values).map(f"{key}={{}}".format) for key, values in SHOWN.items()))


@given(st.text() | LINES.map("\n".join))
def test_whatever_systemctl_shows_the_unit_has_a_state(shown: str) -> None:
    unit = systemctl.unit_of("k3s.service", shown)
    state = systemd_unit.state_of(unit)
    assert not (state.running and state.restarting)
    assert bool(state.why) is not state.running, "why it does not run is said, and only then"
    assert not state.why or one_line(Exception(state.why))
    assert unit.stop_seconds >= 0
    assert all("=" in pair for pair in systemctl.environment_of(unit))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1min 30s", 90), ("infinity", float("inf")), ("500ms", 0.5), ("1h", 3600), ("2min", 120), ("0", 0), ("5s", 5)],
)
def test_a_time_in_systemds_words(text: str, seconds: float) -> None:
    assert systemctl.seconds_of(text) == seconds


# --- what k3s and etcd print ---

DB_INFO = {
    "members": [
        {"ID": 9372538179322589801, "name": "pi1-0a1b2c3d", "peerURLs": ["https://10.0.0.11:2380"], "clientURLs": ["https://10.0.0.11:2379"]},
        {"ID": 2, "name": "", "peerURLs": ["https://10.0.0.12:2380"], "isLearner": True},
    ]
}  # fmt: skip


@given(st.text() | (JSON | holed(DB_INFO)).map(json.dumps))
@example('{"members": [1]}')
@example('{"members": [{"ID": 1, "name": "a", "peerURLs": "https://x"}]}')
@example('{"members": [{"ID": 1, "name": "a", "peerURLs": ["https://[x"]}]}')
@example("[" * 100_000)
def test_a_member_list_is_whole_or_no_list_at_all(text: str) -> None:
    """Half of one would count fewer voters than there are."""
    try:
        found = probe.members(text)
    except ValueError:
        return
    assert found and len(found) == len(json.loads(text)["members"])
    for member in found:
        assert all(
            isinstance(field, str)
            for field in (member.id, member.name, *member.peer_urls, *member.client_urls)
        )
    probe.own_member(found, "pi1", ("10.0.0.11",))
    gate.refusal(gate.check(gate.Facts("pi1", (), found)))


@given(
    st.text()
    | (
        JSON
        | st.sampled_from(
            [
                {"health": "true"},
                {"health": True},
                {"ServerURL": 5},
                {"ServerURL": "https://[x"},
                {"ServerURL": "https://10.0.0.1:6443"},
            ]
        )
    ).map(json.dumps)
)
@example('{"ServerURL": 5}')
@example("[" * 100_000)
def test_other_answers_of_k3s_are_read_or_passed_over(text: str) -> None:
    assert probe.healthy(text) in (True, False)
    assert isinstance(probe.balancer_target(text), str)


@given(st.text() | st.lists(JSON.map(yaml.safe_dump)).map((probe.NEXT_FILE + "\n").join))
@example("[" * 10_000)
@example("? [a]\n: b\n")
def test_any_configuration_is_plain_values(text: str) -> None:
    assert all(isinstance(part, str) for pair in probe.configuration(text).items() for part in pair)


SOCKET = "  0: 0100007F:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1"


@given(
    st.text()
    | st.integers(0, 60).map(lambda at: f"{SOCKET}\n{SOCKET[:at]}")
    | st.integers(0, 40).map(lambda at: SOCKET[:at] + "?" + SOCKET[at:])
)
@example("0: ZZ:18EB x 0A")
@example("0: 0100007F: x 0A")
def test_any_table_of_sockets_is_read_as_far_as_it_goes(text: str) -> None:
    found = probe.listeners(text)
    assert all(0 <= port < 65536 for _address, port in found)
    if SOCKET in text.splitlines():
        assert ("127.0.0.1", 6379) in found
    probe.node_addresses(found)


# --- objects of the API ---

METADATA = {
    "name": "pi1", "namespace": "prod", "uid": "0f0e", "resourceVersion": "7",
    "creationTimestamp": "2026-09-01T00:00:00Z",
    "labels": {"a": "b"}, "annotations": {"kubernetes.io/config.mirror": "x"},
    "ownerReferences": [{"kind": "DaemonSet", "controller": True}],
    "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}],
}  # fmt: skip
NODE = {
    "metadata": METADATA,
    "spec": {
        "unschedulable": True, "providerID": "k3s://pi1",
        "taints": [{"key": "a", "value": "b", "effect": "NoExecute", "timeAdded": "t"}],
    },
    "status": {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.11"}],
        "conditions": [
            {"type": "Ready", "status": "True", "lastHeartbeatTime": "t"}, {"type": "EtcdIsVoter", "status": "True"},
        ],
    },
}  # fmt: skip
POD = {"metadata": METADATA, "status": {"phase": "Running"}}
LEASE = {
    "metadata": METADATA,
    "spec": {
        "holderIdentity": "pi2", "leaseDurationSeconds": 900, "acquireTime": "a", "renewTime": "r",
        "leaseTransitions": 3,
    },
}  # fmt: skip


def texts(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def is_node(node: Node) -> bool:
    words = [*node.labels.items(), *node.annotations.items()]
    return (
        texts(
            node.name, node.uid, node.resource_version, node.created, node.ready_heartbeat, node.provider_id
        )
        and texts(*node.addresses, *node.cordoned_by, *(word for pair in words for word in pair))
        and all(texts(taint.key, taint.value, taint.effect) for taint in node.taints)
        and node.ready in (True, False, None)
        and node.etcd_is_voter in (True, False, None)
        and node.unschedulable in (True, False)
    )


def is_lease(lease: Lease) -> bool:
    seconds = lease.duration_seconds
    return texts(lease.holder, lease.acquire_time, lease.renew_time, lease.resource_version) and all(
        isinstance(number, int) and not isinstance(number, bool)
        for number in (lease.transitions, seconds or 0)
    )


def is_pod(pod: Pod) -> bool:
    return texts(pod.namespace, pod.name, pod.uid, pod.owner_kind)


@pytest.mark.parametrize(
    ("parse", "whole", "good"),
    [
        (kubernetes_api._node, NODE, is_node),
        (kubernetes_api._lease, LEASE, is_lease),
        (kubernetes_api._pod, POD, is_pod),
    ],
    ids=["node", "lease", "pod"],
)
@given(data=st.data())
def test_an_object_with_missing_and_odd_fields_is_read_or_refused_in_one_line(
    parse: Callable[[Any], Any], whole: Any, good: Callable[[Any], bool], data: st.DataObject
) -> None:
    try:
        found = parse(
            data.draw(holed(whole) | st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
        )
    except ClusterError as error:
        one_line(error)
    else:
        assert good(found), found


@given(
    st.sampled_from(["ready", "etcd_is_voter"]),
    JSON | st.sampled_from(["true", "TRUE", "Unknown", "", None, True]),
)
def test_only_the_word_true_makes_a_condition_true(which: str, odd: Any) -> None:
    kind = {"ready": "Ready", "etcd_is_voter": "EtcdIsVoter"}[which]
    found = kubernetes_api._node({**NODE, "status": {"conditions": [{"type": kind, "status": odd}]}})
    assert (getattr(found, which) is True) == (odd == "True")


@given(
    st.binary()
    | (JSON | holed({"message": "m", "details": {"causes": [{"message": "budget"}]}})).map(
        lambda found: json.dumps(found).encode()
    )
)
@example(b"[" * 100_000)
@example(b'{"details": {"causes": 5}}')
def test_the_body_of_an_error_is_told_on_one_line(body: bytes) -> None:
    answer = kubernetes_api._Answer(500, body)
    assert len(answer.text().splitlines()) <= 1
    assert all(isinstance(cause, str) for cause in kubernetes_api._causes(body))


@given(st.datetimes(), st.integers(0, 9), st.sampled_from(["Z", "+00:00"]))
def test_a_lease_time_has_exactly_six_digits_and_is_the_same_time(at: Any, digits: int, zone: str) -> None:
    """Field case C23: the API refuses any other number, and `isoformat` drops six zeros."""
    fraction = f"{at.microsecond:06d}000"[:digits]
    text = at.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0") + (f".{fraction}" if fraction else "") + zone
    found = kubernetes_api.micro_time(text)
    head, _dot, tail = found.partition(".")
    assert head == text[:19] and tail == f"{fraction:0<6}"[:6] + "Z"


@given(st.text())
@example("2026-01-01T00:00:00.000000Z\n")
@example("٢٠٢٦-01-01T00:00:00Z")
def test_no_other_text_is_a_lease_time(text: str) -> None:
    try:
        found = kubernetes_api.micro_time(text)
    except ClusterError as error:
        one_line(error)
    else:
        assert found.isascii() and len(found) == 27


# --- the kubeconfig ---

AUTHORITY = Authority()
CA = base64.b64encode(AUTHORITY.pem().encode()).decode()
KUBECONFIG = {
    "current-context": "regrade",
    "contexts": [{"name": "regrade", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority-data": CA}}],
    "users": [{"name": "u", "user": {"token": "t0ken-of-ours"}}],
}
NO_CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n").decode()


def with_ca(data: Any) -> Dict[str, Any]:
    return {**KUBECONFIG, "clusters": [{"name": "c", "cluster": {"certificate-authority-data": data}}]}


def with_token(token: Any) -> Dict[str, Any]:
    return {**KUBECONFIG, "users": [{"name": "u", "user": {"token": token}}]}


@ONE_FOLDER
@given(st.text() | (JSON | holed(KUBECONFIG)).map(json.dumps))
@example(json.dumps(with_ca(NO_CERTIFICATE)))
@example(json.dumps(with_ca(5)))
@example(json.dumps(with_token("two\nt0ken-of-ours")))
@example(json.dumps(with_token("t0ken-of-ours\u2603")))
@example("[" * 10_000)
@example("\x00")
def test_any_kubeconfig_is_credentials_that_can_be_used_or_one_line_without_the_token(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "config"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = kubernetes_api.read_kubeconfig(str(path))
    except ClusterError as error:
        assert str(path) in one_line(error) and "t0ken-of-ours" not in str(error)
        return
    assert found.token.isascii() and found.token.isprintable() and " " not in found.token
    AUTHORITY.context(found.ca)


def test_the_kubeconfig_above_is_one(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(KUBECONFIG))
    assert kubernetes_api.read_kubeconfig(str(path))[:2] == (AUTHORITY.pem(), "t0ken-of-ours")


# --- files ---


@ONE_FOLDER
@given(st.binary() | JSON.map(lambda found: json.dumps(found).encode()))
@example(b"[" * 100_000)
@example(b"9" * 5000)
def test_any_document_on_disk_is_an_object_or_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "journal.json").write_bytes(data)
    try:
        assert isinstance(StateFiles(str(tmp_path)).read("journal"), dict)
    except RegradeError as error:
        assert str(tmp_path) in one_line(error)


@ONE_FOLDER
@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text(st.characters(exclude_categories=()))))
@example({"a": "\udcff"})
def test_any_text_can_be_noted(tmp_path: Path, values: Dict[str, str]) -> None:
    path = str(tmp_path / "note")
    pair_files.write(path, values)
    assert set(pair_files.read(path)) == set(values)


@ONE_FOLDER
@given(st.binary(max_size=300), st.binary(max_size=300))
@example(b"", b"")
@example(b"\xff", b"\x00")
def test_whatever_proc_holds_a_sample_is_taken_and_what_is_missing_is_told(
    tmp_path: Path, pressure: bytes, memory: bytes
) -> None:
    (tmp_path / "pressure").write_bytes(pressure)
    (tmp_path / "meminfo").write_bytes(memory)
    files = str(tmp_path / "pressure"), str(tmp_path / "meminfo")
    sample = psi.sample(*files, "boot")
    for value, why in (
        (sample.stall, psi.missing_pressure(files[0])),
        (sample.available, psi.missing_memory(files[1])),
    ):
        assert (value is None) == bool(why)
        assert not why or (str(tmp_path) in why and "\n" not in why)
