"""The completion watcher: a new waiter is cheap however many others wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.support.engine import Opening, seconds, soon

from gen_durable import Cancelled, Finished, Status, job
from gen_durable.core import completion_watcher
from gen_durable.core.completion_watcher import (
    FIRST_PAUSE,
    GROWTH,
    LONGEST_PAUSE,
    CompletionWatcher,
    WatchedInstance,
)
from gen_durable.core.services import services_of
from gen_durable.errors import ConfigError
from gen_durable.pg.pool import Pool
from gen_durable.starts import Start
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import EndedInstance, Row

CROWD = 500


@job
async def never_run(number: int) -> int | str:
    return number


async def test_a_new_waiter_is_looked_up_without_the_others(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten callers come and go beside five hundred that wait: only they are polled often."""
    async with engine() as e:
        handles = await e.app.insert_many([Start(never_run, n) for n in range(CROWD)])
        crowd = [asyncio.create_task(handle.wait(seconds(60))) for handle in handles]
        await asyncio.sleep(1.5)  # their polls have become rare
        looked_up: list[int] = []
        ends_of = StatementBuilder.ends_of
        monkeypatch.setattr(
            StatementBuilder, "ends_of", lambda self, ids, *size: looked_up.extend(ids) or ends_of(self, ids, *size)
        )
        for handle in handles[:10]:
            await handle.wait(seconds(0.04))
        assert len(looked_up) < 5 * CROWD  # two or three rare polls of all, and a few of each new one
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)


async def test_a_second_waiter_of_an_instance_is_answered_as_soon_as_the_first(engine: Opening) -> None:
    """A waiter that comes while its instance is polled rarely makes it be polled often again."""
    async with engine() as e, engine() as other:
        handle = await e.app.insert(never_run, 7)
        first = asyncio.create_task(handle.wait(seconds(60)))
        await asyncio.sleep(1.5)
        second = asyncio.create_task(handle.wait(seconds(60)))
        await asyncio.sleep(0)
        await other.app.cancel(handle.id)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await first == await second
        assert loop.time() - began < 0.2


async def test_a_new_instance_is_not_polled_before_it_can_have_ended(
    engine: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait right after the insert leaves the database to the worker; any other wait is answered at once."""
    monkeypatch.setattr("gen_durable.core.completion_watcher.SHORTEST_LIFE", 3600)
    polled: list[int] = []
    ends_of = StatementBuilder.ends_of
    monkeypatch.setattr(
        StatementBuilder, "ends_of", lambda self, ids, *size: polled.extend(ids) or ends_of(self, ids, *size)
    )
    async with engine() as e:
        new = await e.app.insert(never_run, 1)
        waiting = asyncio.create_task(new.wait(seconds(60)))
        known = await e.app.insert(never_run, 2, unique_key="two")
        existing = await e.app.insert(never_run, 2, unique_key="two", on_conflict="existing")
        await e.app.cancel(known)
        for handle in (e.app.handle(known.id, never_run), existing):
            assert isinstance(await handle.wait(seconds(60)), Cancelled)
        assert new.id not in polled
        assert new == e.app.handle(new.id, never_run)  # a handle is equal however it was made
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_results_of_many_waiters_come_in_bounded_answers(
    engine: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty callers wait for results of 0.9 MB that end at once: no answer has many more than 16 MB."""
    answers: list[int] = []
    ends_of = StatementBuilder.ends_of

    def measured(self: StatementBuilder, ids: Sequence[int], page_size: int) -> Statement[list[EndedInstance]]:
        statement = ends_of(self, ids, page_size)

        def read(rows: Sequence[Row]) -> list[EndedInstance]:
            found = statement.read(rows)
            answers.append(sum(len(end.result or "") for end in found))
            return found

        return Statement(statement.text, statement.args, read)

    async with engine() as e:
        handles = await e.app.insert_many([Start(never_run, n) for n in range(50)])
        monkeypatch.setattr(StatementBuilder, "ends_of", measured)
        waiting = [asyncio.create_task(handle.wait(seconds(60))) for handle in handles]
        await asyncio.sleep(1)
        await e.rows.fetch(
            "update @.instances set status = 'done', finished_at = now(), claims = 1, seq = 1, "
            "result = to_jsonb(repeat('x', 900000))"
        )
        ends = await asyncio.gather(*waiting)
        assert [len(end.result) for end in ends if isinstance(end, Finished)] == [900_000] * 50
        assert max(answers) < 17_000_000


def test_polls_become_rare_and_then_come_together() -> None:
    """At the longest pause, instances are polled at common moments."""
    watched = WatchedInstance()
    planned = [watched.plan_next_poll(100.1) - 100.1 for _ in range(30)]
    assert planned[:3] == pytest.approx([FIRST_PAUSE, FIRST_PAUSE * GROWTH, FIRST_PAUSE * GROWTH**2])
    assert watched.due_at == 100.25
    assert watched.plan_next_poll(100.26) == 100.5
    assert watched.pause == LONGEST_PAUSE


async def test_a_watcher_rests_until_an_instance_is_due(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_watcher, "SHORTEST_LIFE", 3600)
    turns: list[CompletionWatcher] = []
    take = CompletionWatcher._take_due_instances
    monkeypatch.setattr(
        CompletionWatcher, "_take_due_instances", lambda watcher: turns.append(watcher) or take(watcher)
    )
    async with engine() as e:
        waiting = asyncio.create_task((await e.app.insert(never_run, 1)).wait(seconds(60)))
        await asyncio.sleep(0.05)
        assert len(turns) == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_an_end_before_the_wait_has_the_database_asked(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instance was retried after the reported end: its own end is read at once."""
    monkeypatch.setattr(completion_watcher, "SHORTEST_LIFE", 3600)
    async with engine() as e, engine() as other:
        handle = await e.app.insert(never_run, 1)
        waiting = asyncio.create_task(handle.wait(seconds(60)))
        await other.app.cancel(handle.id, reason="enough")
        services_of(e.app).completion_watcher.report_end(handle.id, Status.DONE, "1", None, returned_at=0.0)
        assert await soon(waiting) == Cancelled(handle.id, "enough")


async def test_pages_are_read_until_one_is_not_full(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors fill a page as results do; what has not ended is left to the next poll."""
    monkeypatch.setattr(completion_watcher, "PAGE_SIZE", 10)
    async with engine() as e:
        handles = await e.app.insert_many([Start(never_run, n) for n in range(4)])
        for handle in handles[:3]:
            await handle.cancel(reason="ten letter")
        due = {handle.id: [asyncio.get_running_loop().create_future()] for handle in handles}
        await soon(services_of(e.app).completion_watcher._poll_ends(list(due), due))
        assert [future.done() for (future,) in due.values()] == [True, True, True, False]


class SlowPool(Pool):
    """A pool whose answers come when they may; keeps the ids that were polled."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.polls: asyncio.Queue[list[int]] = asyncio.Queue()
        self.may_answer = asyncio.Event()

    async def run(self, statement: Statement[Any], *, timeout: float | None = None) -> Any:
        self.polls.put_nowait(cast("list[int]", statement.args[0]))
        answer = await self._pool.run(statement, timeout=timeout)
        await self.may_answer.wait()
        return answer

    async def close(self) -> None:
        """The pool belongs to the client."""


async def test_waiters_come_and_go_while_their_instances_are_polled(
    engine: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A new waiter has the next poll follow at once; one that goes leaves nothing."""
    monkeypatch.setattr(completion_watcher, "FIRST_PAUSE", 3600)
    monkeypatch.setattr(completion_watcher, "LONGEST_PAUSE", 3600)
    async with engine() as e:
        one, two = [handle.id for handle in await e.app.insert_many([Start(never_run, 1), Start(never_run, 2)])]
        pool = SlowPool(services_of(e.app).pool)
        watcher = CompletionWatcher(pool, services_of(e.app).statements)
        goes, stays = [asyncio.create_task(watcher.wait_for_end(instance, None)) for instance in (one, two)]
        assert await soon(pool.polls.get()) == [one, two]
        goes.cancel()
        comes = asyncio.create_task(watcher.wait_for_end(two, None))
        await asyncio.sleep(0.01)
        assert set(watcher._watched) == {two}
        pool.may_answer.set()
        assert await soon(pool.polls.get()) == [two]
        task = watcher._task
        await watcher.stop()
        assert task is not None
        assert task.done()
        for waiting in (stays, comes):
            with pytest.raises(ConfigError, match="closed while a call waited"):
                await waiting
        assert watcher._watched == {}
    assert caplog.messages == []


async def test_a_wait_that_has_ended_leaves_nothing(engine: Opening) -> None:
    """However it ended; a poll that was planned for it is left out."""
    async with engine() as e:
        handle = await e.app.insert(never_run, 1)
        watcher = services_of(e.app).completion_watcher
        await handle.wait(seconds(0))
        watcher._poll_soon(handle.id, WatchedInstance())
        assert watcher._take_due_instances() == {}
        await handle.cancel()
        await handle.wait()
        assert watcher._watched == {}
