"""What the conformance tests share: machines whose steps the test writes, and an engine that can be watched.

In: the bodies of steps, as plain functions. Out: what each step was given, the rows as they are, the events as they
came. A test waits on those events (`Engine.until`), never on the clock.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import asyncpg
import pytest
from tests.support.programs.doomed import Doomed

from gen_durable import (
    Context,
    Durable,
    Fail,
    Failed,
    Finished,
    Handle,
    Machine,
    Outcome,
    Signal,
    Worker,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.instances import Ending
from gen_durable.store.types import Claim, Commit, FlushResult, ReapedClaim
from gen_durable.telemetry import Event

E = TypeVar("E", bound=Event)
R = TypeVar("R")
State: TypeAlias = dict[str, Any]
Body: TypeAlias = Callable[[Any, State, Context], Awaitable[Outcome[Any]] | Outcome[Any]]
Handler: TypeAlias = Callable[[Any, State, Context, Exception], Awaitable[Outcome[Any]] | Outcome[Any]]

PROGRAM = Path(__file__).with_name("programs") / "doomed.py"
PATIENCE = 10.0
HOUR = timedelta(hours=1)
MOMENT = timedelta(seconds=1)  # a busy machine inserts late
"""Between the beginning of a transaction and that of the statement in it which brings a delay."""
BRIEF: dict[str, Any] = {
    "lease_ttl": timedelta(seconds=1.2),
    "heartbeat_interval": timedelta(seconds=0.4),
    "reap_interval": timedelta(seconds=0.3),
}
"""Leases that a test can see run out."""

go = Signal("go", dict)
other = Signal("other", dict)


@dataclass(frozen=True, slots=True)
class Visit:
    """One execution of a step: what it was given."""

    step: str
    state: State
    ctx: Context


class Scripted:
    """The service behind the machines: the bodies of their steps, and a record of every execution."""

    def __init__(self, on_error: Handler | None = None, **bodies: Body) -> None:
        self.bodies = bodies
        self.handler = on_error
        self.visits: list[Visit] = []
        self.errors: list[tuple[State, Context, Exception]] = []
        self.running = 0
        self.most_running = 0

    def of(self, step: str) -> list[Visit]:
        """The executions of one step."""
        return [visit for visit in self.visits if visit.step == step]

    async def run(self, machine: Machine, state: State, ctx: Context) -> Outcome[Any]:
        self.visits.append(Visit(ctx.step, state, ctx))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            answer = self.bodies[ctx.step](machine, state, ctx)
            return await answer if inspect.isawaitable(answer) else answer
        finally:
            self.running -= 1

    async def handle(self, machine: Machine, state: State, ctx: Context, error: Exception) -> Outcome[Any]:
        self.errors.append((state, ctx, error))
        if self.handler is None:
            return Fail(error)
        answer = self.handler(machine, state, ctx, error)
        return await answer if inspect.isawaitable(answer) else answer


class Play(Machine):
    """Three steps whose bodies the test supplies."""

    def __init__(self, on_error: Handler | None = None, **bodies: Body) -> None:
        self.script = Scripted(on_error, **bodies)

    @step
    async def a(self, state: State, ctx: Context) -> Outcome[Any]:
        return await self.script.run(self, state, ctx)

    @step
    async def b(self, state: State, ctx: Context) -> Outcome[Any]:
        return await self.script.run(self, state, ctx)

    @step
    async def c(self, state: State, ctx: Context) -> Outcome[Any]:
        return await self.script.run(self, state, ctx)

    async def on_error(self, state: State, ctx: Context, error: Exception) -> Outcome[Any]:
        return await self.script.handle(self, state, ctx, error)


class Kid(Machine):
    """What a parent starts: one step, whose body the test supplies."""

    def __init__(self, on_error: Handler | None = None, **bodies: Body) -> None:
        self.script = Scripted(on_error, **bodies)

    @step
    async def k(self, state: State, ctx: Context) -> Outcome[Any]:
        return await self.script.run(self, state, ctx)

    @step
    async def grown(self, state: State, ctx: Context) -> Outcome[Any]:
        return await self.script.run(self, state, ctx)

    async def on_error(self, state: State, ctx: Context, error: Exception) -> Outcome[Any]:
        return await self.script.handle(self, state, ctx, error)


KNOWN = [f"{m.__name__}/1/{s}" for m, steps in ((Play, "abc"), (Kid, ("k", "grown"))) for s in steps]


class Gate:
    """Where a step stops until the test lets it through."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.opened.wait()

    async def arrival(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.reached.wait()


class Engine:
    """A client on a schema, a second connection to look at rows with, and every event that was told."""

    def __init__(self, app: Durable, db: asyncpg.Connection[Any], schema: str) -> None:
        self.app = app
        self.db = db
        self.schema = schema
        self.told: list[Event] = []
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()  # steps look at rows too, several at once
        app.events.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        self.told.append(event)
        self._news.set()

    def events(self, kind: type[E], **attributes: object) -> list[E]:
        """The events of a kind that were told so far."""
        return [
            event
            for event in self.told
            if isinstance(event, kind) and all(getattr(event, k) == v for k, v in attributes.items())
        ]

    async def until(self, kind: type[E], *, times: int = 1, **attributes: object) -> E:
        """Wait until an event was told, so many times; returns the last of them."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.events(kind, **attributes)) < times:
                self._news.clear()
                await self._news.wait()
        return found[times - 1]

    def worker(self, *machines: Machine, **options: Any) -> Worker:
        """A worker for some machines."""
        return Worker(self.app, machines=machines, **options)

    async def start(self, state: State | None = None, **options: Any) -> Handle[Any]:
        """A new instance of `Play` at its first step."""
        return await self.app.insert(Play.a, {} if state is None else state, **options)

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Rows of a query in which `@` stands for the schema."""
        async with self._turn:
            return await self.db.fetch(sql.replace("@", f'"{self.schema}"'), *args)

    async def row(self, target: Handle[Any] | int) -> asyncpg.Record:
        """An instance's row, with every column."""
        (row,) = await self.fetch("select * from @.instances where id = $1", _id(target))
        return row

    async def children(self, target: Handle[Any] | int) -> list[asyncpg.Record]:
        """The rows that have this instance as their parent."""
        return await self.fetch("select * from @.instances where parent_id = $1 order by id", _id(target))

    async def inbox(self, target: Handle[Any] | int) -> list[str]:
        """The names of an instance's signals that are not consumed."""
        rows = await self.fetch(
            "select name from @.signals where target_id = $1 and not consumed order by id", _id(target)
        )
        return [row["name"] for row in rows]

    async def now(self) -> datetime:
        """The database's clock."""
        return await self.db.fetchval("select clock_timestamp()")

    async def claim(
        self, count: int = 1, *, lease: float = 60.0, worker: str = "by hand", **queues: int
    ) -> list[Claim]:
        """Claim rows as a worker would, and do nothing with them. A lease of 0 has run out by the next statement."""
        picked = await services_of(self.app).pool.run(
            services_of(self.app).statements.pick(worker, queues or {"default": count}, KNOWN, lease)
        )
        return picked.claims

    async def reap(self, max_crashes: int | None = None) -> list[ReapedClaim]:
        """Take back claims whose lease has run out."""
        return (await services_of(self.app).pool.run(services_of(self.app).statements.reap(1000, max_crashes))).claims

    async def flush(self, *commits: Commit) -> FlushResult:
        """Commit outcomes made by hand."""
        return await services_of(self.app).pool.run(
            services_of(self.app).statements.flush(sorted(commits, key=lambda commit: commit.id))
        )


@asynccontextmanager
async def opened(dsn: str, schema: str) -> AsyncIterator[Engine]:
    """An engine on a migrated schema."""
    db = await asyncpg.connect(dsn)
    try:
        async with Durable(dsn, schema=schema) as app:
            yield Engine(app, db, schema)
    finally:
        await db.close()


async def finished(handle: Handle[R]) -> R:
    """The result of an instance that must end well."""
    ending = await ended(handle)
    assert isinstance(ending, Finished), ending
    return ending.result


async def failed(handle: Handle[Any]) -> str:
    """The error of an instance that must fail."""
    ending = await ended(handle)
    assert isinstance(ending, Failed), ending
    return ending.error


async def ended(handle: Handle[R]) -> Ending[R]:
    return await handle.wait(timedelta(seconds=PATIENCE))


def differing(before: asyncpg.Record, after: asyncpg.Record) -> set[str]:
    """The columns in which two readings of a row differ."""
    return {column for column in before.keys() if before[column] != after[column]}  # noqa: SIM118  # a Record is no dict


def ids(several: Sequence[Handle[Any]]) -> list[int]:
    return [handle.id for handle in several]


def _id(target: Handle[Any] | int) -> int:
    return target if isinstance(target, int) else target.id


Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[Engine]]
Dooming: TypeAlias = Callable[[], AbstractAsyncContextManager[Doomed]]


@pytest.fixture
def engine(dsn: str, schema: str) -> Opening:
    """`async with engine() as e:` opens a client on this test's schema."""
    return lambda: opened(dsn, schema)


@pytest.fixture
def doomed(dsn: str, schema: str, tmp_path: Path) -> Dooming:
    """`async with doomed() as d:` starts a worker in a process of its own, there to be killed."""

    @asynccontextmanager
    async def process() -> AsyncIterator[Doomed]:
        journal = tmp_path / "journal"
        program = str(PROGRAM)
        child = await asyncio.create_subprocess_exec(
            sys.executable, program, dsn, schema, str(journal), stdout=asyncio.subprocess.PIPE
        )
        try:
            yield Doomed(child, journal)
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()

    return process
