"""What the tests of client and worker share: an opened engine, its events, its rows, and worker processes.

A test waits on an event (`Seen.until`), on a row (`Rows.until`) or on a line of a process, never on the clock.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest
from tests.support.forks import ForkServer, RunningProgram

from gen_durable import Durable, Handle, Job, Machine, Worker, job
from gen_durable.instances import Ending
from gen_durable.telemetry import Event

E = TypeVar("E", bound=Event)
R = TypeVar("R")
T = TypeVar("T")

PATIENCE = 30.0
NEVER = timedelta(hours=1)
BRIEF: dict[str, Any] = {
    "lease_ttl": timedelta(seconds=0.9),
    "heartbeat_interval": timedelta(seconds=0.3),
    "reap_interval": timedelta(seconds=0.2),
}
"""Leases that a test can see run out."""
NO_UPKEEP: dict[str, Any] = {"reap_interval": None, "gc_interval": None}
"""Neither reaper nor gc, which would cost each worker a session and hide a lost wake-up."""


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


async def soon(waited: Awaitable[T]) -> T:
    """What is waited for, or an error when it does not come in reasonable time."""
    async with asyncio.timeout(PATIENCE):
        return await waited


async def unlike(refused: Awaitable[object], error: type[Exception], words: str) -> str | None:
    """What is wrong about a refusal that should be this error with these words; None when nothing is."""
    try:
        await refused
    except error as raised:
        return None if re.search(words, str(raised)) else str(raised)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    return "was accepted"


class Seen:
    """A subscriber that keeps the events of an engine, and that can be waited on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind: type[E], test: Callable[[E], bool] = lambda _: True, *, count: int = 1) -> list[E]:
        """The events of a kind that pass the test, once there are `count` of them."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self._news.clear()
                found = [event for event in self.of(kind) if test(event)]
                if len(found) >= count:
                    return found
                await self._news.wait()


class Rows:
    """The rows of one schema, read and written past the engine."""

    def __init__(self, connection: asyncpg.Connection[Any], schema: str) -> None:
        self.connection = connection
        self.schema = schema

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run SQL in which `@` stands for the schema."""
        return cast("list[asyncpg.Record]", await self.connection.fetch(sql.replace("@", f'"{self.schema}"'), *args))

    async def value(self, sql: str, *args: object) -> Any:
        return (await self.fetch(sql, *args))[0][0]

    async def count(self, where: str = "true") -> int:
        return int(await self.value(f"select count(*) from @.instances where {where}"))

    async def row(self, instance: int | Handle[Any]) -> asyncpg.Record:
        number = instance if isinstance(instance, int) else instance.id
        (row,) = await self.fetch("select * from @.instances where id = $1", number)
        return row

    async def until(self, instance: int | Handle[Any], **columns: object) -> asyncpg.Record:
        """The row, once its columns have these values."""

        async def there() -> bool:
            row = await self.row(instance)
            return all(row[name] == value for name, value in columns.items())

        await self.when(there)
        return await self.row(instance)

    async def when(self, there: Callable[[], Awaitable[bool]]) -> None:
        """Ask again and again until something holds."""
        async with asyncio.timeout(PATIENCE):
            while True:
                if await there():
                    return
                await asyncio.sleep(0.01)


class Engine:
    """An open client with its events and rows; `worker` makes workers for it.

    A worker has a reaper or a gc only if its options say how often, or name a hook that the reaper calls.
    """

    def __init__(self, app: Durable, rows: Rows, seen: Seen) -> None:
        self.app = app
        self.rows = rows
        self.seen = seen

    def worker(self, *runs: Machine | Job[Any, Any], **options: Any) -> Worker:
        machines = [one for one in runs if isinstance(one, Machine)]
        jobs = [one for one in runs if isinstance(one, Job)]
        usual = {} if "on_dead_letter" in options else NO_UPKEEP
        return Worker(self.app, machines=machines, jobs=jobs, **usual | options)

    async def end(self, handle: Handle[R]) -> Ending[R]:
        """How an instance ends."""
        return await soon(handle.wait())


@asynccontextmanager
async def opened(dsn: str, schema: str, **options: Any) -> AsyncIterator[Engine]:
    """An engine on a schema that is there already."""
    connection = await asyncpg.connect(dsn)
    try:
        async with Durable(dsn, schema=schema, **options) as app:
            seen = Seen()
            app.events.subscribe(seen)
            yield Engine(app, Rows(connection, schema), seen)
    finally:
        await connection.close()


class Process:
    """A worker in a process of its own (programs/worker.py), which reports by printing lines."""

    def __init__(self, child: RunningProgram, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader) -> None:
        self.child = child
        self._stdout = stdout
        self._stderr = stderr
        self.lines: list[str] = []
        self.errors = ""

    async def line(self, *wanted: str) -> str:
        """The next line of output that is one of these."""
        async with asyncio.timeout(PATIENCE):
            while raw := await self._stdout.readline():
                self.lines.append(raw.decode().strip())
                if self.lines[-1] in wanted:
                    return self.lines[-1]
        raise AssertionError(f"the process ended without saying {wanted}: {self.lines} {await self._read_errors()}")

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    async def exit_code(self, within: float = PATIENCE) -> int:
        """How the process ended, which it must do in time."""
        code = await asyncio.to_thread(self.child.wait, within)
        self.lines += (await self._stdout.read()).decode().split("\n")
        await self._read_errors()
        return code

    async def _read_errors(self) -> str:
        self.errors += (await self._stderr.read()).decode()
        return self.errors


@asynccontextmanager
async def open_pipe() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """A pipe: a reader, and the descriptor of the end that a program writes to, which the caller closes."""
    ours, its = os.pipe()
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb")
    )
    try:
        yield reader, its
    finally:
        transport.close()


@asynccontextmanager
async def process(forks: ForkServer, dsn: str, schema: str, *arguments: str) -> AsyncIterator[Process]:
    """A worker process, killed in the end if it still runs. Arguments are `option=number`, see programs/worker.py."""
    program = str(Path(__file__).with_name("programs") / "worker.py")
    async with open_pipe() as (stdout, its_stdout), open_pipe() as (stderr, its_stderr):
        child = forks.start([program, dsn, schema, *arguments], os.environ, outputs=(its_stdout, its_stderr))
        os.close(its_stdout)
        os.close(its_stderr)
        try:
            yield Process(child, stdout, stderr)
        finally:
            child.kill()
            child.wait(PATIENCE)


def program_job(name: str, takes: object, gives: object) -> Job[Any, Any]:
    """A job of programs/worker.py as its clients know it: by name and types alone."""

    async def never_called(argument: Any) -> Any:
        raise AssertionError("this process has no worker")

    never_called.__annotations__ = {"argument": takes, "return": gives}
    return job(name=name)(never_called)


Opening: TypeAlias = Callable[..., AbstractAsyncContextManager[Engine]]
Spawning: TypeAlias = Callable[..., AbstractAsyncContextManager[Process]]


@pytest.fixture
def engine(dsn: str, schema: str) -> Opening:
    """`async with engine() as e:` opens a client on this test's schema."""

    def opening(**options: Any) -> AbstractAsyncContextManager[Engine]:
        return opened(dsn, schema, **options)

    return opening


@pytest.fixture
def spawn(dsn: str, schema: str, fork_server: ForkServer) -> Spawning:
    """`async with spawn("slots=2") as p:` starts a worker in a process of its own."""

    def spawning(*arguments: str) -> AbstractAsyncContextManager[Process]:
        return process(fork_server, dsn, schema, *arguments)

    return spawning


@pytest.fixture
def private_dsn(dsn: str, schema: str) -> Iterator[str]:
    """The server under a role of this test's own, so that its sessions can be told from those of other tests."""
    role = f"{schema}_role"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {role} superuser login password 'private'")
        parts = urlsplit(dsn)
        place = parts.netloc.rsplit("@", 1)[-1]
        yield urlunsplit(parts._replace(netloc=f"{role}:private@{place}"))
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [role])
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")


@pytest.fixture
def private(private_dsn: str, schema: str) -> Opening:
    """`engine` on `private_dsn`."""

    def opening(**options: Any) -> AbstractAsyncContextManager[Engine]:
        return opened(private_dsn, schema, **options)

    return opening
