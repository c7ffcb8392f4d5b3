# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker actuator with all it speaks to: the stub engine, a step's hooks, and the little it asks of a cluster.

What comes of it is the tests' to say.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade import ports
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    docker_engine,
    k3s_actuator,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import (
    level_record as record,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings as settings_of
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease, Node
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_api import Authority
from ansible_collections.exadev.k3s_regrade.tests.unit.adapters.stub_engine import FakeK3s, StubEngine

NODE = Node("pi1", "uid", "7", "", ("127.0.0.1",), {}, {}, (), False, (), True, "10:00:00", True)
OWN_MEMBER = "9372538179322589801"
SHORT = 1.5


class Hooks:
    """Records what the actuator asked of its step, in order with the engine's calls."""

    def __init__(self, engine: StubEngine) -> None:
        self.engine = engine
        self.facts: list[dict[str, str]] = []
        self.refuse: ports.RegradeError | None = None
        self.open = True

    def may_start(self) -> bool:
        return self.open

    def before_restart(self) -> None:
        self.engine.calls.append("gate")
        if self.refuse:
            raise self.refuse

    def note(self, facts: dict[str, str]) -> None:
        self.engine.calls.append("note")
        self.facts.append(facts)


class Cluster:
    """The Node, with a heartbeat of its own for each boot, and the two facts of the trap."""

    def __init__(self, k3s: FakeK3s) -> None:
        self.k3s = k3s
        self.node_after: list[Node] = []  # answers, the last one for good
        self.fails: ports.ClusterError | None = None
        self.addresses: tuple[str, ...] = ("10.0.0.12", "10.0.0.13")
        self.holder = "pi2"
        self.renewals = 0
        self.renews = True
        self.asked = 0

    def node(self, name: str) -> Node:
        if self.fails:
            raise self.fails
        if self.node_after and self.k3s.boots > 1:
            return self.node_after.pop(0) if len(self.node_after) > 1 else self.node_after[0]
        return NODE._replace(ready_heartbeat=f"10:00:0{self.k3s.boots}")

    def api_addresses(self) -> tuple[str, ...]:
        self.asked += 1
        return self.addresses

    def k3s_etcd_lease(self) -> Lease:
        self.renewals += 1 if self.renews else 0
        return Lease(self.holder, 45, "", f"renewed {self.renewals}", 1, "5")


class World:
    def __init__(self, folder: Path) -> None:
        with socket.socket() as made, socket.socket() as other:
            made.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.api_port, self.moved = made.getsockname()[1], other.getsockname()[1]
        authority = Authority()
        self.k3s = FakeK3s(folder, authority.server(folder), self.api_port)
        self.engine = StubEngine(folder / "docker.sock", self.k3s)
        self.engine.boot()
        self.hooks = Hooks(self.engine)
        self.cluster = Cluster(self.k3s)
        self.place = record.Place(f"{self.k3s.config}.d")
        self.given = {
            "NODE_NAME": "pi1",
            "KUBE_SERVER": "https://10.0.0.12:6443",
            "DOCKER_HOST": self.engine.url,
            "ETCD_ONLY_HTTPS_PORT": str(self.moved),
            "CALL_TIMEOUT_SECONDS": "10",
        }
        self.patience = 30.0  # of a boot and of the trap's cure; SHORT where it must run out

    def actuator(self, known: dict[str, str] | None = None, **given: str) -> docker_engine.DockerActuator:
        lines = "\n".join(f"{key}={value}" for key, value in {**self.given, **given}.items())
        loaded = settings_of.load(lines, {})._replace(
            boot_timeout_seconds=self.patience, trap_wait_seconds=self.patience
        )
        # The cluster here answers what an actuator asks, and no more.
        return docker_engine.DockerActuator(
            loaded,
            self.cluster,  # type: ignore[arg-type]
            self.hooks,
            lambda: known or {},
        )

    def at(self, level: str) -> None:
        """Put the server at a level, as after a step."""
        text = record.text_for(level, self.moved)
        Path(self.place.folder).mkdir(parents=True, exist_ok=True)
        Path(self.place.path).unlink(missing_ok=True)
        if text:
            Path(self.place.path).write_text(text)
        self.engine.boot()
        self.engine.calls.clear()
        self.engine.scripts.clear()

    def recorded(self) -> str | None:
        path = Path(self.place.path)
        return path.read_text() if path.exists() else None

    def restarts(self) -> int:
        return sum(call.startswith("POST /containers/k3s/restart") for call in self.engine.calls)


def worlds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """One of them, for a fixture to yield, whose waits are short."""
    for name, seconds in (
        ("POLL_SECONDS", 0.02),
        ("DATABASE_PAUSE_SECONDS", 0.05),
        ("BALANCER_PATIENCE_SECONDS", 0.3),
        ("BALANCER_PAUSE_SECONDS", 0.1),
    ):
        for module in (k3s_actuator, docker_engine):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, seconds)
    made = World(folder)
    yield made
    made.engine.close()


def fault(
    world: World,
    part: str,
    answer: tuple[int, Any] | None,
    then: Callable[[], None] | None = None,
    times: int = 1000,
) -> None:
    """The next `times` calls whose text holds `part` do `then` and get `answer` (None: the usual one)."""
    left = [times]

    def act(method: str, path: str) -> tuple[int, Any] | None:
        if part not in f"{method} {path}" or left[0] == 0:
            return None
        left[0] -= 1
        if then:
            then()
        return answer

    world.engine.faults.append(act)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text and "\n" not in text
    return text


def inside(world: World, ports_listening: tuple[int, ...], health: str = '{"health":"true"}') -> None:
    """No network reaches the server; inside it these ports listen."""
    world.k3s.stop()
    table = "\n".join(
        f" {i}: 00000000:{port:04X} 00000000:0000 0A 0 0 0" for i, port in enumerate(ports_listening)
    )
    (world.k3s.folder / "tcp").write_text(table + "\n")
    (world.k3s.folder / "answers" / "health").write_text(health)
    cat = world.k3s.folder / "bin" / "cat"
    cat.write_text(
        f'#!/bin/sh\ncase "$*" in /proc/net/tcp*) exec /bin/cat {world.k3s.folder}/tcp;; esac\n'
        'exec /bin/cat "$@"\n'
    )
    cat.chmod(0o755)
