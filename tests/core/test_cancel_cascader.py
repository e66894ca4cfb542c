"""Cascades in the background: one at a time for each origin, and none is forgotten."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import pytest
from tests.core.test_notifier import Endpoint, listening
from tests.support.engine import Engine, Opening, soon
from tests.support.processes import open_proxy
from tests.support.rows import ended, executing, instance

from gen_durable import Durable
from gen_durable.backoff import GrowingPauses
from gen_durable.core import cancel_cascader as cascader_module
from gen_durable.core.cancel_cascader import CascadeCount
from gen_durable.core.services import services_of
from gen_durable.core.statement_runner import StatementRunner
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import NO_FOLLOW_UPS, CascadeResult


async def test_a_start_while_the_last_cascade_ends(dsn: str, schema: str) -> None:
    """In whichever iteration of the loop it comes, a cascade runs that has not ended."""
    async with Durable(dsn, schema=schema) as app:
        cascader = services_of(app).notifier.cascader
        seen = set()
        while len(seen) < 5:
            cascader.start_cascade(None)
            assert not cascader._tasks[None].done()
            seen.add(cascader._tasks[None])
            await asyncio.sleep(0)


async def test_a_cascade_that_other_code_cancels_before_it_begins(dsn: str, schema: str) -> None:
    """The next one of its origin runs."""
    async with Durable(dsn, schema=schema) as app:
        cascader = services_of(app).notifier.cascader
        cascader.start_cascade(7)
        cascader._tasks[7].cancel()
        await asyncio.sleep(0.01)
        cascader.start_cascade(7)
        assert not cascader._tasks[7].done()
        await asyncio.wait([cascader._tasks[7]], timeout=10)
        assert cascader._tasks == {}


async def family(e: Engine, *children: str) -> None:
    """A cancelled parent 1 that is listed, and its children."""
    rows = ended(1, status="cancelled", round=1)
    rows += "insert into @schema.cascades (parent_id, first_round, last_round, origin, reason) values (1, 0, 1, 1, 'x')"
    await e.rows.connection.execute(";".join([rows, *children]).replace("@schema", f'"{e.rows.schema}"'))


def child(id_: int) -> str:
    return instance(id_, parent_id=1, parent_round=1)


def count_batches(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each batch began, from now on."""
    began: list[float] = []
    statement = StatementBuilder.cancel_listed_descendants
    monkeypatch.setattr(
        StatementBuilder,
        "cancel_listed_descendants",
        lambda self, *args: began.append(time.monotonic()) or statement(self, *args),
    )
    return began


async def test_batches_with_children_follow_each_other_without_a_pause(
    engine: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: only batches without any are bounded."""
    monkeypatch.setattr(cascader_module, "BATCH", 1)
    monkeypatch.setattr(cascader_module, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(cascader_module, "MAX_EMPTY_BATCHES", 2)
    async with engine() as e:
        await family(e, *map(child, range(2, 6)), executing(6, parent_id=1, parent_round=1))
        notifier, worker = services_of(e.app).notifier, Endpoint("w")
        await listening(notifier, worker)
        assert await soon(notifier.cascader.run_cascade(1)) == CascadeCount(ended=4, requested=1)
        assert await worker.next() == "check cancels"
        notifier.remove_worker(worker)


async def test_children_that_stay_locked_are_left_to_the_reaper(
    engine: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After some batches without a child, with growing pauses between them."""
    monkeypatch.setattr(cascader_module, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(cascader_module, "MAX_EMPTY_BATCHES", 3)
    async with engine() as e:
        await family(e, child(2), child(3))
        began = count_batches(monkeypatch)
        async with e.rows.connection.transaction():
            await e.rows.fetch("select from @.instances where id = 3 for no key update")
            cascader = services_of(e.app).notifier.cascader
            with caplog.at_level("INFO", "gen_durable.cascade"):
                assert await soon(cascader.run_cascade(1)) == CascadeCount(ended=1, requested=0)
        assert len(began) == 4  # the first one ends a child
        assert began[2] - began[1] > 0.018
        assert began[3] - began[2] > 0.036
        assert caplog.messages == ["cascade of instance 1: the remaining children are left to the reaper of a worker"]
        assert await soon(cascader.run_cascade(1)) == CascadeCount(ended=1, requested=0)


class ScriptedRunner(StatementRunner):
    """Returns these batches."""

    __slots__ = ("batches",)
    batches: list[CascadeResult]

    async def run(self, statement: Statement[Any], operation: str, *, may_run_twice: bool) -> Any:
        return self.batches.pop(0)


async def test_pauses_begin_anew_after_progress(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[float] = []

    class NotedPauses(GrowingPauses):
        def next_seconds(self) -> float:
            noted.append(super().next_seconds())
            return 0.0

    monkeypatch.setattr(cascader_module, "GrowingPauses", NotedPauses)
    async with Durable(dsn, schema=schema) as app:
        services = services_of(app)
        runner = ScriptedRunner(lambda: services.pool, schema)
        empty = CascadeResult(0, 0, NO_FOLLOW_UPS, more=True, refused=[], refusal=None)
        progress = dataclasses.replace(empty, ended=1)
        runner.batches = [empty, empty, progress, empty, dataclasses.replace(progress, more=False)]
        found = await cascader_module.CancelCascader(runner, services.statements, services.notifier).run_cascade(1)
    assert found == CascadeCount(ended=2, requested=0)
    assert noted == [cascader_module.FIRST_PAUSE, 2 * cascader_module.FIRST_PAUSE, cascader_module.FIRST_PAUSE]


async def test_a_lost_answer_does_not_interrupt_a_cascade(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is repeated."""
    async with open_proxy(dsn) as proxy, Durable(proxy.dsn, schema=schema) as app:
        assert await services_of(app).notifier.cascader.run_cascade(None) == CascadeCount(0, 0)  # it connects
        proxy.losing = b""
        assert await services_of(app).notifier.cascader.run_cascade(None) == CascadeCount(0, 0)
        assert proxy.lost == 1
    assert caplog.messages == []


async def test_messages_start_few_cascades_and_forget_no_origin(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first at once, then one at a time; more origins than are kept become one cascade of any origin."""
    monkeypatch.setattr(cascader_module, "REQUEST_SECONDS", 0.001)
    started: list[int | None] = []
    async with Durable(dsn, schema=schema) as app:
        cascader = services_of(app).notifier.cascader
        monkeypatch.setattr(cascader_module.CancelCascader, "start_cascade", lambda _, origin: started.append(origin))

        async def requested(*origins: int | None) -> set[int | None]:
            started.clear()
            for origin in origins:
                cascader.request_cascade_at_bounded_rate(origin)
                assert len(cascader._requested) <= cascader_module.MAX_REQUESTS
            assert cascader._request_task is not None
            await soon(asyncio.wait([cascader._request_task]))
            assert len(started) == len(set(started))
            return set(started)

        few = range(1, cascader_module.MAX_REQUESTS + 1)
        assert await requested(*few, *few) == {*few}
        assert await requested(*range(1000)) == {None}
        assert await requested(1, None, 2) == {None}
        # While that many cascades run, as when the database is slow, one of any origin stands for the others.
        pending = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(cascader, "_tasks", dict.fromkeys(few, asyncio.ensure_future(pending)))
        assert await requested(77) == {None}
        pending.set_result(None)


async def test_closing_ends_cascades(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        cascader = services_of(app).notifier.cascader
        cascader.start_cascade(7)
        task = cascader._tasks[7]
        await asyncio.sleep(0)
        await cascader.close()
        assert task.cancelled()
        cascader.start_cascade(8)
        task = cascader._tasks[8]
        cascader._requested_at = time.monotonic() + 3600.0
        cascader.request_cascade_at_bounded_rate(9)
        request_task = cascader._request_task
        await asyncio.sleep(0)
    assert task.cancelled()
    assert request_task is not None
    assert request_task.cancelled()
    assert cascader._tasks == {}
