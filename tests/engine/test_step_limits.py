"""Limits that a step asks for from inside: a place in the line is taken once, and given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg
import pytest
from tests.support.pauses import record_pauses
from tests.support.rows import executing, instance

from gen_durable.engine import step_limiter
from gen_durable.engine.step_limiter import StepLimiter
from gen_durable.errors import DatabaseUnavailable, LeaseLost
from gen_durable.limits import Concurrency, Limit, Rate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.pg.sqlstate_errors import to_library_error
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement, StatementBuilder

T = TypeVar("T")
L = Limit("l")


class Asked:
    """Asks one connection. Answers may get lost, or be late."""

    def __init__(self, link: PersistentConnection) -> None:
        self.link = link
        self.lose = 0  # so many answers get lost, and the call is run again
        self.hold: asyncio.Event | None = None  # answers wait for this
        self.answered = asyncio.Event()
        self.fault: Exception | None = None  # raised once, after the call has run
        self.calls = 0

    async def run(self, call: Statement[T], what: str, *, may_run_twice: bool) -> T:
        assert may_run_twice, what
        self.calls += 1
        try:
            answer = await self.link.run(call)
        except asyncpg.PostgresError as error:
            raise to_library_error(error, what, "") from None
        while self.lose:
            self.lose -= 1
            answer = await self.link.run(call)
        self.answered.set()
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        if self.hold is not None:
            await self.hold.wait()
        return answer


class Room:
    """StepLimiter on a schema."""

    def __init__(self, link: PersistentConnection, schema: str) -> None:
        self.link, self.schema, self.asked = link, Schema(schema), Asked(link)
        self.calls = StatementBuilder(self.schema)
        self.rung: list[str] = []
        self.limits = StepLimiter(self.asked, self.calls, self)  # type: ignore[arg-type]

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
        link = PersistentConnection(ConnectionTarget(dsn))
        one = Room(link, schema)
        rows = executing(1) + executing(2) + instance(3, slot_key="l", blocked_on="slot/l", queue="q")
        await link.run_script(one.schema.render(rows))
        await link.run(one.calls.set_limit("l", Concurrency(1), declared=False))
        await link.run_script(one.schema.render("update @schema.instances set blocked_on = 'slot/l' where id = 3"))
        try:
            yield one
        finally:
            await link.run(one.calls.unblock_missed_rows(None, 10))
            await link.close()

    return made


async def test_a_lost_answer_is_not_a_second_place(room: Callable[[], Any]) -> None:
    """With one slot, a step that had two places would wait for itself."""
    async with room() as r:
        r.asked.lose = 1
        async with asyncio.timeout(5), r.limits.limit_context(1, 1, None, L):
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
        async with r.limits.limit_context(1, 1, None, L):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), r.limits.limit_context(2, 1, None, L):
                    raise AssertionError("two in one slot")
            assert await r.tickets() == 1
        async with asyncio.timeout(5), r.limits.limit_context(2, 1, None, L):
            pass


async def test_the_next_in_line_enters(room: Callable[[], Any]) -> None:
    async with room() as r:
        inside: list[int] = []

        async def visit(claim: int) -> None:
            async with r.limits.limit_context(claim, 1, None, L):
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
    async with room() as r, asyncio.timeout(5), r.limits.limit_context(1, 1, "l", L):
        assert await r.tickets() == 0


async def test_tokens(room: Callable[[], Any]) -> None:
    """A token that comes soon is waited for; nothing is to be given back."""
    async with room() as r:
        await r.link.run(r.calls.set_limit("r", Rate(10, timedelta(seconds=1)), declared=False))
        began = asyncio.get_running_loop().time()
        for _ in range(3):
            async with r.limits.limit_context(1, 1, None, Limit("r")):
                pass
        assert asyncio.get_running_loop().time() - began > 0.15
        assert await r.tickets() == 0


async def test_a_request_that_fails_gives_back_the_place_that_it_may_have(room: Callable[[], Any]) -> None:
    """The database has made a place, and its answer was lost for good. The error of the request is raised."""
    async with room() as r:
        r.asked.fault = DatabaseUnavailable("lost")
        with pytest.raises(DatabaseUnavailable, match="lost"):
            await r.limits.acquire(1, 1, L)
        assert await r.tickets() == 0
        assert r.rung == ["q"]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of requests, each of which takes ten milliseconds here."""
    return record_pauses(monkeypatch, longest=0.01)


async def test_a_limit_that_is_removed_lets_those_in_line_enter(room: Callable[[], Any], slept: list[float]) -> None:
    """A ticket is still released in the end; between two requests there are growing pauses, shortened at random."""
    async with room() as r, asyncio.timeout(10), r.limits.limit_context(1, 1, None, L):
        entering = asyncio.create_task(r.limits.acquire(2, 1, L))
        while len(slept) < 6 or await r.tickets() < 2:  # noqa: ASYNC110 - requests have no event
            await asyncio.sleep(0)
        assert not entering.done()
        await r.link.run(r.calls.remove_limit("l"))
        ticket = await entering
        assert isinstance(ticket, int)
        first, longest = step_limiter.FIRST_PAUSE, step_limiter.LONGEST_PAUSE
        bounds = [min(first * 2**n, longest) for n in range(len(slept))]
        assert all(most / 2 <= seconds < most for seconds, most in zip(slept, bounds, strict=True))
        await r.limits.release(ticket)


async def test_a_token_that_comes_late_is_asked_for_again_then(room: Callable[[], Any], slept: list[float]) -> None:
    """Not before: the database says how long to wait. A removed limit needs no ticket."""
    async with room() as r:
        await r.link.run(r.calls.set_limit("r", Rate(1, timedelta(seconds=60)), declared=False))
        async with asyncio.timeout(10), r.limits.limit_context(1, 1, None, Limit("r")):
            pass
        entering = asyncio.create_task(r.limits.acquire(1, 1, Limit("r")))
        while not slept:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert set(slept) == {30}
        await r.link.run(r.calls.remove_limit("r"))
        assert await asyncio.wait_for(entering, 10) is None
