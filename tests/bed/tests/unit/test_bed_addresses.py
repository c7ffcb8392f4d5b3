"""The list of API servers: what goes in, in which order it comes out, what the balancer's file says."""

from __future__ import annotations

import json
import random
from pathlib import Path

from bedk3s import addresses
from bedk3s.layout import Layout

LISTED = ["10.0.0.1:6443", "10.0.0.2:6443", "10.0.0.3:6443"]


def test_the_list_is_made_of_the_kubernetes_endpoints() -> None:
    slices = [
        {"ports": [{"port": 6443}], "endpoints": [{"addresses": ["10.0.0.2"]}, {"addresses": ["10.0.0.1"]}]},
        {"ports": None, "endpoints": None},
    ]
    assert addresses.from_slices(slices) == ["10.0.0.1:6443", "10.0.0.2:6443"]


def test_the_order_is_random_so_the_own_address_may_come_first() -> None:
    source = random.Random(1)
    firsts = {addresses.order(LISTED, "10.0.0.2", "random", source)[0] for _ in range(60)}
    assert firsts == set(LISTED)


def test_the_switch_makes_one_outcome_of_the_order_certain() -> None:
    for _ in range(20):
        assert addresses.order(LISTED, "10.0.0.2", "own-first")[0] == "10.0.0.2:6443"
        assert addresses.order(LISTED, "10.0.0.2", "own-last")[-1] == "10.0.0.2:6443"
        assert sorted(addresses.order(LISTED, "10.0.0.2", "own-first")) == LISTED


def test_the_default_stays_first_while_it_is_an_endpoint_and_is_last_after() -> None:
    assert addresses.updated("10.0.0.2:6443", LISTED)[0] == "10.0.0.2:6443"
    assert addresses.updated("10.0.0.9:6443", LISTED) == [*LISTED, "10.0.0.9:6443"]


def test_the_file_names_the_default_as_server_url(tmp_path: Path) -> None:
    addresses.save(Layout(tmp_path), LISTED[1], LISTED)
    content = json.loads((tmp_path / "agent/etc/k3s-agent-load-balancer.json").read_text())
    assert content == {"ServerURL": "https://10.0.0.2:6443", "ServerAddresses": LISTED}
