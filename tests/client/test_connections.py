"""Connections: killed ones are replaced, few are used, and two schemas do not see each other."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from gen_durable import Context, Done, Duplicate, Durable, Finished, Machine, NotFound, Outcome, Signal, job, step
from tests.client.conftest import Opening
from tests.worker.support import NEVER, Engine, opened

go = Signal("go")

OURS = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where application_name = 'gen_durable' and query like '%' || $1 || '%'
"""


@job
async def double(number: int) -> int:
    return number * 2


class Greeter(Machine):
    def __init__(self, word: str) -> None:
        self.word = word

    @step
    async def greet(self, name: str, ctx: Context) -> Outcome[str]:
        return Done(f"{self.word} {name}")


async def kill_all(e: Engine) -> int:
    return int(await e.rows.connection.fetchval(OURS, e.rows.schema))


async def test_killed_between_calls(engine: Opening) -> None:
    """Backends that were terminated between two calls are replaced without anyone noticing."""
    async with engine() as e:
        handle = await e.app.insert(double, 1)
        for _ in range(3):
            assert await kill_all(e) >= 1
            await e.app.insert(double, 2)
            assert await kill_all(e) >= 1
            assert await e.app.signal(handle, go)
            assert await kill_all(e) >= 1
            assert (await e.app.get(handle)).state == 1
        assert await e.rows.count() == 4


async def test_killed_while_the_loop_was_busy(engine: Opening, dsn: str) -> None:
    """Also when the loop had no chance to notice: a dead connection is found out before it is used."""
    async with engine() as e:
        for n in range(5):
            await e.app.insert(double, n)
            with psycopg.connect(dsn, autocommit=True) as blocking:
                blocking.execute(OURS.replace("$1", "%s").replace("'%'", "'%%'"), [e.rows.schema])
            await e.app.insert(double, n)
        assert await e.rows.count() == 10


async def test_killed_while_waiting(engine: Opening) -> None:
    """A wait outlives the connections it asks with."""
    async with engine() as e, engine() as other:
        handle = await e.app.insert(double, 4)
        waiting = asyncio.ensure_future(handle.wait())
        for _ in range(3):
            await kill_all(other)
            await e.app.get(handle)
        async with other.worker(double):
            assert await e.end(handle) == Finished(handle.id, 8)
            await waiting


async def test_a_worker_survives_a_massacre(engine: Opening) -> None:
    """All backends of a worker killed again and again: every instance still ends, once."""
    async with engine() as e, e.worker(double):
        for n in range(5):
            handle = await e.app.insert(double, n, unique_key=f"k{n}", on_conflict="existing")
            await kill_all(e)
            assert await e.end(handle) == Finished(handle.id, n * 2)


async def test_pool_size_bounds_the_connections(engine: Opening) -> None:
    """A hundred calls at once use no more than `pool_size` connections."""
    async with engine(pool_size=3) as e:
        most = 0

        async def count() -> None:
            nonlocal most
            sql = "select count(*) from pg_stat_activity where application_name = 'gen_durable' and query like $1"
            most = max(most, int(await e.rows.connection.fetchval(sql, f"%{e.rows.schema}%")))

        calls: list[Any] = [e.app.insert(double, n) for n in range(100)]
        await asyncio.gather(*calls, count())
        await count()
        assert 1 <= most <= 3
        assert await e.rows.count() == 100


async def test_few_connections_when_idle(engine: Opening) -> None:
    """Calls one after the other share one connection."""
    async with engine() as e:
        for n in range(10):
            await e.app.insert(double, n)
        assert await kill_all(e) == 1


@pytest.fixture
def second_schema(dsn: str) -> Any:
    """Another schema of the same database."""
    import uuid

    name = f"t_{uuid.uuid4().hex[:12]}"
    yield name
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{name}" cascade')


async def test_two_schemas_do_not_see_each_other(dsn: str, schema: str, second_schema: str) -> None:
    """Ids, keys, signals, partitions and workers of one schema mean nothing in the other."""
    async with Durable(dsn, schema=second_schema, migrate=True):
        pass
    async with opened(dsn, schema) as one, opened(dsn, second_schema) as two:
        first = await one.app.insert(Greeter.greet, "Ada", unique_key="k", partition_key="p")
        with pytest.raises(NotFound):
            await two.app.get("k")
        second = await two.app.insert(Greeter.greet, "Bob", unique_key="k", partition_key="p")
        await two.app.insert(Greeter.greet, "Cid", delay=NEVER)
        with pytest.raises(Duplicate):
            await two.app.insert(Greeter.greet, "Bob", unique_key="k")
        async with one.worker(Greeter("hello")):
            assert await one.end(first) == Finished(first.id, "hello Ada")
        assert (await two.rows.row(second))["status"] == "runnable"
        async with two.worker(Greeter("hi")):
            assert await two.end(second) == Finished(second.id, "hi Bob")
        assert await one.rows.count() == 1
