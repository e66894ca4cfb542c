"""Outcomes that wait apart from the batches wait apart from each other, too."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import asyncpg
import pytest
from tests.engine.test_committer import Notifications, claims, done, flusher
from tests.support.roles import PASSWORD, login_dsn

from gen_durable import Durable
from gen_durable.core.services import services_of
from gen_durable.engine import slow_commit_connections
from gen_durable.engine.committer import CommitResult, Committer
from gen_durable.engine.slow_commit_connections import SlowCommitConnections
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, ManyChildren

LOCK = 'select from "{}".instances where id = any ($1) for update'


class SlowFanOut(StatementBuilder):
    """Statements of a fan-out that takes a while."""

    seconds = 4

    def lock_parent_and_allocate_ids(self, commit, count):  # type: ignore[no-untyped-def]
        return Statement(f"select pg_sleep({self.seconds})", (), lambda rows: None)


async def test_many_locked_rows_do_not_hold_up_one_that_is_unlocked(dsn: str, schema: str) -> None:
    """Forty rows stay locked; the outcome of another is committed soon after its row is unlocked."""
    long, short = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        *locked, other = await claims(app, 41)
        async with long.transaction():
            await long.execute(LOCK.format(schema), [c.id for c in locked])
            transaction = short.transaction()
            await transaction.start()
            await short.execute(LOCK.format(schema), [other.id])
            futures = [flush.commit(done(c)) for c in locked]
            last = flush.commit(done(other))
            await asyncio.sleep(3)  # all are set aside, and each has been tried
            await transaction.rollback()
            assert await asyncio.wait_for(last, 4) is CommitResult.COMMITTED
        assert set(await asyncio.wait_for(asyncio.gather(*futures), 20)) == {CommitResult.COMMITTED}
    await long.close()
    await short.close()


async def test_a_long_fan_out_holds_up_neither_locked_rows_nor_another_fan_out(dsn: str, schema: str) -> None:
    """Two fan-outs take the time of one, and an outcome whose row was locked is committed meanwhile."""
    connection = await asyncpg.connect(dsn)
    async with Durable(dsn, schema=schema) as app:
        target = services_of(app).connection_target
        links = PersistentConnection(target), SlowCommitConnections(target, 4), SlowCommitConnections(target, 2)
        statements = SlowFanOut(services_of(app).statements.schema)
        committer = Committer(*links, statements, 500, notifier=cast(Any, Notifications([])))
        *parents, other = await claims(app, 3)
        began = time.monotonic()
        fan_outs = [
            committer.commit(
                Commit(c.id, c.epoch, c.seq, "done", value="1", many_children=ManyChildren([b"{}"], [None]))
            )
            for c in parents
        ]
        async with connection.transaction():
            await connection.execute(LOCK.format(schema), [other.id])
            last = committer.commit(done(other))
            await asyncio.sleep(1.3)  # it is set aside
        assert await asyncio.wait_for(last, 2) is CommitResult.COMMITTED
        assert not any(future.done() for future in fan_outs)
        assert await asyncio.gather(*fan_outs) == [CommitResult.COMMITTED] * 2
        assert time.monotonic() - began < 2 * SlowFanOut.seconds
        for link in links:
            await link.close()
    await connection.close()


async def test_side_connections_close_when_idle(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_commit_connections, "IDLE_SECONDS", 0.05)
    async with Durable(dsn, schema=schema) as app:
        side = SlowCommitConnections(services_of(app).connection_target, 2)
        assert side.count == 0
        async with side.acquire() as one, side.acquire() as two:
            assert side.are_all_in_use
            assert side.count == 2
            await asyncio.gather(one.connect(), two.connect())
        assert not side.are_all_in_use
        assert side.count == 2
        await asyncio.sleep(0.5)
        assert side.count == 0
        await asyncio.wait_for(asyncio.gather(*cast(Any, side)._closing), 5)
        await asyncio.sleep(0)
        assert not cast(Any, side)._closing
        assert (one.is_closed, two.is_closed) == (True, True)
        async with side.acquire() as again:
            assert not again.is_closed
        await side.close()


async def test_a_side_connection_that_is_used_again_stays_open(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time after which it is closed counts from its last use."""
    async with Durable(dsn, schema=schema) as app:
        side = SlowCommitConnections(services_of(app).connection_target, 2)
        for seconds in (0.02, 3600):
            monkeypatch.setattr(slow_commit_connections, "IDLE_SECONDS", seconds)
            async with side.acquire():
                pass
        await asyncio.sleep(0.05)
        assert side.count == 1
        await side.close()


@pytest.mark.parametrize("how", ["close", "terminate"])
async def test_the_end_closes_side_connections_that_are_free_or_in_use(dsn: str, schema: str, how: str) -> None:
    """Nothing is left to be done later: no timer stays in the event loop."""
    async with Durable(dsn, schema=schema) as app:
        side = SlowCommitConnections(services_of(app).connection_target, 2)
        async with side.acquire() as used, side.acquire() as free:
            pass
        timer = cast(Any, side)._timer
        async with side.acquire() as used:
            if how == "close":
                await side.close()
            else:
                side.terminate()
            assert (used.is_closed, free.is_closed) == (True, True)
            assert timer.cancelled()


async def test_the_end_waits_for_side_connections_that_are_being_closed(dsn: str, schema: str) -> None:
    """Also if other code has cancelled the close of one of them."""
    async with Durable(dsn, schema=schema) as app:
        side = SlowCommitConnections(services_of(app).connection_target, 2)
        async with side.acquire() as one, side.acquire() as two:
            await asyncio.gather(one.connect(), two.connect())
        cast(Any, side)._close_idle_connections()
        closing = [task for task in asyncio.all_tasks() if task.get_name() == "gen_durable close"]
        assert len(closing) == 2
        closing[0].cancel()
        await side.close()
        assert [task.done() for task in closing] == [True, True]
        for link in (one, two):
            link.terminate()


@pytest.mark.direct("the setting is that of a role of the test")
async def test_a_statement_timeout_of_the_role_does_not_delay_the_batch_of_a_locked_row(dsn: str, schema: str) -> None:
    """A timeout below the wait for a lock would end the flush of the batch before the locked row is set aside."""
    connection = await asyncpg.connect(dsn)
    login = f"{schema}_hasty"
    await connection.execute(f"create role {login} superuser login password '{PASSWORD}'")
    await connection.execute(f"alter role {login} set statement_timeout = '300ms'")
    try:
        async with Durable(login_dsn(dsn, login), schema=schema) as app, flusher(app) as (flush, _, _):
            several = await claims(app, 20)
            async with connection.transaction():
                await connection.execute(LOCK.format(schema), [several[7].id])
                futures = [flush.commit(done(c)) for c in several]
                others = await asyncio.wait_for(asyncio.gather(*futures[:7], *futures[8:]), 5)
                assert set(others) == {CommitResult.COMMITTED}
            assert await asyncio.wait_for(futures[7], 10) is CommitResult.COMMITTED
    finally:
        await connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", login)
        await connection.execute(f"drop role {login}")
        await connection.close()
