"""A TCP proxy between one worker, or the load, and the server: it delays, stalls, resets and swallows answers."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK = 65536


class Proxy:
    """Forwards everything, unless a fault changes that."""

    def __init__(self, upstream: int | str, rng: random.Random) -> None:
        """`upstream` is a port of this machine, or the path of a socket."""
        self._upstream = upstream
        self._rng = rng
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.port = 0
        self.delay = 0.0
        self.swallowing = 0.0  # the share of the answers that are lost
        self.swallowed = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        await asyncio.sleep(0)

    def stall(self) -> None:
        """Drop all traffic in both directions, without closing a connection."""
        self._flowing.clear()

    def flow(self) -> None:
        """What was held up goes on."""
        self._flowing.set()

    def reset(self) -> None:
        """Cut every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        tasks = [
            asyncio.create_task(self._pass(reader, server_writer, answers=False)),
            asyncio.create_task(self._pass(server_reader, writer, answers=True)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._writers -= {writer, server_writer}
            for each in (writer, server_writer):
                each.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._upstream, int):
            return await asyncio.open_connection("127.0.0.1", self._upstream)
        return await asyncio.open_unix_connection(self._upstream)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await self._flowing.wait()
                if answers and self.swallowing and self._rng.random() < self.swallowing:
                    # The server has executed the statement, and its client never gets the result.
                    self.swallowed += 1
                    await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.5)))
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
