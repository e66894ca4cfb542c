"""A mailbox of hundreds of messages, taken one by one in one step, by workers that are killed at commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import pytest
from tests.support.length import short_or_long
from tests.support.programs import mailbox

from gen_durable import Durable, Finished, Worker
from gen_durable.core.services import services_of
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import OutgoingSignal

COUNT = short_or_long(200, 1000)
KILLS = short_or_long(
    [(17, False), (18, True), (90, True), (91, False), (150, False), (180, True)],
    [(17, False), (18, True), (250, True), (251, False), (600, False), (900, True)],
)
"""The message at whose commit a worker dies, and whether the server has done it by then."""


@pytest.mark.scaled
async def test_each_message_once_and_in_order(
    dsn: str, schema: str, spawn: Callable[..., Any], proxied: Callable[[], AbstractAsyncContextManager[Any]]
) -> None:
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(mailbox.Mailbox.handle, mailbox.Handled())
        services = services_of(app)
        statements: StatementBuilder = services.statements
        sent = [OutgoingSignal(handle.id, None, "message", str(n), None) for n in (*range(COUNT), -1)]
        await services.pool.run(statements.signal(sent))
        for number, committed in KILLS:
            async with proxied() as proxy:
                word = f"mark{number:04}".encode()
                if committed:
                    proxy.answerless = word
                else:
                    proxy.stopping = word
                victim = spawn("mailbox", DSN=proxy.dsn)
                async with asyncio.timeout(60):
                    await proxy.stalled.wait()
                victim.kill()
                proxy.cut_all()
        async with Worker(app, machines=[mailbox.Mailbox()], **mailbox.BRIEF):
            assert await handle.wait(timedelta(seconds=60)) == Finished(handle.id, list(range(COUNT)))
        row = await app.get(handle)
        assert row.seq == COUNT + 2  # the first Await, one per message, and the end
        assert await app.signals(handle) == []
