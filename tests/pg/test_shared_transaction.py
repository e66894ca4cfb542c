"""The end of a transaction that user code and the engine share: whatever interrupts it, the server rolls back."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from gen_durable.pg import shared_transaction
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection, RunStatement
from gen_durable.pg.shared_transaction import SharedTransaction
from gen_durable.store.statements import Statement

pytestmark = pytest.mark.direct("the tests look at the server's own sessions")


class Hanging:
    """The driver's transaction, on a server that does not answer."""

    async def commit(self) -> None:
        await asyncio.sleep(3600)

    rollback = commit


class Failing:
    """The driver's transaction, with an error at its commit."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def commit(self) -> None:
        raise self._error


async def begin(dsn: str) -> tuple[PersistentConnection, SharedTransaction]:
    connection = PersistentConnection(ConnectionTarget(dsn))
    transaction = await SharedTransaction.begin(connection)
    transaction._inner = Hanging()  # type: ignore[assignment]
    return connection, transaction


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_interrupted(dsn: str, end: str) -> None:
    """The cancellation is passed on, and the connection is dropped."""
    connection, transaction = await begin(dsn)
    ending: asyncio.Task[Any] = asyncio.create_task(getattr(transaction, end)())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert transaction.driver_connection.is_closed()
    await connection.close()


async def test_a_rollback_without_an_answer(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_transaction, "ROLLBACK_TIMEOUT", 0.05)
    connection, transaction = await begin(dsn)
    assert not await transaction.rollback()
    assert transaction.driver_connection.is_closed()
    await connection.close()


async def test_a_commit_that_the_server_rejects(dsn: str) -> None:
    """A deferred constraint, for example: the error is raised unchanged, and the connection stays."""
    connection, transaction = await begin(dsn)
    transaction._inner = Failing(asyncpg.UniqueViolationError("twice"))  # type: ignore[assignment]
    with pytest.raises(asyncpg.UniqueViolationError):
        await transaction.commit()
    assert not transaction.driver_connection.is_closed()
    await connection.close()


async def test_a_commit_on_a_connection_that_breaks(dsn: str) -> None:
    """Whether it happened is unknown, and the connection is not used again."""
    connection, transaction = await begin(dsn)
    error = asyncpg.InternalClientError("got an unexpected message")
    transaction._inner = Failing(error)  # type: ignore[assignment]
    with pytest.raises(ConnectionLost, match="unexpected message") as caught:
        await transaction.commit()
    assert caught.value.sent
    assert caught.value.__cause__ is error
    assert transaction.driver_connection.is_closed()
    await connection.close()


async def test_a_rollback_keeps_the_connection(dsn: str) -> None:
    """It is used by the next step. A drop ends it."""
    connection = PersistentConnection(ConnectionTarget(dsn))
    transaction = await SharedTransaction.begin(connection)
    await transaction.driver_connection.execute("create temporary table undone (id int)")
    assert await transaction.rollback() is True
    assert not transaction.is_open
    assert await transaction.driver_connection.fetchval("select to_regclass('pg_temp.undone')") is None
    again = await SharedTransaction.begin(connection)
    assert again.driver_connection is transaction.driver_connection
    assert again.is_open
    again.drop_connection()
    assert again.driver_connection.is_closed()
    await connection.close()


async def test_settings_of_an_earlier_transaction_are_undone(dsn: str) -> None:
    """Also those with which the next one begins."""
    connection = PersistentConnection(ConnectionTarget(dsn))
    transaction = await SharedTransaction.begin(connection)
    await transaction.driver_connection.execute(
        "set lock_timeout = 1000; set default_transaction_isolation = 'serializable'"
    )
    await transaction.commit()
    transaction = await SharedTransaction.begin(connection)
    for name, value in (("lock_timeout", "0"), ("transaction_isolation", "read committed")):
        assert await transaction.driver_connection.fetchval(f"show {name}") == value
    await transaction.rollback()
    await connection.close()


async def test_a_transaction_that_cannot_begin(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, so the step may run again; the connection may be in a transaction, and is dropped."""
    monkeypatch.setattr(PersistentConnection, "settings_script", "select 1 / 0")
    connection = PersistentConnection(ConnectionTarget(dsn))
    driver_connection = await connection.connect()
    with pytest.raises(ConnectionLost, match="DivisionByZeroError") as caught:
        await SharedTransaction.begin(connection)
    assert not caught.value.sent
    assert driver_connection.is_closed()
    await connection.close()


async def test_a_begin_that_is_interrupted(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PersistentConnection, "settings_script", "select pg_sleep(60)")
    connection = PersistentConnection(ConnectionTarget(dsn))
    driver_connection = await connection.connect()
    beginning = asyncio.create_task(SharedTransaction.begin(connection))
    await asyncio.sleep(0.05)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    assert driver_connection.is_closed()
    await connection.close()


async def test_statements_of_the_engine_leave_the_transaction_as_it_was(dsn: str) -> None:
    """All of them or none: a rejected one is raised unchanged and undoes the others. A lost connection is told."""

    async def fail(run: RunStatement) -> None:
        await run(Statement("create temporary table undone (id int)", (), len))
        await run(Statement("select 1 / 0", (), len))

    async def end(run: RunStatement) -> None:
        await run(Statement("select pg_terminate_backend(pg_backend_pid())", (), len))

    async def count(run: RunStatement) -> int:
        return await run(Statement("select 1 where to_regclass('pg_temp.undone') is null", (), len))

    connection = PersistentConnection(ConnectionTarget(dsn))
    transaction = await SharedTransaction.begin(connection)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await transaction.run_in_savepoint(fail)
    assert await transaction.run_in_savepoint(count) == 1
    with pytest.raises(ConnectionLost) as caught:
        await transaction.run_in_savepoint(end)
    assert caught.value.sent
    await connection.close()
