"""The completion watcher: a new waiter is cheap however many others wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.engine import Opening, seconds

from gen_durable import Cancelled, Finished, job
from gen_durable.starts import Start
from gen_durable.store.statements import Statement, Statements
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
        ends_of = Statements.ends_of
        monkeypatch.setattr(
            Statements, "ends_of", lambda self, ids, *size: looked_up.extend(ids) or ends_of(self, ids, *size)
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
    ends_of = Statements.ends_of
    monkeypatch.setattr(Statements, "ends_of", lambda self, ids, *size: polled.extend(ids) or ends_of(self, ids, *size))
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
    ends_of = Statements.ends_of

    def measured(self: Statements, ids: Sequence[int], page_size: int) -> Statement[list[EndedInstance]]:
        statement = ends_of(self, ids, page_size)

        def read(rows: Sequence[Row]) -> list[EndedInstance]:
            found = statement.read(rows)
            answers.append(sum(len(end.result or "") for end in found))
            return found

        return Statement(statement.text, statement.args, read)

    async with engine() as e:
        handles = await e.app.insert_many([Start(never_run, n) for n in range(50)])
        monkeypatch.setattr(Statements, "ends_of", measured)
        waiting = [asyncio.create_task(handle.wait(seconds(60))) for handle in handles]
        await asyncio.sleep(1)
        await e.rows.fetch(
            "update @.instances set status = 'done', finished_at = now(), claims = 1, seq = 1, "
            "result = to_jsonb(repeat('x', 900000))"
        )
        ends = await asyncio.gather(*waiting)
        assert [len(end.result) for end in ends if isinstance(end, Finished)] == [900_000] * 50
        assert max(answers) < 17_000_000
