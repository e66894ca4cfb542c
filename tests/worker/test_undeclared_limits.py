"""An outcome that names a limit before it is declared: its row is put back, and its step runs again."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from tests.support.engine import Engine, Opening

from gen_durable import (
    Await,
    Concurrency,
    Context,
    Done,
    Fail,
    Finished,
    Limit,
    Machine,
    Next,
    Outcome,
    Rate,
    Retry,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)
from gen_durable.telemetry import OutcomePostponed

MANY = 3000  # more children than one statement takes
go = Signal("go")
REASON = "Unknown limit 'stripe'. Declare it with Worker(limits=...) or `gen-durable limits set stripe`."


@job(limit="stripe")
async def charge(n: int) -> int:
    """Has the limit that is declared too late."""
    return n


@job
async def free(n: int) -> int:
    """Has none."""
    return n


class Early(Machine):
    """Names the limit in each kind of outcome."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.errors: list[Exception] = []

    @step
    async def next(self, n: int, ctx: Context) -> Outcome[int]:
        self.ran["next"] += 1
        return Next(self.limited, n)

    @step
    async def first(self, n: int, ctx: Context) -> Outcome[int]:
        self.ran["first"] += 1
        return Next(self.next, n)

    @step
    async def wait(self, n: int, ctx: Context) -> Outcome[int]:
        self.ran["wait"] += 1
        return Await(go, then=self.limited, state=n, timeout=0)

    @step
    async def spread(self, count: int, ctx: Context) -> Outcome[int]:
        self.ran["spread"] += 1
        children = [*(Start(free, n) for n in range(count - 1)), Start(charge, -1)]
        return ScheduleChildren(children, then=self.end, state=count)

    @step
    async def join(self, n: int, ctx: Context) -> Outcome[int]:
        self.ran["join"] += 1
        return ScheduleChildren([Start(free, n)], then=self.limited, state=n)

    @step
    async def spawn(self, n: int, ctx: Context) -> Outcome[int]:
        self.ran["spawn"] += 1
        return Done(n, spawn=[Start(charge, n)])

    @step
    async def answered(self, n: int, ctx: Context) -> Outcome[int]:
        self.ran["answered"] += 1
        raise RuntimeError("no luck")

    @step
    async def refused(self, n: int, ctx: Context) -> Outcome[int]:
        self.ran["refused"] += 1
        return Next(self.end, 666)

    @step(limit="stripe")
    async def limited(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)

    @step
    async def end(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
        self.errors.append(error)
        return Next(self.limited, state) if ctx.step in ("answered", "refused") else Fail(error)


async def put_back(e: Engine, instance: int) -> Any:
    """The row, once it was put back."""
    await e.seen.until(OutcomePostponed, lambda event: event.id == instance)
    return await e.rows.until(instance, status="runnable", last_error=REASON)


@pytest.mark.parametrize(
    ("start", "state"),
    [("next", 1), ("first", 2), ("wait", 3), ("spread", 3), ("spread", MANY), ("join", 4), ("spawn", 5)],
)
async def test_the_step_runs_again_once_the_limit_exists(engine: Opening, start: str, state: int) -> None:
    """Neither an error, nor a crash, nor an attempt is counted, and nothing of the outcome is written meanwhile."""
    machine = Early()
    async with engine() as e, e.worker(machine, free, charge):
        handle = await e.app.insert(getattr(Early, start), state)
        row = await put_back(e, handle.id)
        assert [row[name] for name in ("attempt", "step_errors", "crashes", "locked_by")] == [0, 0, 0, None]
        assert row["seq"] == (1 if start == "first" else 0)
        assert await e.rows.count("parent_id is not null or fsm = 'charge'") == 0
        await e.app.set_limit("stripe", Concurrency(5))
        assert await e.end(handle) == Finished(handle.id, state)
        assert (await handle.get()).last_error is None
    assert machine.errors == []
    assert machine.ran["first"] <= 1, "its outcome was committed before"
    assert machine.ran.most_common(1)[0][1] >= 2


async def test_a_worker_that_declares_the_limit(engine: Opening) -> None:
    """The old worker, which does not know the limit, keeps running; the new one brings it along."""
    async with engine() as e, e.worker(Early(), free, charge):
        handle = await e.app.insert(Early.spread, 3)
        await put_back(e, handle.id)
        async with e.worker(Early(), free, charge, limits={"stripe": Concurrency(1)}):
            assert await e.end(handle) == Finished(handle.id, 3)


@pytest.mark.parametrize("start", ["answered", "refused"])
async def test_an_answer_of_on_error_that_names_the_limit(engine: Opening, start: str) -> None:
    """To what the step raised, and to an outcome of it that the database refused: the step runs again."""
    machine = Early()
    async with engine() as e, e.worker(machine):
        await e.rows.fetch("alter table @.instances add check (state <> '666')")
        handle = await e.app.insert(getattr(Early, start), 1)
        row = await put_back(e, handle.id)
        assert (row["attempt"], row["step_errors"], row["seq"]) == (0, 0, 0)
        await e.app.set_limit("stripe", Concurrency(5))
        assert await e.end(handle) == Finished(handle.id, 1)
    assert machine.ran[start] == len(machine.errors) >= 2


async def test_the_writes_of_a_transactional_step_are_rolled_back(engine: Opening) -> None:
    """And made once, by the execution whose outcome is committed."""

    class Ledger(Machine):
        @step(transactional=True)
        async def book(self, n: int, ctx: Context) -> Outcome[int]:
            await ctx.connection.execute(f'insert into "{e.rows.schema}".bookings values ($1)', n)
            return Next(self.limited, n)

        @step(limit="stripe")
        async def limited(self, n: int, ctx: Context) -> Outcome[int]:
            return Done(n)

        async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
            return Fail(error)

    async with engine() as e, e.worker(Ledger()):
        await e.rows.fetch("create table @.bookings (n int)")
        handle = await e.app.insert(Ledger.book, 7)
        row = await put_back(e, handle.id)
        assert (row["attempt"], row["crashes"], row["seq"]) == (0, 0, 0)
        assert await e.rows.value("select count(*) from @.bookings") == 0
        await e.app.set_limit("stripe", Concurrency(5))
        assert await e.end(handle) == Finished(handle.id, 7)
        assert await e.rows.value("select count(*) from @.bookings") == 1


async def test_a_weight_above_the_burst_waits_for_a_higher_burst(engine: Opening) -> None:
    """The code that takes more tokens is deployed before the limit is raised."""

    class Heavy(Machine):
        @step
        async def start(self, n: int, ctx: Context) -> Outcome[int]:
            return Next(self.end, n, limit=Limit("mail", weight=4))

        @step
        async def end(self, n: int, ctx: Context) -> Outcome[int]:
            return Done(n)

    async with engine() as e, e.worker(Heavy(), limits={"mail": Rate(100, timedelta(seconds=1), burst=3)}):
        handle = await e.app.insert(Heavy.start, 1)
        (event,) = (await e.seen.until(OutcomePostponed))[:1]
        assert event == OutcomePostponed(
            handle.id,
            "Heavy",
            "start",
            "a weight of 4 is above the burst of limit mail, which is 3. Change the limit, or pass a smaller weight.",
        )
        await e.app.set_limit("mail", Rate(100, timedelta(seconds=1), burst=4))
        assert await e.end(handle) == Finished(handle.id, 1)


async def test_a_cancel_ends_a_row_that_was_put_back(engine: Opening) -> None:
    async with engine() as e, e.worker(Early(), charge):
        handle = await e.app.insert(Early.next, 1)
        await put_back(e, handle.id)
        await e.app.cancel(handle.id, reason="enough")
        row = await e.rows.until(handle, status="cancelled")
        assert row["last_error"] == "enough"


async def test_finished_activities_are_not_repeated(engine: Opening) -> None:
    """The step is still in its visit: what `ctx.run` has recorded stays."""
    calls: list[int] = []

    async def pay(n: int) -> int:
        calls.append(n)
        return n

    class Payer(Machine):
        @step
        async def start(self, n: int, ctx: Context) -> Outcome[int]:
            if ctx.attempt == 0:
                return Retry(n)
            paid = await ctx.run("pay", pay, n)
            return Next(self.limited, paid)

        @step(limit="stripe")
        async def limited(self, n: int, ctx: Context) -> Outcome[int]:
            return Done(n)

    async with engine() as e, e.worker(Payer()):
        handle = await e.app.insert(Payer.start, 1)
        row = await put_back(e, handle.id)
        assert (row["attempt"], row["seq"]) == (1, 1)
        await e.app.set_limit("stripe", Concurrency(5))
        assert await e.end(handle) == Finished(handle.id, 1)
    assert calls == [1]
