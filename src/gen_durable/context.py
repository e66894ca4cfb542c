"""`Context`, the second argument of every step: its instance, signals, children, limits, journal and transaction.

The engine builds one per execution. A context only reads values and calls the services of `step_services`, so tests can
build one without a worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

import msgspec

from gen_durable.errors import InputError, TooLarge
from gen_durable.instances import Status
from gen_durable.json_codec import decode_untyped_payload, make_json_codec
from gen_durable.limits import Limit
from gen_durable.retry_policy import RetryPolicy
from gen_durable.signals import Received, Signal, decode_signal_payloads
from gen_durable.step_services import (
    JournalService,
    LimitContext,
    LimitService,
    StepConnection,
    StepExecution,
    StepJournalService,
    StepTransaction,
)

if TYPE_CHECKING:
    from gen_durable.machines import StepSpec
    from gen_durable.starts import Startable

P = TypeVar("P")
S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")
Args = ParamSpec("Args")


@dataclass(frozen=True, slots=True)
class Child:
    """One child of this round: its status, and its result or error once it has ended."""

    id: int
    machine: str
    version: int
    step: str
    status: Status
    last_error: str | None
    raw_result: bytes | None
    raw_state: bytes

    @property
    def ok(self) -> bool:
        """Whether the child ended as done."""
        return self.status is Status.DONE

    @property
    def state(self) -> Any:
        """The last state as plain JSON values."""
        return decode_untyped_payload(self.raw_state)

    @property
    def result(self) -> Any:
        """The result as plain JSON values; `Context.results` gives it typed."""
        return None if self.raw_result is None else decode_untyped_payload(self.raw_result)

    def __repr__(self) -> str:
        return f"Child(id={self.id}, machine={self.machine!r}, status={self.status.value!r})"


class Context(msgspec.Struct, frozen=True, eq=False, repr_omit_defaults=True, gc=False):
    """Passed to every step with its state: the instance, its signals and children, and the services of the worker."""

    # gc=False: nothing that a context refers to refers back to it, and one is made for each step.

    id: int
    machine: str
    version: int
    step: str
    attempt: int
    queue: str
    priority: int
    partition_key: str | None
    unique_key: bytes | None
    parent_id: int | None
    worker: str
    claim: int
    seq: int
    inbox: tuple[Received, ...] = ()
    awaited: tuple[Received, ...] = ()
    _children: tuple[Child, ...] | None = ()
    _read_children: Callable[[int], Awaitable[list[Child]]] | None = None
    _limits: LimitService | None = None
    _slot: str | None = None
    visit: int = 0
    _journal: JournalService | None = None
    _claim: StepExecution | None = None
    _transaction: StepTransaction | None = None

    @property
    def connection(self) -> StepConnection:
        """The open transaction of a `transactional` step; its writes commit together with the outcome.

        Run activities and write checkpoints before the first use.
        """
        if self._transaction is None:
            raise InputError("ctx.connection is for steps with @step(transactional=True), and not for on_error")
        return self._transaction.take_connection_and_forbid_journal()

    @property
    def children(self) -> tuple[Child, ...]:
        """The children of this round, in start order; all have ended unless the barrier opened early.

        A round of more than 10,000, or of more than 64 MB of states and results, is too large for this.
        """
        if self._children is None:
            raise TooLarge(
                "the children of this round are too many, or too large, to be loaded at once: "
                "read them with `async for child in ctx.stream_children()`, or ctx.stream_results(step)"
            )
        return self._children

    async def stream_children(self) -> AsyncIterator[Child]:
        """The children of this round, in start order, read page by page; there is no maximum."""
        if self._children is not None:
            for child in self._children:
                yield child
        elif self._read_children is not None:
            after = 0
            while page := await self._read_children(after):
                for child in page:
                    yield child
                after = page[-1].id

    def take(self, signal: Signal[P]) -> P | None:
        """Take the oldest awaited signal of this name, and return its payload. None if there is none, or none is left.

        A step that calls `take` or `take_all` consumes what these gave it, with every outcome but `Retry` and `Fail`.
        Any other awaited signal stays, and wakes the next `Await` of its name at once. A step that calls neither
        consumes all awaited signals when it leads on to another step. A payload that does not fit the signal's type
        raises `UnreadableSignal`: do not catch it.
        """
        taken = self._get_or_create_taken_ids()
        for received in self.awaited:
            if received.name == signal.name and received.id not in taken:
                (payload,) = decode_signal_payloads(signal, [received])
                taken.append(received.id)
                return payload
        return None

    def take_all(self, signal: Signal[P]) -> list[P]:
        """Take all awaited signals of this name, oldest first, and return their payloads; see `take`."""
        taken = self._get_or_create_taken_ids()
        left = [r for r in self.awaited if r.name == signal.name and r.id not in taken]
        payloads = decode_signal_payloads(signal, left)
        taken += [received.id for received in left]
        return payloads

    @property
    def timed_out(self) -> bool:
        """Whether a timeout (of `Await` or `ScheduleChildren`) has woken the step, without an awaited signal.

        It stays true in later executions, after a crash or a `Retry`, until an awaited signal comes.
        """
        return not self.awaited and self._execution.timed_out

    @property
    def _execution(self) -> StepExecution:
        if self._claim is None:
            raise InputError("this context was built without a claim: use gen_durable.testing.make_context")
        return self._claim

    def _get_or_create_taken_ids(self) -> list[int]:
        """The ids of taken signals. Once the list exists, the step consumes only these, not all awaited signals."""
        execution = self._execution
        if execution.taken is None:
            execution.taken = []
        return execution.taken

    def results(self, step: Startable[S, R]) -> list[R]:
        """The results of this round's children that are done, of the machine or job of `step`; in start order."""
        from gen_durable.starts import to_step_spec  # not at the top: the types of outcomes refer to Context

        spec = to_step_spec(step, "ctx.results")
        codec = spec.result_codec
        return [
            cast(R, codec.decode(raw))
            for child in self.children
            if (raw := _find_raw_result_of_done_child(child, spec)) is not None
        ]

    async def stream_results(self, step: Startable[S, R]) -> AsyncIterator[R]:
        """Like `results`, but read page by page; there is no maximum."""
        from gen_durable.starts import to_step_spec

        spec = to_step_spec(step, "ctx.stream_results")
        async for child in self.stream_children():
            if (raw := _find_raw_result_of_done_child(child, spec)) is not None:
                yield cast(R, spec.result_codec.decode(raw))

    def limit(self, name: str, partition: str | None = None, *, weight: int = 1) -> LimitContext:
        """Run a part of the step under a limit: `async with ctx.limit("stripe", tenant):` (`with` in a `def` step).

        Waits for a slot or a token; steps with `@step(limit=)` share them. While it waits, the step occupies its slot
        in the queue: for long waits use `@step(limit=)`.
        """
        if self._limits is None:
            raise InputError("ctx.limit needs a worker: this context was built without one")
        return self._limits.limit_context(self.id, self.claim, self._slot, Limit(name, partition, weight))

    @property
    def step_errors(self) -> int:
        """How often the step has raised since it was entered. `attempt` also counts crashes and plain retries."""
        return self._execution.step_errors

    @property
    def idempotency_key(self) -> str:
        """A key for external calls, the same in every execution of this visit, also after a crash or a `Retry`."""
        return f"{self._journal_service.installation}-{self.id}-{self.visit}"

    @property
    def has_checkpoint(self) -> bool:
        """Whether this visit of the step has a checkpoint; needed where the value None is a valid checkpoint."""
        return self._step_journal.checkpoint is not None

    @property
    def last_checkpoint(self) -> Any:
        """The newest checkpoint of this visit as plain JSON values; None if there is none."""
        raw = self._step_journal.checkpoint
        return None if raw is None else decode_untyped_payload(raw)

    def checkpoint_as(self, type_: type[T]) -> T | None:
        """The newest checkpoint of this visit, typed; None if there is none."""
        raw = self._step_journal.checkpoint
        return None if raw is None else cast(T, make_json_codec(type_, "a checkpoint").decode(raw))

    async def checkpoint(self, value: object) -> None:
        """Store a value for the next execution of this step, in case this one does not finish.

        The outcome of the step deletes it. Raises `LeaseLost` if another worker has taken the claim over: do not catch
        it. In a transactional step, write checkpoints before the first use of `ctx.connection`: a rollback does not
        undo them.
        """
        await self._run_journal_actions("ctx.checkpoint", self._step_journal.save_checkpoint_actions(value))

    async def clear_checkpoint(self) -> None:
        """Delete the checkpoint."""
        await self._run_journal_actions("ctx.clear_checkpoint", self._step_journal.clear_checkpoint_actions())

    @overload
    async def run(
        self, name: str, fn: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, retry: RetryPolicy, **kwargs: Any
    ) -> R: ...
    @overload
    async def run(self, name: str, fn: Callable[..., R], /, *args: Any, retry: RetryPolicy, **kwargs: Any) -> R: ...
    @overload
    async def run(
        self, name: str, fn: Callable[Args, Coroutine[Any, Any, R]], /, *args: Args.args, **kwargs: Args.kwargs
    ) -> R: ...
    @overload
    async def run(self, name: str, fn: Callable[Args, R], /, *args: Args.args, **kwargs: Args.kwargs) -> R: ...
    async def run(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run an activity: call `fn` and store its result; a later execution of this visit returns the stored result.

        A `def` function runs in a thread. The result is read back by the function's return annotation. A name stands
        for one call: in a loop write `f"charge:{n}"`. An error is logged and raised. With `retry=RetryPolicy(...)` the
        function is called again first, while the step waits; any other `retry=` is an argument of the function, and
        type checkers do not check the arguments of a call with a policy. Every call is in `app.activities(id)`, with
        its parameters by name. In a transactional step, run activities before the first use of `ctx.connection`: they
        are not undone by a rollback.
        """
        retry = _pop_retry_policy(kwargs)
        return await self._run_journal_actions(
            "ctx.run", self._step_journal.activity_actions(name, fn, args, kwargs, retry=retry)
        )

    def progress(
        self, fraction: float | None = None, message: str | None = None, *, detail: object = None, branch: str = ""
    ) -> None:
        """Report the progress of this step, for `app.progress(id)`. The latest report replaces earlier ones.

        The call never waits and never fails. `branch` names one of several parallel parts of the step. The report of a
        transactional step is not part of its transaction: it is visible before the commit and stays after a rollback.
        """
        if self._journal is not None:
            self._journal.report_progress(
                self.id, self.claim, self.step, branch=branch, fraction=fraction, message=message, detail=detail
            )

    @property
    def sync(self) -> SyncContext:
        """Checkpoints and activities for `def` steps."""
        if self._transaction is not None:
            raise InputError("ctx.sync is for `def` steps: a transactional one awaits ctx.run and ctx.checkpoint")
        return SyncContext(self._journal_service, self._step_journal)

    @property
    def _journal_service(self) -> JournalService:
        if self._journal is None:
            raise InputError("the journal needs a worker: this context was built without one")
        return self._journal

    @property
    def _step_journal(self) -> StepJournalService:
        return self._journal_service.get_or_create_step_journal(self._claim, self.seq)

    async def _run_journal_actions(self, what: str, actions: Generator[Any, Any, Any]) -> Any:
        """Perform actions of the journal, outside of the step's transaction."""
        with nullcontext() if self._transaction is None else self._transaction.guard_journal_write(what):
            return await self._journal_service.run_journal_actions(actions)

    def __repr__(self) -> str:
        return f"Context(id={self.id}, {self.machine}.{self.step}, attempt={self.attempt})"


@dataclass(frozen=True, slots=True)
class SyncContext:
    """`ctx.sync`: the journal methods of `Context`, for the thread of a `def` step."""

    _journal: JournalService
    _step_journal: StepJournalService

    def checkpoint(self, value: object) -> None:
        """See `Context.checkpoint`."""
        self._journal.run_journal_actions_blocking(self._step_journal.save_checkpoint_actions(value))

    def clear_checkpoint(self) -> None:
        """See `Context.clear_checkpoint`."""
        self._journal.run_journal_actions_blocking(self._step_journal.clear_checkpoint_actions())

    @overload
    def run(
        self, name: str, fn: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, retry: RetryPolicy, **kwargs: Any
    ) -> R: ...
    @overload
    def run(self, name: str, fn: Callable[..., R], /, *args: Any, retry: RetryPolicy, **kwargs: Any) -> R: ...
    @overload
    def run(
        self, name: str, fn: Callable[Args, Coroutine[Any, Any, R]], /, *args: Args.args, **kwargs: Args.kwargs
    ) -> R: ...
    @overload
    def run(self, name: str, fn: Callable[Args, R], /, *args: Args.args, **kwargs: Args.kwargs) -> R: ...
    def run(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `Context.run`. A `def` function is called in the thread of the step."""
        retry = _pop_retry_policy(kwargs)
        return self._journal.run_journal_actions_blocking(
            self._step_journal.activity_actions(name, fn, args, kwargs, retry=retry)
        )


def _pop_retry_policy(kwargs: dict[str, Any]) -> RetryPolicy | None:
    """Remove the policy from the arguments of `run`. Any other value under its name belongs to the function."""
    return kwargs.pop("retry") if isinstance(kwargs.get("retry"), RetryPolicy) else None


def _find_raw_result_of_done_child(child: Child, spec: StepSpec) -> bytes | None:
    """The result of a child, if it is done and belongs to the machine of `spec`."""
    return child.raw_result if child.ok and child.machine == spec.machine.name else None
