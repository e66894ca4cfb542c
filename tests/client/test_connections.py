"""Connections: killed ones are replaced, few are used, and two schemas do not see each other."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from tests.support.engine import NEVER, Engine, Opening, opened, soon

from gen_durable import Context, Done, Durable, Finished, Machine, Outcome, Signal, job, step
from gen_durable.errors import Duplicate, NotFound

go = Signal("go")

OURS = """
select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity
where usename = current_user and pid <> pg_backend_pid()
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
    return int(await e.rows.connection.fetchval(OURS))


async def test_killed_between_calls(private: Opening) -> None:
    """Backends that were terminated between two calls are replaced without anyone noticing."""
    async with private() as e:
        handle = await e.app.insert(double, 1)
        for _ in range(3):
            assert await kill_all(e) >= 1
            await e.app.insert(double, 2)
            assert await kill_all(e) >= 1
            assert await e.app.signal(handle, go)
            assert await kill_all(e) >= 1
            assert (await e.app.get(handle)).state == 1
        assert await e.rows.count() == 4


async def test_killed_while_the_loop_was_busy(private: Opening, private_dsn: str) -> None:
    """Also when the loop had no chance to notice: a dead connection is found out before it is used."""
    async with private() as e:
        for n in range(5):
            await e.app.insert(double, n)
            with psycopg.connect(private_dsn, autocommit=True) as blocking:
                blocking.execute(f"{OURS} and application_name = 'gen_durable'")
            await e.app.insert(double, n)
        assert await e.rows.count() == 10


async def test_killed_while_waiting(private: Opening) -> None:
    """A wait outlives the connections it asks with."""
    async with private() as e:
        handle = await e.app.insert(double, 4)
        waiting = asyncio.ensure_future(handle.wait())
        for _ in range(3):
            await kill_all(e)
            await e.app.get(handle)
        async with e.worker(double):
            assert await soon(waiting) == Finished(handle.id, 8)


async def test_a_worker_survives_a_massacre(private: Opening) -> None:
    """All backends of a worker killed again and again: every instance still ends, once."""
    async with private() as e, e.worker(double):
        for n in range(5):
            handle = await e.app.insert(double, n, unique_key=f"k{n}", on_conflict="existing")
            await kill_all(e)
            assert await e.end(handle) == Finished(handle.id, n * 2)


async def test_pool_size_bounds_the_connections(private: Opening) -> None:
    """A hundred calls at once use no more than `pool_size` connections."""
    async with private(pool_size=3) as e:
        most = 0

        async def count() -> None:
            nonlocal most
            sql = "select count(*) from pg_stat_activity where usename = current_user and pid <> pg_backend_pid()"
            most = max(most, int(await e.rows.connection.fetchval(sql)))

        calls: list[Any] = [e.app.insert(double, n) for n in range(100)]
        await asyncio.gather(*calls, count())
        await count()
        assert 1 <= most <= 3
        assert await e.rows.count() == 100


async def test_few_connections_when_idle(private: Opening) -> None:
    """Calls one after the other share a connection, and the notification behind each may have a second."""
    async with private() as e:
        for n in range(10):
            await e.app.insert(double, n)
        assert await kill_all(e) <= 2


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
