"""Limits that a step asks for from inside: a place in the line is taken once, and given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from tests.support.rows import executing, instance

from gen_durable.engine.limits_in_step import LimitsInStep
from gen_durable.errors import LeaseLost
from gen_durable.limits import Concurrency, Limit, Rate
from gen_durable.pg.connection import PersistentConnection, Target
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement, Statements

T = TypeVar("T")
L = Limit("l")


class Asked:
    """Asks one connection. Answers may get lost, or be late."""

    def __init__(self, link: PersistentConnection) -> None:
        self.link = link
        self.lose = 0  # so many answers get lost, and the call is run again
        self.hold: asyncio.Event | None = None  # answers wait for this
        self.answered = asyncio.Event()

    async def run(self, call: Statement[T], what: str, *, may_run_twice: bool) -> T:
        assert may_run_twice, what
        answer = await self.link.run(call)
        while self.lose:
            self.lose -= 1
            answer = await self.link.run(call)
        self.answered.set()
        if self.hold is not None:
            await self.hold.wait()
        return answer


class Room:
    """LimitsInStep on a schema."""

    def __init__(self, link: PersistentConnection, schema: str) -> None:
        self.link, self.schema, self.asked = link, Schema(schema), Asked(link)
        self.calls = Statements(self.schema)
        self.rung: list[str] = []
        self.limits = LimitsInStep(self.asked, self.calls, self)  # type: ignore[arg-type]

    def wake_queues(self, queues: Iterable[str]) -> None:
        self.rung += queues

    async def sql(self, text: str) -> list[Any]:
        return await self.link.run(Statement(self.schema.render(text), (), list))

    async def tickets(self) -> int:
        return len(await self.sql("select from @schema.step_slots"))


@pytest.fixture
def room(dsn: str, schema: str) -> Callable[[], Any]:
    @asynccontextmanager
    async def made() -> AsyncIterator[Room]:
        link = PersistentConnection(Target(dsn))
        one = Room(link, schema)
        rows = executing(1) + executing(2) + instance(3, slot_key="l", blocked_on="slot/l", queue="q")
        await link.run_script(one.schema.render(rows))
        await link.run(one.calls.set_limit("l", Concurrency(1), declared=False))
        await link.run_script(one.schema.render("update @schema.instances set blocked_on = 'slot/l' where id = 3"))
        try:
            yield one
        finally:
            await link.run(one.calls.unblock_missed(None, 10))
            await link.close()

    return made


async def test_a_lost_answer_is_not_a_second_place(room: Callable[[], Any]) -> None:
    """With one slot, a step that had two places would wait for itself."""
    async with room() as r:
        r.asked.lose = 1
        async with asyncio.timeout(5), r.limits.lease(1, 1, None, L):
            assert await r.tickets() == 1
        assert await r.tickets() == 0
        assert r.rung == ["q"]


async def test_cancelled_before_the_answer(room: Callable[[], Any]) -> None:
    """The database has made a place; nobody waits for the answer. It is given back."""
    async with room() as r:
        r.asked.hold = asyncio.Event()
        task = asyncio.create_task(r.limits.acquire(1, 1, L))
        await r.asked.answered.wait()
        assert await r.tickets() == 1
        task.cancel()
        await asyncio.sleep(0)
        r.asked.hold.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await r.tickets() == 0
        assert r.rung == ["q"]


async def test_cancelled_in_the_line(room: Callable[[], Any]) -> None:
    async with room() as r:
        async with r.limits.lease(1, 1, None, L):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), r.limits.lease(2, 1, None, L):
                    raise AssertionError("two in one slot")
            assert await r.tickets() == 1
        async with asyncio.timeout(5), r.limits.lease(2, 1, None, L):
            pass


async def test_the_next_in_line_enters(room: Callable[[], Any]) -> None:
    async with room() as r:
        inside: list[int] = []

        async def visit(claim: int) -> None:
            async with r.limits.lease(claim, 1, None, L):
                inside.append(claim)
                assert len(inside) == 1
                await asyncio.sleep(0.05)
                inside.remove(claim)

        async with asyncio.timeout(10):
            await asyncio.gather(visit(1), visit(2), visit(1))


async def test_a_claim_that_was_lost(room: Callable[[], Any]) -> None:
    async with room() as r:
        with pytest.raises(LeaseLost):
            await r.limits.acquire(1, 7, L)
        assert await r.tickets() == 0


async def test_the_slot_that_the_step_has_already(room: Callable[[], Any]) -> None:
    async with room() as r, asyncio.timeout(5), r.limits.lease(1, 1, "l", L):
        assert await r.tickets() == 0


async def test_tokens(room: Callable[[], Any]) -> None:
    """A token that comes soon is waited for; nothing is to be given back."""
    async with room() as r:
        await r.link.run(r.calls.set_limit("r", Rate(10, timedelta(seconds=1)), declared=False))
        began = asyncio.get_running_loop().time()
        for _ in range(3):
            async with r.limits.lease(1, 1, None, Limit("r")):
                pass
        assert asyncio.get_running_loop().time() - began > 0.15
        assert await r.tickets() == 0
