"""Rows that wait are reported: which limit or key they wait for, whether by a pick or from their insert on."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.support.engine import NEVER, Opening, seconds

from gen_durable import (
    Await,
    Concurrency,
    Context,
    Done,
    Machine,
    Outcome,
    Rate,
    Retry,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)
from gen_durable.engine.reaper import LOGGED_IDS
from gen_durable.telemetry import (
    AwaitTimedOut,
    ClaimLost,
    ClaimsReaped,
    PartitionContended,
    RowsBlocked,
    RowsThrottled,
)

go, other = Signal("go"), Signal("other")
running: dict[str, asyncio.Event] = {}
gates: dict[str, asyncio.Event] = {}


@job
async def hold(name: str) -> None:
    running[name].set()
    await gates[name].wait()


@job
async def quick(n: int) -> int:
    return n


def gate(name: str) -> str:
    running[name], gates[name] = asyncio.Event(), asyncio.Event()
    return name


async def test_a_busy_partition_key_is_reported_with_its_first_row(engine: Opening) -> None:
    """One event for each key and queue: how many rows wait, and id and machine of the first."""
    name = gate("contended")
    async with engine() as e, e.worker(hold, quick):
        first = await e.app.insert(hold, name, partition_key="p")
        await running[name].wait()
        waiting = await e.app.insert(quick, 1, partition_key="p")
        assert await e.seen.until(PartitionContended) == [
            PartitionContended("default", 1, "p", waiting.id, "quick"),
        ]
        gates[name].set()
        await e.end(first)
        await e.end(waiting)


async def test_a_pick_reports_wanted_and_granted_tokens(engine: Opening) -> None:
    """Of four rows two get a token: the event names the limit, the queue and the first row that waits."""
    async with engine() as e:
        await e.app.set_limit("r", Rate(1, NEVER * 24, burst=2))
        handles = [await e.app.insert(quick, n, limit="r") for n in range(4)]
        async with e.worker(quick, queues={"default": 4}):
            (event,) = await e.seen.until(RowsThrottled)
            assert event == RowsThrottled("r", 2, 4, 2, "default", handles[2].id, "quick")


async def test_a_pick_reports_the_first_row_that_waits_for_a_slot(engine: Opening) -> None:
    """The rows of two queues are reported apart."""
    name = gate("slots")
    async with engine() as e:
        await e.app.set_limit("l", Concurrency(1))
        async with e.worker(hold, quick, queues={"default": 2, "mail": 2}):
            first = await e.app.insert(hold, name, limit=("l", "acme"))
            await running[name].wait()
            for queue in ("mail", "default"):
                waiting = await e.app.insert(quick, 1, limit=("l", "acme"), queue=queue)
                await e.seen.until(RowsBlocked, lambda event, n=waiting.id: event.id == n)
                assert e.seen.of(RowsBlocked)[-1] == RowsBlocked("l/acme", 1, queue, waiting.id, "quick")
            gates[name].set()
            await e.end(first)


async def test_rows_that_wait_from_their_insert_on_are_reported(engine: Opening) -> None:
    """The client that inserts them emits the events, since no pick meets such rows before their gate is free."""
    async with engine() as e:
        await e.app.set_limit("l", Concurrency(1))
        await e.app.set_limit("r", Rate(1, NEVER, burst=2))
        keyed = await e.app.insert_many([Start(quick, n, partition_key="p") for n in range(3)])
        limited = await e.app.insert_many([Start(quick, n, limit="l", queue="mail") for n in range(3)])
        rated = await e.app.insert_many([Start(quick, n, limit="r") for n in range(3)])
        await e.app.insert(quick, 1)
        assert e.seen.events == [
            PartitionContended("default", 2, "p", keyed[1].id, "quick"),
            RowsBlocked("l", 2, "mail", limited[1].id, "quick"),
            RowsThrottled("r", 1, 1, 0, "default", rated[2].id, "quick"),
        ]
        assert await e.rows.count("blocked_on is not null") == 5


@pytest.mark.parametrize("committed", [True, False])
async def test_rows_of_a_callers_transaction_are_reported_after_its_commit(
    engine: Opening, dsn: str, *, committed: bool
) -> None:
    """And never if it is rolled back."""
    async with engine() as e:
        connection = await asyncpg.connect(dsn)
        try:
            transaction = connection.transaction()
            await transaction.start()
            starts = [Start(quick, n, partition_key="p") for n in range(3)]
            handles = await e.app.insert_many(starts, connection=connection)
            assert e.seen.events == []
            if committed:
                await transaction.commit()
                assert await e.seen.until(PartitionContended) == [
                    PartitionContended("default", 2, "p", handles[1].id, "quick")
                ]
            else:
                await transaction.rollback()
                later = await e.app.insert_many(starts, connection=connection)  # its event comes after any other
                (event,) = await e.seen.until(PartitionContended)
                assert event.id == later[1].id
        finally:
            await connection.close()


class Waits(Machine):
    @step
    async def begin(self, mode: str, ctx: Context) -> Outcome[str]:
        if mode == "retried" and ctx.attempt == 0:
            return Retry(mode)
        timeout = seconds(0.05) if mode != "signalled" else NEVER
        if mode == "collects":
            return Await(go, then=self.collect, state=mode, timeout=NEVER)
        if mode == "join":
            return ScheduleChildren([Start(quick, 1, queue="unserved")], then=self.end, state=mode, timeout=timeout)
        return Await([go, other], then=self.end, state=mode, timeout=timeout)

    @step
    async def collect(self, mode: str, ctx: Context) -> Outcome[str]:
        if mode == "collected":
            return Done(mode)
        return Await(go, state="collected", timeout=seconds(0.05))

    @step
    async def end(self, mode: str, ctx: Context) -> Outcome[str]:
        return Done(mode)


@pytest.mark.parametrize(
    ("mode", "step_name", "signals"),
    [
        ("plain", "end", ("go", "other")),
        ("retried", "end", ("go", "other")),
        ("collects", "collect", ("go",)),
        ("join", "end", ()),
    ],
)
async def test_a_timeout_is_reported(engine: Opening, mode: str, step_name: str, signals: tuple[str, ...]) -> None:
    """Once, with the names that were awaited: also if the step goes on collecting signals that it has seen."""
    async with engine() as e, e.worker(Waits(), quick):
        handle = await e.app.insert(Waits.begin, mode)
        if mode == "collects":
            await handle.signal(go)
        await e.end(handle)
        assert e.seen.of(AwaitTimedOut) == [AwaitTimedOut(handle.id, "Waits", step_name, signals)]


async def test_a_signal_is_no_timeout(engine: Opening) -> None:
    """Nor is the end of the last child."""
    async with engine() as e, e.worker(Waits(), Parent(), quick):
        handle = await e.app.insert(Waits.begin, "signalled")
        await handle.signal(go)
        await e.end(handle)
        await e.end(await e.app.insert(Parent.begin, 1))
        assert e.seen.of(AwaitTimedOut) == []


class Parent(Machine):
    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(quick, n)], then=self.end, state=n, timeout=NEVER)

    @step
    async def end(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)


async def add_one(n: int) -> int:
    return n + 1


@job
async def writes(name: str, ctx: Context) -> None:
    running[name].set()
    await gates[name].wait()
    if name == "activity":
        await ctx.run("add", add_one, 1)
    else:
        await ctx.checkpoint({"n": 1})


@pytest.mark.parametrize("kind", ["activity", "checkpoint"])
async def test_a_claim_that_a_journal_write_finds_lost_is_reported(engine: Opening, kind: str) -> None:
    """Before any heartbeat notices: the write is fenced, too."""
    name = gate(kind)
    async with engine() as e, e.worker(writes, heartbeat_interval=seconds(600), lease_ttl=NEVER, reap_interval=None):
        handle = await e.app.insert(writes, name)
        await running[name].wait()
        await e.rows.fetch("update @.instances set claims = claims + 1, locked_by = 'thief' where id = $1", handle.id)
        gates[name].set()
        assert await e.seen.until(ClaimLost) == [ClaimLost(handle.id, "writes", "run")]


async def test_a_worker_that_starts_reports_the_claims_that_it_takes_back(
    engine: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, not after the first interval; the log line names the instances, a bounded number of them."""
    async with engine() as e:
        dead = await e.rows.fetch(
            """
            insert into @.instances (fsm, step, state, status, claims, locked_by, lease_expires_at)
            select 'quick', 'run', '1', 'executing', 1, 'dead', now() - interval '1 minute' from generate_series(1, $1)
            returning id
            """,
            LOGGED_IDS + 2,
        )
        ids = sorted(row["id"] for row in dead)
        async with e.worker(quick, reap_interval=NEVER):
            (reaped,) = await e.seen.until(ClaimsReaped)
        assert sorted(reaped.ids) == ids
        (line,) = [record.getMessage() for record in caplog.records if "took back" in record.getMessage()]
        named, _, rest = line.partition(": instances ")[2].rpartition(", ")
        assert line.startswith(f"took back {LOGGED_IDS + 2} claims")
        assert (len(named.split(", ")), rest) == (LOGGED_IDS, "...")
        assert {int(number) for number in named.split(", ")} < set(ids)
