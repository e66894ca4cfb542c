"""Fair queues: tenants take turns, however much one of them has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from tests.support.limits import Database, database

from gen_durable import Concurrency, Durable, Finished, Queue, Start, Worker, job
from gen_durable.telemetry import Event, RowsPicked

SOON = timedelta(seconds=30)
FAIR = {"default": Queue(5, fair_by="tenant")}
ran: list[str] = []


@job
async def serve(tenant: str) -> None:
    """Says whose it was."""
    ran.append(tenant)
    await asyncio.sleep(0.005)


@asynccontextmanager
async def big_tenant(dsn: str, schema: str, rows: int) -> AsyncIterator[tuple[Durable, Database]]:
    """A tenant with so many rows that are due."""
    ran.clear()
    async with database(dsn, schema) as db, Durable(dsn, schema=schema) as app:
        await app.insert(serve, "big", group=("tenant", "big"))
        await db.fetch(
            "insert into @schema.instances (fsm, fsm_version, step, state, group_key)"
            " select fsm, fsm_version, step, state, group_key from @schema.instances, generate_series(2, $1)",
            rows,
        )
        await db.fetch("analyze @schema.instances")
        yield app, db


async def begun(tenant: str, count: int) -> None:
    async with asyncio.timeout(30):
        while ran.count(tenant) < count:  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.005)


@pytest.mark.slow
async def test_one_row_of_a_small_tenant_comes_before_a_hundred_thousand_of_a_big_one(dsn: str, schema: str) -> None:
    """It came in last, and runs after a few picks."""
    picks: list[RowsPicked] = []

    def note(event: Event) -> None:
        if isinstance(event, RowsPicked) and event.count:
            picks.append(event)

    async with big_tenant(dsn, schema, 100_000) as (app, _):
        async with Worker(app, jobs=[serve], queues=FAIR, prefetch=0):
            await begun("big", 20)
            before = len(ran)
            app.events.subscribe(note)
            small = await app.insert(serve, "small", group=("tenant", "small"))
            assert isinstance(await small.wait(SOON), Finished)
        between = ran.index("small") - before
        print(f"{len(picks)} picks; {between} rows of the big tenant ran before the one of the small tenant")
        assert between <= 50
        assert len(picks) <= 25


async def test_a_tenant_that_waits_for_a_limit_holds_up_nobody(dsn: str, schema: str) -> None:
    """All of a big tenant but one wait for a slot; the others' rows run meanwhile, and then its own, one at a time."""
    async with big_tenant(dsn, schema, 1) as (app, db):
        await app.set_limit("l", Concurrency(1))
        await app.insert_many([Start(serve, "big", group=("tenant", "big"), limit="l") for _ in range(60)])
        await app.insert_many([Start(serve, f"t{n}", group=("tenant", f"t{n}")) for n in range(50)])
        async with Worker(app, jobs=[serve], queues=FAIR):
            for n in range(50):
                await begun(f"t{n}", 1)
            assert ran.count("big") < 55
            await db.until("select count(*) from @schema.instances where finished_at is null", 0)
        assert len(ran) == 111


async def test_each_tenant_gets_its_share(dsn: str, schema: str) -> None:
    """Of three tenants, one with a thousand rows, each has about a third of what runs while all have work."""
    async with big_tenant(dsn, schema, 1000) as (app, _):
        for tenant in ("small", "tiny"):
            await app.insert_many([Start(serve, tenant, group=("tenant", tenant)) for _ in range(30)])
        async with Worker(app, jobs=[serve], queues=FAIR, prefetch=0):
            await begun("small", 30)
            await begun("tiny", 30)
        until = max(n for n, tenant in enumerate(ran) if tenant != "big")
        assert ran[:until].count("big") <= 60


async def test_priorities_come_first_and_rows_without_a_group_still_run(dsn: str, schema: str) -> None:
    """Turns are taken within a priority. Those without a group of this kind have one turn together."""
    async with big_tenant(dsn, schema, 500) as (app, _):
        await app.insert_many([Start(serve, "urgent", group=("tenant", "urgent"), priority=-1) for _ in range(20)])
        await app.insert_many([Start(serve, "late", group=("tenant", "a"), priority=1) for _ in range(2)])
        await app.insert(serve, "nobody's")
        await app.insert(serve, "of a country", group=("country", "fr"))
        async with Worker(app, jobs=[serve], queues=FAIR, prefetch=0):
            await begun("nobody's", 1)
            await begun("of a country", 1)
            assert ran[:20] == ["urgent"] * 20
            assert ran.index("nobody's") < 60
            assert ran.index("of a country") < 60
            await begun("late", 2)
        assert ran.count("big") == 500
        assert ran.index("late") > 480


async def test_two_workers_take_turns_each_by_itself(dsn: str, schema: str) -> None:
    """A few rows of many tenants behind a thousand of a big one are done long before it, and each row runs once."""
    async with big_tenant(dsn, schema, 1000) as (app, db):
        await app.insert_many([Start(serve, f"t{n}", group=("tenant", f"t{n}")) for n in range(20) for _ in range(2)])
        async with Worker(app, jobs=[serve], queues=FAIR), Worker(app, jobs=[serve], queues=FAIR):
            for n in range(20):
                await begun(f"t{n}", 2)
            assert ran.count("big") < 600
            await db.until("select count(*) from @schema.instances where finished_at is null", 0)
        assert len(ran) == 1040
