"""The end of a transaction that user code and the engine share: whatever interrupts it, the server rolls back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gen_durable.pg import shared_transaction
from gen_durable.pg.connection import PersistentConnection, Target
from gen_durable.pg.shared_transaction import Transaction


class Hanging:
    """The driver's transaction, on a server that does not answer."""

    async def commit(self) -> None:
        await asyncio.sleep(3600)

    rollback = commit


async def begin(dsn: str) -> tuple[PersistentConnection, Transaction]:
    connection = PersistentConnection(Target(dsn))
    transaction = await Transaction.begin(connection)
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
