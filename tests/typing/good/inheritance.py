"""Machines that share steps, helpers and error handling through a base class."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import timedelta

from gen_durable import (
    Abort,
    Await,
    Context,
    Done,
    Fail,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryPolicy,
    Signal,
    backoff,
    step,
)

go = Signal("go")
halt = Signal("halt", str)


@dataclass(frozen=True)
class Task:
    id: int


@dataclass(frozen=True)
class UrgentTask(Task):
    deadline: int = 0


class Patient(Machine):
    """Tries again a few times, then gives up."""

    async def on_error(self, state: object, ctx: Context, error: Exception) -> Outcome[int]:
        if ctx.attempt < 5:
            return Retry(state, delay=backoff(ctx.attempt))
        return Fail(error)


class Base(Patient):
    @step
    async def start(self, task: Task, ctx: Context) -> Outcome[int]:
        return Await({go, halt}, then=self.work, state=task)

    @step
    async def work(self, task: Task, ctx: Context) -> Outcome[int]:
        reason: str | None = ctx.take(halt)
        if reason is not None:
            return Fail(reason)
        return self._after(task) if ctx.attempt else Next(self.start, UrgentTask(task.id))

    def _after(self, task: Task) -> Outcome[int]:
        return Done(self.price(task))

    @abstractmethod
    def price(self, task: Task) -> int: ...


class Cheap(Base):
    def price(self, task: Task) -> int:
        return 1


class Dear(Base, version=2, queue="dear"):
    @step
    async def start(self, task: Task, ctx: Context) -> Outcome[int]:
        if task.id == 0:
            return Await([go], state=task, timeout=timedelta(days=1))
        return await super().start(task, ctx)

    def price(self, task: Task) -> int:
        return 100


class Wide(Machine):
    """A step may promise less than the step it goes on to keeps."""

    @step
    async def start(self, task: Task, ctx: Context) -> Outcome[int | str]:
        return Next(self.end, task)

    @step
    async def end(self, task: Task, ctx: Context) -> Outcome[int]:
        return Done(True)


class Silent(Machine):
    @step
    async def start(self, task: Task, ctx: Context) -> Outcome[None]:
        return Done() if task.id else Done(None)


class Guarded(Machine, retry=RetryPolicy(attempts=5, on=(ConnectionError, TimeoutError)), on_error_timeout=30):
    """Policies for all steps and for one, and hooks without async."""

    @step
    async def refund(self, task: Task, ctx: Context) -> Outcome[int]:
        return Done(0)

    @step(retry=RetryPolicy(attempts=3, backoff=lambda n: timedelta(seconds=n), then=refund))
    async def charge(self, task: Task, ctx: Context) -> Outcome[int]:
        raise Abort("never")

    @step(retry=RetryPolicy(attempts=None, on=ConnectionError))
    def ship(self, task: Task, ctx: Context) -> Outcome[int]:
        return Done(1)

    @step(retry=RetryPolicy(backoff=backoff, then="refund"))
    def pack(self, task: Task, ctx: Context) -> Outcome[int]:
        return Next(self.ship, task)

    def on_error(self, state: object, ctx: Context, error: Exception) -> Outcome[int]:
        return Fail(error)

    def on_cancel(self, state: object, ctx: Context, reason: str) -> None: ...
