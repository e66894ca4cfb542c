"""Debounce: many calls, one run with the newest state."""

from __future__ import annotations

from typing import cast

import pytest
from tests.support.drivers import CONNECTIONS, SIX
from tests.support.engine import NEVER, Opening, seconds, soon

from gen_durable import Durable, job
from gen_durable.contrib.aes import AesGcm
from gen_durable.errors import Duplicate, InputError
from gen_durable.telemetry import StepCommitted


@job
async def reindex(version: int) -> int:
    return version


@job
async def tidy() -> int:
    return 1


@pytest.fixture(params=[None, AesGcm({"k": bytes(32)})], ids=["clear", "encrypted"])
def codec(request: pytest.FixtureRequest) -> AesGcm | None:
    """All of it with and without encryption."""
    return cast("AesGcm | None", request.param)


async def test_many_calls_run_once(engine: Opening, codec: AesGcm | None) -> None:
    """A call with a short delay ends the wait of all: the instance runs once, with the newest state."""
    async with engine(codec=codec) as e, e.worker(reindex):
        waiting = [await e.app.debounce(reindex, n, unique_key="doc:7", delay=NEVER) for n in range(5)]
        last = await e.app.debounce(reindex, 5, unique_key="doc:7", delay=0)
        assert {handle.id for handle in waiting} == {last.id}
        assert await soon(last.result()) == 5
        assert len(e.seen.of(StepCommitted)) == 1


async def test_a_steady_stream_cannot_postpone_for_ever(engine: Opening, codec: AesGcm | None) -> None:
    """A call after `max_delay` since the first lets the instance run at once."""
    async with engine(codec=codec) as e, e.worker(reindex):
        await e.app.debounce(reindex, 1, unique_key="doc:7", delay=NEVER)
        await e.rows.fetch("update @.instances set inserted_at = now() - interval '2 hours'")
        last = await e.app.debounce(reindex, 2, unique_key="doc:7", delay=NEVER, max_delay=NEVER)
        assert await soon(last.result()) == 2


async def test_after_it_has_begun_a_new_one_waits(engine: Opening, codec: AesGcm | None) -> None:
    """Each run has its own instance."""
    async with engine(codec=codec) as e, e.worker(reindex, tidy):
        first = await e.app.debounce(reindex, 1, unique_key="doc:7", delay=0)
        assert await soon(first.result()) == 1
        second = await e.app.debounce(reindex, 2, unique_key="doc:7", delay=seconds(0.01))
        assert second.id != first.id
        assert await soon(second.result()) == 2
        assert await soon((await e.app.debounce(tidy, unique_key="tidy", delay=0)).result()) == 1


async def test_a_postponed_head_of_a_partition_lets_others_pass(engine: Opening) -> None:
    """Rows of its partition that waited behind it run as soon as it is postponed."""
    async with engine() as e:
        await e.app.debounce(reindex, 1, unique_key="doc:7", delay=0, partition_key="p")
        behind = await e.app.insert(reindex, 2, partition_key="p")
        await e.rows.fetch("update @.instances set blocked_on = 'partition/p' where id = $1", behind.id)
        await e.app.debounce(reindex, 3, unique_key="doc:7", delay=NEVER, partition_key="p")
        await e.rows.until(behind, blocked_on=None)  # by the client: no worker is there


@pytest.mark.parametrize("kind", SIX)
async def test_in_a_callers_transaction(dsn: str, schema: str, kind: str) -> None:
    """Rolled back with the caller, or committed."""
    async with Durable(dsn, schema=schema) as app, CONNECTIONS[kind](dsn, schema) as caller:
        first = await app.debounce(reindex, 1, unique_key="doc:7", delay=NEVER)
        for commit in (False, True):
            async with caller.transaction(commit=commit):
                moved = await caller.debounce(reindex, 2, unique_key="doc:7", delay=NEVER, max_delay=NEVER)
                assert moved.id == first.id
            assert (await app.get(first)).state == (2 if commit else 1)


async def test_what_is_refused(engine: Opening) -> None:
    """A key that something else holds, and a bound below the delay."""
    async with engine() as e:
        with pytest.raises(InputError, match="max_delay must be at least the delay of 5 s, got 3 s"):
            await e.app.debounce(reindex, 1, unique_key="k", delay=5, max_delay=3)
        held = await e.app.insert(tidy, unique_key="k")
        with pytest.raises(Duplicate, match="held by instance") as raised:
            await e.app.debounce(reindex, 1, unique_key="k", delay=5)
        assert raised.value.existing_id == held.id
