"""The services behind a `Context`: limits, the journal, and the transaction of a transactional step.

The engine implements the protocols (`step_limiter`, `journal_action_runner`), `testing` has an in-memory journal. They
keep `Context` free of I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, Protocol, cast

from gen_durable.errors import InputError
from gen_durable.limits import Limit
from gen_durable.retry_policy import RetryPolicy


class LimitContext(AbstractAsyncContextManager[None], AbstractContextManager[None], Protocol):
    """The return type of `ctx.limit`: for `async with`, and for `with` in a `def` step."""


class StepExecution(Protocol):
    """The part of a claim that a context reads, and where it keeps what the execution does with its signals."""

    step_errors: int
    timed_out: bool
    taken: list[int] | None


class LimitService(Protocol):
    """Acquires limits for `ctx.limit`. Each worker has one."""

    def limit_context(self, instance: int, epoch: int, step_limit: str | None, limit: Limit) -> LimitContext:
        """A context manager that acquires `limit`; `step_limit` is the limit whose slot the step has already."""
        ...


class StepConnection(Protocol):
    """The type of `ctx.connection`: the methods of an asyncpg connection that a step needs."""

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
        """The first row of a query, or None if it has no rows."""
        ...

    async def fetchval(self, query: str, *args: Any) -> Any:
        """A value of the first row."""
        ...

    def transaction(self) -> Any:
        """A savepoint: `async with ctx.connection.transaction():`."""
        ...


class StepTransaction:
    """The transaction of a transactional step, usable until the step ends.

    A rollback does not undo writes to the journal, so all of them come before the first use of the connection
    (tests/flows/test_transactional_journal.py).
    """

    __slots__ = ("_connection", "_journal_writes", "is_used")

    def __init__(self, connection: StepConnection) -> None:
        self._connection: StepConnection | None = connection
        self._journal_writes = 0
        self.is_used = False

    def take_connection_and_forbid_journal(self) -> StepConnection:
        """The connection of the step. From now on the step cannot write to the journal."""
        if self._journal_writes:
            raise InputError(
                "ctx.connection cannot be used inside or during an activity: a rollback would undo the step's writes "
                "but not the activity. Await ctx.run and ctx.checkpoint first, then write"
            )
        self.is_used = True
        return cast(StepConnection, ConnectionUntilStepEnds(self))

    def driver_connection(self) -> StepConnection:
        """The driver's connection. Raises `InputError` after the step has ended: another step may be using it."""
        if self._connection is None:
            raise InputError("ctx.connection was used after its step had ended: await every write before returning")
        return self._connection

    def reject_further_use(self) -> None:
        """Reject all further use: a task that the step left running must not write."""
        self._connection = None

    @contextmanager
    def guard_journal_write(self, what: str) -> Generator[None]:
        """Forbid the connection during a write to the journal. Raises `InputError` if it was used already."""
        if self.is_used:
            raise InputError(
                f"{what} comes after the first use of ctx.connection: a rollback of the step's writes would not undo "
                "it. Move it before the first use of ctx.connection"
            )
        self._journal_writes += 1
        try:
            yield
        finally:
            self._journal_writes -= 1


class ConnectionUntilStepEnds:
    """The driver's connection, for as long as the step runs."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: StepTransaction) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction.driver_connection(), name)


class StepJournalService(Protocol):
    """The journal of one step. Its methods are generators of actions, which the `JournalService` performs."""

    checkpoint: bytes | None

    def save_checkpoint_actions(self, value: object) -> Generator[Any, Any, Any]:
        """The actions that write a checkpoint."""
        ...

    def clear_checkpoint_actions(self) -> Generator[Any, Any, Any]:
        """The actions that delete the checkpoint."""
        ...

    def activity_actions(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        retry: RetryPolicy | None,
    ) -> Generator[Any, Any, Any]:
        """The actions that run an activity."""
        ...


class JournalService(Protocol):
    """Writes checkpoints, activities and progress. Each worker has one."""

    installation: str

    def get_or_create_step_journal(self, claim: Any, seq: int) -> StepJournalService:
        """The journal of a claim's current step."""
        ...

    async def run_journal_actions(self, actions: Generator[Any, Any, Any]) -> Any:
        """Perform actions on the event loop."""
        ...

    def run_journal_actions_blocking(self, actions: Generator[Any, Any, Any]) -> Any:
        """Perform actions in the thread of a `def` step."""
        ...

    def report_progress(
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
