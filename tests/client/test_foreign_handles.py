"""A handle of one client is refused by another: its id may belong to another instance there."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from tests.support.engine import Opening

from gen_durable import Durable, Signal, SyncDurable, job
from gen_durable.errors import InputError

go = Signal("go")


@job
async def double(number: int) -> int:
    return number * 2


async def test_a_handle_of_another_durable_is_refused(engine: Opening, dsn: str, schema: str) -> None:
    """By every call that takes one, also inside a caller's transaction; the id itself is accepted."""
    async with engine() as e, Durable(dsn, schema=schema) as other:
        own = await e.app.insert(double, 1)
        connection = await asyncpg.connect(dsn)
        try:
            calls = {
                "get": other.get(own),
                "history": other.history(own),
                "activities": other.activities(own),
                "checkpoint": other.checkpoint(own),
                "progress": other.progress(own),
                "signal": other.signal(own, go),
                "signal in a transaction": other.signal(own, go, connection=connection),
                "cancel": other.cancel(own),
                "cancel in a transaction": other.cancel(own, connection=connection),
                "delete": other.delete(own),
                "retry": other.retry(own),
            }
            for name, call in calls.items():
                with pytest.raises(InputError, match=r"Handle\(1\) is a handle of another Durable") as refused:
                    await call
                assert refused.value is not None, name
        finally:
            await connection.close()
        assert (await other.get(own.id)).state == 1
        assert await e.app.signal(own, go)
        assert (await e.app.get(own)).status == "runnable"


def test_a_handle_of_another_sync_durable_is_refused(dsn: str, schema: str) -> None:
    with SyncDurable(dsn, schema=schema) as one, SyncDurable(dsn, schema=schema) as other:
        own = one.insert(double, 1)
        calls: list[Any] = [other.get, other.history, other.activities, other.checkpoint, other.progress]
        calls += [other.cancel, other.delete, other.retry, lambda handle: other.signal(handle, go)]
        for call in calls:
            with pytest.raises(InputError, match=r"SyncHandle\(1\) is a handle of another SyncDurable"):
                call(own)
        assert one.get(own).id == other.get(own.id).id


def test_async_and_blocking_handles_do_not_mix(dsn: str, schema: str) -> None:
    """A blocking client refuses the handle of an async one, and the other way round."""

    async def insert() -> Any:
        async with Durable(dsn, schema=schema) as app:
            return await app.insert(double, 1)

    handle = asyncio.run(insert())
    with SyncDurable(dsn, schema=schema) as app, pytest.raises(InputError, match="another Durable"):
        app.get(handle)
