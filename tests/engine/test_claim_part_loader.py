"""ClaimPartLoader: large parts of claims are read page by page, in order, within bounds, and one claim at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
import pytest
from tests.support.engine import Engine, opened

from gen_durable import Handle, Signal, job
from gen_durable.core.services import services_of
from gen_durable.engine import claim_part_loader as module
from gen_durable.engine.claim_part_loader import ClaimPartLoader, UnreadableClaim
from gen_durable.engine.journal_action_runner import JournalActionRunner
from gen_durable.engine.step_journal import StepJournal
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.pg.pool import Pool
from gen_durable.store import inbox as inbox_module
from gen_durable.store import journal as journal_module
from gen_durable.store.statements import Statement
from gen_durable.store.types import Claim

part = Signal("part", str)
LATE = 3600


@job
async def nothing(number: int) -> None:
    """Never run here."""


class Counting:
    """The pool, counting its statements."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.statements = 0

    async def run_idempotent(self, statement: Statement[Any]) -> Any:
        self.statements += 1
        return await self.pool.run_idempotent(statement)


class Reading:
    """A reader, and an instance whose parts it reads."""

    def __init__(self, e: Engine, handle: Handle[None]) -> None:
        services = services_of(e.app)
        self.e = e
        self.handle = handle
        self.pool = Counting(services.pool)
        self.reader = ClaimPartLoader(
            cast(Any, self.pool),
            services.statements,
            services.journal_statements,
            JournalActionRunner(
                services.pool,
                services.schema.name,
                services.journal_statements,
                ThreadPool(1),
                services.installation_id,
            ),
        )

    def claim(self, **unread: Any) -> Claim:
        claim = Claim(self.handle.id, "nothing", 1, "run", "1", 0, 1, 0, "default", 0, None, None, None, None, **unread)
        claim.children = None
        return claim

    async def send(self, *sizes: int) -> None:
        """Signals with payloads of these sizes, with their quotes."""
        for number, size in enumerate(sizes):
            await self.handle.signal(part, str(number) * (size - 2))

    async def start(self, count: int) -> None:
        """Children of ten bytes each, state and result."""
        await self.e.rows.fetch(
            "insert into @.instances (fsm, step, state, status, parent_id, parent_round, result, finished_at, seq) "
            "select 'nothing', 'run', '\"ab\"', 'done', i.id, i.round, '\"cdef\"', now(), 1 "
            "from @.instances i, generate_series(1, $2) where i.id = $1",
            self.handle.id, count,
        )  # fmt: skip

    async def record(self, count: int, result: str) -> None:
        await self.e.rows.fetch(
            "insert into @.activities "
            "(instance_id, started_at, duration, visit, n, attempt, step, name, parameters, result)"
            " select $1, now(), 0, 0, n, 0, 's', 'a' || n, '[]', $3::text::jsonb from generate_series(1, $2) as n",
            self.handle.id, count, result,
        )  # fmt: skip


@asynccontextmanager
async def reading(dsn: str, schema: str) -> AsyncIterator[Reading]:
    async with opened(dsn, schema) as e:
        yield Reading(e, await e.app.insert(nothing, 1, delay=LATE))
        await e.rows.fetch("delete from @.activities")
        await e.rows.fetch("delete from @.instances")


def sizes_of(claim: Claim) -> list[int]:
    return [len(received.payload) for received in claim.inbox]


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(100, [5, 5, 4, 2, 5]), (14, [5, 5, 4]), (13, [5, 5]), (10, [5, 5]), (9, [5]), (1, [5])],
)
@pytest.mark.parametrize("awaits", [["part", "other"], None], ids=["awaited", "unawaited"])
async def test_an_inbox_ends_with_the_last_signal_that_fits(  # noqa: PLR0917  # parameters
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, most: int, sizes: list[int], awaits: list[str] | None
) -> None:
    """A smaller one after it does not come before it; at least one is taken. The order is that of the ids."""
    monkeypatch.setattr(inbox_module, "PAGE_BYTES", 10)
    monkeypatch.setattr(module, "MAX_CLAIM_PART" if awaits else "MAX_UNAWAITED", most)
    async with reading(dsn, schema) as r:
        await r.send(5, 5, 4, 2, 5)  # two pages and a half, the second of which may end too early
        claim = r.claim(has_unread_inbox=True)
        claim.awaits = awaits
        async with r.reader.load_parts_within_bound(claim):
            assert sizes_of(claim) == sizes
            assert r.reader._bytes == sum(sizes)
        assert r.reader._bytes == 0
        assert [received.id for received in claim.inbox] == sorted(received.id for received in claim.inbox)


async def test_awaited_signals_come_whole_before_the_others(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the others the oldest come, up to a bound of their own, in bytes and in number."""
    monkeypatch.setattr(module, "MAX_UNAWAITED", 10)
    late = Signal("late", str)
    async with reading(dsn, schema) as r:
        await r.send(5, 5, 5)
        await r.e.app.signal(r.handle, late, "x" * 40)
        claim = r.claim(has_unread_inbox=True)
        claim.awaits = ["late"]
        async with r.reader.load_parts_within_bound(claim):
            assert [(received.name, len(received.payload)) for received in claim.inbox] == [
                ("part", 5),
                ("part", 5),
                ("late", 42),
            ]
        monkeypatch.setattr(module, "MAX_SIGNALS", 1)
        claim = r.claim(has_unread_inbox=True)
        claim.awaits = ["late"]
        async with r.reader.load_parts_within_bound(claim):
            assert [received.name for received in claim.inbox] == ["part", "late"]


@pytest.mark.parametrize(
    ("most", "is_read"), [((50, 5), True), ((49, 5), False), ((50, 4), False), ((1000, 1000), True)]
)
async def test_children_are_read_whole_or_not_at_all(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, most: tuple[int, int], is_read: bool
) -> None:
    """In pages; beyond the bounds the step reads them itself, and they do not count."""
    monkeypatch.setattr(module, "PAGE", 2)
    monkeypatch.setattr(module, "MAX_CLAIM_PART", most[0])
    monkeypatch.setattr(module, "MAX_LOADED_CHILDREN", most[1])
    async with reading(dsn, schema) as r:
        await r.start(5)
        claim = r.claim(has_unread_children=True)
        assert await r.reader._load_parts(claim) == (50 if is_read else 0)
        if is_read:
            assert claim.children is not None
            assert [child.result for child in claim.children] == ["cdef"] * 5
            assert len({child.id for child in claim.children}) == 5
            assert r.pool.statements == 4
        else:
            assert claim.children is None


@pytest.mark.parametrize(("result", "pages"), [('"aa"', 3), ('"aaa"', 1)])
async def test_activities_are_read_up_to_twice_the_bound(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, result: str, pages: int
) -> None:
    """Their text may be twice as long as what a worker has recorded."""
    monkeypatch.setattr(journal_module, "PAGE_BYTES", 5)
    monkeypatch.setattr(module, "MAX_CLAIM_PART", 2)
    async with reading(dsn, schema) as r:
        await r.record(2, result)
        claim = r.claim(has_unread_activities=True, journal='{"activities": true}')
        count = min(pages, 2)
        assert await r.reader._load_parts(claim) == count * len(result)
        assert r.pool.statements == (2 if pages == 3 else 1)
        assert isinstance(claim.step_journal, StepJournal)
        assert sorted(claim.step_journal._finished) == [f"a{n + 1}" for n in range(count)]


async def test_a_journal_that_cannot_be_read_is_left_to_the_executor(dsn: str, schema: str) -> None:
    """It meets the same error, and puts the row back."""
    async with reading(dsn, schema) as r:
        claim = r.claim(has_unread_activities=True, journal='{"checkpoint": [99, 1, 1], "activities": true}')
        assert await r.reader._load_parts(claim) == 0
        assert r.pool.statements == 0


async def test_the_sizes_of_all_parts_are_added_up(dsn: str, schema: str) -> None:
    """Parts that came with the claim are not read again."""
    async with reading(dsn, schema) as r:
        await r.send(7)
        await r.start(2)
        await r.record(1, '"abc"')
        assert await r.reader._load_parts(r.claim()) == 0
        assert r.pool.statements == 0
        everything = r.claim(
            has_unread_inbox=True, has_unread_children=True, has_unread_activities=True, journal='{"activities": true}'
        )
        assert await r.reader._load_parts(everything) == 7 + 20 + 5


async def test_a_claim_waits_while_those_that_run_are_too_large_together(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read when one of them has ended; a total that is just allowed lets the next one in."""
    monkeypatch.setattr(module, "MAX_BYTES", 7)
    async with reading(dsn, schema) as r:
        await r.send(7)
        ends = [asyncio.Event() for _ in range(3)]
        begun: list[int] = []

        async def run(number: int) -> None:
            async with r.reader.load_parts_within_bound(r.claim(has_unread_inbox=True)):
                begun.append(number)
                await ends[number].wait()

        async with asyncio.timeout(10), r.reader.load_parts_within_bound(r.claim()):
            pass  # it is released before: what waits must wait for the next release
        tasks = [asyncio.create_task(run(number)) for number in range(3)]
        async with asyncio.timeout(10):
            while len(begun) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            assert begun == [0, 1]
            ends[0].set()
            ends[2].set()
            await asyncio.wait([tasks[2]])
            assert begun == [0, 1, 2]
            ends[1].set()
            await asyncio.gather(*tasks)
        assert r.reader._bytes == 0


async def test_an_error_of_the_database_names_what_cannot_be_read(dsn: str, schema: str) -> None:
    """With its SQLSTATE and without its text; the next claim is read."""
    async with reading(dsn, schema) as r:
        await r.send(7)
        statements = r.reader._signal_statements

        class Broken:
            def inbox_page(self, *_: object) -> Statement[Any]:
                return Statement("select 1 / 0", (), list)

        r.reader._signal_statements = cast(Any, Broken())
        with pytest.raises(UnreadableClaim) as raised:
            async with r.reader.load_parts_within_bound(r.claim(has_unread_inbox=True)):
                raise AssertionError("it was not read")
        assert str(raised.value) == (
            "its signals, children or activities cannot be read (DivisionByZeroError, SQLSTATE 22012)"
        )
        assert isinstance(raised.value.__cause__, asyncpg.DivisionByZeroError)
        assert r.reader._bytes == 0
        r.reader._signal_statements = statements
        async with asyncio.timeout(10), r.reader.load_parts_within_bound(claim := r.claim(has_unread_inbox=True)):
            assert sizes_of(claim) == [7]
