"""Insert, signal and cancel, in the callers' transactions: with every kind of connection, and on both roads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from tests.support.drivers import CONNECTIONS, CallerConnection

from gen_durable import (
    Await,
    Cancelled,
    Concurrency,
    Context,
    Done,
    Durable,
    Finished,
    Machine,
    Outcome,
    ScheduleChildren,
    Signal,
    Start,
    Status,
    SyncDurable,
    Worker,
    job,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.errors import NotFound
from gen_durable.instances import Cancellation

every_kind = pytest.mark.parametrize("kind", CONNECTIONS)
SOON = timedelta(seconds=10)
HOUR = timedelta(hours=1)
go = Signal("go", str)


@job
async def echo(text: str) -> str:
    return text


class Tree(Machine):
    """A root with two children: one waits for a signal, one runs until it is stopped."""

    @step
    async def grow(self, state: None, ctx: Context) -> Outcome[None]:
        return ScheduleChildren([Start(Tree.wait, None), Start(Tree.grow_one, None)], then=self.end, state=None)

    @step
    async def grow_one(self, state: None, ctx: Context) -> Outcome[None]:
        return ScheduleChildren([Start(Tree.run, None)], then=self.end, state=None)

    @step
    async def wait(self, state: None, ctx: Context) -> Outcome[None]:
        return Await(go, then=self.end, state=None)

    @step
    async def run(self, state: None, ctx: Context) -> Outcome[None]:
        await asyncio.Event().wait()
        return Done(None)

    @step
    async def end(self, state: None, ctx: Context) -> Outcome[None]:
        return Done(None)


@asynccontextmanager
async def looking(dsn: str, schema: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """`look(sql)`: a value, as others see it."""
    connection = await asyncpg.connect(dsn)

    async def look(sql: str, *args: object) -> Any:
        return await connection.fetchval(sql.replace("@", f'"{schema}"'), *args)

    yield look
    await connection.close()


async def do(caller: CallerConnection, call: str, target: int) -> None:
    """One call of the caller's."""
    match call:
        case "insert":
            await caller.insert(echo, "in", unique_key=f"key {target}")
        case "signal":
            assert await caller.signal(target, go, "in")
        case _:
            assert await caller.cancel(target, reason="enough") == Cancellation(target, Status.RUNNABLE, 1, 0)


SEEN = {
    "insert": "select count(*) from @.instances where unique_key = convert_to('key ' || $1::bigint, 'UTF8')",
    "signal": "select count(*) from @.signals where target_id = $1",
    "cancel": "select count(*) from @.instances where id = $1 and status = 'cancelled' and last_error = 'enough'",
}


@every_kind
async def test_every_call_commits_and_rolls_back_with_the_caller(dsn: str, schema: str, road: str, kind: str) -> None:
    """A transaction that is rolled back, a savepoint in it, a savepoint alone: nothing. One that commits: all of it."""
    async with (
        Durable(dsn, schema=schema) as app,
        looking(dsn, schema) as look,
        CONNECTIONS[kind](road, schema) as caller,
    ):
        for call, seen in SEEN.items():
            target = (await app.insert(echo, "target")).id
            async with caller.transaction(commit=False):
                await do(caller, call, target)
            assert await look(seen, target) == 0
            async with caller.transaction(commit=False), caller.transaction(commit=True):
                await do(caller, call, target)
            assert await look(seen, target) == 0
            async with caller.transaction(commit=True), caller.transaction(commit=False):
                await do(caller, call, target)
            assert await look(seen, target) == 0
            async with caller.transaction(commit=True):
                async with caller.transaction(commit=True):
                    await do(caller, call, target)
                assert await look(seen, target) == 0  # not before the commit
            assert await look(seen, target) == 1


@every_kind
async def test_a_tree_is_cancelled_by_the_commit_and_not_by_a_rollback(dsn: str, schema: str, kind: str) -> None:
    """Workers hear of it with the commit: they neither poll nor reap here. What runs is stopped, too."""
    rest = {"poll_interval": HOUR, "max_poll_interval": HOUR, "reap_interval": None}
    async with (
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[Tree()], heartbeat_interval=timedelta(seconds=5), **rest),  # type: ignore[arg-type]
        looking(dsn, schema) as look,
        CONNECTIONS[kind](dsn, schema) as caller,
    ):
        assert services_of(app).notifier.listener is not None
        await services_of(app).notifier.listener.listening.wait()
        root = await app.insert(Tree.grow, None, unique_key="root")
        told = "select string_agg(distinct status::text, ' ') from @.instances where id > $1"
        grown = "awaiting_children awaiting_signal executing"
        while await look(told, root.id) != grown:
            pass
        async with caller.transaction(commit=False):
            assert await caller.cancel("root", reason="enough") == Cancellation(root.id, Status.AWAITING_CHILDREN, 1, 0)
        assert await look(told, root.id) == grown
        assert await look("select count(*) from @.cascades") == 0
        (running,) = [i async for i in app.list_all(status=Status.EXECUTING)]
        async with caller.transaction(commit=False):
            assert await caller.cancel(running.id) == Cancellation(running.id, Status.EXECUTING, 0, 1)
        async with caller.transaction(commit=True):
            assert await caller.cancel("root", reason="enough")
            assert not await caller.cancel(root.id)  # it has ended, for this transaction
            assert await look(told, root.id) == grown
        for instance in range(root.id, root.id + 4):
            assert await app.handle(instance, Tree.wait).wait(SOON) == Cancelled(instance, "enough")


@every_kind
async def test_who_is_not_there_is_told_and_aborts_nothing(dsn: str, schema: str, kind: str) -> None:
    async with CONNECTIONS[kind](dsn, schema) as caller, looking(dsn, schema) as look:
        async with caller.transaction(commit=True):
            with pytest.raises(NotFound, match="instance 999 is unknown"):
                await caller.cancel(999)
            with pytest.raises(NotFound, match="'nobody' is unknown or has ended"):
                await caller.cancel("nobody")
            await caller.insert(echo, "in")
        assert await look("select count(*) from @.instances") == 1


async def test_handles_pass_the_connection_on(dsn: str, schema: str) -> None:
    """Of both clients."""
    async with Durable(dsn, schema=schema) as app, looking(dsn, schema) as look:
        first, second = await app.insert(echo, "a"), await app.insert(echo, "b")
        async with CONNECTIONS["asyncpg_connection"](dsn, schema) as caller, caller.transaction(commit=False):
            assert await first.signal(go, "x", connection=caller.connection)
            assert await first.cancel(connection=caller.connection)
        async with CONNECTIONS["django_alias"](dsn, schema) as caller:
            assert isinstance(caller.app, SyncDurable)
            handle = caller.app.handle(second.id, echo)
            async with caller.transaction(commit=False):
                assert handle.signal(go, "x", using="default")
                assert handle.cancel(using="default")
                assert not handle.cancel(connection=caller.connection)
        assert await look("select count(*) from @.signals") == 0
        assert await look("select count(*) from @.instances where status = 'runnable'") == 2


async def test_an_open_transaction_that_cancels_holds_up_nobody_else(dsn: str, schema: str) -> None:
    """Rows of the same limit and key are picked, run and flushed meanwhile: no gate is held."""
    async with (
        Durable(dsn, schema=schema) as app,
        Worker(app, jobs=[echo], limits={"api": Concurrency(1)}, queues={"default": 1}),
        CONNECTIONS["asyncpg_connection"](dsn, schema) as caller,
    ):
        shared: dict[str, Any] = {"limit": "api", "partition_key": "k"}
        waits = await app.insert(echo, "waits", delay=HOUR, **shared)
        async with caller.transaction(commit=True):
            assert await caller.cancel(waits.id)
            for n in range(3):
                handle = await app.insert(echo, str(n), **shared)
                assert await handle.wait(SOON) == Finished(handle.id, str(n))
        assert isinstance(await waits.wait(SOON), Cancelled)
