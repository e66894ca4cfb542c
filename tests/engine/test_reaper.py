"""Reaper: what it takes back and unblocks in one round, what it tells of it, and when the next round comes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.support.engine import Engine, opened
from tests.worker.test_options_lease import dead_claim, double

from gen_durable.core.services import services_of
from gen_durable.engine import reaper as reaper_module
from gen_durable.engine.crashed_row_slots import CrashedRowSlots
from gen_durable.engine.reaper import UNKNOWN_STEPS_EVERY, Reaper
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.signal_decoder_fingerprints import SignalDecoderFingerprints
from gen_durable.step_registry import Registry
from gen_durable.store.types import FollowUps
from gen_durable.telemetry import ClaimsReaped, InstanceDeadLettered, RowsUnblocked, UnknownStepsFound
from gen_durable.worker_options import WorkerOptions

INTERVAL = 10.0


class Counting(PersistentConnection):
    """Counts its statements."""

    __slots__ = ("texts",)
    texts: list[str]

    async def run(self, statement: Any, *, timeout: float | None = None) -> Any:
        self.texts.append(statement.text)
        return await super().run(statement, timeout=timeout)


class Told:
    """Stands for the notifier and the hook of dead letters."""

    def __init__(self) -> None:
        self.follow_ups: list[FollowUps] = []
        self.woken: list[tuple[str, int]] = []
        self.dead: list[int] = []

    def act_on_follow_ups(self, follow_ups: FollowUps) -> None:
        self.follow_ups.append(follow_ups)

    def wake(self, queue: str, count: int = 1) -> None:
        self.woken.append((queue, count))

    def wake_queues(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self.wake(queue)

    def enqueue_calls(self, ids: Iterable[int]) -> None:
        self.dead += ids


class Reaping:
    """A reaper without its task, and what is around it."""

    def __init__(self, e: Engine, **options: Any) -> None:
        services = services_of(e.app)
        given: dict[str, Any] = {"reap_interval": timedelta(seconds=INTERVAL), "max_crashes": 3}
        self.e = e
        self.told = Told()
        self.crashed = CrashedRowSlots(None)
        self.link = Counting(services.connection_target)
        self.link.texts = []
        self.reaper = Reaper(
            self.link,
            services.statements,
            WorkerOptions(**(given | options)),
            registry=Registry([], [double]),
            fingerprints=SignalDecoderFingerprints(Registry([], [double]), ""),
            notifier=cast(Any, self.told),
            events=e.app.events,
            dead_letters=cast(Any, self.told),
            crashed=self.crashed,
        )

    def count(self, function: str) -> int:
        """How many statements called a function of the schema."""
        return sum(f".{function}(" in text for text in self.link.texts)


@asynccontextmanager
async def reaping(dsn: str, schema: str, **options: Any) -> AsyncIterator[Reaping]:
    async with opened(dsn, schema) as e:
        r = Reaping(e, **options)
        try:
            yield r
        finally:
            await r.link.close()


async def blocked(r: Reaping, *keys: str, queue: str = "default") -> None:
    """Rows that a lost wake-up left at free gates."""
    for key in keys:
        await r.e.rows.fetch(
            "insert into @.instances (fsm, step, state, queue, partition_key, blocked_on) "
            "values ('double', 'run', '21', $2, $1, 'partition/' || $1)",
            key, queue,
        )  # fmt: skip


async def test_a_full_batch_is_followed_by_the_next_at_once(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next round comes after an interval, shortened by up to a tenth."""
    monkeypatch.setattr(reaper_module, "REAP_BATCH", 2)
    async with reaping(dsn, schema) as r:
        for _ in range(3):
            await dead_claim(r.e)
        assert await r.reaper.run_once() == 0.0
        assert await r.e.rows.count("status = 'executing'") == 1
        for _ in range(10):
            assert 0.9 * INTERVAL <= await r.reaper.run_once() <= INTERVAL
        assert await r.e.rows.count("status = 'executing'") == 0


async def test_claims_that_are_taken_back_wake_their_queues(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With how many rows each queue has; the claims are named in an event, and in the log."""
    async with reaping(dsn, schema) as r:
        ids = [await dead_claim(r.e) for _ in range(3)]
        await r.e.rows.fetch("update @.instances set queue = 'other' where id = $1", ids[0])
        await r.reaper.run_once()
        assert sorted(r.told.woken) == [("default", 2), ("other", 1)]
        (event,) = r.e.seen.of(ClaimsReaped)
        assert sorted(event.ids) == ids
        assert [(x.levelno, x.getMessage()) for x in caplog.records] == [
            (logging.WARNING, "took back 3 claims whose leases had ended: instances 1, 2, 3")
        ]
        assert (r.told.dead, r.e.seen.of(InstanceDeadLettered)) == ([], [])
        caplog.clear()
        await r.reaper.run_once()
        assert (caplog.records, len(r.told.woken)) == ([], 2)


async def test_follow_ups_are_acted_on(dsn: str, schema: str) -> None:
    """A child that is failed wakes the queue of its parent."""
    async with reaping(dsn, schema) as r:
        parent = await r.e.rows.value(
            "insert into @.instances (fsm, step, state, queue, status, children_pending, claims, seq) "
            "values ('double', 'run', '21', 'above', 'awaiting_children', 1, 1, 1) returning id"
        )
        child = await dead_claim(r.e, crashes=2)
        await r.e.rows.fetch(
            "update @.instances set parent_id = $1, parent_round = (select round from @.instances where id = $1) "
            "where id = $2", parent, child,
        )  # fmt: skip
        await r.reaper.run_once()
        assert [follow_ups.queues for follow_ups in r.told.follow_ups] == [frozenset({"above"})]


async def test_dead_letters_are_logged_and_told(dsn: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """Only the instances that crashed too often."""
    async with reaping(dsn, schema) as r:
        doomed, _ = await dead_claim(r.e, crashes=2), await dead_claim(r.e)
        await r.reaper.run_once()
        assert r.told.dead == [doomed]
        assert r.e.seen.of(InstanceDeadLettered) == [InstanceDeadLettered(doomed, "double", "run", 3)]
        assert [x.getMessage() for x in caplog.records if x.levelno == logging.ERROR] == [
            f"instance {doomed} (double.run) was failed after 3 crashes"
        ]


async def test_a_worker_without_a_hook_and_subscribers_reaps(dsn: str, schema: str) -> None:
    """Neither is needed."""
    async with reaping(dsn, schema) as r:
        r.reaper._dead_letters = None
        r.e.app.events.active = False
        doomed = await dead_claim(r.e, crashes=2)
        await blocked(r, "a")
        await r.e.rows.fetch("insert into @.instances (fsm, step, state) values ('other', 'run', '1')")
        await r.reaper.run_once()
        assert (await r.e.rows.row(doomed))["status"] == "failed"
        assert r.e.seen.events == []


@pytest.mark.parametrize(("crashes", "together"), [(0, 4), (1, 1)])
async def test_a_second_crash_in_a_row_lets_such_rows_run_one_by_one(
    dsn: str, schema: str, crashes: int, together: int
) -> None:
    """A first one does not: its worker may have been stopped."""
    async with reaping(dsn, schema) as r:
        r.crashed.raise_concurrency()
        r.crashed.raise_concurrency()
        await dead_claim(r.e, crashes=crashes)
        await dead_claim(r.e, crashes=0)
        await r.reaper.run_once()
        assert r.crashed.free_count == together


async def test_one_round_visits_all_gates(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In batches, up to a number of them; it ends with the last gate, and wakes the queues of unblocked rows."""
    monkeypatch.setattr(reaper_module, "UNBLOCK_BATCH", 2)
    async with reaping(dsn, schema) as r:
        await blocked(r, "a", "b", "c")
        await blocked(r, "d", queue="other")
        await r.reaper.run_once()
        assert await r.e.rows.count("blocked_on is not null") == 0
        assert sorted(set(r.told.woken)) == [("default", 1), ("other", 1)]
        assert {event.queue for event in r.e.seen.of(RowsUnblocked)} == {"default", "other"}
        assert r.count("unblock_missed_rows") == 3  # two full batches, and one that finds no gate
        await r.reaper.run_once()
        assert r.count("unblock_missed_rows") == 4
        assert r.count("delete_tickets_of_dead_claims") == 2
        assert await r.reaper._unblock_gate_batch(2, 0) == 0  # the runner does not continue: the round does


async def test_a_round_goes_on_where_the_last_one_ended(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are more gates than one round visits."""
    monkeypatch.setattr(reaper_module, "UNBLOCK_BATCH", 1)
    monkeypatch.setattr(reaper_module, "UNBLOCK_BATCHES", 2)
    async with reaping(dsn, schema) as r:
        await blocked(r, "a", "b", "c")
        await r.reaper.run_once()
        assert r.count("unblock_missed_rows") == 2
        assert await r.e.rows.count("blocked_on is not null") == 1
        await r.reaper.run_once()
        assert await r.e.rows.count("blocked_on is not null") == 0
        assert r.count("delete_tickets_of_dead_claims") == 1  # with the first gate


@pytest.mark.parametrize(("bad", "batch"), [("a", 1000), ("b", 1000), ("c", 1000), ("d", 1000), ("ab", 1)])
async def test_a_gate_that_is_refused_is_skipped(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, bad: str, batch: int
) -> None:
    """Wherever it is: all others are visited in the same round, also if the refused ones fill a batch."""
    monkeypatch.setattr(reaper_module, "UNBLOCK_BATCH", batch)
    async with reaping(dsn, schema) as r:
        await blocked(r, "a", "b", "c", "d")
        await r.e.rows.connection.execute(f"""
            create function {schema}_refuse() returns trigger language plpgsql as $$
            begin raise exception 'refused' using errcode = '23514'; end $$;
            create trigger refuse before update on "{schema}".instances for each row
              when (position(old.partition_key in '{bad}') > 0) execute function {schema}_refuse();
        """)
        try:
            await r.reaper.run_once()
        finally:
            await r.e.rows.connection.execute(f"drop function {schema}_refuse cascade")
        rows = await r.e.rows.fetch("select partition_key from @.instances where blocked_on is not null order by 1")
        await r.e.rows.fetch("delete from @.instances")
        assert [row[0] for row in rows] == list(bad)


async def test_unknown_steps_are_looked_for_every_few_rounds(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """From the first round on. Each time an event tells of them; the log names them once."""
    async with reaping(dsn, schema) as r:
        await r.e.rows.fetch(
            "insert into @.instances (fsm, fsm_version, step, state) select 'ghost', 2, 'walk', '1' "
            "from generate_series(1, 3)"
        )
        found = UnknownStepsFound("ghost", 2, "walk", "default", 3)
        for _ in range(UNKNOWN_STEPS_EVERY):
            await r.reaper.run_once()
            assert r.e.seen.of(UnknownStepsFound) == [found]
        await r.reaper.run_once()
        assert r.e.seen.of(UnknownStepsFound) == [found] * 2
        assert [x.getMessage() for x in caplog.records] == [
            "queue default: 3 rows wait for ghost version 2, step walk, which this worker was not given; "
            "start a worker that has it"
        ]


async def test_a_worker_without_queues_does_not_look_for_unknown_steps(dsn: str, schema: str) -> None:
    """It runs none."""
    async with reaping(dsn, schema, queues={}) as r:
        await r.reaper.run_once()
        assert len(r.link.texts) == 3
