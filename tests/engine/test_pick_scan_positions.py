"""PickScanPositions: picks stay quick while a long transaction keeps dead index entries in front of the live ones."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable import Durable, Finished, Start, Worker, job
from gen_durable.core.services import services_of
from gen_durable.engine import pick_scan_positions
from gen_durable.engine.pick_scan_positions import MAX_SECONDS, PickScanPositions
from gen_durable.store.types import PickResult

DEAD = 150_000
KNOWN = ["leaf/1/run"]


@job
async def leaf(n: int) -> int:
    """Ends at once."""
    return n


@asynccontextmanager
async def long_reader(dsn: str, schema: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Many rows have come and gone since a transaction began that is still open: their index entries stay."""
    reader, writer = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        await reader.execute("begin isolation level repeatable read")
        await reader.execute("select 1 from pg_class limit 1")
        await writer.execute(
            f'insert into "{schema}".instances (fsm, step, eligible_at)'
            f" select 'leaf', 'run', now() - interval '1 hour' from generate_series(1, {DEAD})"
        )
        await writer.execute(f"update \"{schema}\".instances set status = 'done', finished_at = now()")
        await writer.execute(f'analyze "{schema}".instances')  # the doctor would take minutes with the old statistics
        yield writer
    finally:
        await reader.close()
        await writer.close()


async def entries_read(connection: asyncpg.Connection[Any], schema: str) -> int:
    """Entries of the pick index that this transaction has read."""
    return int(
        await connection.fetchval("select pg_stat_get_xact_tuples_returned($1::regclass)", f'"{schema}".instances_pick')
    )


async def test_a_pick_with_floors_does_not_walk_over_dead_entries(dsn: str, schema: str) -> None:
    """The first pick walks over all of them and tells where the live rows begin; the next begins there."""
    async with Durable(dsn, schema=schema) as app, long_reader(dsn, schema) as connection:
        await app.insert_many([Start(leaf, n) for n in range(20)])
        positions, read = PickScanPositions(), list[int]()
        for _ in range(3):
            async with connection.transaction():
                sent = positions.to_pick_argument(["default"])
                call = services_of(app).statements.pick("w", {"default": 5}, KNOWN, 60, scan_positions=sent)
                before = await entries_read(connection, schema)
                picked = call.read(await connection.fetch(call.text, *call.args))
                read.append(await entries_read(connection, schema) - before)
                assert len(picked.claims) == 5
                positions.update_from_pick(picked, sent, 0.0)
        assert read[0] > DEAD
        assert max(read[1:]) < 100


async def test_rows_below_a_floor_are_found_by_the_next_full_look(dsn: str, schema: str) -> None:
    """A row whose time lies before the scan position waits for about a second, longer where looks are slow; nobody
    polls.
    """
    minute = timedelta(minutes=1)
    async with Durable(dsn, schema=schema) as app, long_reader(dsn, schema) as connection:
        async with Worker(app, jobs=[leaf], poll_interval=minute, max_poll_interval=minute):
            await (await app.insert(leaf, 1)).wait(timedelta(seconds=10))
            began = time.monotonic()
            early = await app.insert(leaf, 2, schedule_at=datetime.now(UTC) - timedelta(minutes=30))
            later = await app.insert(leaf, 3)
            assert isinstance(await later.wait(timedelta(seconds=10)), Finished)
            assert isinstance(await early.wait(timedelta(seconds=10)), Finished)
            assert time.monotonic() - began < MAX_SECONDS + 2
        ends = dict(
            await connection.fetch(
                f'select id, finished_at from "{schema}".instances where id = any ($1)', [early.id, later.id]
            )
        )
        assert ends[later.id] < ends[early.id]  # it was below the scan position indeed


async def test_priorities_keep_their_order_with_scan_positions(dsn: str, schema: str) -> None:
    """Each priority has a scan position of its own; those that no pick has come to yet are gone to in their turn."""
    async with Durable(dsn, schema=schema) as app, long_reader(dsn, schema) as connection:
        await app.insert_many(
            [Start(leaf, n, priority=p) for n in range(3) for p in (2, 0, 1)]
            + [Start(leaf, 9, priority=-1, delay=timedelta(hours=1))]
        )
        positions = PickScanPositions()
        seen: list[int] = []
        for demand in (1, 1, 3, 2, 2):
            sent = positions.to_pick_argument(["default"])
            call = services_of(app).statements.pick("w", {"default": demand}, KNOWN, 60, scan_positions=sent)
            picked = call.read(await connection.fetch(call.text, *call.args))
            positions.update_from_pick(picked, sent, 0.0)
            seen += [claim.priority for claim in picked.claims]
            assert positions.to_pick_argument(["default"]) is not None
        assert seen == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_there_are_no_floors_while_picks_are_quick() -> None:
    """An answer without heads leaves everything as it is."""
    positions = PickScanPositions()
    positions.update_from_pick(PickResult([], []), None, 0.001)
    assert positions.to_pick_argument(["default"]) is None
    assert positions.seconds_to_full_scan("default") is None


def test_a_full_look_comes_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second later; twenty times as long as it takes if that is longer, but five seconds at most."""
    now = 100.0
    monkeypatch.setattr(pick_scan_positions.time, "monotonic", lambda: now)
    positions = PickScanPositions()
    told = PickResult([], [], {"a": "[[0,1,1]]"})
    positions.update_from_pick(told, None, 0.01)
    assert positions.to_pick_argument(["a", "b"]) == '{"a":[[0,1,1]]}'
    assert positions.to_pick_argument(["b"]) is None
    now += 0.9
    positions.update_from_pick(told, "sent", 0.01)
    assert positions.seconds_to_full_scan("a") == pytest.approx(0.1)
    # A pick of another queue postpones nothing.
    positions.update_from_pick(PickResult([], [], {"b": "[[0,2,2]]"}), None, 0.01)
    assert positions.seconds_to_full_scan("b") == pytest.approx(0.1)
    now = 101.0
    assert positions.to_pick_argument(["a"]) is None
    positions.update_from_pick(told, None, 0.5)
    now += 4.9
    assert positions.to_pick_argument(["a"]) is not None
    now += 0.2
    assert positions.to_pick_argument(["a"]) is None
