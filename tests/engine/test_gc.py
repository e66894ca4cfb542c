"""Gc: what one round deletes, where the next one continues, and when it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.support.engine import Engine, opened

from gen_durable.core.services import services_of
from gen_durable.engine import gc as gc_module
from gen_durable.engine.gc import Gc, RetentionScan, make_retention_scans
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.retention import Retention
from gen_durable.telemetry import InstancesCollected
from gen_durable.worker_options import WorkerOptions

INTERVAL = 10.0


async def end(e: Engine, *ages: float, status: str = "done") -> None:
    """Rows that ended so many seconds ago."""
    await e.rows.fetch(
        "insert into @.instances (fsm, step, state, status, claims, seq, finished_at) "
        "select 'nothing', 'run', '1', $2::text::@.durable_status, 1, 1, now() - make_interval(secs => age) "
        "from unnest($1::float8[]) as age",
        list(ages), status,
    )  # fmt: skip


@asynccontextmanager
async def collecting(dsn: str, schema: str, **options: Any) -> AsyncIterator[tuple[Engine, Gc]]:
    async with opened(dsn, schema) as e:
        services = services_of(e.app)
        link = PersistentConnection(services.connection_target)
        given: dict[str, Any] = {"gc_interval": timedelta(seconds=INTERVAL), "gc_retention": timedelta(0)}
        try:
            statements = services.statements, services.retention_statements
            yield e, Gc(link, *statements, WorkerOptions(**(given | options)), events=e.app.events)
        finally:
            await link.close()


async def test_a_round_that_may_have_left_rows_is_followed_by_the_next_at_once(dsn: str, schema: str) -> None:
    """Else the next one comes after an interval, shortened by up to a tenth."""
    async with collecting(dsn, schema, gc_batch=2) as (e, gc):
        await end(e, 1000, 2000, 3000)
        assert await gc.run_once() == 0.0
        assert await e.rows.count() == 1
        for _ in range(10):
            assert 0.9 * INTERVAL <= await gc.run_once() <= INTERVAL
        assert await e.rows.count() == 0
        assert e.seen.of(InstancesCollected) == [InstancesCollected(2), InstancesCollected(1)]
        e.app.events.active = False
        await end(e, 10)
        await gc.run_once()
        assert (await e.rows.count(), len(e.seen.of(InstancesCollected))) == (0, 2)


async def test_rows_that_were_visited_are_visited_again_after_some_rounds(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example one that was locked: the scan has gone past it, until it starts from the oldest row."""
    monkeypatch.setattr(gc_module, "REVISIT_ROUNDS", 2)
    async with collecting(dsn, schema) as (e, gc):
        await gc.run_once()
        await end(e, 1000)
        left = []
        for _ in range(2):
            await gc.run_once()
            left.append(await e.rows.count())
        assert left == [1, 0]


async def test_a_refused_row_does_not_move_the_scan(dsn: str, schema: str) -> None:
    """What it skips is counted from the same place, so that all others are deleted in one round."""
    async with collecting(dsn, schema, gc_batch=4) as (e, gc):
        await end(e, *range(1000, 1012))
        await e.rows.fetch(
            "update @.instances set metadata = '{\"bad\": 1}' where id = (select id from @.instances order by "
            "finished_at offset 5 limit 1)"
        )
        await e.rows.connection.execute(f"""
            create function {schema}_refuse() returns trigger language plpgsql as $$
            begin raise exception 'refused' using errcode = '23514'; end $$;
            create trigger refuse before delete on "{schema}".instances for each row
              when (old.metadata ? 'bad') execute function {schema}_refuse();
        """)
        try:
            pauses = [await gc.run_once() for _ in range(4)]
        finally:
            await e.rows.connection.execute(f"drop function {schema}_refuse cascade")
        assert pauses[-1] > 0
        assert await e.rows.count() == 1


async def test_rate_buckets_that_have_refilled_are_deleted_in_each_round(dsn: str, schema: str) -> None:
    """Not in one that is followed by the next at once."""
    async with collecting(dsn, schema, gc_batch=1) as (e, gc):
        statements: list[str] = []
        run = gc._connection.run

        class Noting:
            async def run(self, statement: Any) -> Any:
                statements.append(statement.text)
                return await run(statement)

        gc._connection = Noting()  # type: ignore[assignment]
        await end(e, 1000)
        await gc.run_once()
        assert not any("delete_full_rate_buckets" in text for text in statements)
        await gc.run_once()
        assert sum("delete_full_rate_buckets" in text for text in statements) == 1


def test_there_is_one_scan_for_each_retention() -> None:
    """Equal ones share it, those that are kept for ever have none; rows with a keep of their own have one."""
    own = Retention(done=timedelta(seconds=5), failed=None, cancelled=timedelta(seconds=3))
    assert make_retention_scans([own]) == [RetentionScan(3.0), RetentionScan(5.0), RetentionScan(None)]
    other = Retention(done=timedelta(0), failed=timedelta(seconds=5), cancelled=timedelta(0))
    assert make_retention_scans([own, other]) == [
        RetentionScan(0.0),
        RetentionScan(3.0),
        RetentionScan(5.0),
        RetentionScan(None),
    ]
