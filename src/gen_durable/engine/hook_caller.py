"""Calls the hooks of a machine, `on_error` and `on_cancel`, each within its time.

An `async def` hook runs on the event loop. A `def` hook runs in a thread, as a `def` step does, so that it blocks
neither the loop nor the heartbeats that depend on it (tests/worker/test_hooks.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.errors import StepTimeout
from gen_durable.store.types import Claim


class HookCaller:
    """Calls hooks for one worker."""

    __slots__ = ("_threads",)

    def __init__(self, threads: ThreadPool) -> None:
        self._threads = threads

    async def call_hook(
        self, claim: Claim, hook: Callable[[], Any], *, is_async: bool, seconds: float, too_long: str
    ) -> Any:
        """Call a hook and return its answer. Raises `StepTimeout(too_long)` after `seconds`, and `NoFreeThread`.

        The time bounds the call, not the wait for a free thread. A call in a thread cannot be stopped: after its time
        its answer is dropped, and while it runs a cancel waits for it.
        """
        if is_async:
            return await await_within_seconds(hook(), seconds, too_long)
        done = await self._threads.start_call(functools.partial(contextvars.copy_context().run, hook))
        claim.is_in_thread = True
        try:
            answer = await await_within_seconds(done, seconds, too_long)
        finally:
            claim.is_in_thread = False
        return await await_within_seconds(answer, seconds, too_long) if inspect.isawaitable(answer) else answer


async def await_within_seconds(running: Awaitable[Any], seconds: float, too_long: str) -> Any:
    """Await within a time. Raises `StepTimeout(too_long)` after it; a `TimeoutError` of the code itself passes."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await running
    except TimeoutError as error:
        if limit.expired():
            raise StepTimeout(too_long) from error.__cause__  # its frames show where the code was
        raise
