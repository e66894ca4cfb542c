"""FairTurns: whose turn it is next in fair queues.

In: answers of picks. Out: what to send with the next pick. Each worker goes round by itself, all groups that
have work, so they are fair together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gen_durable.store.types import Picked


class FairTurns:
    """The turns of one picker's fair queues."""

    __slots__ = ("_kinds", "_last")

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._last: dict[str, str | None] = {}

    def of(self, queues: Iterable[str]) -> str | None:
        """What to send with a pick of these queues; None: none of them is fair."""
        if not self._kinds:
            return None
        fair = {queue: (self._kinds[queue], self._last.get(queue)) for queue in queues if queue in self._kinds}
        return msgspec.json.encode(fair).decode() if fair else None

    def note(self, picked: Picked) -> None:
        """A pick was answered."""
        self._last.update(picked.turns)
