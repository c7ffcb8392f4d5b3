"""The node password's rule, the Node's metadata, and what the agent needs of its machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bedk3s import agent, cgroups, flags, node, settings
from bedk3s.layout import Layout


class Secrets:
    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def find(self, path: str) -> dict[str, Any] | None:
        return self.kept.get(path.rpartition("/")[2])

    def post(self, _path: str, body: dict[str, Any]) -> None:
        self.kept[body["metadata"]["name"]] = body


def test_the_first_password_of_a_name_counts_and_another_is_refused() -> None:
    api = Secrets()
    assert node.admit(api, "one", "first")  # type: ignore[arg-type]
    assert set(api.kept) == {"one.node-password.k3s"}
    assert node.admit(api, "one", "first")  # type: ignore[arg-type]
    assert not node.admit(api, "one", "second")  # type: ignore[arg-type]
    assert node.admit(api, "two", "second")  # type: ignore[arg-type]


def test_the_hash_has_k3ss_form_and_hides_the_password() -> None:
    made = node.hashed("secret")
    assert made.split(":")[0] == "$1" and made.split(":")[2:5] == ["15", "8", "1"]
    assert "secret" not in made
    assert not node.matches("$2:00", "secret")


def test_the_password_file_is_made_once_for_root_alone(tmp_path: Path) -> None:
    first = node.password(tmp_path / "node" / "password")
    assert node.password(tmp_path / "node" / "password") == first
    assert (tmp_path / "node" / "password").stat().st_mode & 0o777 == 0o600


def made(*arguments: str) -> settings.Settings:
    return settings.from_values(flags.parse(["--node-ip", "10.0.0.1", *arguments]), {}, "One")


def test_labels_and_annotations_are_k3ss_and_node_labels_are_applied_again() -> None:
    metadata = node.metadata(made("--node-label", "a=b"), "one-00000001", "host")["metadata"]
    assert metadata["labels"]["node-role.kubernetes.io/control-plane"] == "true"
    assert metadata["labels"]["node-role.kubernetes.io/etcd"] == "true"
    assert metadata["labels"]["a"] == "b"
    assert metadata["annotations"]["etcd.k3s.cattle.io/node-name"] == "one-00000001"
    assert metadata["annotations"]["etcd.k3s.cattle.io/node-address"] == "10.0.0.1"
    assert json.loads(metadata["annotations"]["k3s.io/node-args"])[0] == "server"


def test_the_kubelet_has_its_own_cgroup_root_and_the_asked_taints(tmp_path: Path) -> None:
    one = agent.kubelet_config(
        made("--node-taint", "k=v:NoSchedule"), Layout(tmp_path), cgroups.root_of("one")
    )
    assert one["cgroupRoot"] == "/k3s-one" != cgroups.root_of("two")
    assert one["registerWithTaints"] == [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    assert yaml.safe_load(yaml.safe_dump(one)) == one


def test_a_new_cpuset_gets_processors_on_cgroup_v1(tmp_path: Path) -> None:
    for controller in ("cpuset", "memory"):
        (tmp_path / controller).mkdir()
        (tmp_path / controller / "cgroup.procs").write_text("")
    (tmp_path / "cpuset" / "k3s-one").mkdir()
    for folder, content in (("cpuset", "0-1"), ("cpuset/k3s-one", "")):
        (tmp_path / folder / "cpuset.cpus").write_text(content)
    assert cgroups.prepare("one", tmp_path) == "/k3s-one"
    assert (tmp_path / "memory" / "k3s-one").is_dir()
    assert (tmp_path / "cpuset/k3s-one/cpuset.cpus").read_text() == "0-1"


def test_controllers_are_given_on_after_the_root_is_emptied_on_cgroup_v2(tmp_path: Path) -> None:
    (tmp_path / "k3s-one").mkdir()
    for folder in (tmp_path, tmp_path / "k3s-one"):
        (folder / "cgroup.controllers").write_text("memory\n")
        (folder / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.procs").write_text("1\n")
    cgroups.prepare("one", tmp_path)
    assert (tmp_path / "init" / "cgroup.procs").read_text() == "1"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    assert (tmp_path / "k3s-one" / "cgroup.subtree_control").read_text() == "+memory"


@pytest.mark.parametrize(("bounding", "lacks"), [("000001ffffffffff", False), ("000001fffeffffff", True)])
def test_the_runc_wrapper_is_used_only_where_the_capability_is_missing(bounding: str, lacks: bool) -> None:
    assert agent.lacks_sys_resource(f"Name:\tx\nCapBnd:\t{bounding}\n") is lacks
    assert ("BinaryName" in agent.containerd_config(Layout(Path("/d")), lacks)) is lacks


def test_containerds_root_lies_on_the_data_volume() -> None:
    assert 'root = "/var/lib/rancher/k3s/agent/containerd"' in agent.containerd_config(
        Layout(Path("/var/lib/rancher/k3s")), False
    )


def test_the_limit_of_inotify_instances_is_raised_and_never_lowered(tmp_path: Path) -> None:
    for found, left in (("128", "8192"), ("65536", "65536")):
        (tmp_path / "limit").write_text(found)
        agent.allow_inotify(tmp_path / "limit")
        assert (tmp_path / "limit").read_text() == left
