"""The journal as a user sees it: history, checkpoints, activities, progress."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from gen_durable import (
    Await,
    Cancel,
    Context,
    Done,
    Durable,
    EncodeError,
    Failed,
    Finished,
    InputError,
    LeaseLost,
    Machine,
    Next,
    Outcome,
    Replay,
    ScheduleChildren,
    Signal,
    Start,
    Stop,
    SyncDurable,
    Worker,
    job,
    step,
)
from gen_durable.pg.link import Link
from gen_durable.store.calls import Call
from gen_durable.store.journal import JournalCalls, Report

SOON = timedelta(seconds=10)
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


Body = Callable[[int, Context], Any]


class Scripted(Machine):
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
        return Stop(error)


class Threaded(Machine):
    """The same in a thread."""

    def __init__(self, body: Body) -> None:
        self.body = body

    @step
    def first(self, n: int, ctx: Context) -> Outcome[Any]:
        return self.body(n, ctx)  # type: ignore[no-any-return]


@pytest.fixture
def open_app(dsn: str, schema: str) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Durable]:
        async with Durable(dsn, schema=schema) as app:
            yield app

    return opened


async def run(app: Durable, machine: Machine, **options: Any) -> Any:
    """Run one instance of a machine from its step `first` to its end; returns its handle and its ending."""
    async with Worker(app, machines=[machine], **options):
        handle = await app.insert(type(machine).first, 1)  # type: ignore[attr-defined]
        return handle, await handle.wait(SOON)


async def test_every_outcome_is_in_the_history(open_app: Callable[[], Any]) -> None:
    """One row for each committed outcome, in order, without a gap; what on_error answers, and why, too."""

    @job
    async def child(n: int) -> int:
        return n

    class Tour(Machine):
        @step
        async def first(self, n: int, ctx: Context) -> Outcome[int]:
            if ctx.attempt == 0:
                raise ValueError("once")
            return Next(self.second, n) if ctx.attempt == 2 else Replay(n)

        @step
        async def second(self, n: int, ctx: Context) -> Outcome[int]:
            return Await(go, then=self.third, state=n, timeout=timedelta(0))

        @step
        async def third(self, n: int, ctx: Context) -> Outcome[int]:
            return ScheduleChildren([Start(child, 1)], then=self.fourth, state=n)

        @step
        async def fourth(self, n: int, ctx: Context) -> Outcome[int]:
            await asyncio.sleep(0.05)
            raise ValueError("at last")

        async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
            return Replay(state) if ctx.step == "first" else Stop(error)

    async with open_app() as app:
        async with Worker(app, machines=[Tour()], jobs=[child]) as worker:
            handle = await app.insert(Tour.first, 1)
            assert isinstance(await handle.wait(SOON), Failed)
        history = await app.history(handle)
        assert [(t.seq, t.step, t.outcome, t.next_step, t.attempt, t.error) for t in history] == [
            (1, "first", "Replay", "first", 0, "ValueError: once"),
            (2, "first", "Replay", "first", 1, None),
            (3, "first", "Next", "second", 2, None),
            (4, "second", "Await", "third", 0, None),
            (5, "third", "ScheduleChildren", "fourth", 0, None),
            (6, "fourth", "Stop", None, 0, "ValueError: at last"),
        ]
        assert {t.worker for t in history} == {worker.name}
        row = await app.get(handle)
        assert row.seq == 6
        assert all(t.state is None for t in history)
        last = history[-1]
        assert 0.05 <= last.duration < 1
        assert row.finished_at is not None
        assert last.started_at + timedelta(seconds=last.duration) <= row.finished_at + timedelta(milliseconds=1)
        assert [t.started_at for t in history] == sorted(t.started_at for t in history)


async def test_history_off_keeps_nothing_and_states_keep_all(
    open_app: Callable[[], Any], dsn: str, schema: str
) -> None:
    """The class argument decides, for jobs too; a subclass has its own."""

    class Kept(Scripted, history="states"):
        pass

    class Off(Scripted, history="off"):
        pass

    @job(history="off")
    async def quiet(n: int) -> int:
        return n

    async def body(machine: list[Any], n: int, ctx: Context) -> Outcome[int]:
        return Next(machine[0].second, n + 1)

    async with open_app() as app:
        for kind, expected in ((Kept, [2, 2]), (Off, []), (Scripted, [None, None])):
            machine: list[Any] = []
            machine.append(kind(partial(body, machine)))
            handle, _ = await run(app, machine[0])
            assert [t.state for t in await app.history(handle)] == expected
        async with Worker(app, jobs=[quiet]):
            done = await app.insert(quiet, 1)
            await done.wait(SOON)
        assert await app.history(done) == []


async def test_a_finished_activity_is_answered_from_the_log(open_app: Callable[[], Any]) -> None:
    """A Replay of the step does not call it again; the answer has its type. After a Next it is called anew."""
    till, seen = Till(), []

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        receipt = await ctx.run("charge", till.charge, 5)
        seen.append((receipt, ctx.idempotency_key))
        return Replay(n) if ctx.attempt < 2 else Next(machine.second, n)

    async def second(n: int, ctx: Context) -> Outcome[Any]:
        receipt = await ctx.run("charge", till.charge, 6)
        seen.append((receipt, ctx.idempotency_key))
        return Done(receipt.amount)

    machine = Scripted(first, second)
    async with open_app() as app:
        handle, ending = await run(app, machine)
        assert ending == Finished(handle.id, 6)
        assert till.calls == [5, 6]
        assert [receipt for receipt, _ in seen] == [Receipt(5, ("paid",))] * 3 + [Receipt(6, ("paid",))]
        keys = [key for _, key in seen]
        assert len(set(keys[:3])) == 1
        assert keys[3] != keys[0]
        log = await app.activities(handle)
        assert [(a.visit, a.name, a.parameters, a.result) for a in log] == [
            (0, "charge", [5], {"amount": 5, "marks": ["paid"]}),
            (3, "charge", [6], {"amount": 6, "marks": ["paid"]}),
        ]


async def test_retries_are_in_the_log(open_app: Callable[[], Any]) -> None:
    """Each failed call leaves a row, and the next comes after its pause; then the answer counts."""
    till, pauses = Till(failures=2), []

    def pause(n: int) -> timedelta:
        pauses.append(n)
        return timedelta(milliseconds=20)

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        receipt = await ctx.run("charge", till.charge, 5, retries=3, backoff=pause)
        return Done(receipt.amount)

    async with open_app() as app:
        handle, ending = await run(app, Scripted(first))
        assert ending == Finished(handle.id, 5)
        log = await app.activities(handle)
        assert [(a.attempt, a.error) for a in log] == [
            (0, "ConnectionError: no line"), (1, "ConnectionError: no line"), (2, None),
        ]  # fmt: skip
        assert pauses == [0, 1]
        gap = log[1].started_at - log[0].started_at
        assert gap >= timedelta(milliseconds=20)


async def test_an_activity_that_failed_is_called_again_by_the_next_execution(open_app: Callable[[], Any]) -> None:
    """Its error is raised in the step and logged; only what is finished is kept. `Cancel` is not retried."""
    till = Till(failures=1)

    async def refuse() -> None:
        raise Cancel("never")

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        if ctx.attempt == 0:
            with pytest.raises(Cancel):
                await ctx.run("refuse", refuse, retries=5)
            with pytest.raises(ConnectionError, match="no line"):
                await ctx.run("charge", till.charge, 5)
            return Replay(n)
        await ctx.run("charge", till.charge, 5)
        return Done(n)

    async with open_app() as app:
        handle, ending = await run(app, Scripted(first))
        assert isinstance(ending, Finished), ending
        assert [(a.name, a.attempt, a.ok) for a in await app.activities(handle)] == [
            ("refuse", 0, False), ("charge", 0, False), ("charge", 1, True),
        ]  # fmt: skip


async def test_a_name_stands_for_one_call(open_app: Callable[[], Any]) -> None:
    """The second use of a name in a visit is an error that says what to do; other mistakes are told before the call."""
    till = Till()

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        await ctx.run("charge", till.charge, 1)
        with pytest.raises(InputError, match="'charge:1'"):
            await ctx.run("charge", till.charge, 2)
        with pytest.raises(InputError, match="name of an activity"):
            await ctx.run("no spaces", till.charge, 2)
        with pytest.raises(EncodeError, match="called with"):
            await ctx.run("odd", lambda x: None, object())
        with pytest.raises(InputError, match="retries"):
            await ctx.run("charge:3", till.charge, 2, retries=-1)
        with pytest.raises(EncodeError, match="result of activity 'odd'"):
            await ctx.run("odd", object)
        both = await asyncio.gather(*(ctx.run(f"charge:{k}", till.charge, k) for k in (1, 2)))
        return Done([receipt.amount for receipt in both])

    async with open_app() as app:
        machine = Scripted(first)
        handle, ending = await run(app, machine)
        assert ending == Finished(handle.id, [1, 2]), machine.errors
        assert till.calls == [1, 1, 2]
        assert [a.name for a in await app.activities(handle)][:2] == ["charge", "odd"]


async def test_a_step_in_a_thread_has_the_same(open_app: Callable[[], Any]) -> None:
    """`ctx.sync`: a plain function is called in the step's own thread, a coroutine on the loop."""
    till, began = Till(), []

    def body(n: int, ctx: Context) -> Outcome[Any]:
        began.append((ctx.has_checkpoint, ctx.last_checkpoint, ctx.checkpoint_as(Receipt)))
        one = ctx.sync.run("slow", till.charge_slowly, 1)
        two = ctx.sync.run("quick", till.charge, 2)
        assert till.threads == {threading.get_ident()} or ctx.attempt
        ctx.sync.checkpoint(Receipt(3))
        ctx.progress(1, "done")
        if ctx.attempt == 0:
            return Replay(n)
        ctx.sync.clear_checkpoint()
        assert not ctx.has_checkpoint
        return Done([one.amount, two.amount])

    async with open_app() as app:
        handle, ending = await run(app, Threaded(body))
        assert ending == Finished(handle.id, [1, 2])
        assert till.calls == [1, 2]
        assert began == [(False, None, None), (True, {"amount": 3, "marks": []}, Receipt(3))]


async def test_the_wrong_door_is_told(open_app: Callable[[], Any]) -> None:
    """`ctx.sync` on the loop would wait for itself: it is refused."""

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        with pytest.raises(InputError, match="async def"):
            ctx.sync.checkpoint(1)
        return Done(n)

    async with open_app() as app:
        _, ending = await run(app, Scripted(first))
        assert isinstance(ending, Finished)


async def test_a_checkpoint_belongs_to_one_visit(open_app: Callable[[], Any]) -> None:
    """A Replay and a wait at the same step keep it, a Next forgets it; a stored None is told from none."""
    seen: list[Any] = []

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        seen.append((ctx.has_checkpoint, ctx.last_checkpoint))
        match len(seen):
            case 1:
                await ctx.checkpoint(1)
                await ctx.checkpoint(None)
                assert (ctx.has_checkpoint, ctx.last_checkpoint) == (True, None)
                return Replay(n)
            case 2:
                await ctx.checkpoint({"at": 2})
                return Await(go, state=n, timeout=timedelta(0))
            case 3:
                return Next(machine.first, n)
            case _:
                return Done(n)

    machine = Scripted(first)
    async with open_app() as app:
        _, ending = await run(app, machine)
        assert isinstance(ending, Finished), machine.errors
        assert seen == [(False, None), (True, None), (True, {"at": 2}), (False, None)]


STEAL = (
    "update @schema.gen_durable set claims = claims + 1, status = 'runnable', locked_by = null,"
    " lease_expires_at = null, eligible_at = now() + interval '1 hour' where id = $1"
)


@pytest.mark.parametrize("how", ["checkpoint", "activity", "thread"])
async def test_a_lost_claim_stops_the_step(open_app: Callable[[], Any], how: str) -> None:
    """The first write after the claim was taken over raises LeaseLost: the step ends, on_error is not asked."""
    reached: list[str] = []

    async with open_app() as app:

        async def steal(instance: int) -> None:
            await app.pool.run(Call(app.calls.schema.render(STEAL), (instance,), list))

        async def first(n: int, ctx: Context) -> Outcome[Any]:
            await steal(ctx.id)
            ctx.progress(0.5)
            try:
                await (ctx.checkpoint(1) if how == "checkpoint" else ctx.run("a", Till().charge, 1))
            except LeaseLost:
                reached.append("lost")
                raise
            reached.append("went on")
            return Done(n)

        def body(n: int, ctx: Context) -> Outcome[Any]:
            ctx.sync.run("steal", steal, ctx.id)  # its own row cannot be written any more
            reached.append("went on")
            return Done(n)

        machine = Threaded(body) if how == "thread" else Scripted(first)
        async with Worker(app, machines=[machine], queues={"default": 1}) as worker:
            handle = await app.insert(type(machine).first, 1)
            for _ in range(500):
                if not len(worker._holdings) and (await handle.get()).claims == 2:
                    break
                await asyncio.sleep(0.01)
            other = await app.insert(type(machine).first, 1)  # the slot is free again
            for _ in range(500):
                if (await other.get()).claims == 2:
                    break
                await asyncio.sleep(0.01)
        assert reached == ([] if how == "thread" else ["lost", "lost"])
        assert isinstance(machine, Threaded) or machine.errors == []
        row = await handle.get()
        assert (row.seq, row.claims, row.last_error) == (0, 2, None)
        assert (await app.activities(handle), await app.progress(handle), await app.history(handle)) == ([], [], [])


async def test_a_step_that_was_left_cannot_write(open_app: Callable[[], Any]) -> None:
    """A task that outlives its step has no business with the next one, although the claim is the same."""
    left: list[Context] = []

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        left.append(ctx)
        return Next(machine.second, n)

    async def second(n: int, ctx: Context) -> Outcome[Any]:
        assert ctx.claim == left[0].claim
        with pytest.raises(LeaseLost, match="has been left"):
            await left[0].checkpoint("late")
        return Done(ctx.last_checkpoint)

    machine = Scripted(first, second)
    async with open_app() as app:
        handle, ending = await run(app, machine)
        assert ending == Finished(handle.id, None), machine.errors


async def test_a_checkpoint_of_a_newer_library_is_refused(open_app: Callable[[], Any]) -> None:
    """The row is put back for a worker that can read it; the step is not run, and on_error is not asked."""
    ran: list[int] = []

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        ran.append(ctx.attempt)
        await ctx.checkpoint(1)
        await app.pool.run(Call(app.calls.schema.render("update @schema.checkpoints set format = 99"), (), list))
        return Replay(n)

    async with open_app() as app:
        machine = Scripted(first)
        async with Worker(app, machines=[machine]):
            handle = await app.insert(Scripted.first, 1)
            for _ in range(500):
                row = await handle.get()
                if row.last_error is not None:
                    break
                await asyncio.sleep(0.01)
        assert "newer gen_durable (format 99" in (row.last_error or "")
        assert (ran, machine.errors, row.status.value) == ([0], [], "runnable")


class Counting(JournalCalls):
    """Counts reports as they are sent."""

    __slots__ = ("sent", "twice")

    def __init__(self, app: Durable) -> None:
        super().__init__(app.calls.schema)
        self.sent: list[Sequence[Report]] = []
        self.twice = asyncio.Event()

    def report(self, reports: Sequence[Report]) -> Call[set[int]]:
        self.sent.append(reports)
        if len(self.sent) > 1:
            self.twice.set()
        return super().report(reports)


async def test_progress_is_gathered_and_the_last_word_counts(open_app: Callable[[], Any]) -> None:
    """Hundreds of reports are few statements; what cannot be stored is dropped, and the step goes on."""

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        began = time.perf_counter()
        for k in range(500):
            ctx.progress(k / 500, f"{k} of 500", detail={"k": k})
            await asyncio.sleep(0)
        ctx.progress(0.1, "left", branch="left")
        ctx.progress(object(), "odd", detail=object())  # type: ignore[arg-type]
        ctx.progress(1.0, "all\x00 done", detail=None)
        assert time.perf_counter() - began < 5
        return Done(n)

    async with open_app() as app:
        app.journal = counting = Counting(app)
        machine = Scripted(first)
        async with Worker(app, machines=[machine]):
            handles = await app.insert_many([Start(Scripted.first, n) for n in range(10)])
            assert all([isinstance(await h.wait(SOON), Finished) for h in handles]), machine.errors
        assert len(counting.sent) < 50
        for handle in handles:
            by_branch = {p.branch: p for p in await app.progress(handle)}
            assert (by_branch[""].fraction, by_branch[""].step, by_branch[""].detail) == (1.0, "first", None)
            assert "done" in (by_branch[""].message or "")
            assert by_branch["left"].fraction == 0.1


async def test_a_report_of_a_locked_row_is_written_later(open_app: Callable[[], Any]) -> None:
    """Somebody's transaction holds the row: the report waits for it, and not the step."""

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        link = Link(app.target)
        connection = await link.raw()
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(app.calls.schema.render("select from @schema.gen_durable for update"))
        ctx.progress(0.5)
        await counting.twice.wait()
        assert await app.progress(ctx.id) == []
        await transaction.rollback()
        await link.close()
        return Done(n)

    async with open_app() as app:
        app.journal = counting = Counting(app)
        machine = Scripted(first)
        handle, ending = await run(app, machine)
        assert isinstance(ending, Finished), machine.errors
        assert [p.fraction for p in await app.progress(handle)] == [0.5]


@pytest.mark.parametrize("statement", ["note_activity", "note_checkpoint"])
async def test_a_lost_answer_does_no_harm(schema: str, proxied: Callable[[], Any], statement: str) -> None:
    """The server has written it and the connection breaks: it is sent again, and counts once."""
    till = Till()

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        receipt = await ctx.run("charge", till.charge, 5)
        await ctx.checkpoint(receipt)
        return Done([receipt.amount, ctx.last_checkpoint["amount"]])

    async with proxied() as proxy, Durable(proxy.dsn, schema=schema) as app:
        proxy.losing = statement.encode()
        machine = Scripted(first)
        handle, ending = await run(app, machine)
        assert ending == Finished(handle.id, [5, 5]), machine.errors
        assert (proxy.lost, till.calls) == (1, [5])
        assert len(await app.activities(handle)) == 1


async def test_progress_does_not_fail_without_a_database(open_app: Callable[[], Any]) -> None:
    """A report that cannot be written is dropped: the step does not notice."""

    class Broken(Counting):
        __slots__ = ()

        def report(self, reports: Sequence[Report]) -> Call[set[int]]:
            self.sent.append(reports)
            return Call("select 1 / 0", (), lambda _: set())

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        ctx.progress(0.5)
        await asyncio.sleep(0.1)
        ctx.progress(0.6)
        return Done(n)

    async with open_app() as app:
        app.journal = broken = Broken(app)
        handle, ending = await run(app, Scripted(first))
        assert ending == Finished(handle.id, 1)
        assert len(broken.sent) == 2


async def test_the_sync_client_reads_it_too(open_app: Callable[[], Any], dsn: str, schema: str) -> None:
    """`SyncDurable` has the same three readers; unknown instances have no journal."""

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        await ctx.run("charge", Till().charge, 1)
        ctx.progress(0.5)
        return Done(n)

    async with open_app() as app:
        handle, _ = await run(app, Scripted(first))

    def read() -> list[int]:
        with SyncDurable(dsn, schema=schema) as sync:
            reads = (sync.history, sync.activities, sync.progress)
            return [len(r(handle.id)) for r in reads] + [len(r(999)) for r in reads]

    assert await asyncio.to_thread(read) == [1, 1, 1, 0, 0, 0]
