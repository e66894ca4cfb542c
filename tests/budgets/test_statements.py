"""What work costs, counted by the server: statements per job and per step, updates in place, the price of idling.

Each test has a database of its own, so that the server's counters hold its work and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from gen_durable import Context, Done, Durable, Finished, Machine, Next, Outcome, Start, Worker, job, step
from gen_durable.embedded import release, start

CALLS = [
    "insert",
    "pick",
    "flush",
    "signal",
    "heartbeat",
    "reap",
    "release_claims",
    "gc",
    "ends_of",
    "get",
    "count_due_unknown_steps",
]


@job
async def noop(n: int) -> int:
    """Nothing, durably."""
    return n


class Chain(Machine):
    """As many steps as its state says, within one claim."""

    @step
    async def walk(self, left: int, ctx: Context) -> Outcome[int]:
        return Next(self.go_on, left - 1) if left > 1 else Done(0)

    @step
    async def go_on(self, left: int, ctx: Context) -> Outcome[int]:
        return Next(self.walk, left - 1) if left > 1 else Done(0)


@dataclass
class Counted:
    """A database of its own; its counters are read when all connections to it are closed."""

    dsn: str
    name: str
    admin: asyncpg.Connection

    async def statements(self) -> int:
        """How many calls the engine has made, by the server's own count of function calls.

        Not the number of transactions: autovacuum looks after a new database with many of its own.
        """
        for _ in range(500):  # a backend's counts are complete when it has ended
            open_ = await self.admin.fetchval("select count(*) from pg_stat_activity where datname = $1", self.name)
            if open_ == 0:
                break
            await asyncio.sleep(0.02)
        own = await asyncpg.connect(self.dsn)
        try:
            sql = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = any ($1)"
            return int(await own.fetchval(sql, CALLS))
        finally:
            await own.close()


@asynccontextmanager
async def counted(dsn: str) -> AsyncIterator[Counted]:
    name = f"guard_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(dsn)
    try:
        await admin.execute(f"create database {name}")
        await admin.execute(f"alter database {name} set track_functions = 'all'")
        parts = urlsplit(dsn)
        own = urlunsplit(parts._replace(path=f"/{name}"))
        if own.startswith("postgresql:///") is False and not parts.netloc:
            own = own.replace("postgresql:/", "postgresql:///", 1)
        async with Durable(own, migrate=True):
            pass
        yield Counted(own, name, admin)
    finally:
        await admin.execute(f"drop database if exists {name} with (force)")
        await admin.close()


@pytest.mark.direct(reason="counts calls when all sessions have ended; a pooler keeps its own")
async def test_a_job_in_a_drain_costs_a_fiftieth_of_a_statement(dsn: str) -> None:
    """2,000 jobs at concurrency 100: pick and flush together take at most 1/50 of a statement per job."""
    async with counted(dsn) as database:
        before = await database.statements()
        async with Durable(database.dsn) as app:
            handles = await app.insert_many([Start(noop, n) for n in range(2000)])
            async with Worker(app, jobs=[noop], queues={"default": 100}, reap_interval=None, gc_interval=None):
                while isinstance(await handles[-1].wait(timedelta(seconds=30)), Finished) is False:
                    pass
                assert all([isinstance(await h.wait(timedelta(seconds=30)), Finished) for h in handles[-100:]])
        spent = await database.statements() - before
        # What is spent once, whatever the number of jobs: opening, LISTEN, the insert, waiting for the last hundred.
        once = 120
        assert spent - once <= 2000 / 50, f"{spent} statements for 2,000 jobs"


@pytest.fixture
def quiet_dsn(tmp_path: Path) -> Iterator[str]:
    """A server of its own: a long transaction anywhere on a server keeps row versions from being pruned."""
    server = start(tmp_path / "server")
    yield server.dsn
    release(server)


async def test_a_step_of_a_chain_costs_a_fiftieth_of_a_statement_and_is_updated_in_place(quiet_dsn: str) -> None:
    """200 chains of 30 steps: at most 1/50 of a statement per step, and at least 90 % of all updates are HOT."""
    spent, hot = await _chains(quiet_dsn)
    assert spent - 60 <= 200 * 30 / 50, f"{spent} statements for 6,000 steps"
    assert hot >= 0.9, f"{hot:.1%} of the updates were HOT"


async def _chains(dsn: str) -> tuple[int, float]:
    async with counted(dsn) as database:
        before = await database.statements()
        async with Durable(database.dsn) as app:
            handles = await app.insert_many([Start(Chain.walk, 30) for _ in range(200)])
            options = {"run_ahead_time": timedelta(seconds=60), "reap_interval": None, "gc_interval": None}
            async with Worker(app, machines=[Chain()], queues={"default": 200}, **options):  # type: ignore[arg-type]
                endings = await asyncio.gather(*(h.wait(timedelta(seconds=30)) for h in handles))
            assert all(isinstance(ending, Finished) for ending in endings)
            assert (await handles[0].get()).seq == 30
        spent = await database.statements() - before
        own = await asyncpg.connect(database.dsn)
        try:
            sql = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'instances'"
            updates, hot = await own.fetchrow(sql)
        finally:
            await own.close()
        assert updates >= 200 * 31
        return spent, hot / updates


@pytest.mark.direct(reason="counts calls when all sessions have ended; a pooler keeps its own")
async def test_an_idle_worker_with_ten_queues_asks_less_than_once_a_second(dsn: str) -> None:
    """Ten queues and nothing to do: at most one statement a second, all rooms together."""
    async with counted(dsn) as database:

        async def idle(seconds: float) -> int:
            before = await database.statements()
            queues = {f"q{n}": 5 for n in range(10)}
            async with Durable(database.dsn) as app, Worker(app, jobs=[noop], queues=queues):
                await asyncio.sleep(seconds)
            return await database.statements() - before

        start_and_stop = await idle(0.5)
        assert await idle(8.5) - start_and_stop <= 8
