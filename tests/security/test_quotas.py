"""Quotas: how many live instances a login may have, and how many it may insert per second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.support.machine import M
from tests.support.roles import logins
from typer.testing import CliRunner

from gen_durable import Durable, Start, SyncDurable
from gen_durable.cli.app import app as cli
from gen_durable.errors import QuotaExceeded


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found:
        yield found


async def set_quota(dsn: str, schema: str, *options: str) -> None:
    words = ["grant", "producer", f"{schema}_l_producer", *options, "--dsn", dsn, "--schema", schema]
    done = await asyncio.to_thread(CliRunner().invoke, cli, words)
    assert done.exit_code == 0, done.output


def row(dsn: str, schema: str) -> Any:
    query = f'select max_live, live_left, inserts_per_second, drained_until, xmin from "{schema}".restricted_logins'
    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchone()


async def test_live_instances(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Up to the quota, again when some have ended; a call that does not fit inserts nothing; others are not counted."""
    async with Durable(dsns["producer"], schema=schema) as app, Durable(dsns["client"], schema=schema) as other:
        await app.insert(M.s, {})  # counted, though it came before the quota
        await set_quota(dsn, schema, "--max-live", "5")
        await other.insert_many([Start(M.s, {})] * 9)
        handles = await app.insert_many([Start(M.s, {})] * 3)
        words = rf"insert: login {schema}_l_producer may have 5 live instances and has 1 left, got 2. Try again when"
        with pytest.raises(QuotaExceeded, match=words) as refused:
            await app.insert_many([Start(M.s, {})] * 2)
        assert refused.value.retry_after is None
        await app.insert(M.s, {}, unique_key="key")
        for call in (
            app.insert(M.s, {}),
            app.debounce(M.s, {}, unique_key="other", delay=9),
            app.insert(M.s, {}, unique_key="key", on_conflict="existing"),  # a taken key counts as well
        ):
            with pytest.raises(QuotaExceeded, match="has 0 left, got 1"):
                await call
        for handle in handles[:2]:
            await app.cancel(handle.id)
        await app.insert_many([Start(M.s, {})] * 2)
        with pytest.raises(QuotaExceeded):
            await app.insert(M.s, {})


async def test_a_rollback_gives_the_quota_back(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    await set_quota(dsn, schema, "--max-live", "2", "--max-inserts-per-second", "2")
    async with Durable(dsns["producer"], schema=schema) as app:
        own = await asyncpg.connect(dsns["producer"])
        for _ in range(3):
            transaction = own.transaction()
            await transaction.start()
            await app.insert_many([Start(M.s, {})] * 2, connection=own)
            await transaction.rollback()
        async with own.transaction():
            await app.insert(M.s, {}, connection=own)
            with pytest.raises(QuotaExceeded):
                async with own.transaction():  # a savepoint
                    await app.insert_many([Start(M.s, {})] * 2, connection=own)
            await app.insert(M.s, {}, connection=own)
        await own.close()
    with (
        SyncDurable(dsns["producer"], schema=schema) as sync,
        psycopg.connect(dsns["producer"]) as mine,
        pytest.raises(QuotaExceeded),
    ):
        sync.insert(M.s, {}, connection=mine)


async def test_inserts_per_second(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """A full bucket holds the inserts of one second; an error says when the call will fit."""
    await set_quota(dsn, schema, "--max-inserts-per-second", "0.01")
    async with Durable(dsns["producer"], schema=schema) as app:
        await app.insert(M.s, {})
        with pytest.raises(
            QuotaExceeded, match=r"may insert 0.01 instances a second. Try again in \d+\.\d+ s"
        ) as refused:
            await app.insert(M.s, {})
        assert 90 < (refused.value.retry_after or 0) <= 100
        with pytest.raises(
            QuotaExceeded, match=r"at most 1 in one call, got 2. Insert them in several calls"
        ) as refused:
            await app.insert_many([Start(M.s, {})] * 2)
        assert refused.value.retry_after is None
        with psycopg.connect(dsn, autocommit=True) as admin:
            shorten = f"update \"{schema}\".restricted_logins set drained_until = drained_until - interval '1 hour'"
            admin.execute(shorten.encode())
        await app.insert(M.s, {})  # an idle time fills the bucket, and does not overfill it
        with pytest.raises(QuotaExceeded):
            await app.insert(M.s, {})
        await set_quota(dsn, schema, "--max-inserts-per-second", "1000")
        await app.insert_many([Start(M.s, {})] * 1000)


async def test_other_logins_write_nothing(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Neither a login without a row, nor one with grants and no quota, nor a worker that runs what it has inserted."""
    await set_quota(dsn, schema, "--machine", "m")
    before = row(dsn, schema)
    for login in ("producer", "client", "worker"):
        async with Durable(dsns[login], schema=schema) as app:
            await app.insert(M.s, {})
    assert row(dsn, schema) == before
    await set_quota(dsn, schema, "--max-live", "9")
    async with Durable(dsns["producer"], schema=schema) as app:
        await app.insert(M.s, {})
    assert row(dsn, schema)[:2] == (9, 7)


def test_inserts_at_once(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """An insert waits for another of its login, and then counts what that has left; other logins do not wait."""
    asyncio.run(set_quota(dsn, schema, "--max-live", "1"))
    call = f"select \"{schema}\".insert('m', 's')".encode()
    with (
        ThreadPoolExecutor(1) as threads,
        psycopg.connect(dsn, autocommit=True) as admin,
        psycopg.connect(dsns["producer"]) as first,
        psycopg.connect(dsns["producer"]) as second,
        psycopg.connect(dsns["producer2"]) as other,
    ):
        first.execute(call)
        waiting = threads.submit(second.execute, call)
        pid = second.info.backend_pid
        while admin.execute("select cardinality(pg_blocking_pids(%s))", [pid]).fetchone() == (0,):
            assert not waiting.done()
        other.execute("set lock_timeout = '1s'")
        other.execute(call)
        first.commit()
        with pytest.raises(psycopg.Error, match="has 0 left, got 1") as refused:
            waiting.result(timeout=30)
        assert refused.value.sqlstate == "GD007"
