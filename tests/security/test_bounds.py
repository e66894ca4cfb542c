"""Bounds on what callers can hand in, each refused by an error of ours; all but the inbox's before the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.canaries import Secret, Waiter, echo, told
from tests.support.engine import Engine, Opening

from gen_durable import (
    Context,
    Done,
    Durable,
    Failed,
    Finished,
    Machine,
    Outcome,
    RetryPolicy,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)
from gen_durable.errors import EncodeError, InputError, TooLarge
from gen_durable.pg.dsn import find_tls_weakness
from gen_durable.validation import (
    MAX_BATCH,
    MAX_BATCH_BYTES,
    MAX_CHILDREN,
    MAX_INBOX,
    MAX_KEY,
    MAX_METADATA,
    MAX_PAYLOAD,
    MAX_SPAWNED,
)

NOWHERE = "postgresql://127.0.0.1:1/none"
big = Signal("big", str)


@job
async def anything(value: Any) -> Any:
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


CALLS: dict[str, tuple[type[Exception], Callable[[Durable], Awaitable[object]]]] = {
    "a state of more than 1 MB": (TooLarge, lambda app: app.insert(anything, "x" * MAX_PAYLOAD)),
    "a signal of more than 1 MB": (TooLarge, lambda app: app.signal(1, big, "x" * MAX_PAYLOAD)),
    "a state of 65 levels": (EncodeError, lambda app: app.insert(anything, nested(65))),
    "a unique key of 513 bytes": (TooLarge, lambda app: app.insert(anything, 1, unique_key="x" * (MAX_KEY + 1))),
    "a partition key of 513 bytes": (TooLarge, lambda app: app.insert(anything, 1, partition_key="x" * (MAX_KEY + 1))),
    "a group of 513 bytes": (TooLarge, lambda app: app.insert(anything, 1, group=("g", "x" * (MAX_KEY + 1)))),
    "a dedup key of 513 bytes": (TooLarge, lambda app: app.signal(1, big, "x", dedup_key="x" * (MAX_KEY + 1))),
    "a target's key of 513 bytes": (TooLarge, lambda app: app.signal("x" * (MAX_KEY + 1), big, "x")),
    "metadata of more than 8,000 bytes": (
        TooLarge,
        lambda app: app.insert(anything, 1, metadata={"x": "y" * MAX_METADATA}),
    ),
    "10,001 instances": (TooLarge, lambda app: app.insert_many([Start(anything, 1)] * (MAX_BATCH + 1))),
    "instances of more than 64 MB": (
        TooLarge,
        lambda app: app.insert_many([Start(anything, "x" * 900_000)] * (MAX_BATCH_BYTES // 900_000 + 1)),
    ),
    "a name of 201 characters": (InputError, lambda app: app.insert(anything, 1, queue="x" * 201)),
    "the last moment": (InputError, lambda app: app.insert(anything, 1, schedule_at=datetime.max.replace(tzinfo=UTC))),
    "the first moment": (InputError, lambda app: app.insert(anything, 1, schedule_at=datetime.min.replace(tzinfo=UTC))),
    "a delay without end": (InputError, lambda app: app.insert(anything, 1, delay=float("inf"))),
    "a page of more than it may have": (InputError, lambda app: app.list(limit=100_000)),
}


@pytest.mark.parametrize("what", CALLS)
async def test_refused_before_the_database(what: str) -> None:
    """There is no database here: whoever asked for one would be told so instead."""
    error, call = CALLS[what]
    app = Durable(NOWHERE)
    with pytest.raises(error):
        await call(app)


class Greedy(Machine, retry=RetryPolicy(attempts=1)):
    """Returns more than it may."""

    @step
    async def children(self, count: int, ctx: Context) -> Outcome[str]:
        starts = (Start(anything, 1) for _ in range(count))
        return ScheduleChildren(starts, then=self.end, state=count)

    @step
    async def heavy(self, count: int, ctx: Context) -> Outcome[str]:
        starts = (Start(anything, "x" * 900_000) for _ in range(count))
        return ScheduleChildren(starts, then=self.end, state=count)

    @step
    async def outbox(self, count: int, ctx: Context) -> Outcome[str]:
        return Done("x", spawn=[Start(anything, 1)] * count)

    @step
    async def result(self, count: int, ctx: Context) -> Outcome[str]:
        return Done("x" * count)

    @step
    async def checkpoint(self, count: int, ctx: Context) -> Outcome[str]:
        await ctx.checkpoint("x" * count)
        return Done("x")

    @step
    async def end(self, count: int, ctx: Context) -> Outcome[str]:
        return Done("x")


@pytest.mark.parametrize(
    ("step_", "count", "words"),
    [
        (Greedy.children, MAX_CHILDREN + 1, "at most 100,000 are allowed"),
        (Greedy.heavy, 80, "over 64,000,000 bytes"),
        (Greedy.outbox, MAX_SPAWNED + 1, "at most 1,000 are allowed"),
        (Greedy.result, MAX_PAYLOAD, "at most 1,000,000 are allowed"),
        (Greedy.checkpoint, MAX_PAYLOAD, "at most 1,000,000 are allowed"),
    ],
)
async def test_what_a_step_returns_is_its_error(engine: Opening, step_: Any, count: int, words: str) -> None:
    async with engine() as e, e.worker(Greedy()):
        handle = await e.app.insert(step_, count)
        async with asyncio.timeout(60):
            ending = await handle.wait()
        assert isinstance(ending, Failed)
        assert words in ending.error
        assert await e.rows.count("fsm = 'anything'") == 0


async def fill(e: Engine, instance: int, count: int, *, dedup: bool = False) -> None:
    await e.rows.fetch(
        "insert into @.signals (target_id, name, payload, dedup_key) "
        "select $1, 'told', 'null', case when $3 then 'd' || n end from generate_series(1, $2) as n",
        *(instance, count, dedup),
    )
    await e.rows.fetch("update @.instances set has_signals = true where id = $1", instance)


async def test_an_inbox_holds_ten_thousand(engine: Opening) -> None:
    """The next is refused, and nothing of it is written; a duplicate is still one; what was consumed does not count."""
    async with engine() as e:
        handle = await e.app.insert(Waiter.wait, Secret("x"), unique_key="k")
        assert await handle.signal(told, Secret("first"))
        await fill(e, handle.id, MAX_INBOX - 2, dedup=True)
        assert await handle.signal(told, Secret("last"), dedup_key="last")
        for target in (handle.id, "k"):
            with pytest.raises(TooLarge, match="has 10,000 unconsumed signals"):
                await e.app.signal(target, told, Secret("more"))
            with pytest.raises(TooLarge):
                await e.app.signal(target, told, Secret("more"), dedup_key="more")
        assert await handle.signal(told, Secret("last"), dedup_key="last") is False
        assert await e.rows.value("select count(*) from @.signals") == MAX_INBOX
        assert await e.rows.value("select @.signal($1::bigint, 'told', '{}')", handle.id) == "full"
        async with e.worker(Waiter()):
            assert await e.end(handle) == Finished(handle.id, "first/x")
        other = await e.app.insert(Waiter.wait, Secret("x"), queue="nobody")
        await fill(e, other.id, MAX_INBOX)
        await e.rows.fetch("update @.signals set consumed = true where target_id = $1", other.id)
        assert await other.signal(told, Secret("x"))
        await e.app.cancel(other.id)


@pytest.mark.parametrize(
    ("dsn", "environment", "weak"),
    [
        ("postgresql://u:p@db.example.org/x", {}, "sslmode=prefer"),
        ("postgresql://u:p@db.example.org:5432/x?sslmode=require", {}, "sslmode=require"),
        ("postgresql://db.example.org/x?sslmode=verify-ca", {}, "sslmode=verify-ca"),
        ("postgresql://db.example.org/x?sslmode=verify-full", {}, None),
        ("postgresql://db.example.org/x", {"PGSSLMODE": "verify-full"}, None),
        ("postgresql://db.example.org/x?sslmode=disable", {"PGSSLMODE": "verify-full"}, "sslmode=disable"),
        ("postgresql:///x", {"PGHOST": "10.0.0.1"}, "sslmode=prefer"),
        ("postgresql:///x?host=10.0.0.1", {}, "10.0.0.1"),
        ("postgresql:///x?host=2001:db8::1", {}, "the identity of 2001:db8::1."),
        ("postgresql:///x?host=fe80::1", {}, "the identity of fe80::1."),
        ("postgresql://db.example.org:5432/x", {}, "the identity of db.example.org."),
        ("postgresql://localhost,db2.example.org/x", {}, "db2.example.org"),
        ("postgresql://[2001:db8::1]:5432/x", {}, "2001:db8::1"),
        ("postgresql://localhost/x", {}, None),
        ("postgresql://127.0.0.1:5432/x", {}, None),
        ("postgresql://[::1]/x", {}, None),
        ("postgresql:///x", {}, None),
        ("postgresql:///x?host=/var/run/postgresql", {}, None),
        ("postgresql://u:p@%2Fvar%2Frun/x", {}, None),
        ("postgresql://u:[@x", {}, None),
    ],
)
def test_connections_that_are_not_verified(dsn: str, environment: dict[str, str], weak: str | None) -> None:
    found = find_tls_weakness(dsn, environment)
    assert (weak in found) if weak is not None and found is not None else found is weak
    assert found is None or "u:p" not in found


async def test_a_weak_connection_is_told_once(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """By the client that opens it, not by each of its connections; a local one is not told."""
    async with engine() as e, e.worker(echo):
        assert isinstance(await e.end(await e.app.insert(echo, Secret("x"))), Finished)
    assert "verify-full" not in caplog.text
    app = Durable("postgresql://127.0.0.1:1/none", listen_dsn="postgresql://192.0.2.1/none")
    with pytest.raises(Exception, match="not reachable"):
        await app.open()
    assert caplog.text.count("sslmode=prefer does not verify the identity of 192.0.2.1") == 1
