"""Programs that run beside the test, and a proxy between the engine and its database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.support.forks import ForkServer, RunningProgram

from gen_durable import Durable

PROGRAMS = Path(__file__).with_name("programs")


@dataclass
class Program:
    """A process of ours under test, and the lines that it has written so far."""

    process: RunningProgram
    effects: Path

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is said good-bye to."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def terminate(self) -> int:
        """SIGTERM, and wait for the exit code."""
        self.process.terminate()
        return self.process.wait(20)

    def lines(self) -> list[str]:
        """What this process has done: the effect lines that begin with its pid."""
        if not self.effects.exists():
            return []
        return [line for line in self.effects.read_text().splitlines() if line.startswith(f"{self.process.pid} ")]

    async def until(self, text: str, timeout: float = 20) -> float:
        """Wait for a line with this text; returns when it was seen."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if any(text in line for line in self.lines()):
                return time.monotonic()
            if self.process.poll() is not None:
                raise AssertionError(f"the program ended with {self.process.returncode} before it wrote {text!r}")
            await asyncio.sleep(0.005)
        raise AssertionError(f"{text!r} did not come; got {self.lines()}")


Spawn = Callable[..., Program]


@pytest.fixture
def spawn(dsn: str, schema: str, tmp_path: Path, fork_server: ForkServer) -> Iterator[Spawn]:
    """Start a program from `programs/` against the test's schema. Programs that still run at the end are killed."""
    started: list[Program] = []

    def start(name: str, **environment: str) -> Program:
        effects = tmp_path / "effects"
        file = str(PROGRAMS / f"{name}.py")
        given = {**os.environ, "DSN": dsn, "SCHEMA": schema, "EFFECTS": str(effects), **environment}
        program = Program(fork_server.start([file], given), effects)
        started.append(program)
        return program

    yield start
    for program in started:
        if program.process.poll() is None:
            program.kill()


@dataclass
class Proxy:
    """A TCP proxy to the server. It can lose the answer to a statement: the server has done it, nobody hears so."""

    dsn: str
    losing: bytes | None = None
    lost: int = 0
    stopping: bytes | None = None  # a statement that never comes to the server,
    answerless: bytes | None = None  # one that does, but its answer never comes back
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut_all(self) -> None:
        """Reset every connection."""
        for writer in list(self.writers):
            writer.transport.abort()


@contextlib.asynccontextmanager
async def open_proxy(dsn: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the server of `dsn`, whether that is reached by TCP or by socket."""
    parts = urlsplit(dsn)
    socket_directory = parse_qs(parts.query).get("host", [""])[0]

    async def upstream() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if socket_directory.startswith("/"):
            (path,) = Path(socket_directory).glob(".s.PGSQL.*[0-9]")
            return await asyncio.open_unix_connection(str(path))
        return await asyncio.open_connection(parts.hostname, parts.port)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # When the test is over; Python 3.11 reports a cancelled handler of a server as an error.
        with contextlib.suppress(asyncio.CancelledError):
            await connect(reader, writer)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await upstream()
        proxy.writers |= {writer, server_writer}
        doomed = asyncio.Event()
        mute = asyncio.Event()

        async def stall() -> None:
            proxy.stalled.set()
            await asyncio.Event().wait()  # until one of the ends goes

        async def forth() -> None:
            while data := await reader.read(65536):
                if proxy.losing is not None and proxy.losing in data and proxy.lost == 0:
                    proxy.lost += 1
                    doomed.set()
                if proxy.stopping is not None and proxy.stopping in data:
                    await stall()
                if proxy.answerless is not None and proxy.answerless in data:
                    mute.set()
                server_writer.write(data)
                await server_writer.drain()

        async def back() -> None:
            while data := await server_reader.read(65536):
                if doomed.is_set():
                    writer.transport.abort()  # the answer has come, so it is committed; now lose it
                    return
                if mute.is_set():
                    await stall()
                writer.write(data)
                await writer.drain()

        tasks = [asyncio.create_task(forth()), asyncio.create_task(back())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for end in (writer, server_writer):
                end.transport.abort()
                proxy.writers.discard(end)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    user = parts.netloc.rpartition("@")[0] or "postgres"
    proxy = Proxy(re.sub(r"\?.*", "", f"{parts.scheme}://{user}@127.0.0.1:{port}{parts.path or '/postgres'}"))
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut_all()
        await asyncio.sleep(0)


@pytest.fixture
def proxied(dsn: str) -> Callable[[], contextlib.AbstractAsyncContextManager[Proxy]]:
    """`async with proxied() as proxy:` gives a way to the server, or to the pooler before it, that can be cut."""
    return lambda: open_proxy(os.environ.get("GEN_DURABLE_TEST_POOLED", dsn))


@pytest.fixture
def open_app(dsn: str, schema: str) -> Callable[[], contextlib.AbstractAsyncContextManager[Durable]]:
    """`async with open_app() as app:` gives a client on the test's schema."""
    return lambda: Durable(dsn, schema=schema)
