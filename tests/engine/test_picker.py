"""Picker: when it asks, and when it leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import asyncpg

from gen_durable import Durable, Start, job
from gen_durable.config import WorkerOptions
from gen_durable.core.services import services_of
from gen_durable.engine.crashed_rows import CrashedRows
from gen_durable.engine.picker import Picker
from gen_durable.engine.slots import Slots
from gen_durable.engine.task_set import TaskSet
from gen_durable.pg.connection import PersistentConnection
from gen_durable.store.types import Claim

LAZY = timedelta(hours=1)  # no poll comes to the rescue


@job
async def noop(n: int) -> int:
    """Never run here: the tests only look at what is claimed."""
    return n


class Slow(PersistentConnection):
    """A link on which something happens between the server's answer and our hearing it."""

    __slots__ = ("meanwhile",)
    meanwhile: Callable[[], Awaitable[None]] | None

    async def run(self, call: Any, *, timeout: float | None = None) -> Any:
        answer = await super().run(call, timeout=timeout)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return answer


class Claimed:
    """Stands for the claim table, the committer and the notifier: keeps the claims, and has outcomes pending."""

    def __init__(self) -> None:
        self.claims: asyncio.Queue[Claim] = asyncio.Queue()
        self.crashed = CrashedRows(None)
        self.unanswered_count = 0
        self.woken: asyncio.Queue[str] = asyncio.Queue()

    def add(self, claims: list[Claim], _leased_at: float) -> None:
        for claim in claims:
            self.claims.put_nowait(claim)

    def wake_queues(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self.woken.put_nowait(queue)

    def notify_full_pick(self, queue: str) -> None:
        pass


@asynccontextmanager
async def picking(app: Durable, pending: int = 0) -> AsyncIterator[tuple[Picker, Slow, Claimed]]:
    link = Slow(services_of(app).target)
    link.meanwhile = None
    claimed = Claimed()
    claimed.unanswered_count = pending
    options = WorkerOptions(poll_interval=LAZY, max_poll_interval=LAZY)
    around = cast(Any, claimed)
    pick = Picker(
        link,
        services_of(app).statements,
        options,
        worker="w",
        known_steps=["noop/1/run"],
        slots=Slots(options.concurrency_by_queue, options.prefetch, tasks=TaskSet(), notifier=around),
        claims=around,
        committer=around,
        notifier=around,
        events=app.events,
    )
    try:
        yield pick, link, claimed
    finally:
        await pick.stop()
        await link.close()


async def test_a_nearer_moment_told_during_a_pick_is_not_forgotten(dsn: str, schema: str) -> None:
    """The answer of a pick speaks of a row due in an hour; a nearer one was told while it was under way, and counts."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, link, claimed):
        await app.insert(noop, 1, delay=timedelta(hours=1))

        async def nearer() -> None:
            await app.insert(noop, 2, delay=timedelta(seconds=0.3))
            pick._slots.schedule_pick("default", 0.3)

        link.meanwhile = nearer
        pick.start()
        claim = await asyncio.wait_for(claimed.claims.get(), 5)
        assert claim.state == "2"


async def test_nothing_is_claimed_while_outcomes_pile_up(dsn: str, schema: str) -> None:
    """A worker that cannot get rid of what it has done takes no more; it goes on when the pile is gone."""
    async with Durable(dsn, schema=schema) as app, picking(app, pending=10_000) as (pick, _, claimed):
        await app.insert_many([Start(noop, n) for n in range(3)])
        pick.start()
        done, _ = await asyncio.wait([waiting := asyncio.ensure_future(claimed.claims.get())], timeout=0.3)
        assert not done
        claimed.unanswered_count = 0
        assert (await asyncio.wait_for(waiting, 5)).machine == "noop"


async def test_the_queue_of_a_row_that_a_pick_unblocks_is_woken(dsn: str, schema: str) -> None:
    """A row found in one queue is not the first of its key: the first is blocked in another queue, and is due now."""
    async with Durable(dsn, schema=schema) as app, picking(app) as (pick, _, claimed):
        first = await app.insert(noop, 1, queue="other", partition_key="k")
        await app.insert(noop, 2, partition_key="k")
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(
                f"update \"{schema}\".instances set blocked_on = case when id = {first.id} then 'partition/k' end"
            )
        finally:
            await connection.close()
        pick.start()
        assert await asyncio.wait_for(claimed.woken.get(), 5) == "other"
        assert claimed.claims.empty()
