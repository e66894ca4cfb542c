"""The writer of journals: retries, refusals, pauses and clean-up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import asyncpg
import pytest
from tests.support.engine import soon

from gen_durable import Durable, job
from gen_durable.core.services import services_of
from gen_durable.encryption import PayloadContext, PayloadEncryption
from gen_durable.engine import journal_action_runner
from gen_durable.engine.journal_action_runner import JournalActionRunner
from gen_durable.engine.step_journal import Actions, SleepBeforeRetry
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.errors import DatabaseRefused, InputError, LeaseLost
from gen_durable.store.journal import JournalStatementBuilder
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement
from gen_durable.store.types import Claim


@job
async def noop(n: int) -> int:
    """Never run here: the tests claim by hand."""
    return n


@pytest.fixture
def threads() -> Iterator[ThreadPool]:
    pool = ThreadPool(2)
    yield pool
    pool.close()


@dataclass
class Opened:
    app: Durable
    writer: JournalActionRunner
    schema: str


@asynccontextmanager
async def opened(dsn: str, schema: str, threads: ThreadPool) -> AsyncIterator[Opened]:
    async with Durable(dsn, schema=schema) as app:
        services = services_of(app)
        writer = JournalActionRunner(services.pool, schema, services.journal_statements, threads, "installation")
        yield Opened(app, writer, schema)
        await writer.close()


@asynccontextmanager
async def failing(dsn: str, schema: str, code: str, times: int) -> AsyncIterator[Statement[bool]]:
    """A statement that raises an error so many times, and returns its number of calls then."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"""
            create sequence {schema}_calls;
            create function {schema}_fail(instance bigint) returns bigint language plpgsql as $$
            begin
              if nextval('{schema}_calls') <= {times} then
                raise exception 'no' using errcode = '{code}';
              end if;
              return currval('{schema}_calls');
            end $$;
        """)
        yield Statement(f"select {schema}_fail($1)", (7,), lambda rows: rows[0][0])
    finally:
        await connection.execute(f"drop function {schema}_fail; drop sequence {schema}_calls")
        await connection.close()


def write(statement: Statement[bool]) -> Actions:
    yield statement
    return "written"


@pytest.mark.parametrize("code", ["40001", "55P03", "53200"])
async def test_a_write_that_may_succeed_later_is_sent_again(
    dsn: str, schema: str, threads: ThreadPool, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """After a pause: a serialization failure, a lock that timed out, a server that is out of memory."""
    monkeypatch.setattr(journal_action_runner, "FIRST_PAUSE", 0.06)
    async with opened(dsn, schema, threads) as o, failing(dsn, schema, code, times=2) as statement:
        began = time.monotonic()
        assert await soon(o.writer.run_journal_actions(write(statement))) == "written"
        assert time.monotonic() - began >= 0.08
        calls = Statement(f"select last_value from {schema}_calls", (), lambda rows: rows[0][0])
        assert await services_of(o.app).pool.run(calls) == 3


@pytest.mark.parametrize(
    ("code", "words"),
    [("23514", "the journal: the database rejected the call"), ("42501", "may not do that in schema 't")],
)
async def test_a_write_that_is_refused_is_an_error_of_the_step(
    dsn: str, schema: str, threads: ThreadPool, code: str, words: str
) -> None:
    async with opened(dsn, schema, threads) as o, failing(dsn, schema, code, times=1) as statement:
        with pytest.raises(DatabaseRefused) as raised:
            await soon(o.writer.run_journal_actions(write(statement)))
        assert words in str(raised.value)
        assert raised.value.__suppress_context__


async def test_a_thread_waits_before_a_retry(dsn: str, schema: str, threads: ThreadPool) -> None:
    """And for the answers to its writes, which the writer forgets afterwards."""

    def wait_and_write(statement: Statement[bool]) -> Actions:
        yield SleepBeforeRetry(0.05)
        return (yield from write(statement))

    async with opened(dsn, schema, threads) as o, failing(dsn, schema, "40001", times=0) as statement:
        began = time.monotonic()
        assert (
            await soon(asyncio.to_thread(o.writer.run_journal_actions_blocking, wait_and_write(statement))) == "written"
        )
        assert time.monotonic() - began >= 0.05
        assert o.writer._thread_calls == set()
        with pytest.raises(InputError, match=r"ctx\.sync is for `def` steps"):
            o.writer.run_journal_actions_blocking(write(statement))


async def test_close_writes_the_last_progress(dsn: str, schema: str, threads: ThreadPool) -> None:
    async with opened(dsn, schema, threads) as o:
        await o.app.insert(noop, 1)
        services = services_of(o.app)
        (claim,) = (await services.pool.run(services.statements.pick("w", {"default": 1}, ["noop/1/run"], 60))).claims
        options: dict[str, Any] = {"branch": "", "fraction": 0.5, "message": None, "detail": None}
        o.writer.report_progress(claim.id, claim.epoch, "run", **options)
        await o.writer.close()
        assert [progress.fraction for progress in await o.app.progress(claim.id)] == [0.5]


class ReversingCodec:
    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        return context.as_bytes() + b"|" + data[::-1]

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        assert data.startswith(context.as_bytes() + b"|")
        return data.partition(b"|")[2][::-1]


async def test_a_claim_has_one_journal_for_each_step(threads: ThreadPool) -> None:
    """It belongs to the visit of the claim, for which its entries are encrypted; an earlier step cannot have it."""
    encryption = PayloadEncryption(ReversingCodec(), "schema", read_unencrypted=False)
    statements = JournalStatementBuilder(Schema())
    writer = JournalActionRunner(cast(Any, None), "schema", statements, threads, "installation", encryption=encryption)
    claim = Claim(7, "m", 1, "s", "null", 0, 1, 4, "default", 0, None, None, None, None, visit=3)
    journal = writer.get_or_create_step_journal(claim, 4)
    assert writer.get_or_create_step_journal(claim, 4) is journal
    actions = journal.activity_actions("call", int, (), {}, retry=None)
    next(actions)
    statement = actions.send(5)
    assert isinstance(statement, Statement)
    assert statement.args[:5] == (7, 1, 4, 1, "call")
    assert encryption.decrypt(str(statement.args[6]), 7, "activity/3/call/result") == "5"
    with pytest.raises(LeaseLost, match="instance 7: the step that writes this has been left"):
        writer.get_or_create_step_journal(claim, 3)
