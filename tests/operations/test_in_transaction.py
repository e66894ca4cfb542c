"""Insert and signal on the caller's own connection: they commit or roll back with the caller, whatever its driver."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from tests.support.drivers import CONNECTIONS, SIX
from tests.support.length import short_or_long

from gen_durable import (
    Await,
    Concurrency,
    Context,
    Done,
    Durable,
    Finished,
    Machine,
    Outcome,
    Signal,
    Start,
    SyncDurable,
    Worker,
    job,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    Duplicate,
    InputError,
    NoTarget,
    UnknownLimit,
)

every_kind = pytest.mark.parametrize("kind", CONNECTIONS)
note = Signal("note", str)


@dataclass(frozen=True)
class Text:
    """A state."""

    text: str


TRANSACTIONS = short_or_long(20, 100)
NASTY = Text("""it's "quoted", {braced}, 100% :p1 $1 back\\slash NULL \n ünïcode""")


@job
async def echo(given: Text) -> str:
    return given.text


class Waiting(Machine):
    """Waits for a note."""

    @step
    async def wait(self, state: None, ctx: Context) -> Outcome[str]:
        return Await(note, then=self.take, state=None)

    @step
    async def take(self, state: None, ctx: Context) -> Outcome[str]:
        return Done(ctx.take(note) or "")


async def count(dsn: str, schema: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval(f'select count(*) from "{schema}".instances')
        return found
    finally:
        await connection.close()


@pytest.mark.scaled
@pytest.mark.parametrize("kind", SIX)
async def test_rolled_back_ones_leave_nothing_and_all_committed_ones_are_there(
    dsn: str, schema: str, kind: str
) -> None:
    """Ten to a transaction, one by one and by the half dozen; a thousand of each in `make test-long`."""
    ids: set[int] = set()
    async with CONNECTIONS[kind](dsn, schema) as caller:
        for commit in (False, True):
            for _ in range(TRANSACTIONS):
                async with caller.transaction(commit=commit):
                    handles = [await caller.insert(echo, NASTY) for _ in range(4)]
                    handles += await caller.insert_many([Start(echo, NASTY)] * 6)
                if commit:
                    ids |= {handle.id for handle in handles}
            assert await count(dsn, schema) == (10 * TRANSACTIONS if commit else 0)
    assert len(ids) == 10 * TRANSACTIONS
    connection = await asyncpg.connect(dsn)
    found = await connection.fetch(f'select id, state from "{schema}".instances')
    await connection.close()
    assert {row["id"] for row in found} == ids
    assert {json.loads(row["state"])["text"] for row in found} == {NASTY.text}


@every_kind
async def test_a_worker_takes_up_what_was_committed_at_once(dsn: str, schema: str, kind: str) -> None:
    """By the notification that comes with the commit: the worker does not poll here."""
    hour = timedelta(hours=1)
    async with (
        Durable(dsn, schema=schema) as app,
        Worker(app, jobs=[echo], machines=[Waiting()], poll_interval=hour, max_poll_interval=hour),
        CONNECTIONS[kind](dsn, schema) as caller,
    ):
        assert services_of(app).notifier.listener is not None
        await services_of(app).notifier.listener.listening.wait()
        async with caller.transaction(commit=True):
            one = await caller.insert(echo, Text("one"))
        assert await app.handle(one.id, echo).wait(timedelta(seconds=3)) == Finished(one.id, "one")
        waiting = await app.insert(Waiting.wait, None)
        while (await waiting.get()).status.value != "awaiting_signal":
            pass
        async with caller.transaction(commit=False):
            assert await caller.signal(waiting.id, note, "rolled back")
        async with caller.transaction(commit=True):
            assert await caller.signal(waiting.id, note, NASTY.text, dedup_key="once")
            assert not await caller.signal(waiting.id, note, "again", dedup_key="once")
        assert await waiting.wait(timedelta(seconds=3)) == Finished(waiting.id, NASTY.text)


@every_kind
async def test_every_column_arrives(dsn: str, schema: str, kind: str) -> None:
    """All options of a start, nulls beside values, go through the driver as they are."""
    moment = datetime(2030, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
    async with Durable(dsn, schema=schema) as app:
        await app.set_limit("api", Concurrency(3))
        async with CONNECTIONS[kind](dsn, schema) as caller, caller.transaction(commit=True):
            full = Start(
                echo,
                NASTY,
                queue="other",
                priority=-7,
                partition_key='p"a{r',
                schedule_at=moment,
                unique_key=b"\x00\xff\\",
                limit=("api", "eu"),
                group=("tenant", "acme"),
            )
            late = Start(echo, Text("late"), delay=timedelta(minutes=5))
            first, second = await caller.insert_many([full, late])
        row = await app.get(first.id)
        assert (row.queue, row.priority, row.partition_key, row.unique_key) == ("other", -7, 'p"a{r', b"\x00\xff\\")
        assert row.eligible_at == moment
        assert row.state == {"text": NASTY.text}
        other = await app.get(second.id)
        assert other.unique_key is None
        assert timedelta(minutes=4) < other.eligible_at - other.inserted_at < timedelta(minutes=6)
    connection = await asyncpg.connect(dsn)
    found = await connection.fetchrow(f'select slot_key, group_key from "{schema}".instances where id = $1', first.id)
    await connection.close()
    assert found is not None
    assert "eu" in found["slot_key"]
    assert "acme" in found["group_key"]


@every_kind
async def test_taken_keys(dsn: str, schema: str, kind: str) -> None:
    """'existing' and 'skip' leave the transaction alone; `Duplicate` aborts it, unless a savepoint is around it."""
    async with Durable(dsn, schema=schema) as app, CONNECTIONS[kind](dsn, schema) as caller:
        holder = await app.insert(echo, Text("holder"), unique_key="key")
        async with caller.transaction(commit=True):
            assert (await caller.insert(echo, NASTY, unique_key="key", on_conflict="existing")).id == holder.id
            assert await caller.insert(echo, NASTY, unique_key="key", on_conflict="skip") is None
            with pytest.raises(Duplicate, match="'key' is taken") as raised:
                async with caller.transaction(commit=True):
                    await caller.insert(echo, NASTY, unique_key="key")
            assert raised.value.existing_id == holder.id
            await caller.insert(echo, Text("after the savepoint"))
        assert await count(dsn, schema) == 2
        async with caller.transaction(commit=False):
            with pytest.raises(Duplicate):
                await caller.insert(echo, NASTY, unique_key="key")
            with pytest.raises((DatabaseRefused, DatabaseUnavailable)):  # Django itself does not even ask
                await caller.insert(echo, Text("in an aborted transaction"))
        assert await count(dsn, schema) == 2
        with pytest.raises(NoTarget):
            async with caller.transaction(commit=True):
                await caller.signal(10**12, note, "nobody")
        with pytest.raises(UnknownLimit, match="limits set nothing"):
            async with caller.transaction(commit=True):
                await caller.insert(echo, NASTY, limit="nothing")


async def test_an_aborted_transaction_is_told(dsn: str, schema: str) -> None:
    """The second call in an aborted transaction says what to do."""
    app = SyncDurable(dsn, schema=schema)
    with psycopg.connect(dsn) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute("select 1 / 0")
        with pytest.raises(DatabaseRefused, match="savepoint"):
            app.insert(echo, NASTY, connection=connection)


async def test_wrong_kinds_are_refused_with_the_way_out(dsn: str, schema: str) -> None:
    """A blocking connection for `Durable`, an awaited one for `SyncDurable`, a pool, an engine, a string."""
    app, blocking = Durable(dsn, schema=schema), SyncDurable(dsn, schema=schema)
    with psycopg.connect(dsn) as connection, pytest.raises(InputError, match="Use SyncDurable"):
        await app.insert(echo, NASTY, connection=connection)
    awaited = await asyncpg.connect(dsn)
    with pytest.raises(InputError, match="Use Durable"):
        blocking.insert(echo, NASTY, connection=awaited)
    no_start: Any = echo
    with pytest.raises(InputError, match="takes Start"):
        await app.insert_many([no_start], connection=awaited)
    with pytest.raises(InputError, match="on_conflict must be"):
        await app.insert(echo, NASTY, connection=awaited, on_conflict="replace")  # type: ignore[call-overload]
    await awaited.close()
    with pytest.raises(DatabaseUnavailable, match=r"^insert: your connection could not be used \(InterfaceError\)$"):
        await app.insert(echo, NASTY, connection=awaited)
    unsupported_connections: list[Any] = [dsn, sqlalchemy.create_engine("postgresql+psycopg://")]
    for stranger in unsupported_connections:
        with pytest.raises(InputError, match="unsupported type"):
            blocking.signal(1, note, "hello", connection=stranger)
    with pytest.raises(InputError, match="not both"):
        blocking.insert(echo, NASTY, connection=connection, using="default")


def test_a_django_database_without_django(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to pass instead."""
    monkeypatch.setitem(sys.modules, "django.db", None)
    with pytest.raises(InputError, match=r"Django is not installed\. Pass connection=") as caught:
        SyncDurable(dsn).insert(echo, NASTY, using="default")
    assert isinstance(caught.value.__cause__, ImportError)


async def test_errors_do_not_tell_payloads(dsn: str, schema: str) -> None:
    """SQLAlchemy puts parameters into its messages; ours do not carry them on."""
    app = SyncDurable(dsn, schema=f"{schema}_missing")
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with engine.connect() as connection, pytest.raises(DatabaseRefused) as raised:
        app.insert(echo, Text("canary"), connection=connection)
    engine.dispose()
    assert "canary" not in str(raised.value)
