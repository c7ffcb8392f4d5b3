# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the record of a server in a container lies."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    docker_record as record,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import level_record

DATA = "/var/lib/rancher/k3s"
NAMED = {"Type": "volume", "Name": "cluster_k3s-data", "Destination": DATA, "RW": True}
ANONYMOUS = {"Type": "volume", "Name": "a" * 64, "Destination": DATA, "RW": True}
ETC = {"Type": "bind", "Source": "/srv/cluster/k3s", "Destination": "/etc/rancher/k3s", "RW": True}


def inspect(
    *mounts: dict[str, Any],
    args: tuple[str, ...] = ("server",),
    env: tuple[str, ...] = (),
    tmpfs: tuple[str, ...] = (),
) -> dict[str, Any]:
    return {
        "Mounts": list(mounts),
        "Args": list(args),
        "Config": {"Env": list(env)},
        "HostConfig": {"Tmpfs": dict.fromkeys(tmpfs, "")},
    }


@pytest.mark.parametrize(
    ("found", "folder", "link"),
    [
        (inspect(NAMED, ETC), "/etc/rancher/k3s/config.yaml.d", ""),
        (
            inspect(NAMED, {**ETC, "Destination": "/etc/rancher/k3s/config.yaml.d"}),
            "/etc/rancher/k3s/config.yaml.d",
            "",
        ),
        (inspect(NAMED, {**ETC, "Destination": "/etc"}), "/etc/rancher/k3s/config.yaml.d", ""),
        (
            inspect(NAMED, env=(f"K3S_CONFIG_FILE={DATA}/config/config.yaml",)),
            f"{DATA}/config/config.yaml.d",
            "",
        ),
        (inspect(NAMED, args=("server", "--config", f"{DATA}/my.yaml")), f"{DATA}/my.yaml.d", ""),
        (inspect(NAMED, args=("server", f"-c={DATA}/my.yaml")), f"{DATA}/my.yaml.d", ""),
        (
            inspect(
                NAMED,
                args=("server", f"--config={DATA}/args.yaml"),
                env=(f"K3S_CONFIG_FILE={DATA}/env.yaml",),
            ),
            f"{DATA}/env.yaml.d",
            "",
        ),
        (inspect(NAMED), f"{DATA}/regrade", "/etc/rancher/k3s/config.yaml.d"),
        (
            inspect(NAMED, {**ETC, "Destination": "/etc/rancher/k3s/config.yaml"}),
            f"{DATA}/regrade",
            "/etc/rancher/k3s/config.yaml.d",
        ),
        (inspect(NAMED, tmpfs=("/etc/rancher/k3s",)), f"{DATA}/regrade", "/etc/rancher/k3s/config.yaml.d"),
        (
            inspect(NAMED, {**ETC, "Destination": "/etc"}, tmpfs=("/etc/rancher/k3s",)),
            f"{DATA}/regrade",
            "/etc/rancher/k3s/config.yaml.d",
        ),
        (
            inspect(NAMED, {"Type": "tmpfs", "Destination": "/etc/rancher"}),
            f"{DATA}/regrade",
            "/etc/rancher/k3s/config.yaml.d",
        ),
        (inspect({**ANONYMOUS}, ETC), "/etc/rancher/k3s/config.yaml.d", ""),
        (
            inspect({**NAMED, "Destination": "/data"}, args=("server", "-d", "/data")),
            "/data/regrade",
            "/etc/rancher/k3s/config.yaml.d",
        ),
        (
            inspect({**NAMED, "Type": "bind", "Source": "/srv/data"}),
            f"{DATA}/regrade",
            "/etc/rancher/k3s/config.yaml.d",
        ),
    ],
)
def test_the_first_place_that_fits(found: dict[str, Any], folder: str, link: str) -> None:
    assert record.place(found, record.data_folder(found)) == level_record.Place(folder, link)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (inspect(ANONYMOUS), "a volume without a name"),
        (inspect(), "the container's own layer"),
        (inspect(tmpfs=(DATA,)), "a tmpfs at"),
    ],
)
def test_data_that_does_not_outlive_the_container_is_refused_with_its_cure(
    found: dict[str, Any], words: str
) -> None:
    with pytest.raises(level_record.RecordRefused) as caught:
        record.place(found, record.data_folder(found))
    said = str(caught.value)
    assert words in said and "\n" not in said
    assert f'volumes: ["k3s-data:{DATA}"]' in said and "volumes: {k3s-data: {}}" in said


def test_a_read_only_mount_is_refused() -> None:
    with pytest.raises(level_record.RecordRefused, match=r"read-only.*:ro"):
        record.place(inspect(NAMED, {**ETC, "RW": False}), DATA)
    with pytest.raises(level_record.RecordRefused, match=r"beside a URL"):
        record.place(inspect(NAMED, args=("server", "--config=https://conf/k3s.yaml")), DATA)


def test_the_data_folder() -> None:
    assert record.data_folder(inspect()) == DATA
    assert record.data_folder(inspect(env=("K3S_DATA_DIR=/b",))) == "/b"
    assert record.data_folder(inspect(env=("K3S_DATA_DIR=/b",)), "/c/") == "/c"
    assert (
        record.data_folder(inspect(args=("server", "--data-dir=/a"), env=("K3S_DATA_DIR=/b",)), "/c") == "/a"
    )
