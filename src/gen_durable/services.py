"""What stands behind a context: limits, the journal, a transaction. A worker has them, a context made by hand has not.

In: nothing; these are shapes. Out: what `Context` may ask for, without knowing the rooms that do it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from gen_durable.durations import Duration
from gen_durable.limits import Limit


class LimitContext(AbstractAsyncContextManager[None], AbstractContextManager[None], Protocol):
    """What `ctx.limit` gives: for `async with`, and for `with` in a `def` step."""


class LimitService(Protocol):
    """Where `ctx.limit` leads; a worker has one."""

    def lease(self, instance: int, epoch: int, step_limit: str | None, limit: Limit) -> LimitContext:
        """A context manager that acquires `limit`; `step_limit` is the limit whose slot the step has already."""
        ...


class StepConnection(Protocol):
    """What `ctx.connection` is: an asyncpg connection in an open transaction, as far as a step needs it."""

    async def execute(self, query: str, *args: Any) -> Any:
        """Run a statement."""
        ...

    async def executemany(self, command: str, args: Any) -> Any:
        """Run a statement for each of several sets of arguments."""
        ...

    async def fetch(self, query: str, *args: Any) -> Any:
        """The rows of a query."""
        ...

    async def fetchrow(self, query: str, *args: Any) -> Any:
        """The first row of a query; None: there is none."""
        ...

    async def fetchval(self, query: str, *args: Any) -> Any:
        """A value of the first row."""
        ...

    def transaction(self) -> Any:
        """A savepoint: `async with ctx.connection.transaction():`."""
        ...


class StepJournalService(Protocol):
    """The journal of one step. Its methods are generators of actions, which the `JournalService` performs."""

    checkpoint: bytes | None

    def save(self, value: object) -> Generator[Any, Any, Any]:
        """Write a checkpoint."""
        ...

    def clear(self) -> Generator[Any, Any, Any]:
        """Forget the checkpoint."""
        ...

    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retries: int,
        backoff: Callable[[int], Duration] | None,
    ) -> Generator[Any, Any, Any]:
        """Run an activity."""
        ...


class JournalService(Protocol):
    """Where checkpoints, activities and progress are written; a worker has one."""

    installation: str

    def step_journal(self, claim: Any, seq: int) -> StepJournalService:
        """The journal of a claim's current step."""
        ...

    async def perform(self, actions: Generator[Any, Any, Any]) -> Any:
        """Perform actions on the event loop."""
        ...

    def perform_in_thread(self, actions: Generator[Any, Any, Any]) -> Any:
        """Perform actions in the thread of a `def` step."""
        ...

    def report(
        self,
        instance: int,
        epoch: int,
        step: str,
        *,
        branch: str,
        fraction: float | None,
        message: str | None,
        detail: object,
    ) -> None:
        """Queue a report of progress."""
        ...
