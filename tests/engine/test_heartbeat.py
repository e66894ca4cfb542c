"""Heartbeat: whose leases are extended, what is returned when the loop does not answer, and what is logged."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
import pytest
from tests.support.engine import Engine, opened

from gen_durable import job
from gen_durable.core.services import services_of
from gen_durable.engine import heartbeat as heartbeat_module
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.claim_table import ClaimTable
from gen_durable.engine.event_loop_monitor import EventLoopMonitor
from gen_durable.engine.heartbeat import Heartbeat
from gen_durable.engine.slots import Slots
from gen_durable.engine.task_set import TaskSet
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.signal_decoder_fingerprints import SignalDecoderFingerprints
from gen_durable.step_registry import Registry
from gen_durable.telemetry import ClaimLost, EventLoopBlocked

LEASE = 30.0
LONGEST_BLOCK = 90.0


@job
async def rest(number: int) -> int:
    """Never run here: the tests only look at its lease."""
    return number


class Lag(EventLoopMonitor):
    """A monitor that measures what the test says."""

    lag = 0.0

    def measure_lag(self) -> float:
        return self.lag


class Beating:
    """A heartbeat without its thread, and the claims it is for."""

    def __init__(self, e: Engine, interval: float, longest_block: float) -> None:
        services = services_of(e.app)
        self.e = e
        self.stuck = 0
        self.monitor = Lag(60.0, lambda _: None)
        tasks = TaskSet()
        slots = Slots({"default": 10}, 0, tasks=tasks, notifier=services.notifier)
        self.claims = ClaimTable(
            services.pool,
            services.statements,
            slots=slots,
            tasks=tasks,
            registry=Registry([], [rest]),
            fingerprints=SignalDecoderFingerprints(Registry([], [rest]), ""),
            notifier=services.notifier,
            events=e.app.events,
            max_crashes=None,
        )
        self.heartbeat = Heartbeat(
            services.connection_target,
            services.statements,
            self.claims,
            lease_seconds=LEASE,
            interval_seconds=interval,
            max_block_seconds=longest_block,
            on_stuck_loop=self.report_stuck,
            events=e.app.events,
        )

    def report_stuck(self) -> None:
        self.stuck += 1
        raise SystemExit(7)

    async def claim(self, count: int, age: float = LEASE) -> list[ActiveClaim]:
        """Claims that were made `age` seconds ago; their rows have leases that end in ten seconds."""
        for number in range(count):
            await self.e.app.insert(rest, number)
        services = services_of(self.e.app)
        picked = await services.pool.run(services.statements.pick("w", {"default": count}, ["rest/1/run"], 10.0))
        assert len(picked.claims) == count
        leased_at = time.monotonic() - age
        return sorted(
            (self.claims.register(c, leased_at) for c in picked.claims),
            key=lambda active: active.claim.id,
        )

    async def beat(self, lag: float = 0.0) -> None:
        self.monitor.lag = lag
        await self.heartbeat._run_heartbeat_round(self.monitor)

    async def extended(self) -> list[int]:
        """The ids of the rows whose lease a heartbeat has extended."""
        rows = await self.e.rows.fetch(
            "select id from @.instances where lease_expires_at > now() + interval '15 s' order by id"
        )
        return [row[0] for row in rows]


@asynccontextmanager
async def beating(
    dsn: str, schema: str, *, interval: float = 10.0, longest_block: float = LONGEST_BLOCK
) -> AsyncIterator[Beating]:
    async with opened(dsn, schema) as e:
        beats = Beating(e, interval, longest_block)
        try:
            yield beats
        finally:
            if beats.heartbeat._connection is not None:
                await beats.heartbeat._connection.close()
            await e.rows.fetch("delete from @.instances")


def ids(claims: list[ActiveClaim]) -> list[int]:
    return [active.claim.id for active in claims]


async def test_old_leases_are_extended_in_batches(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All leases older than a third of their duration, none twice; younger ones are left alone."""
    monkeypatch.setattr(heartbeat_module, "BATCH", 2)
    async with beating(dsn, schema) as b:
        old = await b.claim(5, age=LEASE / 3 + 0.01)
        await b.claim(1, age=LEASE / 3 - 2)
        began = time.monotonic()
        assert await b.heartbeat.extend_leases() == []
        assert await b.extended() == ids(old)
        assert all(began <= active.leased_at <= time.monotonic() for active in old)
        assert b.claims.claims_leased_longer_than(LEASE / 3) == []


async def test_lost_claims_are_returned(dsn: str, schema: str) -> None:
    """Those whose row has another epoch; their lease does not count as extended."""
    async with beating(dsn, schema) as b:
        first, second, third = await b.claim(3)
        await b.e.rows.fetch("update @.instances set claims = claims + 1 where id = $1", second.claim.id)
        leased_at = second.leased_at
        assert await b.heartbeat.extend_leases() == [second]
        assert second.leased_at == leased_at
        assert await b.extended() == [first.claim.id, third.claim.id]


async def test_lost_claims_and_cancel_requests_reach_the_loop(dsn: str, schema: str) -> None:
    """A heartbeat drops the one and passes on the other."""
    async with beating(dsn, schema) as b:
        lost, cancelled, kept = await b.claim(3)
        cancelled.task = asyncio.create_task(asyncio.sleep(60))
        await b.e.rows.fetch("update @.instances set claims = claims + 1 where id = $1", lost.claim.id)
        await b.e.app.cancel(cancelled.claim.id, reason="enough")
        await b.beat()
        await asyncio.sleep(0)
        assert (cancelled.cancel_reason, kept.cancel_reason) == ("enough", None)
        assert b.claims.list_all() == [cancelled, kept]
        assert [event.id for event in b.e.seen.of(ClaimLost)] == [lost.claim.id]
        cancelled.task.cancel()


async def test_cancel_requests_are_read_only_for_claims(dsn: str, schema: str) -> None:
    """Without a claim, or before the first connection, no statement is sent."""
    async with beating(dsn, schema) as b:
        assert await b.heartbeat.read_cancel_requests() == {}
        (active,) = await b.claim(1, age=0.0)
        assert await b.heartbeat.read_cancel_requests() == {}
        await b.e.app.cancel(active.claim.id, reason="enough")
        await b.heartbeat.extend_leases()
        assert await b.heartbeat.read_cancel_requests() == {active.claim.id: "enough"}
        b.claims.remove(active)
        b.heartbeat._statements = cast(Any, None)  # it would raise
        assert await b.heartbeat.read_cancel_requests() == {}


@pytest.mark.parametrize("what", ["extend", "read"])
async def test_a_statement_that_hangs_is_given_up(dsn: str, schema: str, what: str) -> None:
    """After an interval, so that the next heartbeat can try a new connection."""
    async with beating(dsn, schema) as b:
        await b.claim(1)
        await b.heartbeat.extend_leases()
        await b.claim(1)
        b.heartbeat._interval_seconds = 0.05
        async with b.e.rows.connection.transaction():
            await b.e.rows.fetch("lock table @.instances in access exclusive mode")
            with pytest.raises(ConnectionLost):
                async with asyncio.timeout(5):
                    await (b.heartbeat.extend_leases() if what == "extend" else b.heartbeat.read_cancel_requests())


async def test_a_refused_row_is_named_and_the_others_are_extended(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A trigger refuses one of five rows: its id and the SQLSTATE are logged, and it does not count as lost."""
    async with beating(dsn, schema) as b:
        claims = await b.claim(5)
        bad = claims[3]
        await b.e.rows.connection.execute(f"""
            create function {schema}_refuse() returns trigger language plpgsql as $$
            begin raise exception 'refused' using errcode = '23514'; end $$;
            create trigger refuse before update on "{schema}".instances for each row
              when (old.id = {bad.claim.id}) execute function {schema}_refuse();
        """)
        try:
            assert await b.heartbeat.extend_leases() == []
        finally:
            await b.e.rows.connection.execute(f"drop function {schema}_refuse cascade")
        assert await b.extended() == [id_ for id_ in ids(claims) if id_ != bad.claim.id]
        assert b.claims.claims_leased_longer_than(LEASE / 3) == [bad]
        lines = [record.getMessage() for record in caplog.records if record.name == "gen_durable.heartbeat"]
        assert lines == [f"instance {bad.claim.id}: its lease cannot be extended (CheckViolationError, SQLSTATE 23514)"]


async def test_another_error_is_raised(dsn: str, schema: str) -> None:
    """A fault that does not lie in a row, as a deadlock, is tried again with the next heartbeat."""
    async with beating(dsn, schema) as b:
        await b.claim(2)
        await b.e.rows.connection.execute(f"""
            create function {schema}_refuse() returns trigger language plpgsql as $$
            begin raise exception 'deadlock' using errcode = '40P01'; end $$;
            create trigger refuse before update on "{schema}".instances for each row execute function {schema}_refuse();
        """)
        try:
            with pytest.raises(asyncpg.DeadlockDetectedError):
                await b.heartbeat.extend_leases()
        finally:
            await b.e.rows.connection.execute(f"drop function {schema}_refuse cascade")


async def test_a_loop_that_does_not_answer_is_reported_once(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """From the length of a lease on: claims that have not begun are returned; the next block is reported again."""
    async with beating(dsn, schema) as b:
        (active,) = await b.claim(1)
        await b.beat(LEASE - 0.1)
        assert "has not answered" not in caplog.text
        assert await b.extended() == [active.claim.id]
        for lag in (LEASE, LEASE + 1):
            await b.beat(lag)
        assert caplog.text.count("has not answered for 30 s: 1 claims that have not begun are returned") == 1
        assert caplog.text.count("has not answered") == 1
        row = await b.e.rows.row(active.claim.id)
        assert (row["status"], row["locked_by"], row["crashes"]) == ("runnable", None, 0)
        await asyncio.sleep(0)
        assert b.claims.list_all() == []
        assert active.claim.is_interrupted
        await b.beat(0.0)
        await b.beat(LEASE)
        assert caplog.text.count("has not answered for 30 s: 0 claims that have not begun are returned") == 1
        assert b.stuck == 0


async def test_rows_are_returned_on_the_first_connection(dsn: str, schema: str) -> None:
    """Also if no heartbeat has connected before; a statement that hangs is given up, and the claims are dropped."""
    async with beating(dsn, schema) as b:
        await b.claim(1)
        b.heartbeat._interval_seconds = 0.05
        async with b.e.rows.connection.transaction():
            await b.e.rows.fetch("lock table @.instances in access exclusive mode")
            with pytest.raises(ConnectionLost):
                async with asyncio.timeout(5):
                    await b.beat(LEASE)
        await asyncio.sleep(0)
        assert b.claims.list_all() == []
        b.heartbeat._interval_seconds = 10.0
        (again,) = await b.claim(1)
        await b.beat(LEASE)
        assert (await b.e.rows.row(again.claim.id))["status"] == "runnable"


@pytest.mark.parametrize(("longest_block", "limit"), [(LONGEST_BLOCK, LONGEST_BLOCK), (1.0, 2 * LEASE)])
async def test_a_stuck_loop_gets_no_leases(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture, longest_block: float, limit: float
) -> None:
    """From `max_loop_block` on, and never before two leases; the program is told once for each block."""
    async with beating(dsn, schema, longest_block=longest_block) as b:
        (active,) = await b.claim(1)
        active.task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)  # it has begun, so it is not returned
        for lag in (limit, limit + 1):
            await b.beat(lag)
        assert (b.stuck, await b.extended()) == (1, [])
        assert caplog.text.count(f"has not answered for {limit:.0f} s: no lease is extended any more") == 1
        assert "on_stuck_loop raised SystemExit" in caplog.text
        await b.beat(limit - 0.1)
        assert await b.extended() == [active.claim.id]
        await b.beat(0.0)
        await b.beat(limit)
        assert b.stuck == 2
        b.heartbeat._on_stuck_loop = None
        await b.beat(0.0)
        await b.beat(limit)
        active.task.cancel()


async def test_a_lag_is_reported_from_a_tenth_of_a_second_and_logged_from_a_second(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The event has the lag; the line says what to do."""
    async with beating(dsn, schema) as b:
        for lag in (0.05, 0.1, 0.2, 1.0):
            b.heartbeat._report_loop_lag(lag)
        assert b.e.seen.of(EventLoopBlocked) == [EventLoopBlocked(0.2), EventLoopBlocked(1.0)]
        assert caplog.records == []
        b.heartbeat._report_loop_lag(1.5)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().startswith("the event loop was blocked for 1.5 s: a step does not await")
        b.e.app.events.active = False
        b.heartbeat._report_loop_lag(0.5)
        assert len(b.e.seen.of(EventLoopBlocked)) == 3


class Waits(threading.Event):
    """An event that notes how long it is waited for, and does not wait; set after `count` waits."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        if len(self.seconds) == self.count:
            self.set()
        return self.is_set()


async def pauses_of(b: Beating, monkeypatch: pytest.MonkeyPatch, *results: Exception | float | None) -> list[float]:
    """The pauses after heartbeats that raise, take some seconds, or go well."""
    left = list(results)

    async def send(_: EventLoopMonitor) -> None:
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        if result is not None:
            await asyncio.sleep(result)

    monkeypatch.setattr(b.heartbeat, "_run_heartbeat_round", send)
    b.heartbeat._stopping = waits = Waits(len(results))
    await b.heartbeat._run_rounds_until_stopped(b.monitor)
    assert left == []
    return waits.seconds


async def test_the_pauses_between_heartbeats(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half an interval, from beginning to beginning; after a failure short ones that double, until a success."""
    async with beating(dsn, schema, interval=100.0) as b:
        lost, locked = ConnectionLost(OSError("no route"), sent=False), asyncpg.CheckViolationError("a payload")
        pauses = await pauses_of(b, monkeypatch, None, lost, lost, lost, None, locked, 0.1)
        expected = [50, 0.2, 0.4, 0.8, 50, 0.2, 49.9]
        assert all(0 <= e - p < 5 for p, e in zip(pauses, expected, strict=True)), pauses
        assert pauses[1] < pauses[2] < pauses[3]
        assert [record.getMessage() for record in caplog.records] == [
            "heartbeats fail (OSError: no route); trying again",
            "heartbeats fail (CheckViolationError, SQLSTATE 23514); trying again",
        ]


async def test_no_pause_is_longer_than_half_an_interval(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also the first one after a failure; a heartbeat that takes longer is followed by the next at once."""
    async with beating(dsn, schema, interval=0.1) as b:
        pauses = await pauses_of(b, monkeypatch, ConnectionError(), ConnectionError(), None, 0.06)
        assert all(0 <= pause <= 0.05 for pause in pauses), pauses
        assert pauses[3] == 0
        assert caplog.text.count("heartbeats fail (ConnectionError)") == 1


async def test_the_thread_ends_with_its_connection(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits for the heartbeat under way; the thread keeps no process alive, and its connection is closed."""
    async with beating(dsn, schema, interval=1.0) as b:
        begun, went_on = threading.Event(), threading.Event()
        extend = b.heartbeat.extend_leases

        async def slow() -> list[ActiveClaim]:
            lost = await extend()
            begun.set()
            await asyncio.sleep(0.1)
            went_on.set()
            return lost

        monkeypatch.setattr(b.heartbeat, "extend_leases", slow)
        await b.claim(1)
        b.heartbeat.start()
        thread = b.heartbeat._thread
        assert thread is not None
        assert thread.daemon
        assert await asyncio.to_thread(begun.wait, 10)
        await b.heartbeat.stop()
        assert went_on.is_set()
        assert not thread.is_alive()
        assert b.heartbeat._connection is not None
        assert b.heartbeat._connection.is_closed
        await b.heartbeat.stop()  # a second time: nothing to wait for


async def test_it_watches_the_loop_that_starts_it(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a monitor that counts at most two intervals between two measurements, and reports lags of that loop."""
    async with beating(dsn, schema, interval=0.25) as b:
        monitors: list[EventLoopMonitor] = []
        run: Callable[[EventLoopMonitor], None] = monitors.append
        monkeypatch.setattr(b.heartbeat, "_run_thread", run)
        b.heartbeat.start()
        await b.heartbeat.stop()
        (monitor,) = monitors
        assert (monitor._longest_interval, monitor._loop) == (0.5, asyncio.get_running_loop())
        monitor._report_lag(0.3)
        assert b.e.seen.of(EventLoopBlocked) == [EventLoopBlocked(0.3)]
