"""A journal in memory, for a step that is called without a database.

Activities are called in the caller's thread, without pauses between attempts. Nothing is stored.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, Final, final

import msgspec

from gen_durable.engine.step_journal import Action, Actions, CallActivity, StepJournal, StoredJournal
from gen_durable.json_codec import encode_json
from gen_durable.store.journal import CHECKPOINT_FORMAT, Fence, JournalStatementBuilder
from gen_durable.store.schema import Schema


@final
class NoCheckpointSentinel:
    """The type of `NO_CHECKPOINT`: there is no checkpoint."""


NO_CHECKPOINT: Final = NoCheckpointSentinel()


class MemoryJournal:
    """The journal of one context."""

    installation = "testing"

    def __init__(self, checkpoint: object, finished: Mapping[str, object]) -> None:
        stored = StoredJournal(
            None
            if checkpoint is NO_CHECKPOINT
            else (CHECKPOINT_FORMAT, 1, _encode_as_raw_json(checkpoint, "a checkpoint")),
            [
                (n, name, True, encode_json(result, name).decode())
                for n, (name, result) in enumerate(finished.items(), start=1)
            ],
        )
        self._step_journal = StepJournal(
            JournalStatementBuilder(Schema()), Fence(1, 1, 0), msgspec.json.encode(stored).decode()
        )

    def get_or_create_step_journal(self, claim: object, seq: int) -> StepJournal:
        """The same journal for every claim."""
        return self._step_journal

    async def run_journal_actions(self, actions: Actions) -> Any:
        """Perform actions on the event loop."""
        try:
            action = next(actions)
            while True:
                try:
                    answer = _call_activity_or_skip(action)
                    if inspect.isawaitable(answer):
                        answer = await answer
                except Exception as error:
                    action = actions.throw(error)
                else:
                    action = actions.send(answer)
        except StopIteration as end:
            return end.value

    def run_journal_actions_blocking(self, actions: Actions) -> Any:
        """Perform actions where no event loop runs."""
        return asyncio.run(self.run_journal_actions(actions))

    def report_progress(self, *_: object, **__: object) -> None:
        """Drop the report."""


def _call_activity_or_skip(action: Action) -> Any:
    return action.fn(*action.args) if isinstance(action, CallActivity) else True


def _encode_as_raw_json(value: object, what: str) -> msgspec.Raw:
    return msgspec.Raw(encode_json(value, what))
