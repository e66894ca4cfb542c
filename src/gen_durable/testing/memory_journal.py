"""A journal in memory, for a step that is called without a database.

Activities are called in the caller's thread, without pauses between attempts. Nothing is stored.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, Final, final

import msgspec

from gen_durable.codec import encode
from gen_durable.engine.activities import Brought, Invoke, Move, Moves, StepJournal
from gen_durable.store.journal import CHECKPOINT_FORMAT, Fence, JournalCalls
from gen_durable.store.schema import Schema


@final
class Nothing:
    """The type of `NOTHING`: there is no checkpoint."""


NOTHING: Final = Nothing()


class MemoryJournal:
    """The journal of one context."""

    installation = "testing"

    def __init__(self, checkpoint: object, finished: Mapping[str, object]) -> None:
        brought = Brought(
            None if checkpoint is NOTHING else (CHECKPOINT_FORMAT, 1, _raw(checkpoint, "a checkpoint")),
            [(n, name, True, _raw(result, name)) for n, (name, result) in enumerate(finished.items(), start=1)],
        )
        self._notes = StepJournal(JournalCalls(Schema()), Fence(1, 1, 0), msgspec.json.encode(brought).decode())

    def notes(self, claim: object, seq: int) -> StepJournal:
        """The one set of notes that there is."""
        return self._notes

    async def make(self, moves: Moves) -> Any:
        """Make moves on the loop."""
        try:
            move = next(moves)
            while True:
                try:
                    answer = _do(move)
                    if inspect.isawaitable(answer):
                        answer = await answer
                except Exception as error:
                    move = moves.throw(error)
                else:
                    move = moves.send(answer)
        except StopIteration as end:
            return end.value

    def make_in_thread(self, moves: Moves) -> Any:
        """Make moves where no loop runs."""
        return asyncio.run(self.make(moves))

    def report(self, *_: object, **__: object) -> None:
        """Nobody reads it."""


def _do(move: Move) -> Any:
    return move.fn(*move.args) if isinstance(move, Invoke) else True


def _raw(value: object, what: str) -> msgspec.Raw:
    return msgspec.Raw(encode(value, what))
