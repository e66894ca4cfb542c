"""A row whose claim the database cannot put together stops neither its queue nor the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.engine import Engine, Opening, seconds
from tests.worker.test_options_lease import double

from gen_durable import Finished

BROKEN_INBOX = """
create or replace function @.inbox_of_claim(target bigint) returns jsonb language plpgsql as $$
begin
  if exists (select from @.instances i where i.id = target and i.metadata ? 'broken') then
    raise exception 'total size of jsonb array elements exceeds the maximum' using errcode = '{code}';
  end if;
  return null;
end $$
"""


@asynccontextmanager
async def breaking(engine: Opening, code: str) -> AsyncIterator[Engine]:
    """An engine whose inboxes of broken rows cannot be read. Schemas are used again, so the function is put back."""
    async with engine() as e:
        definition = await e.rows.value("select pg_get_functiondef('@.inbox_of_claim'::regproc)")
        await e.rows.fetch(BROKEN_INBOX.replace("{code}", code))
        try:
            yield e
        finally:
            await e.rows.connection.execute(definition)


async def broken(e: Engine, queue: str = "default") -> int:
    """A due row that fails each pick that reads its inbox, ahead of all others."""
    sql = """
        insert into @.instances (fsm, step, state, queue, priority, has_signals, metadata)
        values ('double', 'run', '21', $1, -10, true, '{"broken": true}') returning id
    """
    return int(await e.rows.value(sql, queue))


@pytest.mark.parametrize("code", ["54000", "22003", "XX000"])
async def test_it_is_put_back_with_a_rest_and_the_others_run(engine: Opening, code: str) -> None:
    """The reason is in its last_error; rows of its own queue and of another one are done meanwhile."""
    async with breaking(engine, code) as e:
        culprits = [await broken(e), await broken(e)]
        same = [await e.app.insert(double, n) for n in range(5)]
        other = [await e.app.insert(double, n, queue="other") for n in range(5)]
        async with e.worker(double, queues={"default": 10, "other": 10}):
            for n in range(5):
                assert await e.end(same[n]) == Finished(same[n].id, n * 2)
                assert await e.end(other[n]) == Finished(other[n].id, n * 2)
            for culprit in culprits:
                row = await e.rows.until(e.app.handle(culprit, double), status="runnable", locked_by=None)
                assert f"SQLSTATE {code}" in row["last_error"]
                assert row["eligible_at"] - row["updated_at"] > seconds(1)


async def test_it_runs_when_it_can_be_read_again(engine: Opening) -> None:
    """Nothing is lost by the rest."""
    async with breaking(engine, "54000") as e:
        culprit = e.app.handle(await broken(e), double)
        async with e.worker(double):
            await e.rows.until(culprit, status="runnable", claims=2)
            await e.rows.fetch("update @.instances set metadata = null, eligible_at = now()")
            assert await e.end(culprit) == Finished(culprit.id, 42)
