"""`Durable(pool=...)`: the client asks through a pool that its caller has made, and leaves it as it was."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest
from tests.support.engine import unlike

from gen_durable import Concurrency, Context, Durable, Finished, Signal, Start, Status, Worker, job
from gen_durable.errors import ConfigError, DatabaseUnavailable, SchemaMissing

SOON = timedelta(seconds=15)
note = Signal("note", dict[str, int])


@job
async def double(given: dict[str, int]) -> dict[str, int]:
    return {name: 2 * number for name, number in given.items()}


@job
async def writes(given: int, ctx: Context) -> int:
    await ctx.checkpoint({"at": given})
    ctx.progress(0.5, "half", detail={"of": given})
    return await ctx.run("same", abs, given)


async def with_codecs(connection: asyncpg.Connection[Any]) -> None:
    """As many set up their pools."""
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


@asynccontextmanager
async def lent(dsn: str, size: int = 2, **options: Any) -> AsyncIterator[asyncpg.Pool[Any]]:
    name = {"application_name": "lent"}
    async with asyncpg.create_pool(dsn, min_size=0, max_size=size, server_settings=name, **options) as pool:
        yield pool


async def test_every_call(private_dsn: str, dsn: str, schema: str) -> None:
    """All of a client, with codecs of the caller's on its connections; and no connection is there but the pool's."""
    async with lent(private_dsn, init=with_codecs) as pool, Durable(pool=pool, schema=schema) as app:
        assert await app.set_limit("api", Concurrency(2))
        assert [state.name for state in await app.limits()] == ["api"]
        first, second = await app.insert_many(
            [Start(double, {"a": n}, metadata={"n": n}, limit="api", unique_key=f"k{n}") for n in (1, 2)]
        )
        found = await app.get("k1")
        assert (found.state, found.metadata) == ({"a": 1}, {"n": 1})
        assert [i.metadata for i in await app.list(metadata={"n": 2}, payloads=True)] == [{"n": 2}]
        assert (await app.count(status=Status.RUNNABLE)).value == 2
        assert await first.signal(note, {"x": 1}, dedup_key="once")
        assert not await first.signal(note, {"x": 1}, dedup_key="once")
        assert (await second.cancel()).ended == 1
        third = await app.insert(writes, -3)
        async with Durable(dsn, schema=schema) as other, Worker(other, jobs=[double, writes]):
            assert await first.wait(SOON) == Finished(first.id, {"a": 2})
            assert await third.wait(SOON) == Finished(third.id, 3)
            await second.retry()
            assert await second.wait(SOON) == Finished(second.id, {"a": 4})
        assert [t.outcome for t in await app.history(third)] == ["Done"]
        assert [(a.parameters, a.result) for a in await app.activities(third)] == [({"x": -3}, 3)]
        assert [p.detail for p in await app.progress(third)] == [{"of": -3}]
        await first.delete()
        assert await app.remove_limit("api")
        async with await psycopg.AsyncConnection.connect(dsn) as look:
            names = await look.execute(
                "select distinct application_name from pg_stat_activity where usename = %s",
                [urlsplit(private_dsn).username],
            )
            assert await names.fetchall() == [("lent",)]


async def test_the_pool_stays_the_callers(dsn: str, schema: str) -> None:
    """Closing leaves it open; it can be used again, and beside it a transaction of the caller's."""
    async with lent(dsn) as pool:
        app = Durable(pool=pool, schema=schema)
        for n in (1, 2):
            async with app, pool.acquire() as connection, connection.transaction():
                await app.insert(double, {}, connection=connection)
                await app.insert(double, {})
            assert await pool.fetchval(f'select count(*) from "{schema}".instances') == 2 * n
        with pytest.raises(ConfigError, match="not open"):
            await app.get(1)


async def test_a_worker_needs_a_dsn(dsn: str, schema: str) -> None:
    """It says so; with one it runs, and its client's calls go through the pool."""
    async with lent(dsn) as pool:
        async with Durable(pool=pool, schema=schema) as app:
            with pytest.raises(ConfigError, match=r"Durable\(dsn, pool=pool\)"):
                await Worker(app, jobs=[double]).start()
        async with Durable(dsn, pool=pool, schema=schema) as app, Worker(app, jobs=[double]):
            handle = await app.insert(double, {"a": 1})
            assert await handle.wait(SOON) == Finished(handle.id, {"a": 2})
            assert pool.get_size() == 1


async def test_steps_that_hold_the_pool_do_not_stop_the_engine(dsn: str, schema: str) -> None:
    """Every connection is in the hands of a step that writes its journal and waits for a limit."""
    async with lent(dsn, size=1) as pool, Durable(dsn, pool=pool, schema=schema) as app:

        @job
        async def holds(n: int, ctx: Context) -> int:
            async with pool.acquire():
                await ctx.checkpoint(n)
                async with ctx.limit("api"):
                    return n

        handles = await app.insert_many([Start(holds, n) for n in range(3)])
        async with Worker(app, jobs=[holds], limits={"api": Concurrency(1)}):
            for n, handle in enumerate(handles):
                assert await handle.wait(SOON) == Finished(handle.id, n)


async def test_killed_between_calls(private_dsn: str, schema: str) -> None:
    """Connections that have died unnoticed are passed over: each insert is done once."""
    kill = (
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where application_name = 'lent' and usename = current_user"
    )
    async with lent(private_dsn) as pool, Durable(pool=pool, schema=schema) as app:
        for n in range(1, 4):
            await asyncio.gather(app.get(1), app.count(), return_exceptions=True)
            with psycopg.connect(private_dsn, autocommit=True) as blocking:  # the loop hears nothing of it
                assert blocking.execute(kill).rowcount >= 1
            await app.insert(double, {})
            assert (await app.count()).value == n


async def test_pools_that_cannot_be_used(dsn: str, schema: str) -> None:
    """Each is told with what to do."""
    stranger: Any = dsn
    with pytest.raises(ConfigError, match="pool= takes an asyncpg pool, got str"):
        Durable(pool=stranger)
    never_opened = asyncpg.create_pool(dsn)
    with pytest.raises(ConfigError, match=r"not initialized.*Open it before"):
        await Durable(pool=never_opened, schema=schema).open()
    async with lent(dsn) as pool:
        options: dict[str, Any] = {
            "pooler": "transaction",
            "listen_dsn": dsn,
            "migrate": True,
            "embedded_directory": ".",
        }
        for name, value in options.items():
            with pytest.raises(ConfigError, match=f"{name} needs a dsn"):
                Durable(pool=pool, **{name: value})
        with pytest.raises(SchemaMissing, match="gen-durable migrate"):
            await Durable(pool=pool, schema=f"{schema}_missing").open()
        app = Durable(pool=pool, schema=schema)
        await app.open()
    assert await unlike(app.insert(double, {}), ConfigError, "pool is clos.*close it after") is None
    await app.close()


async def test_an_unreachable_server(schema: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        async with lent(f"postgresql://postgres@127.0.0.1:{nobody.getsockname()[1]}/postgres") as pool:
            with pytest.raises(DatabaseUnavailable, match="not reachable"):
                await Durable(pool=pool, schema=schema).open()


async def test_a_dsn_that_leads_elsewhere(dsn: str, schema: str) -> None:
    """The pool leads to one database, the DSN to another with the same schema."""
    elsewhere = urlunsplit(urlsplit(dsn)._replace(path=f"/{schema}"))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin:
        await admin.execute(f'create database "{schema}"')
        try:
            async with Durable(elsewhere, schema=schema, migrate=True):
                pass
            async with lent(dsn) as pool:
                with pytest.raises(ConfigError, match="different databases"):
                    await Durable(elsewhere, pool=pool, schema=schema).open()
        finally:
            await admin.execute(f'drop database "{schema}" with (force)')


async def test_the_environment_is_not_asked(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "nonsense")
    async with lent(dsn) as pool, Durable(pool=pool, schema=schema) as app:
        assert (await app.count()).value == 0
