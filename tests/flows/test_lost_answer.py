"""The connection breaks between the server's commit and our hearing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable import (
    Context,
    Done,
    Durable,
    Finished,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Signal,
    Start,
    Worker,
    step,
)
from gen_durable.telemetry import Event, StaleOutcome

Proxied = Callable[[], AbstractAsyncContextManager[Any]]
MARK = "lose-this-answer"
ran: list[str] = []


@dataclass(frozen=True)
class Note:
    """A state whose text decides whether the proxy loses the answer to its commit."""

    text: str


class Chain(Machine):
    """Three steps; the state of one of them carries the mark."""

    @step
    async def one(self, note: Note, ctx: Context) -> Outcome[str]:
        ran.append("one")
        return Next(self.two, Note(MARK if note.text == "two" else note.text))

    @step
    async def two(self, note: Note, ctx: Context) -> Outcome[str]:
        ran.append("two")
        if note.text == "children":
            return ScheduleChildren([Start(Leaf.grow, Note(MARK))], then=self.three, state=note)
        return Next(self.three, note)

    @step
    async def three(self, note: Note, ctx: Context) -> Outcome[str]:
        ran.append("three")
        return Done(MARK if note.text == "done" else f"{len(ctx.children)} children")


class Leaf(Machine):
    """A child that ends at once."""

    @step
    async def grow(self, note: Note, ctx: Context) -> Outcome[str]:
        ran.append("grow")
        return Done("grown")


@pytest.mark.parametrize("where", ["two", "children", "done"])
@pytest.mark.parametrize("run_ahead_steps", [0, 32])
async def test_an_outcome_whose_answer_was_lost_is_found_committed_once(
    dsn: str, schema: str, proxied: Proxied, where: str, run_ahead_steps: int
) -> None:
    """The retry after a lost answer finds its own outcome: no step runs twice, nothing is committed twice or stale."""
    ran.clear()
    events: list[Event] = []
    async with proxied() as proxy, Durable(proxy.dsn, schema=schema) as app, Durable(dsn, schema=schema) as direct:
        app.events.subscribe(events.append)
        async with Worker(app, machines=[Chain(), Leaf()], run_ahead_steps=run_ahead_steps):
            proxy.losing = MARK.encode()
            handle = await direct.insert(Chain.one, Note(where))
            ending = await handle.wait(timedelta(seconds=20))
            assert isinstance(ending, Finished)
            assert proxy.lost == 1
        row = await handle.get()
        assert row.seq == 3
        expected = ["one", "two", "grow", "three"] if where == "children" else ["one", "two", "three"]
        assert ran == expected
        assert not [e for e in events if isinstance(e, StaleOutcome)]
        connection = await asyncpg.connect(dsn)
        try:
            count = await connection.fetchval(f'select count(*) from "{schema}".instances')
        finally:
            await connection.close()
        assert count == (2 if where == "children" else 1)


async def test_a_signal_with_a_dedup_key_survives_a_lost_answer(dsn: str, schema: str, proxied: Proxied) -> None:
    """A signal that can be recognised is sent again after a lost answer, and is delivered once."""
    note = Signal("note", Note)
    async with proxied() as proxy, Durable(proxy.dsn, schema=schema) as app, Durable(dsn, schema=schema) as direct:
        handle = await direct.insert(Leaf.grow, Note("later"), delay=timedelta(hours=1))
        proxy.losing = MARK.encode()
        assert await app.signal(handle.id, note, Note(MARK), dedup_key="once") is False  # the first try did it
        assert proxy.lost == 1
        assert await direct.signal(handle.id, note, Note(MARK), dedup_key="once") is False


async def test_connections_that_are_reset_again_and_again_lose_nothing(dsn: str, schema: str, proxied: Proxied) -> None:
    """All connections of a worker are reset every 100 ms: all work is done, each outcome once."""
    async with proxied() as proxy, Durable(proxy.dsn, schema=schema) as app, Durable(dsn, schema=schema) as direct:
        async with Worker(
            app,
            machines=[Chain(), Leaf()],
            lease_ttl=timedelta(seconds=3),
            heartbeat_interval=timedelta(seconds=1),
            reap_interval=timedelta(milliseconds=200),
        ):
            handles = await direct.insert_many([Start(Chain.one, Note("children")) for _ in range(60)])
            waiting = asyncio.gather(*(h.wait(timedelta(seconds=50)) for h in handles))
            for _ in range(15):
                await asyncio.sleep(0.1)
                proxy.cut_all()
            endings = await waiting
        assert all(isinstance(ending, Finished) for ending in endings)
        assert {(await direct.get(h.id)).seq for h in handles} == {3}
