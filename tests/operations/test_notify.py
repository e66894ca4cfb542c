"""Workers are notified of callers' transactions after the commit, on a connection of the client: Postgres serializes
the commits of transactions that notify, so no caller's transaction does by default.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.support.drivers import CONNECTIONS, CallerConnection
from tests.support.rows import executing, parked

from gen_durable import Await, Context, Done, Durable, Machine, Outcome, Signal, SyncDurable, Worker, job, step
from gen_durable.core.caller_transaction_watcher import CallerTransactionWatcher
from gen_durable.core.services import services_of
from gen_durable.errors import InputError

every_kind = pytest.mark.parametrize("kind", CONNECTIONS)
PATIENCE = 15.0
HOUR = timedelta(hours=1)
go = Signal("go", str)
Message = tuple[int, str]


@job
async def echo(text: str) -> str:
    return text


class Waiting(Machine):
    """Waits for a signal."""

    @step
    async def wait(self, state: None, ctx: Context) -> Outcome[str]:
        return Await(go, then=self.take, state=None)

    @step
    async def take(self, state: None, ctx: Context) -> Outcome[str]:
        return Done(ctx.take(go) or "")


class Listening:
    """A connection that listens, and sees the backends of callers."""

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._messages: asyncio.Queue[Message] = asyncio.Queue()

    async def listen(self) -> None:
        await self._connection.add_listener(
            f"{self._schema}_wake", lambda _, backend, __, payload: self._messages.put_nowait((backend, payload))
        )

    async def until(self, payload: str) -> list[Message]:
        """All messages up to the first one with this payload."""
        found: list[Message] = []
        async with asyncio.timeout(10):
            while not found or found[-1][1] != payload:
                found.append(await self._messages.get())
        return found

    async def writing_backend(self) -> int:
        """The backend whose open transaction has written instances, once it is the only one.

        The last statements of a worker that was stopped may still run.
        """
        async with asyncio.timeout(PATIENCE):
            while True:
                rows = await self._connection.fetch(
                    "select pid from pg_locks where relation = $1::text::regclass and mode = 'RowExclusiveLock'",
                    f"{self._schema}.instances",
                )
                if len(rows) == 1:
                    return int(rows[0]["pid"])
                await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(dsn: str, schema: str) -> AsyncIterator[Listening]:
    connection = await asyncpg.connect(dsn)
    found = Listening(connection, schema)
    await found.listen()
    yield found
    await connection.close()


async def insert(caller: CallerConnection, ear: Listening, queue: str, **options: Any) -> int:
    """Insert in a transaction of the caller's. Returns its backend."""
    async with caller.transaction(commit=True):
        await caller.insert(echo, "in", queue=queue, **options)
        return await ear.writing_backend()


@every_kind
async def test_the_notification_is_not_part_of_the_callers_transaction(dsn: str, schema: str, kind: str) -> None:
    """It comes from another backend; a call may have it in its transaction, or none."""
    async with listening(dsn, schema) as ear, CONNECTIONS[kind](dsn, schema) as caller:
        backend = await insert(caller, ear, "first")
        ((sender, _),) = await ear.until("queue:first")
        assert sender != backend
        assert await insert(caller, ear, "silent", notify="never") == backend
        assert await insert(caller, ear, "inside", notify="in_transaction") == backend
        assert await ear.until("queue:inside") == [(backend, "queue:inside")]


@every_kind
async def test_a_rollback_notifies_of_nothing(dsn: str, schema: str, kind: str) -> None:
    async with listening(dsn, schema) as ear, CONNECTIONS[kind](dsn, schema) as caller:
        async with caller.transaction(commit=False):
            await caller.insert(echo, "in", queue="undone")
        await insert(caller, ear, "last")
        assert [payload for _, payload in await ear.until("queue:last")] == ["queue:last"]


@pytest.mark.parametrize("kind", ["django_connection", "django_alias"])
async def test_a_rolled_back_atomic_block_of_django_notifies_of_nothing(dsn: str, schema: str, kind: str) -> None:
    """`on_commit` forgets what was registered in it, and keeps what was registered around it."""
    async with listening(dsn, schema) as ear, CONNECTIONS[kind](dsn, schema) as caller:
        async with caller.transaction(commit=True):
            await caller.insert(echo, "in", queue="around")
            async with caller.transaction(commit=False):
                await caller.insert(echo, "in", queue="undone")
        found = await ear.until("queue:around")
        await insert(caller, ear, "last")
        found += await ear.until("queue:last")
        assert [payload for _, payload in found] == ["queue:around", "queue:last"]


async def test_a_savepoint_that_is_rolled_back_leaves_the_rest(dsn: str, schema: str) -> None:
    """A superfluous message for it does no harm."""
    async with listening(dsn, schema) as ear, CONNECTIONS["asyncpg_connection"](dsn, schema) as caller:
        async with caller.transaction(commit=True):
            async with caller.transaction(commit=False):
                await caller.insert(echo, "in", queue="undone")
            await caller.insert(echo, "in", queue="last")
        await ear.until("queue:last")


async def test_django_without_autocommit(dsn: str, schema: str) -> None:
    """There Django has no hook: the commit is found by the transaction's id."""
    async with listening(dsn, schema) as ear, CONNECTIONS["django_connection"](dsn, schema) as caller:
        caller.connection.set_autocommit(False)
        await caller.insert(echo, "in", queue="last")
        caller.connection.commit()
        caller.connection.set_autocommit(True)
        await ear.until("queue:last")


@every_kind
async def test_a_call_outside_of_a_transaction_notifies_at_once(dsn: str, schema: str, kind: str) -> None:
    """A connection in autocommit mode commits by itself; SQLAlchemy begins a transaction, which is committed here."""
    async with listening(dsn, schema) as ear, CONNECTIONS[kind](dsn, schema) as caller:
        await caller.insert(echo, "in", queue="last")
        if kind.startswith("sqlalchemy"):
            ended = caller.connection.commit()
            if isinstance(caller.app, Durable):
                await ended
        await ear.until("queue:last")


@pytest.mark.parametrize("kind", [kind for kind in CONNECTIONS if kind.startswith("sqlalchemy")])
async def test_sqlalchemy_reports_each_commit_once(
    dsn: str, schema: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many calls the transaction has, and however long it takes: no check has to come first."""
    reports: list[object] = []
    check_transactions_soon = CallerTransactionWatcher.check_transactions_soon

    def report(watcher: CallerTransactionWatcher, committing: object = None) -> None:
        reports.append(committing)
        check_transactions_soon(watcher, committing)

    monkeypatch.setattr(CallerTransactionWatcher, "check_transactions_soon", report)
    async with listening(dsn, schema) as ear, CONNECTIONS[kind](dsn, schema) as caller:
        async with caller.transaction(commit=True):
            await caller.insert(echo, "in", queue="first")
            await caller.insert(echo, "in", queue="second")
            assert reports == []
        assert len(reports) == 1
        await insert(caller, ear, "last")
        await ear.until("queue:last")


@every_kind
async def test_signals_and_cancels_too(dsn: str, schema: str, kind: str) -> None:
    """A signal wakes the queue of its target. test_in_transaction_drivers.py has cancels of whole trees."""
    async with (
        Durable(dsn, schema=schema) as app,
        listening(dsn, schema) as ear,
        CONNECTIONS[kind](dsn, schema) as caller,
    ):
        async with Worker(app, machines=[Waiting()], poll_interval=HOUR, max_poll_interval=HOUR):
            waiting = await app.insert(Waiting.wait, None)
            while (await waiting.get()).status.value != "awaiting_signal":
                pass
        async with caller.transaction(commit=True):
            assert await caller.signal(waiting.id, go, "on")
            backend = await ear.writing_backend()
        sender, _ = (await ear.until("queue:default"))[-1]
        assert sender != backend
        async with caller.transaction(commit=True):
            assert await caller.cancel(waiting.id, notify="in_transaction")
            assert not await caller.cancel(waiting.id, notify="never")


async def test_what_signals_and_cancels_notify_of(dsn: str, schema: str) -> None:
    """Of nothing where nothing has become runnable or the caller wants no message; in its transaction if it says so."""
    rows = [parked(1), parked(2), *(executing(n, locked_by=f"w{n}") for n in range(3, 7))]
    async with listening(dsn, schema) as ear, CONNECTIONS["asyncpg_connection"](dsn, schema) as caller:
        await caller.connection.execute("".join(rows).replace("@schema", f'"{schema}"'))
        async with caller.transaction(commit=True):
            assert await caller.signal(3, go, "on")  # it executes
            assert await caller.signal(1, go, "on", notify="never")
            assert await caller.cancel(4, notify="never")
            backend = await ear.writing_backend()
        async with caller.transaction(commit=True):
            assert await caller.cancel(5, notify="in_transaction")
        assert await ear.until("check_cancel_requests:w5") == [(backend, "check_cancel_requests:w5")]
        async with caller.transaction(commit=True):
            assert await caller.cancel(6)
        ((sender, _),) = await ear.until("check_cancel_requests:w6")
        assert sender != backend
        async with caller.transaction(commit=True):
            assert await caller.signal(2, go, "on", notify="in_transaction")
        assert await ear.until("queue:default") == [(backend, "queue:default")]


async def test_calls_of_many_transactions_at_once(dsn: str, schema: str) -> None:
    """A worker that does not poll begins all rows of 16 callers."""
    async with (
        Durable(dsn, schema=schema) as app,
        Durable(dsn, schema=schema) as other,
        Worker(other, jobs=[echo], poll_interval=HOUR, max_poll_interval=HOUR),
    ):
        assert services_of(other).notifier.listener is not None
        await services_of(other).notifier.listener.listening.wait()

        async def commit_some(number: int) -> list[Any]:
            connection = await asyncpg.connect(dsn)
            handles = []
            for turn in range(5):
                async with connection.transaction():
                    handles.append(await app.insert(echo, f"{number} {turn}", connection=connection))
                    await asyncio.sleep(0.001 * number)
            await connection.close()
            return handles

        for handles in await asyncio.gather(*(commit_some(number) for number in range(16))):
            for handle in handles:
                assert await handle.result(timeout=10)


async def test_a_client_that_is_closed_right_after_the_commit_notifies(dsn: str, schema: str) -> None:
    async with listening(dsn, schema) as ear:
        connection = await asyncpg.connect(dsn)
        async with Durable(dsn, schema=schema) as app, connection.transaction():
            await app.insert(echo, "in", queue="first", connection=connection)
        async with Durable(dsn, schema=schema) as app, connection.transaction():
            await app.insert(echo, "in", queue="last", connection=connection)
        await connection.close()
        await ear.until("queue:last")
        with SyncDurable(dsn, schema=schema) as blocking, psycopg.connect(dsn) as caller:
            blocking.insert(echo, "in", queue="sync", connection=caller)
            caller.commit()
        await ear.until("queue:sync")


async def test_a_client_that_is_not_open_warns_once(dsn: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """It has no connection to notify on; the call itself works, and other choices are silent."""
    app, connection = Durable(dsn, schema=schema), await asyncpg.connect(dsn)
    with caplog.at_level(logging.WARNING, "gen_durable.notifier"):
        async with listening(dsn, schema) as ear:
            await app.insert(echo, "in", connection=connection, notify="never")
            await app.insert(echo, "in", queue="inside", connection=connection, notify="in_transaction")
            await ear.until("queue:inside")
            async with connection.transaction():  # a skipped start has nothing to notify of
                await app.insert(echo, "in", unique_key="k", connection=connection, notify="never")
                await app.insert(echo, "in", unique_key="k", on_conflict="skip", connection=connection)
            assert caplog.messages == []
            await app.insert(echo, "in", connection=connection)
            await app.insert(echo, "in", connection=connection)
    await connection.close()
    (warning,) = caplog.messages
    assert "not open" in warning


async def test_notify_is_for_callers_connections(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(echo, "in")
        for call in (
            app.insert(echo, "in", notify="never"),
            app.insert_many([], notify="in_transaction"),
            handle.signal(go, "on", notify="never"),
            handle.cancel(notify="never"),
        ):
            with pytest.raises(InputError, match="for calls with connection="):
                await call
        connection: Any = object()
        with pytest.raises(InputError, match="notify must be 'after_commit'"):
            await app.insert(echo, "in", connection=connection, notify="later")  # type: ignore[call-overload]
    with SyncDurable(dsn, schema=schema) as blocking:
        for choice in ("never", "in_transaction"):
            with pytest.raises(InputError, match="for calls with connection="):
                blocking.insert(echo, "in", notify=choice)  # type: ignore[call-overload]
        with pytest.raises(InputError, match="for calls with connection="):
            blocking.signal(handle.id, go, "on", notify="never")
        with pytest.raises(InputError, match="for calls with connection="):
            blocking.cancel(handle.id, notify="never")
