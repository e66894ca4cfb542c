"""Hand-off: a worker of this process claims rows in the transaction that makes them runnable.

These are the borders between the client's calls, which know the statement, and the engine, which knows its free slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, TypeVar

from gen_durable.store.hand_off import HandOffResult
from gen_durable.store.statements import Statement
from gen_durable.store.types import PickResult

T = TypeVar("T")
AddPick: TypeAlias = Callable[[Statement[PickResult]], Statement[HandOffResult[T]]]
"""Makes one statement of the client's own and of a pick."""


class HandOffTarget(Protocol):
    """Starts hand-offs: a worker, or the notifier, which knows the workers of this process."""

    def start_hand_off(
        self, rows_by_queue: Mapping[str, int], add_pick: AddPick[T]
    ) -> asyncio.Task[tuple[T, frozenset[int]]] | None:
        """Run a statement that makes so many rows of each queue runnable, with a pick of the same queues.

        Returns None, and runs nothing, unless a worker has a free slot for each of the rows and nothing else to pick.
        The task returns the result of the statement, and the ids of the rows that the worker has claimed. Await it in
        `asyncio.shield`: claims whose answer is dropped are lost to all workers until their leases end. After an error
        of the server nothing was executed.
        """
        ...
