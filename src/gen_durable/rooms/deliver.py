"""Deliver: a signal becomes a row in the inbox of its target.

In: a `Delivery`. Out: what became of it, and the queue to ring. With a codec the holder of a key is found first: the
payload is sealed to it. If the key has another holder by then, that one is found.
"""

from __future__ import annotations

from typing import Final

from gen_durable.rooms.ask import Ask
from gen_durable.rooms.sealer import sealed_delivery
from gen_durable.sealing import Seal
from gen_durable.store.calls import Calls
from gen_durable.store.rows import Delivery

TRIES: Final = 5


class Deliver:
    """Signals of one `Durable`."""

    __slots__ = ("_ask", "_calls", "_seal")

    def __init__(self, ask: Ask, calls: Calls, seal: Seal | None) -> None:
        self._ask = ask
        self._calls = calls
        self._seal = seal

    async def one(self, delivery: Delivery) -> tuple[str, str | None]:
        """Deliver a signal: the verdict of signal.sql, and the queue in which somebody was woken."""
        if self._seal is None:
            return await self._send(delivery)
        for _ in range(TRIES):
            target = delivery.target
            if target is None and delivery.key is not None:
                target = await self._ask.run(self._calls.holder(delivery.key), "signal", safe=True)
            if target is None:
                break
            verdict, woken = await self._send(sealed_delivery(delivery, target, self._seal))
            if verdict != "no_target" or delivery.target is not None:
                return verdict, woken
        return "no_target", None

    async def _send(self, delivery: Delivery) -> tuple[str, str | None]:
        # With a dedup key a second try after a lost answer is recognised; without one it might deliver twice.
        safe = delivery.dedup_key is not None
        ((_, verdict, woken),) = await self._ask.run(self._calls.signal([delivery]), "signal", safe=safe)
        return verdict, woken
