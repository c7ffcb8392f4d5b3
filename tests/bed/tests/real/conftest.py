"""One cluster of three servers for all tests on real containers; built, started and removed here.

These tests are of the stand-in itself, so they always build it and run on it, whatever REGRADE_K3S_IMAGE says.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

READY_SECONDS = 90
"""Three servers are Ready at most this long after the image is there; longer only where the machine is overloaded."""

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "image")]

from bedcluster import TRAPPED, UNTRAPPED, Cluster, Server, slowness, until  # noqa: E402

import build  # noqa: E402


@pytest.fixture(scope="session")
def cluster(record_testsuite_property: Callable[[str, object], None]) -> Iterator[Cluster]:
    image = build.ensure_image()
    made = Cluster(image)
    environments = {1: {}, 2: UNTRAPPED, 3: TRAPPED}
    try:
        start = time.monotonic()
        for server in made.servers:
            server.create(environment=environments[server.number])
        try:
            until(READY_SECONDS * slowness(), "three Nodes Ready", lambda: made.ready(made.servers[0]))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{made.last_words()}") from error
        took = round(time.monotonic() - start, 1)
        record_testsuite_property("three_servers_ready_seconds", took)
        print(f"\nthree servers Ready {took} s after the first docker run")
        yield made
    finally:
        made.remove()


@pytest.fixture
def one(cluster: Cluster) -> Server:
    """The server that founded the cluster."""
    return cluster.servers[0]


@pytest.fixture
def two(cluster: Cluster) -> Server:
    """A server that joined."""
    return cluster.servers[1]


@pytest.fixture
def three(cluster: Cluster) -> Server:
    """A server that joined, and that finds its own address first in every list."""
    return cluster.servers[2]
