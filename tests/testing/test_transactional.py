"""Transactional steps in the harness: as with a worker, their writes are there with their outcome or not at all."""

from __future__ import annotations

import asyncpg

from gen_durable import Context, Done, Fail, Machine, Outcome, Retry, step
from gen_durable.testing import HarnessFactory, make_context


class Ledger(Machine):
    """Books amounts, and fails the first time if it is told to."""

    def __init__(self, schema: str) -> None:
        self.table = f'"{schema}".ledger'

    @step(transactional=True)
    async def book(self, amount: int, ctx: Context) -> Outcome[int]:
        await ctx.connection.execute(f"insert into {self.table} (amount) values ($1)", amount + ctx.attempt)
        if amount < 0 and ctx.attempt == 0:
            raise ValueError("negative")
        return Done(amount)

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
        return Retry(state) if ctx.attempt == 0 else Fail(error)


async def test_drain_and_crash(durable_harness: HarnessFactory, gen_durable_dsn: str, gen_durable_schema: str) -> None:
    """An error is rolled back and tried again; a crash leaves nothing behind."""
    ledger = Ledger(gen_durable_schema)
    look = await asyncpg.connect(gen_durable_dsn)
    try:
        async with durable_harness(machines=[ledger]) as harness:
            await look.execute(f"create table {ledger.table} (amount int)")
            good = await harness.app.insert(Ledger.book, 7)
            bad = await harness.app.insert(Ledger.book, -7)
            await harness.drain()
            await harness.assert_done(good, 7)
            await harness.assert_done(bad, -7)
            assert {row[0] for row in await look.fetch(f"select amount from {ledger.table}")} == {7, -6}
            crashed = await harness.app.insert(Ledger.book, 100)
            await harness.crash(crashed)
            assert await look.fetchval(f"select count(*) from {ledger.table}") == 2
            await harness.drain()
            await harness.assert_done(crashed, 100)
            assert await look.fetchval(f"select count(*) from {ledger.table} where amount = 101") == 1
            transaction = look.transaction()
            await transaction.start()
            outcome = await ledger.book(5, make_context(Ledger.book, connection=look))
            await transaction.rollback()
            assert isinstance(outcome, Done)
            assert await look.fetchval(f"select count(*) from {ledger.table}") == 3
    finally:
        await look.close()
