"""Concurrent inserts and signals of one client share transactions; each keeps its own answer, error and lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.support.engine import Engine, Opening

from gen_durable import Context, Done, Handle, Machine, Outcome, Signal, Start, job, step
from gen_durable.core.signal_runner import SignalRunner
from gen_durable.core.statement_runner import StatementRunner
from gen_durable.errors import ConfigError, DatabaseUnavailable, EncodeError, NoTarget
from gen_durable.store.statements import Statement
from gen_durable.store.types import OutgoingSignal

go = Signal("go", int)
text = Signal("text", str)
CALLERS = 40
SOON = 10


@job
async def keep(value: Any) -> None: ...


class Waiter(Machine):
    """Is only inserted here."""

    @step
    async def begin(self, number: int, ctx: Context) -> Outcome[None]:
        return Done()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations of the statements that the client runs."""
    operations: list[str] = []
    run = StatementRunner.run

    async def counted(self: StatementRunner, statement: Statement[Any], operation: str, *, may_run_twice: bool) -> Any:
        operations.append(operation)
        return await run(self, statement, operation, may_run_twice=may_run_twice)

    monkeypatch.setattr(StatementRunner, "run", counted)
    return operations


@asynccontextmanager
async def other_transaction(dsn: str, e: Engine, sql: str) -> AsyncIterator[None]:
    """Another session that has executed a statement and not ended its transaction."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(sql.replace("@.", f"{e.rows.schema}."))
            yield
    finally:
        await connection.close()


async def states(e: Engine) -> dict[int, str]:
    return {row["id"]: row["state"] for row in await e.rows.fetch("select id, state::text from @.instances")}


async def test_inserts_share_a_statement_and_each_gets_its_own_id(engine: Opening, sent: list[str]) -> None:
    async with engine() as e:
        handles = await asyncio.gather(*(e.app.insert(Waiter.begin, n) for n in range(CALLERS)))
        assert sent.count("insert") == 2, "the first alone, the others together"
        assert await states(e) == {handle.id: str(n) for n, handle in enumerate(handles)}
        assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)


async def test_calls_with_several_instances_stay_together(engine: Opening) -> None:
    """The ids of one `insert_many` are its own, whatever stands in the same statement."""
    async with engine() as e:
        calls = await asyncio.gather(
            *(e.app.insert_many([Start(Waiter.begin, n * 10 + k) for k in range(n % 4)]) for n in range(CALLERS))
        )
        found = await states(e)
        for n, handles in enumerate(calls):
            assert [found[handle.id] for handle in handles] == [str(n * 10 + k) for k in range(n % 4)]


async def test_a_state_that_cannot_be_encoded_fails_its_own_call(engine: Opening) -> None:
    async with engine() as e:
        results = await asyncio.gather(
            *(e.app.insert(keep, object() if n == 7 else n) for n in range(CALLERS)), return_exceptions=True
        )
        assert [n for n, result in enumerate(results) if isinstance(result, Exception)] == [7]
        assert isinstance(results[7], EncodeError)
        assert sorted((await states(e)).values(), key=int) == [str(n) for n in range(CALLERS) if n != 7]


async def test_an_insert_that_the_database_refuses_fails_its_own_call(engine: Opening) -> None:
    """Its limit does not exist. The group is rolled back, and each call runs alone."""
    async with engine() as e:
        results = await asyncio.gather(
            *(e.app.insert(Waiter.begin, n, limit="nowhere" if n == 7 else None) for n in range(CALLERS)),
            return_exceptions=True,
        )
        assert [n for n, result in enumerate(results) if isinstance(result, Exception)] == [7]
        assert "nowhere" in str(results[7])
        assert sorted((await states(e)).values(), key=int) == [str(n) for n in range(CALLERS) if n != 7]


async def test_large_payloads_go_alone(engine: Opening, sent: list[str]) -> None:
    """They would make the callers of small ones wait for their size."""
    async with engine() as e:
        handle = await e.app.insert(Waiter.begin, 1)
        sent.clear()
        await asyncio.gather(*(e.app.insert(keep, "x" * 10_000) for _ in range(5)))
        assert sent == ["insert"] * 5
        sent.clear()
        await asyncio.gather(*(e.app.signal(handle, text, "x" * 10_000) for _ in range(5)))
        assert sent == ["signal"] * 5


async def test_an_insert_with_a_key_waits_alone(dsn: str, engine: Opening) -> None:
    """Its key is held by a transaction that has not ended: inserts without a key go on."""
    taken = "select @.insert('Waiter', 'begin', '1', unique_key => 'taken', notify => false)"
    async with engine() as e:
        async with other_transaction(dsn, e, taken):
            keyed = asyncio.create_task(e.app.insert(Waiter.begin, 2, unique_key="taken", on_conflict="existing"))
            await asyncio.gather(*(e.app.insert(Waiter.begin, n) for n in range(CALLERS)))
            assert not keyed.done()
        await keyed


async def test_signals_share_a_statement(engine: Opening, sent: list[str]) -> None:
    async with engine() as e:
        handle = await e.app.insert(Waiter.begin, 1)
        answers = await asyncio.gather(
            *(e.app.signal(handle, go, n, dedup_key=f"{n % 10}") for n in range(CALLERS)),
            e.app.signal(987_654, go, 1),
            return_exceptions=True,
        )
        assert sent.count("signal") == 2
        assert answers[:CALLERS] == [True] * 10 + [False] * (CALLERS - 10)
        assert isinstance(answers[CALLERS], NoTarget)
        payloads = await e.rows.fetch("select payload::text from @.signals order by id")
        assert [row["payload"] for row in payloads] == [str(n) for n in range(10)]


async def test_a_locked_target_holds_up_its_own_signal_only(dsn: str, engine: Opening) -> None:
    """As a step with a transaction does for as long as it runs. With `skip_locked` taken out all would wait."""
    async with engine() as e:
        handles = await asyncio.gather(*(e.app.insert(Waiter.begin, n) for n in range(10)))
        async with other_transaction(dsn, e, f"select from @.instances where id = {handles[3].id} for update"):
            signals = [asyncio.create_task(e.app.signal(handle, go, 1)) for handle in handles[3:] + handles[:3]]
            async with asyncio.timeout(SOON):
                assert await asyncio.gather(*signals[1:]) == [True] * 9
                assert await e.app.signal(handles[0], go, 2)
            assert not signals[0].done()
        assert await signals[0]


async def test_a_signal_by_a_key_that_is_locked(dsn: str, engine: Opening) -> None:
    async with engine() as e:
        await e.app.insert(Waiter.begin, 1, unique_key="busy")
        async with other_transaction(dsn, e, "select from @.instances for update"):
            waiting = asyncio.create_task(e.app.signal("busy", go, 1))
            with pytest.raises(NoTarget):
                await e.app.signal("free", go, 1)
            assert not waiting.done()
        assert await waiting


async def test_a_closing_client_waits_for_a_group_under_way(engine: Opening) -> None:
    async with engine() as e:
        calls = [asyncio.create_task(e.app.insert(Waiter.begin, n)) for n in range(CALLERS)]
        await calls[0]
        await e.app.close()
        assert len(await asyncio.gather(*calls)) == len(await states(e)) == CALLERS


async def test_calls_behind_one_that_a_closing_client_ends_do_not_hang(engine: Opening) -> None:
    async with engine() as e:
        calls = [asyncio.create_task(e.app.insert(Waiter.begin, n)) for n in range(CALLERS)]
        await asyncio.sleep(0)
        await e.app.close()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} <= {Handle, ConfigError, DatabaseUnavailable}


def test_only_signals_with_a_dedup_key_are_repeated() -> None:
    runner = SignalRunner.__new__(SignalRunner)
    assert runner.may_run_twice(OutgoingSignal(1, None, "go", None, "event-1"))
    assert not runner.may_run_twice(OutgoingSignal(1, None, "go", None, None))
