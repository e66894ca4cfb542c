"""What the tests of the journal share: steps that do what a test says, and a service that counts its calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from gen_durable import Context, Done, Durable, Fail, Machine, Outcome, RetryPolicy, Signal, Worker, step
from gen_durable.core.services import services_of
from gen_durable.store.journal import JournalStatementBuilder, ProgressReport
from gen_durable.store.statements import Statement

SOON = timedelta(seconds=10)
Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[Durable]]
Body: TypeAlias = Callable[[int, Context], Any]
go = Signal[None]("go")


@dataclass(frozen=True)
class Receipt:
    """What an activity returns."""

    amount: int
    marks: tuple[str, ...] = ()


class Till:
    """A service that counts its calls, and fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[int] = []
        self.failures = failures
        self.threads: set[int] = set()

    async def charge(self, amount: int) -> Receipt:
        self.calls.append(amount)
        if len(self.calls) <= self.failures:
            raise ConnectionError("no line")
        return Receipt(amount, ("paid",))

    def charge_slowly(self, amount: int) -> Receipt:
        self.threads.add(threading.get_ident())
        self.calls.append(amount)
        return Receipt(amount)


class Scripted(Machine, retry=RetryPolicy(attempts=1)):
    """Its steps do what the test says."""

    def __init__(self, first: Body, second: Body | None = None) -> None:
        self.first_body = first
        self.second_body = second
        self.errors: list[Exception] = []

    @step
    async def first(self, n: int, ctx: Context) -> Outcome[Any]:
        return await self.first_body(n, ctx)  # type: ignore[no-any-return]

    @step
    async def second(self, n: int, ctx: Context) -> Outcome[Any]:
        if self.second_body is None:
            return Done(n)
        return await self.second_body(n, ctx)  # type: ignore[no-any-return]

    async def on_error(self, state: object, ctx: Context, error: Exception) -> Outcome[Any]:
        self.errors.append(error)
        return Fail(error)


class Threaded(Machine, retry=RetryPolicy(attempts=1)):
    """The same in a thread."""

    def __init__(self, body: Body) -> None:
        self.body = body

    @step
    def first(self, n: int, ctx: Context) -> Outcome[Any]:
        return self.body(n, ctx)  # type: ignore[no-any-return]


async def run(app: Durable, machine: Machine, **options: Any) -> Any:
    """Run one instance of a machine from its step `first` to its end; returns its handle and its ending."""
    async with Worker(app, machines=[machine], **options):
        handle = await app.insert(type(machine).first, 1)  # type: ignore[attr-defined]
        return handle, await handle.wait(SOON)


class Counting(JournalStatementBuilder):
    """Counts reports as they are sent."""

    __slots__ = ("sent", "twice")

    def __init__(self, app: Durable) -> None:
        super().__init__(services_of(app).statements.schema)
        self.sent: list[Sequence[ProgressReport]] = []
        self.twice = asyncio.Event()

    def record_progress(self, reports: Sequence[ProgressReport]) -> Statement[set[int]]:
        self.sent.append(reports)
        if len(self.sent) > 1:
            self.twice.set()
        return super().record_progress(reports)
