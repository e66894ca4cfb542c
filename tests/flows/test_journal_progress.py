"""Progress: the last word counts, and nobody waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.journal import SOON, Counting, Opening, Scripted, run

from gen_durable import (
    Context,
    Done,
    Finished,
    Outcome,
    Start,
    Worker,
)
from gen_durable.core.services import services_of
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.journal import ProgressReport
from gen_durable.store.statements import Statement


async def test_progress_is_gathered_and_the_last_word_counts(open_app: Opening) -> None:
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
        services_of(app).journal_statements = counting = Counting(app)
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


async def test_a_report_of_a_locked_row_is_written_later(open_app: Opening) -> None:
    """Somebody's transaction holds the row: the report waits for it, and not the step."""

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        link = PersistentConnection(services_of(app).connection_target)
        connection = await link.connect()
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(services_of(app).statements.schema.render("select from @schema.instances for update"))
        ctx.progress(0.5)
        await counting.twice.wait()
        assert await app.progress(ctx.id) == []
        await transaction.rollback()
        await link.close()
        return Done(n)

    async with open_app() as app:
        services_of(app).journal_statements = counting = Counting(app)
        machine = Scripted(first)
        handle, ending = await run(app, machine)
        assert isinstance(ending, Finished), machine.errors
        assert [p.fraction for p in await app.progress(handle)] == [0.5]


async def test_progress_does_not_fail_without_a_database(open_app: Opening) -> None:
    """A report that cannot be written is dropped: the step does not notice."""

    class Broken(Counting):
        __slots__ = ()

        def record_progress(self, reports: Sequence[ProgressReport]) -> Statement[set[int]]:
            self.sent.append(reports)
            return Statement("select 1 / 0", (), lambda _: set())

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        ctx.progress(0.5)
        await asyncio.sleep(0.1)
        ctx.progress(0.6)
        return Done(n)

    async with open_app() as app:
        services_of(app).journal_statements = broken = Broken(app)
        handle, ending = await run(app, Scripted(first))
        assert ending == Finished(handle.id, 1)
        assert len(broken.sent) == 2


async def test_a_report_that_the_database_refuses_does_not_take_the_others_with_it(
    open_app: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    """One of twenty reports of a batch violates a constraint: nineteen are stored, and the fault is logged."""

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        for k in range(20):
            ctx.progress(k / 20, branch=f"b{k}", detail={"bad": k == 7})
        return Done(n)

    async with open_app() as app:
        services = services_of(app)
        services.journal_statements = counting = Counting(app)
        check = "alter table @schema.progress add check (detail is distinct from '{\"bad\": true}')"
        await services.pool.run(Statement(services.schema.render(check), (), list))
        handle, ending = await run(app, Scripted(first))
        assert ending == Finished(handle.id, 1)
        assert {p.branch for p in await app.progress(handle)} == {f"b{k}" for k in range(20) if k != 7}
        assert len(counting.sent[0]) == 20
        assert caplog.text.count("progress: the database refuses a row") == 1


async def test_a_statement_of_reports_is_bounded_in_bytes(open_app: Opening) -> None:
    """Forty reports of 0.9 MB each are sent in several statements."""

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        for k in range(40):
            ctx.progress(k / 40, branch=f"b{k}", detail="x" * 900_000)
        for _ in range(300):
            if len(await app.progress(ctx.id)) == 40:
                break
            await asyncio.sleep(0.1)
        return Done(n)

    async with open_app() as app:
        services_of(app).journal_statements = counting = Counting(app)
        handle, ending = await run(app, Scripted(first))
        assert ending == Finished(handle.id, 1)
        assert [len(reports) for reports in counting.sent] == [17, 17, 6]
