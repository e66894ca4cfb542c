from __future__ import annotations
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from gen_durable.context import Context
from gen_durable.jobs import job
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Await, Done, Next, Outcome, Replay, ScheduleChildren, Start, Stop
from gen_durable.signals import Signal


@dataclass
class Order:
    id: int


@dataclass
class Paid:
    amount: int


payment = Signal("payment", Paid)


@job
async def greet(name: str) -> int:
    return len(name)


@job
def sgreet(name: str, ctx: Context) -> int:
    return len(name)


@job(queue="x")
async def qgreet(name: str) -> int:
    return len(name)


class Other(Machine):
    @step
    async def run(self, state: Order, ctx: Context) -> Outcome[str]:
        return Done("x")

    @step
    def srun(self, state: Order, ctx: Context) -> Outcome[str]:
        return Done("x")


class M(Machine):
    def __init__(self, other: Other) -> None:
        self.other = other

    @step
    async def a(self, state: Order, ctx: Context) -> Outcome[int]:
        if state.id == 1:
            return Next(self.b, Order(1))  # E
        if state.id == 2:
            return Next(self.sb, Order(1))  # E
        if state.id == 3:
            return Next(self.b(Paid(1), ctx), Paid(1))  # E
        if state.id == 4:
            return Next(self.sb(Paid(1), ctx), Paid(1))  # E
        if state.id == 5:
            return Next(self.other.run, Order(1))  # E
        if state.id == 6:
            return Next(self.other.srun, Order(1))  # E
        if state.id == 7:
            return Next(M.b, Paid(1))  # E
        if state.id == 8:
            return Next("b", Paid(1))  # E
        if state.id == 9:
            return Await("payment", then=self.b, state=Paid(1))  # E
        if state.id == 10:
            return Await(payment, then=self.b, state=Order(1))  # E
        if state.id == 11:
            return Await(payment, then=self.b(Paid(1), ctx), state=Paid(1))  # E
        if state.id == 12:
            return Await([payment, "x"], then=self.b, state=Paid(1))  # E
        if state.id == 13:
            return ScheduleChildren([Other.run], then=self.b, state=Paid(1))  # E
        if state.id == 14:
            return ScheduleChildren([Start(Other.run, Paid(1))], then=self.b, state=Paid(1))  # E
        if state.id == 15:
            return ScheduleChildren([Start(greet, 1)], then=self.b, state=Paid(1))  # E
        if state.id == 16:
            return ScheduleChildren([Start(sgreet, 1)], then=self.b, state=Paid(1))  # E
        if state.id == 17:
            return ScheduleChildren([Start(qgreet, 1)], then=self.b, state=Paid(1))  # E
        if state.id == 18:
            return Done("x")  # E
        if state.id == 19:
            return Done()  # E
        if state.id == 20:
            return Stop(123)  # E
        if state.id == 21:
            return Replay(state, after=5)  # E
        if state.id == 22:
            return Next(self.b, Paid(1), dely=timedelta(1))  # E
        if state.id == 23:
            p: Paid = ctx.first(payment)  # E
            print(p)
        if state.id == 24:
            q: Order | None = ctx.first(payment)  # E
            print(q)
        if state.id == 25:
            return Done(ctx.first(payment).amount)  # E
        if state.id == 26:
            rs: list[int] = ctx.results(Other.run)  # E
            print(rs)
        if state.id == 27:
            rs2: list[str] = ctx.results(greet)  # E
            print(rs2)
        if state.id == 28:
            return self.b  # E
        if state.id == 29:
            return Next(self.helper, Paid(1))  # E
        if state.id == 30:
            return Next(greet, "x")  # E
        if state.id == 31:
            return Next(self.b)  # E
        if state.id == 32:
            return Next(self.b, state=Order(1))  # E
        if state.id == 33:
            return Next(self.b, Paid(1), delay=5)  # E
        if state.id == 34:
            return await self.b(Order(1), ctx)  # E
        if state.id == 35:
            return self.b(Paid(1), ctx)  # E
        if state.id == 36:
            return None  # E
        if state.id == 37:
            return ScheduleChildren(Start(greet, "1"), then=self.b, state=Paid(1))  # E
        if state.id == 38:
            return ScheduleChildren([], then=self.b, state=Order(1))  # E
        return Done(1)

    async def helper(self, state: Paid) -> int:
        return 1

    @step
    async def b(self, state: Paid, ctx: Context) -> Outcome[int]:
        return Done(1)

    @step
    def sb(self, state: Paid, ctx: Context) -> Outcome[int]:
        return Done(1)

    @step  # E
    async def c(self, state: Paid, ctx: Context) -> None:
        return None

    @step  # E
    async def d(self, state: Paid) -> Outcome[int]:
        return Done(1)

    @step  # E
    async def e(self, state: Paid, ctx: Context, more: int) -> Outcome[int]:
        return Done(1)

    @step(timeout=timedelta(1))  # E
    async def f(self, state: Paid, ctx: Context) -> int:
        return 1

    async def on_error(self, state: Paid, ctx: Context, error: Exception) -> None:  # E
        return None


@job  # E
async def three(a: int, ctx: Context, c: int) -> int:
    return a


@job  # E
async def two(a: int, c: int) -> int:
    return a


@job  # E
async def zero() -> int:
    return 1


@job(queue="x")  # E
async def three2(a: int, ctx: Context, c: int) -> int:
    return a


def f() -> Iterable[str]:
    yield greet("1").upper()  # E
    yield sgreet(1).upper()  # E
    greet(1)  # E
