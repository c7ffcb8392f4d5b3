# SPDX-License-Identifier: GPL-3.0-or-later
"""What the demo samples and draws, without servers: the keys of the timeline, nothing guessed, the plot's source."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).resolve().parents[2]
KEYS = {"time", "server", "level", "pressure", "mem_available", "etcd_health", "member_ids", "write_latency"}


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    for folder in (TESTS / "integration" / "lib", TESTS / "demo"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "path", list(sys.path))  # the module adds to it too
    return importlib.import_module("demo")


class Output:
    def __init__(self, stdout: str) -> None:
        self.stdout = stdout


class StubServer:
    """One host that answers `cat` of its pressure and memory."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    def sh(self, _command: str, check: bool = True) -> Output:
        return Output(self.text)


class StubBed:
    def __init__(self, text: str) -> None:
        self.servers = tuple(StubServer(f"server{number}", text) for number in (1, 2, 3))


class StubApi:
    def __init__(self, nodes: Any) -> None:
        self.found = nodes

    def nodes(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class StubWrites:
    def __init__(self, slowest: Any) -> None:
        self.slowest = slowest

    def slowest_since(self) -> Any:
        return self.slowest


def sampled(demo: Any, bed: StubBed, api: StubApi, writes: StubWrites, rounds: int) -> list[dict[str, Any]]:
    sampler = demo.Sampler(bed, api, writes)
    sampler.start()
    until = time.monotonic() + 10
    while len(sampler.samples) < 3 * rounds and time.monotonic() < until:
        time.sleep(0.01)
    sampler.end()
    return list(sampler.samples)


TEXT = "some avg10=0 avg60=0 avg300=0 total=5000\nMemTotal: 4000 kB\nMemAvailable:    3000 kB\n"


def test_a_sample_has_the_eight_keys_for_each_server(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(demo.observer, "members", lambda _bed: {"b": 1, "a": 2})
    monkeypatch.setattr(
        demo.observer, "runs_at", lambda server: "etcd-only" if server.name == "server1" else "full"
    )
    monkeypatch.setattr(demo.observer, "etcd_healthy", lambda _server: True)
    marked = {"metadata": {"labels": {demo.observer.LEVEL: "control-plane"}}}
    api = StubApi({"server2": marked, "server3": {"metadata": {}}})
    samples = sampled(demo, StubBed(TEXT), api, StubWrites(0.25), 2)
    assert all(set(sample) == KEYS for sample in samples)
    assert [sample["level"] for sample in samples[:3]] == ["etcd-only", "control-plane", "full"]
    assert [sample["server"] for sample in samples[:3]] == ["server1", "server2", "server3"]
    assert samples[0]["member_ids"] == ["a", "b"]
    assert samples[0]["mem_available"] == 3000 * 1024
    assert samples[0]["pressure"] is None, "a share needs two readings"
    assert samples[3]["pressure"] == 0.0


def test_what_is_not_read_is_null(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> Any:
        raise demo.NoAnswer("no server answers")

    monkeypatch.setattr(demo, "SAMPLE_SECONDS", 0.05)
    for name in ("members", "etcd_healthy"):
        monkeypatch.setattr(demo.observer, name, fails)
    monkeypatch.setattr(demo.observer, "runs_at", lambda _server: None)
    samples = sampled(demo, StubBed(""), StubApi(demo.NoAnswer("no server answers")), StubWrites(None), 1)
    for sample in samples:
        assert set(sample) == KEYS
        assert {key for key, value in sample.items() if value is not None} == {"time", "server"}
    assert "Nothing was read" in demo.draw(samples, "Nothing was read.")


def test_the_plot_is_svg_and_names_where_its_pressure_came_from(demo: Any) -> None:
    blank = dict.fromkeys(KEYS)
    samples = [
        {
            **blank,
            "time": 100.0 + at,
            "server": server,
            "level": level,
            "pressure": 10.0 * at,
            "write_latency": 0.1,
        }
        for at, level in enumerate(("full", None, "etcd-only"))
        for server in ("server1", "server2", "server3")
    ]
    source = f"Memory pressure here comes from {demo.pressure.SOURCE}."
    svg = demo.draw(samples, source)
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert source in texts
    assert "fixture" in source
    assert {"server1", "server2", "server3", "full", "control-plane", "etcd-only"} <= set(texts)
