"""The agent's load balancer on loopback 6444: TCP only, as k3s's.

It tries its servers in order and moves on only when a connection is refused: a server that answers, even
503, keeps it (measured; that is the own-address trap, and why https-listen-port avoids it). Which servers,
and in which order, is addresses.py's business.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

CONNECT_TIMEOUT = 10.0


class Balancer:
    """Listens on 127.0.0.1 from start() to stop()."""

    def __init__(self, port: int, servers: Sequence[str]) -> None:
        self._port = port
        self._servers = list(servers)
        self._streams: dict[str, set[asyncio.StreamWriter]] = {}
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._error: OSError | None = None
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._run, name="balancer", daemon=True)

    @property
    def port(self) -> int:
        """The port listened on; a free one is taken for 0."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def servers(self) -> list[str]:
        """The servers as `host:port`, the one tried first in front."""
        return list(self._servers)

    def start(self) -> None:
        """Listen; OSError when the port is taken."""
        self._thread.start()
        self._listening.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Close everything; waits a second at most."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1)

    def set_servers(self, servers: Sequence[str]) -> None:
        """Use these servers, in this order; connections to others are closed."""

        def replace() -> None:
            self._servers = list(servers)
            for server in self._streams.keys() - set(servers):
                for stream in self._streams.pop(server):
                    stream.close()

        self._loop.call_soon_threadsafe(replace)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._server = self._loop.run_until_complete(
                asyncio.start_server(self._serve, "127.0.0.1", self._port)
            )
        except OSError as error:
            self._error = error
            self._listening.set()
            return
        self._listening.set()
        self._loop.run_forever()
        self._server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _dial(self) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the first server that does not refuse; one that refuses goes to the end."""
        for server in list(self._servers):
            host, _, port = server.rpartition(":")
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    reader, writer = await asyncio.open_connection(host, int(port))
                return server, reader, writer
            except ConnectionRefusedError:
                if server in self._servers:
                    self._servers.remove(server)
                    self._servers.append(server)
            except (OSError, TimeoutError):
                return None
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled = await self._dial()
        if dialled is None:
            writer.close()
            return
        server, server_reader, server_writer = dialled
        self._streams.setdefault(server, set()).add(server_writer)
        try:
            await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))
        finally:
            self._streams.get(server, set()).discard(server_writer)
            writer.close()
            server_writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass bytes on until either side ends, then end the other side too."""
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()
