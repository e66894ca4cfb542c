"""A connection that reconnects: which errors end it, what stays usable, and what is left when it is closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.support.hosts import Gating, Place, address_of, several

from gen_durable.pg import persistent_connection as connection_module
from gen_durable.pg.connector import HostConnection, connect_to_first_usable_host
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection, RunStatement, has_unread_input
from gen_durable.store.statements import Statement

pytestmark = pytest.mark.direct("the tests look at the server's own sessions")
PID = Statement("select pg_backend_pid()", (), lambda rows: int(rows[0][0]))
SLEEP = Statement("select pg_sleep(60)", (), len)
END = Statement("select pg_terminate_backend(pg_backend_pid())", (), len)
WRONG = Statement("select 1 / 0", (), len)


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[PersistentConnection]:
    connection = PersistentConnection(ConnectionTarget(dsn))
    try:
        yield connection
    finally:
        await connection.close()


async def in_transaction(connection: PersistentConnection, *statements: Statement[Any]) -> list[Any]:
    async def work(run: RunStatement) -> list[Any]:
        return [await run(statement) for statement in statements]

    return await connection.run_in_transaction(work)


async def test_an_sql_error_leaves_the_connection_as_it_is(dsn: str) -> None:
    """It is raised unchanged, and the next statement has the same session."""
    async with opened(dsn) as connection:
        before = await connection.run(PID)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.run(WRONG)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.run_script(WRONG.text)
        assert await connection.run(PID) == before


async def test_a_session_that_ends_is_a_lost_connection(dsn: str) -> None:
    """Whether the statement was executed is unknown. The next one has a new session."""
    async with opened(dsn) as connection:
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: connection.run(END),
            lambda: connection.run_script(END.text),
            lambda: in_transaction(connection, PID, END),
        ]
        for call in calls:
            before = await connection.run(PID)
            with pytest.raises(ConnectionLost, match="terminating connection") as caught:
                await call()
            assert caught.value.sent
            assert caught.value.__cause__ is caught.value.cause
            assert await connection.run(PID) != before


@pytest.mark.parametrize("script", [True, False])
async def test_a_cancelled_statement_ends_its_connection(dsn: str, script: bool) -> None:
    """Its protocol is in the middle of a result."""
    async with opened(dsn) as connection:
        driver_connection = await connection.connect()
        call: Any = connection.run_script(SLEEP.text) if script else connection.run(SLEEP)
        running = asyncio.create_task(call)
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert driver_connection.is_closed()


async def test_a_statement_that_takes_too_long_ends_its_connection(dsn: str) -> None:
    """After the timeout it is unknown whether the statement was executed."""
    async with opened(dsn) as connection, asyncio.timeout(10):
        driver_connection = await connection.connect()
        with pytest.raises(ConnectionLost, match="TimeoutError") as caught:
            await connection.run(SLEEP, timeout=0.05)
        assert caught.value.sent
        assert driver_connection.is_closed()


async def test_a_transaction_is_committed_or_leaves_nothing(dsn: str, schema: str) -> None:
    """An error of its own or of the server is raised unchanged, and the session ends with what it had begun."""
    table = Statement(f"create table {schema}.written (id int unique deferrable initially deferred)", (), len)
    insert = Statement(f"insert into {schema}.written values (1)", (), len)
    count = Statement(f"select count(*) from {schema}.written", (), lambda rows: int(rows[0][0]))

    async def fail(run: RunStatement) -> None:
        await run(insert)
        raise ZeroDivisionError

    async with opened(dsn) as connection, opened(dsn) as other:
        assert await in_transaction(connection, table, count) == [0, 0]
        assert await other.run(count) == 0
        with pytest.raises(ZeroDivisionError):
            await connection.run_in_transaction(fail)
        assert await connection.run(count) == 0
        with pytest.raises(asyncpg.DivisionByZeroError):
            await in_transaction(connection, insert, WRONG)
        with pytest.raises(asyncpg.UniqueViolationError):
            await in_transaction(connection, insert, insert)
        assert await connection.run(count) == 0
        await connection.run(Statement(f"drop table {schema}.written", (), len))


async def test_a_transaction_is_read_committed(dsn: str) -> None:
    """Whatever the session says."""
    level = Statement("show transaction_isolation", (), lambda rows: str(rows[0][0]))
    async with opened(dsn) as connection:
        await connection.run_script("set default_transaction_isolation = 'serializable'")
        assert await in_transaction(connection, level) == ["read committed"]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_closed_connection_stays_closed(dsn: str, waits: bool) -> None:
    """It ends its session and never opens another."""
    connection = PersistentConnection(ConnectionTarget(dsn))
    driver_connection = await connection.connect()
    if waits:
        await connection.close()
    else:
        connection.terminate()
    assert connection.is_closed
    assert driver_connection.is_closed()
    with pytest.raises(ConnectionLost, match="this Durable is closed") as caught:
        await connection.run(PID)
    assert not caught.value.sent


async def test_a_closed_connection_does_not_connect(dead: Place) -> None:
    """The error does not depend on whether the server could be reached."""
    connection = PersistentConnection(ConnectionTarget(several("postgresql:///postgres", dead)))
    await connection.close()
    with pytest.raises(ConnectionLost, match="this Durable is closed"):
        await connection.run(PID)


async def test_a_session_opened_while_the_connection_was_closed_ends(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = PersistentConnection(ConnectionTarget(dsn))
    found: list[HostConnection] = []

    async def close_meanwhile(*arguments: Any) -> HostConnection:
        found.append(await connect_to_first_usable_host(*arguments))
        connection.terminate()
        return found[0]

    monkeypatch.setattr(connection_module, "connect_to_first_usable_host", close_meanwhile)
    with pytest.raises(ConnectionLost, match="this Durable is closed"):
        await connection.connect()
    assert found[0].driver_connection.is_closed()


async def test_closing_waits_two_seconds_for_the_server(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver terminates the session after that."""
    timeouts: list[float | None] = []
    close = asyncpg.Connection.close

    async def record(driver_connection: Any, *, timeout: float | None = None) -> None:
        timeouts.append(timeout)
        await close(driver_connection, timeout=timeout)

    monkeypatch.setattr(asyncpg.Connection, "close", record)
    async with opened(dsn) as connection:
        await connection.connect()
    assert timeouts == [2]


async def test_a_close_that_is_cancelled_terminates(dsn: str, gated: Gating) -> None:
    """A server that does not answer keeps no caller, and its socket does not stay open."""
    async with gated() as gate, asyncio.timeout(10):
        connection = PersistentConnection(ConnectionTarget(several(dsn, gate.place)))
        driver_connection: Any = await connection.connect()
        gate.freeze()
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert driver_connection._aborted


async def test_a_connection_of_another_process_is_left_alone(dsn: str) -> None:
    """After a fork it belongs to the parent: neither closed nor used here."""
    connection = PersistentConnection(ConnectionTarget(dsn))
    of_parent = await connection.connect()
    connection._pid -= 1
    assert await connection.connect() is not of_parent
    await connection.close()
    assert not of_parent.is_closed()
    for end in ("close", "terminate"):
        connection = PersistentConnection(ConnectionTarget(dsn))
        also = await connection.connect()
        connection._pid -= 1
        ended = getattr(connection, end)()
        if ended is not None:
            await ended
        assert not also.is_closed()
        also.terminate()
    of_parent.terminate()


async def test_a_connection_that_cannot_be_used_is_terminated(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session does not stay beside the new one."""
    async with opened(dsn) as connection:
        before = await connection.connect()
        monkeypatch.setattr(connection_module, "_is_open_and_writable", lambda _: False)
        assert await connection.connect() is not before
        assert before.is_closed()


READ_ONLY = "&target_session_attrs=any&default_transaction_read_only=on"


@pytest.mark.parametrize(
    ("hosts", "options", "is_kept"),
    [(1, READ_ONLY, True), (2, "&target_session_attrs=any", True), (2, READ_ONLY, False)],
)
async def test_a_read_only_server_is_left_if_there_are_others(
    dsn: str, dead: Place, hosts: int, options: str, is_kept: bool
) -> None:
    """Statements that only read would never get an error from it."""
    places = [address_of(dsn), dead][:hosts]
    async with opened(several(dsn, *places, more=options)) as connection:
        before = await connection.run(PID)
        assert (await connection.run(PID) == before) is is_kept


async def test_unread_input_is_found_without_waiting(dsn: str, schema: str) -> None:
    """It is most likely the end of the session, so the next statement has a new one. The event loop has no turn."""
    async with opened(dsn) as connection:
        driver_connection = await connection.connect()
        await driver_connection.execute(f"listen {schema}_unread")
        began = time.monotonic()
        assert not any(has_unread_input(driver_connection) for _ in range(5000))
        assert time.monotonic() - began < 5
        with psycopg.connect(dsn, autocommit=True) as blocking:
            blocking.execute(f"notify {schema}_unread")
        while not has_unread_input(driver_connection) and time.monotonic() - began < 10:
            pass
        assert await connection.connect() is not driver_connection


async def test_a_connection_that_has_ended_has_nothing_to_wait_for(dsn: str) -> None:
    """It has no socket any more."""
    async with opened(dsn) as connection:
        driver_connection = await connection.connect()
        driver_connection.terminate()
        await asyncio.sleep(0.01)
        assert has_unread_input(driver_connection)


async def test_nothing_is_watched_without_a_connection(dsn: str) -> None:
    """A transaction may still end after its connection was dropped."""
    with PersistentConnection(ConnectionTarget(dsn)).watch_server():
        pass
