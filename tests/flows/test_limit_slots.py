"""Slots of concurrency limits: never more than there are, whoever dies; and none is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.support.limits import Database, Samples, chosen, opened, overlaps, sampled
from tests.support.programs.limits import Task, inside, work

from gen_durable import Concurrency, Durable, Start

K, KEYS = 3, ("a", "b", "c", "d")
BRIEF = {"LEASE": "1.5", "REAP": "0.3", "CONCURRENCY": "5"}
UNFINISHED = "select count(*) from @schema.instances where finished_at is null"

EXECUTIONS_WITHOUT_AN_END = """
select count(*) from @schema.effects b where word = 'begin'
and not exists (select from @schema.effects e where (e.id, e.claim, e.word) = (b.id, b.claim, 'end'))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_slots_while_workers_are_killed(dsn: str, schema: str, spawn: Callable[..., Any]) -> None:
    """One of four workers is killed every second, under a backlog: never more than K of a key run, no slot is lost."""
    rounds = int(chosen(60, 3))
    samples = Samples()
    kills = crashed = 0
    async with opened(dsn, schema) as (app, db):
        await app.set_limit("l", Concurrency(K))
        workers = [spawn("limits", **BRIEF) for _ in range(4)]
        await asyncio.gather(*(worker.until("ready") for worker in workers))
        async with sampled(dsn, schema, samples.note):
            while kills < 60 and not crashed:  # a few kills may all hit a worker between two steps
                for _ in range(rounds):
                    if await db.value(UNFINISHED) < 200:
                        starts = [Start(work, Task(k, 0.05), limit=("l", k)) for k in KEYS for _ in range(80)]
                        await app.insert_many(starts)
                    await asyncio.sleep(1)
                    workers[kills % 4].kill()
                    workers[kills % 4] = spawn("limits", **BRIEF)
                    kills += 1
                await db.until(UNFINISHED, 0)
                crashed = await db.value(EXECUTIONS_WITHOUT_AN_END)
        found = await overlaps(db, samples.leases)
        ran = await db.value("select count(*) from @schema.effects where word = 'begin'")
        print(
            f"{kills} kills, {ran} executions, {crashed} of them died; {samples.looks} looks, {samples.most}, {found}"
        )
        assert dict(samples.most) == {f"l/{key}": K for key in KEYS}
        assert found == dict.fromkeys(KEYS, K)
        assert crashed > 0
        await all_slots_are_there(app, db)


async def all_slots_are_there(app: Durable, db: Database) -> None:
    """With everything settled, K of each key run at once again; in the end nothing waits."""
    assert await db.value("select count(*) from @schema.instances where blocked_on is not null") == 0
    handles = await app.insert_many([Start(work, Task(k, 0.5), limit=("l", k)) for k in KEYS for _ in range(2 * K)])
    await db.until(
        "select count(*) from (select from @schema.instances where status = 'executing' group by slot_key"
        f" having count(*) = {K}) as full_ones",
        len(KEYS),
    )
    await asyncio.gather(*(handle.wait(timedelta(seconds=20)) for handle in handles))
    assert await db.value("select count(*) from @schema.instances where blocked_on is not null") == 0
    assert await db.value("select count(*) from @schema.step_slots") == 0


@pytest.mark.slow
async def test_fewer_and_more_slots_while_rows_execute(dsn: str, schema: str, spawn: Callable[..., Any]) -> None:
    """After `set_limit` has returned nobody begins above the new number, and the new number is used.

    Whatever begins is granted when no more than the limit's number execute. So as soon as one of those that execute was
    not there right after the change, all together are within it.
    """
    seen: Counter[int] = Counter()
    sql = "select id, claims from @schema.instances where status = 'executing'"
    async with opened(dsn, schema) as (app, db):
        await app.set_limit("l", Concurrency(5))
        workers = [spawn("limits", CONCURRENCY="12") for _ in range(2)]
        await asyncio.gather(*(worker.until("ready") for worker in workers))
        await app.insert_many([Start(work, Task("a", 0.04), limit="l") for _ in range(int(chosen(9000, 800)))])
        for slots in (5, 2, 8) * int(chosen(4, 2)):
            await app.set_limit("l", Concurrency(slots))
            there = set(map(tuple, await db.fetch(sql)))
            until = time.monotonic() + chosen(4, 0.4)
            while time.monotonic() < until:
                now = set(map(tuple, await db.fetch(sql)))
                if now - there:
                    assert len(now) <= slots
                    seen[slots] = max(seen[slots], len(now))
                await asyncio.sleep(0.01)
        print(f"seen at most: {dict(seen)}")
        assert dict(seen) == {5: 5, 2: 2, 8: 8}
        assert [worker.terminate() for worker in workers] == [0, 0]


@pytest.mark.slow
async def test_slots_asked_for_from_inside_while_workers_are_killed(
    dsn: str, schema: str, spawn: Callable[..., Any]
) -> None:
    """`ctx.limit` and whole steps share the slots; those of a killed worker come back when its lease has run out."""
    leases: dict[tuple[int, int], datetime] = {}
    async with opened(dsn, schema) as (app, db):
        await app.set_limit("l", Concurrency(K))
        workers = [spawn("limits", **BRIEF | {"CONCURRENCY": "16"}) for _ in range(2)]
        await asyncio.gather(*(worker.until("ready") for worker in workers))
        for job in (Start(inside, Task("a", 0.05)), Start(work, Task("a", 0.05), limit=("l", "a"))):
            await app.insert_many([job] * 40)
        killed = False
        while await db.value(UNFINISHED) > 0:
            rows = await db.fetch(
                "select id, claims, lease_expires_at as until from @schema.instances where claims > 0"
            )
            leases |= {(row["id"], row["claims"]): row["until"] for row in rows if row["until"] is not None}
            if not killed and await db.value("select count(*) > 20 from @schema.effects"):
                workers[0].kill()
                killed = True
            await asyncio.sleep(0.02)
        found = await overlaps(db, leases)
        taken_back = await db.value("select count(*) from @schema.instances where fsm = 'inside' and claims > 1")
        print(f"overlaps {found}, {taken_back} died that held or waited for a slot")
        assert found == {"a": K}
        assert taken_back > 0
        await all_slots_are_there(app, db)
