"""HistoryTrimmer: which instances it trims, how, and when it rests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.engine import Engine, opened

from gen_durable.core.services import services_of
from gen_durable.engine import history_trimmer as module
from gen_durable.engine.history_trimmer import PAUSE, HistoryTrimmer
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.pg.persistent_connection import PersistentConnection


class Noting(PersistentConnection):
    """Notes the arguments of its statements, and fails those it is told to."""

    __slots__ = ("arguments", "errors")
    arguments: list[tuple[Any, ...]]
    errors: list[Exception]

    async def run(self, statement: Any, *, timeout: float | None = None) -> Any:
        self.arguments.append(statement.args)
        if self.errors:
            raise self.errors.pop(0)
        return await super().run(statement, timeout=timeout)


@asynccontextmanager
async def trimming(dsn: str, schema: str, *ids: int) -> AsyncIterator[tuple[Engine, HistoryTrimmer, Noting]]:
    """A trimmer without its task, and instances with fifty outcomes each."""
    async with opened(dsn, schema) as e:
        services = services_of(e.app)
        link = Noting(services.connection_target)
        link.arguments, link.errors = [], []
        await e.rows.fetch(
            "insert into @.instances (id, fsm, step, status, claims, seq, eligible_at) overriding system value "
            "select id, 'Loop', 'turn', 'runnable', 1, 50, now() + interval '1 day' from unnest($1::bigint[]) as id",
            list(ids),
        )
        await e.rows.fetch(
            "insert into @.transitions (instance_id, started_at, duration, seq, attempt, step, outcome) "
            "select id, now(), 0, n, 0, 'turn', 'Next' from unnest($1::bigint[]) as id, generate_series(1, 50) as n",
            list(ids),
        )
        try:
            yield e, HistoryTrimmer(link, services.journal_statements), link
        finally:
            await link.close()


async def kept(e: Engine) -> dict[int, int]:
    rows = await e.rows.fetch("select instance_id, count(*) from @.transitions group by 1 order by 1")
    return {row[0]: row[1] for row in rows}


async def is_waiting(trimmer: HistoryTrimmer) -> bool:
    """Whether a run waits for an instance."""
    run = asyncio.create_task(trimmer.run_once())
    done, _ = await asyncio.wait([run], timeout=0.05)
    run.cancel()
    return not done


async def test_only_a_history_that_is_too_long_is_trimmed(dsn: str, schema: str) -> None:
    """One of as many outcomes as are kept is not, nor one without a bound; then the trimmer waits for the next."""
    async with trimming(dsn, schema, 7001, 7002) as (e, trimmer, link):
        trimmer.request_trim(7001, 50, None)
        trimmer.request_trim(7001, 50, 50)
        assert await is_waiting(trimmer)
        trimmer.request_trim(7002, 50, 49)
        assert await asyncio.wait_for(trimmer.run_once(), 5) == PAUSE
        assert await kept(e) == {7001: 50, 7002: 49}
        assert await is_waiting(trimmer)
        trimmer.request_trim(7001, 50, 20)
        await asyncio.wait_for(trimmer.run_once(), 5)
        assert await kept(e) == {7001: 20, 7002: 49}
        assert len(link.arguments) == 2


async def test_statements_are_bounded_in_instances_and_rows(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run makes as many as it takes, each instance with its own length."""
    monkeypatch.setattr(module, "MAX_INSTANCES", 2)
    monkeypatch.setattr(module, "BATCH", 40)
    async with trimming(dsn, schema, 7001, 7002, 7003) as (e, trimmer, link):
        for number, length in ((7001, 10), (7002, 20), (7003, 30)):
            trimmer.request_trim(number, 50, length)
        await asyncio.wait_for(trimmer.run_once(), 5)
        assert await kept(e) == {7001: 10, 7002: 20, 7003: 30}
        assert [list(arguments[0]) for arguments in link.arguments[:1]] == [[7001, 7002]]
        assert list(link.arguments[-1][0]) == [7003]
        assert {arguments[2] for arguments in link.arguments} == {40}
        assert trimmer._lengths == {}


async def test_what_fails_is_tried_again(dsn: str, schema: str) -> None:
    """A lost connection forgets no instance."""
    async with trimming(dsn, schema, 7001) as (e, trimmer, link):
        trimmer.request_trim(7001, 50, 20)
        link.errors = [ConnectionLost(OSError("gone"), sent=False)]
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(trimmer.run_once(), 5)
        await asyncio.wait_for(trimmer.run_once(), 5)
        assert await kept(e) == {7001: 20}
