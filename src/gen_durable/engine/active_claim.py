"""A claim while this worker holds it: its step, its task and its lease."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any, cast

import msgspec

from gen_durable.engine.outcome_encoder import EncodedOutcome
from gen_durable.step_registry import RunnableStep
from gen_durable.store.types import Claim


class ActiveClaim(msgspec.Struct, eq=False, gc=False):
    """A claimed row in this worker. `task` is None while the claim is buffered behind the slots of its queue.

    The garbage collector does not track it, or it would walk over thousands of them: when its task ends, the cycle of
    task and claim ends too.
    """

    claim: Claim
    entry: RunnableStep
    leased_at: float  # monotonic time at which its lease was made or last extended
    start_by: float = 0.0  # while buffered: when it is released unless it has started
    started_at: float = 0.0  # when its current step got its slot
    task: asyncio.Task[None] | None = None
    has_slot: bool = True
    is_in_step: bool = False  # its task is in user code, which a cancel may interrupt
    cancel_reason: str | None = None
    has_outcome: bool = False  # the committer has the outcome that ends it: the answer is awaited without its task
    unanswered: EncodedOutcome | None = None  # an outcome whose task was cancelled before the answer

    @property
    def is_uninterruptible(self) -> bool:
        """Whether a cancel cannot interrupt it: its step, or the hook that runs for it, is a `def`."""
        return not self.entry.spec.is_async or self.claim.is_in_thread

    def is_cancel_requested(self) -> bool:
        """A method, because the heartbeat or a notification changes the answer during any await."""
        return self.cancel_reason is not None

    def has_begun(self) -> bool:
        """Whether its task has run any code. May be called from another thread."""
        if self.task is None:
            return False
        coroutine = cast("Coroutine[Any, Any, None]", self.task.get_coro())
        return inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED

    def apply_cancel_request(self, reason: str) -> None:
        """Request a cancel. An `async def` step is interrupted; otherwise the claim runner sees the request when the
        step returns or before the next one begins.
        """
        self.cancel_reason = reason
        if self.is_in_step and not self.is_uninterruptible:
            self.interrupt()

    def interrupt(self) -> None:
        """Cancel the task, if there is one. `is_interrupted` marks the cancellation as the engine's, not the step's."""
        self.claim.is_interrupted = True
        if self.task is not None:
            self.task.cancel()
