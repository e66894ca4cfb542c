"""A row that the database refuses to change: reaper, gc and heartbeat skip it and go on with the others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.engine import BRIEF, NEVER, Engine, Opening, seconds
from tests.worker.test_options_lease import dead_claim, double, rest

from gen_durable import Cancelled, Context, Finished, Machine, Outcome, ScheduleChildren, Start, step


async def guarded(e: Engine, event: str, when: str) -> None:
    """A trigger of the user that raises for rows whose metadata say so."""
    await e.rows.connection.execute(f"""
        create function {e.rows.schema}_refuse() returns trigger language plpgsql as $$
        begin raise exception 'refused' using errcode = '23514'; end $$;
        create trigger refuse before {event} on "{e.rows.schema}".instances for each row
          when ({when}) execute function {e.rows.schema}_refuse();
    """)


async def unguarded(e: Engine) -> None:
    await e.rows.connection.execute(f"drop function {e.rows.schema}_refuse cascade")


async def test_the_reaper_takes_back_the_others(
    engine: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of twenty dead claims cannot be taken back: eighteen run again, and the fault is logged once."""
    async with engine() as e:
        ids = [await dead_claim(e) for _ in range(20)]
        await e.rows.fetch("update @.instances set metadata = '{\"bad\": 1}' where id = any ($1)", [ids[0], ids[7]])
        await guarded(e, "update", "old.status = 'executing' and new.metadata ? 'bad'")
        try:
            async with e.worker(double, **BRIEF):
                for n, id_ in enumerate(ids):
                    if n not in (0, 7):
                        assert await e.end(e.app.handle(id_, double)) == Finished(id_, 42)
                assert caplog.text.count("the database refuses a row") == 1
        finally:
            await unguarded(e)
        async with e.worker(double, **BRIEF):
            for id_ in (ids[0], ids[7]):
                assert await e.end(e.app.handle(id_, double)) == Finished(id_, 42)


async def test_gc_deletes_the_others(engine: Opening) -> None:
    """A row that a trigger or a foreign key of the user keeps does not keep the rows after it."""
    async with engine() as e:
        await e.rows.fetch("""
            insert into @.instances (fsm, step, status, finished_at, claims, seq, metadata)
            select 'double', 'run', 'done', now() - interval '1 day' + make_interval(secs => n), 1, 1,
                   case when n in (1, 5) then '{"bad": 1}'::jsonb end
            from generate_series(1, 12) as n
        """)
        await guarded(e, "delete", "old.metadata ? 'bad'")
        try:
            options: dict[str, Any] = {"gc_interval": seconds(0.1), "gc_retention": seconds(60), "gc_batch": 4}
            async with e.worker(double, **options):
                await e.rows.when(lambda: _is(e, 2))
        finally:
            await unguarded(e)


async def _is(e: Engine, count: int) -> bool:
    return await e.rows.count() == count


async def test_a_heartbeat_extends_the_other_leases(engine: Opening) -> None:
    """Of three claims one cannot be extended: the other two keep theirs for several leases."""
    async with engine() as e:
        handles = [await e.app.insert(rest, 2.5) for _ in range(3)]
        await e.rows.fetch("update @.instances set metadata = '{\"bad\": 1}' where id = $1", handles[1].id)
        await guarded(
            e,
            "update",
            "new.metadata ? 'bad' and new.status = 'executing' and old.claims = new.claims",
        )
        try:
            async with e.worker(rest, **BRIEF, max_crashes=50):
                for n in (0, 2):
                    assert await e.end(handles[n]) == Finished(handles[n].id, "rested")
                    assert (await e.rows.row(handles[n]))["claims"] == 1
        finally:
            await unguarded(e)
            await e.rows.fetch("delete from @.instances where metadata ? 'bad'")


async def test_a_gate_that_cannot_be_swept_does_not_keep_the_others(engine: Opening) -> None:
    """Rows that a lost wake-up left at free gates are found, although the first gate fails the statement."""
    async with engine() as e:
        for key in ("a", "b", "c"):
            await e.rows.fetch(
                "insert into @.instances (fsm, step, state, partition_key, blocked_on, metadata) "
                "values ('double', 'run', '21', $1, 'partition/' || $1, "
                "case $1 when 'a' then '{\"bad\": 1}'::jsonb end)",
                key,
            )
        await guarded(e, "update", "new.metadata ? 'bad'")
        try:
            async with e.worker(double, **BRIEF):
                await e.rows.when(lambda: _is_done(e, 2))
        finally:
            await unguarded(e)
            await e.rows.fetch("delete from @.instances where metadata ? 'bad'")


async def _is_done(e: Engine, count: int) -> bool:
    return await e.rows.count("status = 'done'") == count


class Family(Machine):
    @step
    async def start(self, children: int, ctx: Context) -> Outcome[None]:
        later = [Start(double, n, delay=NEVER) for n in range(children)]
        return ScheduleChildren(later, then=self.join, state=0)

    @step
    async def join(self, _: int, ctx: Context) -> Outcome[None]:
        raise AssertionError("its children never end")


async def test_a_cascade_cancels_the_other_children(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """One of ten children cannot be cancelled: nine are, the fault is logged once, and the one is tried again."""
    async with engine() as e, e.worker(Family(), double, **BRIEF):
        family = await e.app.insert(Family.start, 10)
        await e.rows.until(family, status="awaiting_children")
        await e.rows.fetch(
            "update @.instances set metadata = '{\"bad\": 1}' where id = "
            "(select min(id) from @.instances where parent_id = $1)",
            family.id,
        )
        await guarded(e, "update", "new.metadata ? 'bad'")
        try:
            await e.app.cancel(family)
            assert isinstance(await e.end(family), Cancelled)
            assert await e.rows.count("status = 'cancelled' and parent_id is not null") == 9
            assert caplog.text.count("the database refuses to cancel instance") == 1
        finally:
            await unguarded(e)
        await e.rows.when(lambda: _is_cancelled(e, 11))


async def _is_cancelled(e: Engine, count: int) -> bool:
    return await e.rows.count("status = 'cancelled'") == count
