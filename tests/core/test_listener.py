"""The listener: it connects again after every loss, finds out about dead connections, and leaves none behind."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.support.engine import soon
from tests.support.processes import Proxy, open_proxy

from gen_durable.core import listener as listener_module
from gen_durable.core.listener import Listener
from gen_durable.core.notification_messages import Message, QueueReady
from gen_durable.pg.persistent_connection import ConnectionTarget


class Receiver:
    """Keeps what it receives; None for each connection that is new."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[Message | None] = asyncio.Queue()

    def act_on_message(self, message: Message) -> None:
        self.received.put_nowait(message)

    def recover_from_missed_messages(self) -> None:
        self.received.put_nowait(None)


async def notify(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("notify test_listener, 'queue:q'")
    await connection.close()


async def no_connection(proxy: Proxy) -> None:
    """Return once every connection through the proxy has ended."""
    async with asyncio.timeout(10):
        while proxy.writers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_lost_connection_is_noticed_at_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe has to find it."""
    monkeypatch.setattr(listener_module, "PROBE_INTERVAL", 3600.0)
    async with open_proxy(dsn) as proxy:
        receiver = Receiver()
        listener = Listener(ConnectionTarget(proxy.dsn, pooled=False), "test_listener", receiver)
        listener.start()
        assert await soon(receiver.received.get()) is None
        proxy.cut_all()
        assert await soon(receiver.received.get()) is None
        await notify(dsn)
        assert await soon(receiver.received.get()) == QueueReady("q")
        assert listener.listening.is_set()
        task = listener._task
        await listener.stop()
        assert task is not None
        assert task.done()
        assert not listener.listening.is_set()
        await no_connection(proxy)


async def test_a_connection_that_is_not_answered_is_replaced(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe finds it."""
    monkeypatch.setattr(listener_module, "PROBE_INTERVAL", 0.02)
    monkeypatch.setattr(listener_module, "PROBE_TIMEOUT", 0.2)
    async with open_proxy(dsn) as proxy:
        receiver = Receiver()
        listener = Listener(ConnectionTarget(proxy.dsn, pooled=False), "test_listener", receiver)
        listener.start()
        assert await soon(receiver.received.get()) is None
        proxy.answerless = b"select 1"
        await soon(proxy.stalled.wait())
        proxy.answerless = None
        monkeypatch.setattr(listener_module, "PROBE_INTERVAL", 3600.0)
        assert await soon(receiver.received.get()) is None
        await notify(dsn)
        assert await soon(receiver.received.get()) == QueueReady("q")
        await listener.stop()


async def test_a_stop_while_it_begins_to_listen(dsn: str) -> None:
    """The connection, which is open by then, is closed."""
    async with open_proxy(dsn) as proxy:
        proxy.answerless = b"LISTEN"
        listener = Listener(ConnectionTarget(proxy.dsn, pooled=False), "test_listener", Receiver())
        listener.start()
        await soon(proxy.stalled.wait())
        await listener.stop()
        await no_connection(proxy)
