"""The client, async and sync: typed handles, signals with and without payload, and an exhaustive match."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import assert_never

import asyncpg
from good.checkout import Checkout, Order, Pack, Paid, Parcel, Stripe, payment, refusal

from gen_durable import (
    Cancelled,
    Context,
    Durable,
    Failed,
    Finished,
    Handle,
    Instance,
    Pending,
    Start,
    SyncDurable,
    SyncHandle,
    Worker,
    job,
)


@job
async def greet(name: str, ctx: Context) -> str:
    return f"hello {name}"


async def sell(dsn: str) -> int:
    async with Durable(dsn) as app:
        handle = await app.insert(Checkout.start, Order(42), unique_key="order:42", on_conflict="existing")
        new: bool = await app.signal("order:42", payment, Paid(100), dedup_key="evt-7")
        await app.signal(handle.id, payment, payload=Paid(100))
        await handle.signal(refusal)
        ending = await handle.wait(timeout=1)
        match ending:
            case Finished(result=amount):
                return amount + new
            case Failed(error=reason) | Cancelled(reason=reason):
                return len(reason)
            case Pending(id=instance):
                return instance
            case _:
                assert_never(ending)


async def signal_or_start(app: Durable, sync: SyncDurable) -> int:
    start = Start(Checkout.start, Order(42), unique_key="order:42")
    await app.insert(Checkout.start, Order(1), signals=[payment.of(Paid(100), dedup_key="evt-7"), refusal.of()])
    reached = await app.signal("order:42", payment, Paid(100), dedup_key="evt-7", or_start=start)
    handle: Handle[int] = reached.handle
    if reached and not reached.is_new:
        return await handle.result()
    refused = await app.signal("order:42", refusal, or_start=start)
    blocking: SyncHandle[int] = sync.signal("order:42", refusal, or_start=start).handle
    return blocking.result() + (await refused.handle.result() if refused.is_delivered else 0)


async def debounce(app: Durable, sync: SyncDurable) -> str:
    handle: Handle[str] = await app.debounce(greet, "ada", unique_key="greet", delay=5, max_delay=timedelta(minutes=1))
    same: SyncHandle[str] = sync.debounce(greet, "eve", unique_key=b"greet", delay=5, partition_key="greet", priority=1)
    return same.result() + await handle.result()


async def jobs(app: Durable) -> str:
    handle: Handle[str] = await app.insert(greet, "ada", delay=timedelta(minutes=1), priority=-10)
    skipped: Handle[str] | None = await app.insert(greet, "bob", unique_key=b"bob", on_conflict="skip")
    later = await app.insert(greet, "eve", schedule_at=datetime(2030, 1, 1, tzinfo=UTC), partition_key="eve")
    ending = await later.wait(timedelta(seconds=1.5))
    instance: Instance = await app.get(handle if skipped is None else skipped)
    return ending.result if isinstance(ending, Finished) else instance.step + await later.result(timeout=0.5)


async def with_a_pool(pool: asyncpg.Pool[asyncpg.Record], connection: asyncpg.Connection[asyncpg.Record]) -> bool:
    async with Durable(pool=pool) as app:
        handle = await app.insert(greet, "ada", connection=connection, notify="never")
        done = await app.cancel("order:42", reason="withdrawn", connection=connection, notify="in_transaction")
        return await handle.signal(payment, Paid(1), connection=connection) or done.ended > 0


async def many(app: Durable) -> list[float]:
    handles = await app.insert_many(Start(Pack.pack, Parcel(sku)) for sku in ("a", "b"))
    known = app.handle(7, Pack.pack)
    endings = [await handle.wait() for handle in (*handles, known)]
    return [ending.result for ending in endings if isinstance(ending, Finished)]


async def different_ones(app: Durable) -> int:
    return len(await app.insert_many([Start(greet, "ada"), Start(Checkout.start, Order(1))]))


def from_a_script(dsn: str) -> int:
    with SyncDurable(dsn) as app:
        handle: SyncHandle[int] = app.insert(Checkout.start, Order(1), priority=2, unique_scope=("runnable", "done"))
        again: SyncHandle[int] | None = app.insert(Checkout.start, Order(1), unique_key="order:1", on_conflict="skip")
        app.signal(handle.id, payment, Paid(1))
        app.signal("order:1", refusal)
        ending = handle.wait(timedelta(seconds=1))
        return ending.result if isinstance(ending, Finished) and again is None else 0


async def work(app: Durable) -> None:
    await Worker(app, machines=[Checkout(Stripe()), Pack()], jobs=[greet], queues={"default": 10, "checkout": 5}).run()
