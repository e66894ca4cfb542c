"""SignalSender: a signal becomes a row in the inbox of its target.

In: a `OutgoingSignal`. Out: what became of it, and the queue to ring. With a codec the holder of a key is found
first: the
payload is sealed to it. If the key has another holder by then, that one is found.
"""

from __future__ import annotations

from typing import Final

from gen_durable.core.payloads import encrypted_signal
from gen_durable.core.requests import Requests
from gen_durable.encryption import PayloadEncryption
from gen_durable.store.statements import Statements
from gen_durable.store.types import OutgoingSignal

TRIES: Final = 5


class SignalSender:
    """Signals of one `Durable`."""

    __slots__ = ("_ask", "_calls", "_seal")

    def __init__(self, ask: Requests, calls: Statements, seal: PayloadEncryption | None) -> None:
        self._ask = ask
        self._calls = calls
        self._seal = seal

    async def one(self, delivery: OutgoingSignal) -> tuple[str, str | None]:
        """SignalSender a signal: the verdict of signal.sql, and the queue in which somebody was woken."""
        if self._seal is None:
            return await self._send(delivery)
        for _ in range(TRIES):
            target = delivery.target
            if target is None and delivery.key is not None:
                target = await self._ask.run(self._calls.id_of_key(delivery.key), "signal", safe=True)
            if target is None:
                break
            verdict, woken = await self._send(encrypted_signal(delivery, target, self._seal))
            if verdict != "no_target" or delivery.target is not None:
                return verdict, woken
        return "no_target", None

    async def _send(self, delivery: OutgoingSignal) -> tuple[str, str | None]:
        # With a dedup key a second try after a lost answer is recognised; without one it might deliver twice.
        safe = delivery.dedup_key is not None
        ((_, verdict, woken),) = await self._ask.run(self._calls.signal([delivery]), "signal", safe=safe)
        return verdict, woken
