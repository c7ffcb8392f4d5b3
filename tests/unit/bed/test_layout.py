# SPDX-License-Identifier: GPL-3.0-or-later
"""What the bed's settings accept, and that the three servers lay k3s's configuration in three ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import layout
from layout import Settings

PLACES = layout.places(Settings())


def project(way: int) -> tuple[dict[str, Any], layout.Files]:
    files = layout.files(PLACES, PLACES[way], "k3s:1")
    return json.loads(files.project["compose.yaml"]), files


def test_three_servers_at_11_12_and_13() -> None:
    assert [(p.name, p.address, p.host_container, p.volume) for p in PLACES] == [
        ("server1", "172.31.66.11", "regrade-bed-server1", "regrade-bed-server1-docker"),
        ("server2", "172.31.66.12", "regrade-bed-server2", "regrade-bed-server2-docker"),
        ("server3", "172.31.66.13", "regrade-bed-server3", "regrade-bed-server3-docker"),
    ]


def test_ssh_reaches_each_host_by_its_containers_name() -> None:
    config = layout.ssh_config(PLACES, Path("/a cache/key"))
    assert config.startswith("Host regrade-bed-server1\n  HostName 172.31.66.11\nHost regrade-bed-server2\n")
    everyone = config.partition("Host *\n")[2].splitlines()
    assert '  IdentityFile "/a cache/key"' in everyone and "  User root" in everyone


def test_settings_come_from_the_environment_and_empty_is_unset() -> None:
    given = {"REGRADE_BED_NAME": "two", "REGRADE_BED_SUBNET": "10.1.2.0/24", "REGRADE_K3S_IMAGE": "k3s:2"}
    assert Settings.read(given) == Settings("two", "10.1.2.0/24", "k3s:2")
    assert Settings.read(dict.fromkeys(given, "")) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REGRADE_BED_NAME", "x"),
        ("REGRADE_BED_NAME", "My_Bed"),
        ("REGRADE_BED_SUBNET", "172.31.66.0/30"),
        ("REGRADE_BED_SUBNET", "172.31.66.1/24"),
        ("REGRADE_BED_SUBNET", "nowhere"),
        ("REGRADE_BED_SHAPE", "podman"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_name_and_value(name: str, value: str) -> None:
    with pytest.raises(layout.BadSetting) as refused:
        Settings.read({name: value})
    assert name in str(refused.value) and repr(value) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("subnet", "beside"),
    [("172.31.66.0/24", "172.31.194.0/24"), ("10.77.129.32/27", "10.77.1.32/27")],
)
def test_the_second_shape_stands_beside_the_first(subnet: str, beside: str) -> None:
    given = {"REGRADE_BED_NAME": "two", "REGRADE_BED_SUBNET": subnet}
    assert Settings.read({**given, "REGRADE_BED_SHAPE": "docker"}) == Settings.read(given)
    assert Settings.read({**given, "REGRADE_BED_SHAPE": "systemd"}) == Settings(
        "two-systemd", beside, None, "systemd"
    )
    with pytest.raises(layout.BadSetting, match=r"'10.0.0.0/16': for REGRADE_BED_SHAPE=systemd give a /17"):
        Settings.read({"REGRADE_BED_SUBNET": "10.0.0.0/16", "REGRADE_BED_SHAPE": "systemd"})


def test_a_machine_is_configured_as_the_script_that_installs_k3s_does_it() -> None:
    found = [layout.machine_files(PLACES, place) for place in PLACES]
    assert [list(files) for files in found] == 3 * [["config.yaml"]]
    assert [json.loads(files["config.yaml"])["node-name"] for files in found] == [
        "server1",
        "server2",
        "server3",
    ]


def test_only_the_first_server_founds_the_cluster_and_the_others_join_it() -> None:
    found = [layout.k3s_options(PLACES, place) for place in PLACES]
    assert [options.get("cluster-init") for options in found] == [True, None, None]
    assert [options.get("server") for options in found] == [
        None, "https://172.31.66.11:6443", "https://172.31.66.11:6443",
    ]  # fmt: skip
    assert len({options["token"] for options in found}) == 1


@pytest.mark.parametrize("way", [0, 1, 2])
def test_every_server_is_a_service_on_the_hosts_network_with_a_named_data_volume(way: int) -> None:
    compose, _ = project(way)
    service = compose["services"]["k3s"]
    assert compose["name"] == "cluster" and "k3s-data" in compose["volumes"]
    assert service["container_name"] == "k3s" and service["image"] == "k3s:1"
    assert service["network_mode"] == "host" and service["privileged"] is True
    assert service["restart"] == "unless-stopped" and service["tmpfs"] == ["/run", "/var/run"]
    assert "k3s-data:/var/lib/rancher/k3s" in service["volumes"]
    assert "./node:/etc/rancher/node" in service["volumes"]


def test_server1_has_its_configuration_in_a_mounted_folder() -> None:
    compose, files = project(0)
    assert "./k3s:/etc/rancher/k3s" in compose["services"]["k3s"]["volumes"]
    assert json.loads(files.project["k3s/config.yaml"])["cluster-init"] is True
    assert not files.data


def test_server2_has_its_configuration_on_the_data_volume() -> None:
    compose, files = project(1)
    service = compose["services"]["k3s"]
    assert service["environment"] == {"K3S_CONFIG_FILE": "/var/lib/rancher/k3s/config/config.yaml"}
    assert json.loads(files.data["config/config.yaml"])["node-name"] == "server2"
    assert set(files.project) == {"compose.yaml"}


def test_server3_keeps_nothing_below_etc_rancher_k3s() -> None:
    compose, files = project(2)
    service = compose["services"]["k3s"]
    assert "--server=https://172.31.66.11:6443" in service["command"]
    assert not any("/etc/rancher/k3s" in volume for volume in service["volumes"])
    assert "environment" not in service
    assert set(files.project) == {"compose.yaml"} and not files.data


def test_pod_images_go_where_k3s_imports_them_from() -> None:
    files = layout.files(PLACES, PLACES[2], "k3s:1", b"archive")
    assert files.data == {"agent/images/pods.tar": b"archive"}


def test_ready_counts_only_nodes_whose_ready_condition_is_true() -> None:
    def node(name: str, **conditions: str) -> dict[str, Any]:
        listed = [{"type": kind, "status": status} for kind, status in conditions.items()]
        return {"metadata": {"name": name}, "status": {"conditions": listed}}

    nodes = [
        node("a", Ready="True"),
        node("b", Ready="Unknown"),
        node("c", Ready="False", EtcdIsVoter="True"),
        node("d"),
    ]
    assert layout.ready({"items": nodes}) == {"a"}
    assert layout.ready({}) == set()
