"""Pools: statements that are tried again, timeouts, and connections that die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.support.pauses import record_pauses

from gen_durable.pg import pool as pool_module
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.pg.persistent_connection import ConnectionTarget
from gen_durable.pg.pool import CallerPool, OwnPool, Pool
from gen_durable.store.statements import Statement

pytestmark = pytest.mark.direct("the tests look at the server's own sessions")
PID = Statement("select pg_backend_pid()", (), lambda rows: int(rows[0][0]))
SLEEP = Statement("select pg_sleep(60)", (), len)
END = Statement("select pg_terminate_backend(pg_backend_pid())", (), len)


class Losing(Pool):
    """Loses its connection the first few times."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.runs = 0

    async def run(self, statement: Statement[Any], *, timeout: float | None = None) -> Any:
        self.runs += 1
        if self.runs <= self.losses:
            raise ConnectionLost(OSError(f"loss {self.runs}"), sent=True)
        return 7

    async def close(self) -> None:
        pass


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time."""
    return record_pauses(monkeypatch, longest=0)


async def test_an_idempotent_statement_is_tried_five_times(pauses: list[float]) -> None:
    """With growing pauses; then the last error is raised."""
    assert await Losing(4).run_idempotent(PID) == 7
    assert pauses == [0.05, 0.1, 0.2, 0.4]
    pool = Losing(9)
    with pytest.raises(ConnectionLost, match="loss 5"):
        await pool.run_idempotent(PID)
    assert pool.runs == 5
    pauses.clear()
    assert await Losing(6).run_idempotent(PID, tries=7) == 7
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


@asynccontextmanager
async def pool_of(kind: str, dsn: str, **options: Any) -> AsyncIterator[Pool]:
    if kind == "own":
        own = OwnPool(ConnectionTarget(dsn), 1)
        yield own
        await own.close()
    else:
        async with asyncpg.create_pool(dsn, min_size=0, max_size=1, **options) as pool:
            yield CallerPool(pool)


@pytest.mark.parametrize("kind", ["own", "callers"])
async def test_a_statement_that_fails_gives_its_connection_back(dsn: str, kind: str) -> None:
    """The pool has one connection: the next statement would wait for it forever."""
    async with pool_of(kind, dsn) as pool, asyncio.timeout(10):
        before = await pool.run(PID)
        with pytest.raises(ConnectionLost, match="TimeoutError") as caught:
            await pool.run(SLEEP, timeout=0.05)
        assert caught.value.sent
        with pytest.raises(asyncpg.DivisionByZeroError):
            await pool.run(Statement("select 1 / 0", (), len))
        with pytest.raises(ConnectionLost, match="terminating connection") as caught:
            await pool.run(END)
        assert caught.value.sent
        assert caught.value.__cause__ is caught.value.cause
        assert await pool.run(PID) != before


async def test_closing_ends_every_session(dsn: str) -> None:
    pool = OwnPool(ConnectionTarget(dsn), 3)
    driver_connections = [await connection.connect() for connection in pool._connections]
    await pool.close()
    assert all(connection.is_closed() for connection in driver_connections)


async def test_every_connection_of_a_callers_pool_is_dead(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may be dead once, and one more is opened; then nothing was sent, and the caller can try again."""
    acquired: list[Any] = []
    acquire = asyncpg.Pool.acquire

    async def acquire_dead(pool: Any) -> Any:
        acquired.append(await acquire(pool))
        acquired[-1]._protocol.abort()
        return acquired[-1]

    monkeypatch.setattr(asyncpg.Pool, "acquire", acquire_dead)
    pool = await asyncpg.create_pool(dsn, min_size=0, max_size=2)
    try:
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionLost, match="every connection of the pool was dead") as caught:
                await CallerPool(pool).run(PID)
    finally:
        pool.terminate()
    assert not caught.value.sent
    assert len(acquired) == 3


async def test_unread_input_of_a_callers_connection_is_read_first(
    dsn: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver gets a moment for it. A notice does no harm: the connection is used."""
    async with asyncpg.create_pool(dsn, min_size=0, max_size=1) as driver_pool:
        pool = CallerPool(driver_pool)
        before = await pool.run(PID)
        assert pauses == []
        monkeypatch.setattr(pool_module, "has_unread_input", lambda _: True)
        assert await pool.run(PID) == before
        assert pauses == [0.01]
