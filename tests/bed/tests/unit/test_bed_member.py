"""Founding, joining and restarting a member, by k3s's rules (k3s source, pkg/etcd/etcd.go)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from bedk3s import flags, member, settings
from bedk3s.etcdclient import Member, Status, member_of
from bedk3s.layout import Layout

OWN = "https://10.0.0.2:2380"
OTHER = Member(1, "one-00000001", ("https://10.0.0.1:2380",), ("https://10.0.0.1:2379",), False)


def made(tmp_path: Path, *arguments: str) -> member.EtcdMember:
    values = flags.parse(["--node-name", "two", "--node-ip", "10.0.0.2", *arguments])
    layout = Layout(tmp_path)
    layout.etcd.mkdir(parents=True)
    return member.EtcdMember(settings.from_values(values, {}, "host"), layout, "secret")


def config(tmp_path: Path) -> dict:
    return yaml.safe_load((tmp_path / "server/db/etcd/config").read_text())


def test_a_new_node_is_added_and_an_added_one_that_never_started_is_not_added_twice() -> None:
    assert member.plan_join([OTHER], "two", OWN)
    assert not member.plan_join([OTHER, Member(2, "", (OWN,), (), True)], "two", OWN)


def test_a_second_node_of_the_same_name_is_refused() -> None:
    with pytest.raises(member.Refused, match="duplicate node name found"):
        member.plan_join([OTHER], "one", OWN)


def test_cluster_init_founds_with_k3ss_timings_and_a_name_with_eight_hex_digits(tmp_path: Path) -> None:
    founder = made(tmp_path, "--cluster-init")
    founder.prepare()
    written = config(tmp_path)
    assert (written["heartbeat-interval"], written["election-timeout"]) == (500, 5000)
    assert written["initial-cluster-state"] == "new"
    assert re.fullmatch(r"two-[0-9a-f]{8}", written["name"])
    assert written["initial-cluster"] == f"{written['name']}={OWN}"
    assert "http://127.0.0.1:2381" in written["listen-metrics-urls"]


def test_a_member_with_data_restarts_whatever_the_flags_say(tmp_path: Path) -> None:
    restarted = made(tmp_path, "--server", "https://nobody.invalid:6443")
    (tmp_path / "server/db/etcd/member/wal").mkdir(parents=True)
    (tmp_path / "server/db/etcd/name").write_text("two-12345678")
    restarted.prepare()
    assert config(tmp_path)["name"] == "two-12345678"
    assert config(tmp_path)["initial-cluster-state"] == "existing"


def test_a_removed_member_forgets_its_data_and_name(tmp_path: Path) -> None:
    removed = made(tmp_path, "--cluster-init")
    (tmp_path / "server/db/etcd/member/wal").mkdir(parents=True)
    (tmp_path / "server/db/etcd/name").write_text("two-12345678")
    removed.bury()
    removed.prepare()
    assert not (tmp_path / "server/db/etcd/member").exists()
    assert config(tmp_path)["name"] != "two-12345678"
    assert not (tmp_path / "server/db/etcd/tombstone").exists()


def test_neither_founding_nor_joining_is_refused(tmp_path: Path) -> None:
    with pytest.raises(member.Refused, match="--cluster-init or --server"):
        made(tmp_path).prepare()


class Etcd:
    def __init__(self, members: list[Member], learner: bool = False) -> None:
        self._members, self._learner = members, learner

    def members(self) -> list[Member]:
        return self._members

    def status(self) -> Status:
        return Status(2, 1, self._learner)


def test_a_changed_address_is_refused_in_k3ss_words(tmp_path: Path) -> None:
    moved = Member(2, "two-12345678", ("https://10.0.0.9:2380",), ("https://10.0.0.9:2379",), False)
    wanting = made(tmp_path).check(Etcd([OTHER, moved]))  # type: ignore[arg-type]
    assert wanting is not None and "not a member of the etcd cluster" in wanting


def test_a_learner_is_not_ready_and_a_voter_is(tmp_path: Path) -> None:
    own = Member(2, "two-12345678", (OWN,), ("https://10.0.0.2:2379",), False)
    checked = made(tmp_path)
    assert "promoted" in (checked.check(Etcd([OTHER, own], learner=True)) or "")  # type: ignore[arg-type]
    assert checked.check(Etcd([OTHER, own])) is None  # type: ignore[arg-type]


def test_db_info_reads_back_as_it_was_written_with_numbers_for_ids() -> None:
    big = Member(18446744073709551615, "a-1", ("p",), ("c",), True)
    assert big.as_db_info()["ID"] == 18446744073709551615
    assert member_of(big.as_db_info()) == big
