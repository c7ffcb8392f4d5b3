"""The balancer moves on only from a server that refuses (measured: the own-address trap and its avoidance)."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from bedk3s.balancer import Balancer


class Named(socketserver.ThreadingTCPServer):
    """Answers each line with its name, for as long as the client stays."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, name: str, port: int = 0) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for _line in self.rfile:
                    self.wfile.write(f"{name}\n".encode())

        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def entry(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def server(name: str) -> Iterator[Named]:
    made = Named(name)
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()


@contextlib.contextmanager
def balancing(*servers: str) -> Iterator[Balancer]:
    made = Balancer(0, servers)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def refusing() -> str:
    """An address where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def connected(balancer: Balancer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", balancer.port), 5) as connection:
        connection.settimeout(5)
        yield connection


def who(connection: socket.socket) -> str:
    """The name of the server behind a connection; empty when it was closed."""
    try:
        connection.sendall(b"?\n")
        return connection.recv(100).decode().strip()
    except ConnectionError:
        return ""


def asked(balancer: Balancer) -> str:
    with connected(balancer) as connection:
        return who(connection)


def test_the_first_server_is_the_one_used() -> None:
    with server("first") as first, server("second") as second, balancing(first.entry, second.entry) as made:
        assert [asked(made) for _ in range(3)] == ["first"] * 3


def test_a_server_that_answers_keeps_it_whatever_it_answers() -> None:
    with (
        server("503 apiserver disabled") as own,
        server("good") as peer,
        balancing(own.entry, peer.entry) as made,
    ):
        assert [asked(made) for _ in range(3)] == ["503 apiserver disabled"] * 3


def test_a_server_that_refuses_is_passed_over_and_goes_to_the_end() -> None:
    with server("peer") as peer:
        own = refusing()
        with balancing(own, peer.entry) as made:
            assert asked(made) == "peer"
            assert made.servers == [peer.entry, own]


def test_a_server_that_does_not_answer_at_all_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedk3s.balancer.CONNECT_TIMEOUT", 0.3)
    with socket.socket() as full, server("peer") as peer:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        entry = f"127.0.0.1:{full.getsockname()[1]}"
        waiting = [socket.socket() for _ in range(3)]
        for connection in waiting:  # fill the queue, so that the next connect hangs
            connection.setblocking(False)
            connection.connect_ex(full.getsockname())
        with balancing(entry, peer.entry) as made:
            assert asked(made) == ""
            assert made.servers == [entry, peer.entry]
        for connection in waiting:
            connection.close()


def test_without_any_server_the_client_is_hung_up_on() -> None:
    with balancing(refusing(), refusing()) as made:
        assert asked(made) == ""


def test_connections_to_a_server_taken_off_the_list_are_closed() -> None:
    with server("old") as old, server("new") as new, balancing(old.entry) as made:
        with connected(made) as connection:
            assert who(connection) == "old"
            made.set_servers([new.entry])
            deadline = time.monotonic() + 5
            while who(connection) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert who(connection) == ""
        assert asked(made) == "new"


def test_connections_to_a_server_that_stays_are_kept() -> None:
    with (
        server("stays") as stays,
        server("new") as new,
        balancing(stays.entry) as made,
        connected(made) as connection,
    ):
        assert who(connection) == "stays"
        made.set_servers([new.entry, stays.entry])
        time.sleep(0.2)
        assert who(connection) == "stays"


def test_a_taken_port_is_an_error() -> None:
    with server("there") as there, pytest.raises(OSError, match="in use"):
        Balancer(there.server_address[1], []).start()
