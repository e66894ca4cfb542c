"""Cancel: end an instance at once, or have its worker end it, and then cancel its descendants.

The target is cancelled first, in a transaction of its own; `core.cascade` cancels the descendants, in batches.
"""

from __future__ import annotations

from gen_durable.core.notifier import Notifier
from gen_durable.core.requests import Requests
from gen_durable.store.statements import Statements
from gen_durable.store.types import CancelTarget


class Canceller:
    """Cancels instances for one `Durable`."""

    __slots__ = ("_notifier", "_requests", "_statements")

    def __init__(self, requests: Requests, statements: Statements, notifier: Notifier) -> None:
        self._requests = requests
        self._statements = statements
        self._notifier = notifier

    async def one(
        self, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> tuple[CancelTarget, int, int]:
        """Cancel an instance: what became of it, and how many descendants were ended and got a cancel request."""
        statement = self._statements.cancel([(instance, key)], reason, cascade=cascade)
        (target,), wakeups = await self._requests.run(statement, "cancel", safe=True)
        self._notifier.publish(wakeups)
        if not cascade or target.id is None:
            return target, 0, 0
        ended, requested = await self._notifier.cascader.run(target.id)
        return target, ended, requested
