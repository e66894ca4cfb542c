"""The listener: LISTEN on a direct connection, and pass each message to the notifier.

Notifications that were sent while no connection was open are lost, so every new connection begins with
`MessageReceiver.recover_from_missed_messages`. Any login can send them, and each costs the event loop about 10
microseconds in the driver: above `MAX_PER_SECOND` the listener closes its connection for `FLOOD_PAUSE` seconds, and
polling finds the work (tests/security/test_hostile_notifications.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Final, Protocol

from gen_durable.core.background_task import BackgroundTask
from gen_durable.core.notification_messages import Message, decode_message
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection

log = get_escaping_logger("gen_durable.notifier")
MAX_PER_SECOND: Final = 20_000  # a fifth of a second of the event loop
FLOOD_PAUSE: Final = 1.0
PROBE_INTERVAL: Final = 10.0
PROBE_TIMEOUT: Final = 5.0


class MessageReceiver(Protocol):
    """The part of the notifier that a listener calls."""

    def act_on_message(self, message: Message) -> None:
        """Act on a message of another process."""
        ...

    def recover_from_missed_messages(self) -> None:
        """Act as if every kind of message had come: some may have been missed."""
        ...


class Listener(BackgroundTask):
    """Listens on one channel, and connects again when the connection breaks."""

    def __init__(self, target: ConnectionTarget, channel: str, receiver: MessageReceiver) -> None:
        super().__init__("listener")
        self._connection = PersistentConnection(target)
        self._channel = channel
        self._receiver = receiver
        self.listening = asyncio.Event()
        self._broken = asyncio.Event()
        self._is_flooded = False
        self._window_began = 0.0
        self._count = 0  # of messages since then

    async def stop(self) -> None:
        """Stop listening, also in the middle of connecting."""
        await super().stop()
        self._connection.terminate()

    async def run_once(self) -> float:
        """Listen until the connection breaks, or too many messages come."""
        driver_connection = await self._connection.connect()
        broken = self._broken = asyncio.Event()
        self._is_flooded = False

        def on_terminated(_connection: object) -> None:
            broken.set()

        driver_connection.add_termination_listener(on_terminated)
        await driver_connection.add_listener(self._channel, self._receive_notification)
        self.listening.set()
        self._receiver.recover_from_missed_messages()
        try:
            while not broken.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_INTERVAL):
                        await broken.wait()
                if not broken.is_set():
                    await driver_connection.fetchval("select 1", timeout=PROBE_TIMEOUT)
        finally:
            self.listening.clear()
            self._connection.drop()
        if self._is_flooded:
            log.warning(
                "more than %d notifications came in a second: not listening for %g s", MAX_PER_SECOND, FLOOD_PAUSE
            )
            return FLOOD_PAUSE
        raise ConnectionLost(ConnectionError("the listening connection was closed"), sent=False)

    def _receive_notification(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        now = time.monotonic()
        if now - self._window_began >= 1.0:
            self._window_began, self._count = now, 0
        self._count += 1
        if self._count > MAX_PER_SECOND:
            self._is_flooded = True
            self._broken.set()
        if self._is_flooded:
            return  # the driver has scheduled more calls than it can take back
        if isinstance(payload, str) and (message := decode_message(payload)) is not None:
            self._receiver.act_on_message(message)
