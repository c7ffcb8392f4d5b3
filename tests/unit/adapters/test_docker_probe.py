# SPDX-License-Identifier: GPL-3.0-or-later
"""Readers of what a running k3s shows of itself."""

from __future__ import annotations

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import docker_probe as probe

# Columns and forms of a real /proc/net/tcp and tcp6 (kernel Documentation/networking/proc_net_tcp.rst).
TABLES = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0B421FAC:094C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 100 1 0 100 0 0 10 0
   1: 0100007F:094C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 101 1 0 100 0 0 10 0
   2: 0B421FAC:D0F2 0C421FAC:094C 01 00000000:00000000 00:00000000 00000000 0 0 102 1 0 100 0 0 10 0
  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 00000000000000000000000000000000:403B 00000000000000000000000000000000:0000 0A 00000000:00000000 0
   1: 0000000000000000FFFF00000100007F:192C 00000000000000000000000000000000:0000 0A 00000000:00000000 0
   2: 000000FD000000000000000011000000:094C 00000000000000000000000000000000:0000 0A 00000000:00000000 0
"""


def test_listening_sockets() -> None:
    found = probe.listeners(TABLES)
    assert found == {
        ("172.31.66.11", 2380),
        ("127.0.0.1", 2380),
        ("::", 16443),
        ("127.0.0.1", 6444),
        ("fd00::11", 2380),
    }
    assert probe.node_addresses(found) == ("172.31.66.11", "fd00::11")
    assert probe.listeners("") == probe.listeners("cat: can't open") == frozenset()


@pytest.mark.parametrize(
    ("status", "text", "level"),
    [
        (401, "Unauthorized", "full"),
        (200, "ok", "full"),
        (503, '{"message":"apiserver disabled"}', "etcd-only"),
        (503, "starting", ""),
        (503, "apiserver not ready", ""),
        (500, "[-]etcd failed", ""),
        (403, "forbidden", ""),
        (0, "connection refused", ""),
    ],
)
def test_what_readyz_speaks_for(status: int, text: str, level: str) -> None:
    assert probe.Look(status, text).level == level


@pytest.mark.parametrize(
    ("text", "well"),
    [
        ('{"health":"true","reason":""}', True),
        ('{"health":"false","reason":"RAFT NO LEADER"}', False),
        ("wget: server returned error: HTTP/1.1 503 Service Unavailable", False),
        ("", False),
        ("[]", False),
    ],
)
def test_health(text: str, well: bool) -> None:
    assert probe.healthy(text) is well


def test_members_keep_their_ids_exactly() -> None:
    text = (
        '{"members":[{"ID":9372538179322589801,"name":"pi1-0a1b2c3d","peerURLs":["https://10.0.0.11:2380"],'
        '"clientURLs":["https://10.0.0.11:2379"]},{"ID":7,"peerURLs":["https://10.0.0.13:2380"],"isLearner":true}]}'
    )
    first, second = probe.members(text)
    assert first.id == "9372538179322589801" and not first.learner
    assert second == ("7", "", ("https://10.0.0.13:2380",), (), True)
    assert probe.own_member((first, second), "pi1", ()) == first
    assert probe.own_member((first, second), "x", ("10.0.0.13",)) == second
    assert probe.own_member((first, second), "pi", ("10.0.0.1",)) is None
    for wrong in ("", "Forbidden", "{}", '{"members":[]}', '{"members":null}', "null"):
        with pytest.raises(ValueError):
            probe.members(wrong)


def test_the_balancers_file() -> None:
    assert (
        probe.balancer_target('{"ServerURL":"https://172.31.66.11:6443","ServerAddresses":[]}')
        == "172.31.66.11"
    )
    assert probe.balancer_target('{"ServerURL":"https://[fd00::11]:6443"}') == "fd00::11"
    assert [probe.balancer_target(text) for text in ("", "{}", "\x02absent", "null")] == ["", "", "", ""]


def test_values_of_k3ss_configuration() -> None:
    files = (
        "data-dir: /a\nnode-ip: \"10.0.0.1\"  # mine\nkubelet-arg:\n- x=y\n",
        '{"token": "x", "https-listen-port": 7443, "node-ip": ["10.0.0.2", "fd00::2"]}\n',
        "data-dir: '/b'\n",
        "- no mapping\n",
        "{ no yaml\n",
        "",
    )
    found = probe.configuration("".join(f"{text}\n{probe.NEXT_FILE}\n" for text in files))
    assert (found["data-dir"], found["https-listen-port"], found["node-ip"]) == ("/b", "7443", "10.0.0.2,fd00::2")
    assert probe.configuration("") == {}
