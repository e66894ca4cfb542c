"""crash(): a worker dies in a step, and the step runs again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from gen_durable import Await, Context, Done, Fail, Machine, Outcome, Signal, Start, Status, step
from gen_durable.core.services import services_of
from gen_durable.errors import InputError, LeaseLost
from gen_durable.testing import HarnessFactory

go = Signal("go", int)


class Charge(Machine):
    """Charges a card, and counts how often."""

    def __init__(self) -> None:
        self.charged: list[tuple[int, int]] = []
        self.errors = 0

    @step
    async def charge(self, amount: int, ctx: Context) -> Outcome[int]:
        self.charged.append((amount, ctx.attempt))
        return Done(amount)

    @step
    async def wait(self, amount: int, ctx: Context) -> Outcome[int]:
        return Await(go, then=self.collect, state=amount)

    @step
    async def collect(self, amount: int, ctx: Context) -> Outcome[int]:
        self.charged.append((ctx.take(go) or 0, ctx.attempt))
        return Done(amount)

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
        self.errors += 1
        return Fail(error)


async def test_at_the_end_the_step_has_run_and_runs_again(durable_harness: HarnessFactory) -> None:
    charge = Charge()
    async with durable_harness(machines=[charge]) as harness:
        handle = await harness.app.insert(Charge.charge, 7)
        lost = await harness.crash(handle)
        assert (lost.id, lost.label, lost.outcome) == (handle.id, "Charge.charge", "lost")
        found = await handle.get()
        assert (found.status, found.attempt, found.crashes, found.seq) == (Status.RUNNABLE, 1, 1, 0)
        await harness.drain()
        assert charge.charged == [(7, 0), (7, 1)]
        assert charge.errors == 0, "a crash is not an error of the step"
        await harness.assert_done(handle, 7)


async def test_at_the_start_the_step_has_not_run(durable_harness: HarnessFactory) -> None:
    charge = Charge()
    async with durable_harness(machines=[charge]) as harness:
        handle = await harness.app.insert(Charge.charge, 7)
        await harness.crash(handle, at="start")
        assert charge.charged == []
        await harness.drain()
        assert charge.charged == [(7, 1)]


async def test_signals_are_there_again_after_a_crash(durable_harness: HarnessFactory) -> None:
    charge = Charge()
    async with durable_harness(machines=[charge]) as harness:
        handle = await harness.app.insert(Charge.wait, 1)
        await harness.drain()
        await handle.signal(go, 5)
        await harness.crash(handle)
        await harness.drain()
        assert charge.charged == [(5, 0), (5, 1)]


async def test_without_a_target_the_next_due_instance_crashes(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Charge()]) as harness:
        first, second = await harness.app.insert_many([Start(Charge.charge, 1), Start(Charge.charge, 2)])
        assert (await harness.crash()).id == first.id
        assert (await second.get()).claims == 0


async def test_only_the_target_crashes(durable_harness: HarnessFactory) -> None:
    charge = Charge()
    async with durable_harness(machines=[charge]) as harness:
        first, second = await harness.app.insert_many([Start(Charge.charge, 1), Start(Charge.charge, 2)])
        await harness.crash(second)
        assert charge.charged == [(2, 0)]
        assert ((await first.get()).attempt, (await second.get()).attempt) == (0, 1)


async def test_what_cannot_run_cannot_crash(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Charge()]) as harness:
        with pytest.raises(AssertionError, match="no step can run now"):
            await harness.crash()
        handle = await harness.app.insert(Charge.charge, 1, delay=timedelta(hours=1))
        with pytest.raises(AssertionError, match="should be able to run now, but it is due in 1:00:00"):
            await harness.crash(handle)
        with pytest.raises(InputError, match="'start' or 'end'"):
            await harness.crash(handle, at="middle")  # type: ignore[arg-type]


async def test_a_row_behind_its_partition_key_cannot_jump_the_queue(durable_harness: HarnessFactory) -> None:
    async with durable_harness(machines=[Charge()]) as harness:
        await harness.app.insert_many([Start(Charge.charge, n, partition_key="card") for n in (1, 2)])
        with pytest.raises(AssertionError, match=r"instance 2 .* another instance with its partition key goes first"):
            await harness.crash(2)


async def test_a_row_of_a_machine_that_the_harness_lacks_cannot_crash(durable_harness: HarnessFactory) -> None:
    async with durable_harness() as harness:
        handle = await harness.app.insert(Charge.charge, 1)
        with pytest.raises(AssertionError, match="the harness has no Charge version 1 with a step 'charge'"):
            await harness.crash(handle)


async def test_a_claim_whose_lease_is_over_is_taken_back_by_the_drain(durable_harness: HarnessFactory) -> None:
    """Also that of a real worker: the harness pages through claims as every worker does."""
    charge = Charge()
    async with durable_harness(machines=[charge]) as harness:
        handle = await harness.app.insert(Charge.charge, 1)
        known = ["Charge/1/charge"]
        await services_of(harness.app).pool.run(
            services_of(harness.app).statements.pick("dead worker", {"default": 1}, known, 15.0)
        )
        assert (await harness.drain()).executed == 0
        await harness.advance(timedelta(seconds=16))
        assert (await harness.drain()).executed == 1
        assert charge.charged == [(1, 1)]
        await harness.assert_done(handle)


class Overtaken(Machine):
    """Loses its claim in the middle of its first execution."""

    def __init__(self) -> None:
        self.lose: Callable[[], Awaitable[None]] | None = None

    @step
    async def go(self, n: int, ctx: Context) -> Outcome[int]:
        if ctx.attempt == 0 and self.lose is not None:
            await self.lose()
        return Done(ctx.attempt)


async def test_an_outcome_that_comes_too_late_is_lost(durable_harness: HarnessFactory) -> None:
    machine = Overtaken()
    async with durable_harness(machines=[machine]) as harness:

        async def lose() -> None:
            await harness.advance(timedelta(days=1))
            await services_of(harness.app).pool.run(services_of(harness.app).statements.reap(10, None))

        machine.lose = lose
        handle = await harness.app.insert(Overtaken.go, 1)
        assert (await harness.drain()).outcomes == {"lost": 1, "Done": 1}
        await harness.assert_done(handle, 1)


async def test_a_step_that_is_told_of_its_loss_leaves_its_row_to_the_reaper(durable_harness: HarnessFactory) -> None:
    machine = Overtaken()

    async def lose() -> None:
        raise LeaseLost("taken over")

    machine.lose = lose
    async with durable_harness(machines=[machine]) as harness:
        handle = await harness.app.insert(Overtaken.go, 1)
        tally = await harness.drain()
        assert tally.outcomes == {"lost": 1}
        assert [type(error) for error in tally.errors] == [LeaseLost]
        assert "is executing, claimed by gen_durable.testing" in str(tally)
        await harness.advance(timedelta(days=1))
        await harness.drain()
        await harness.assert_done(handle, 1)
