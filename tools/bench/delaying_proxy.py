"""A proxy that adds a latency to every round trip, without limiting the throughput.

The proxy of tools/chaos forwards one chunk per delay, which is how a fault should look. Here each chunk is due a fixed
time after it came, so that chunks that follow each other are delayed together, as on a long line. Only answers are
delayed, by the whole round trip: a client that waits for its answers sees no difference, and the timers of an event
loop are exact to a millisecond only.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit, urlunsplit

from tools.chaos.proxy import CHUNK, Proxy


class DelayingProxy(Proxy):
    """Adds `round_trip` seconds before each answer."""

    def __init__(self, dsn: str, round_trip: float) -> None:
        super().__init__(_address(dsn), random.Random(0))
        self._dsn = dsn
        self.delay = round_trip

    @property
    def dsn(self) -> str:
        """The DSN of the server behind the proxy."""
        parts = urlsplit(self._dsn)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}", query=""))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        if not self.delay or not answers:
            await self._forward(reader, writer)
            return
        clock = asyncio.get_running_loop().time
        arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def forward() -> None:
            while True:
                due, data = await arrived.get()
                if (left := due - clock()) > 0:
                    await asyncio.sleep(left)
                writer.write(data)
                await writer.drain()

        forwarding = asyncio.create_task(forward())
        try:
            with suppress(OSError):
                while data := await reader.read(CHUNK):
                    arrived.put_nowait((clock() + self.delay, data))
        finally:
            forwarding.cancel()


def _address(dsn: str) -> int | str:
    """The port of a server on this machine, or the path of its socket."""
    parts = urlsplit(dsn)
    options = parse_qs(parts.query)
    if (folder := options.get("host", [""])[0]).startswith("/"):
        return f"{folder}/.s.PGSQL.{options.get('port', ['5432'])[0]}"
    return parts.port or 5432
