"""Rows that a worker cannot run: of unknown machines, versions and steps, under old names, or undecodable."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.engine import BRIEF, NEVER, Engine, Opening, seconds

from gen_durable import Context, Done, Finished, Machine, Next, Outcome, job, step
from gen_durable.telemetry import StateUndecodable, UnknownStepsFound


@dataclass(frozen=True)
class Order:
    id: int


class Shop(Machine):
    @step
    async def open(self, order: Order, ctx: Context) -> Outcome[str]:
        return Done(f"sold {order.id}")


class NewShop(Machine, name="Shop", version=2):
    @step
    async def open(self, order: Order, ctx: Context) -> Outcome[str]:
        return Done(f"sold anew {order.id}")

    @step
    async def extra(self, order: Order, ctx: Context) -> Outcome[str]:
        return Done("extra")


@job
async def double(number: int) -> int:
    return number * 2


async def written(e: Engine, **columns: Any) -> int:
    """A row as some other program may have written it."""
    values = {"fsm": "Shop", "fsm_version": 1, "step": "open", "state": '{"id": 7}'} | columns
    names = ", ".join(values)
    places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    return int(
        await e.rows.value(f"insert into @.instances ({names}) values ({places}) returning id", *values.values())
    )


async def test_strangers_are_left_alone(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """Unknown machines, versions and steps are neither failed nor claimed, are reported, and hide nobody."""
    caplog.set_level(logging.WARNING, "gen_durable")
    async with engine() as e:
        unknown_steps = [
            await written(e, fsm="Nobody", priority=-5),
            await written(e, fsm="os.system", priority=-5),
            await written(e, fsm="__class__", priority=-5),
            await written(e, fsm_version=9, priority=-5),
            await written(e, step="vanished", priority=-5),
            await written(e, step="on_error", priority=-5),
            await written(e, step="open", fsm="x" * 5000, priority=-5),
        ]
        for _ in range(30):
            await written(e, fsm="Nobody", priority=-5)
        async with e.worker(Shop(), double, queues={"default": 2}, **BRIEF):
            known = await e.app.insert(Shop.open, Order(1))
            assert await e.end(known) == Finished(known.id, "sold 1")
            events = await e.seen.until(UnknownStepsFound, lambda u: u.step == "vanished")
            await e.seen.until(UnknownStepsFound, lambda u: u.machine == "Nobody", count=2)
        for stranger in unknown_steps:
            row = await e.rows.row(stranger)
            assert (row["status"], row["attempt"], row["claims"], row["seq"]) == ("runnable", 0, 0, 0)
            assert (row["last_error"], row["locked_by"]) == (None, None)
        assert events[0] == UnknownStepsFound("Shop", 1, "vanished", "default", 1)
        (most, *_) = [u for u in e.seen.of(UnknownStepsFound) if u.machine == "Nobody"]
        assert most.count == 31
        lines = [record for record in caplog.records if "wait for Nobody version 1, step open" in record.getMessage()]
        assert len(lines) == 1


async def test_a_worker_that_knows_takes_over(engine: Opening) -> None:
    """Rows of another version wait for the worker that has it; old and new run side by side."""
    async with engine() as e:
        new = await e.app.insert(NewShop.open, Order(2))
        old = await e.app.insert(Shop.open, Order(1))
        async with e.worker(Shop()):
            assert await e.end(old) == Finished(old.id, "sold 1")
            assert (await e.rows.row(new))["claims"] == 0
            async with e.worker(NewShop()):
                assert await e.end(new) == Finished(new.id, "sold anew 2")
        async with e.worker(Shop(), NewShop()):
            both = [await e.app.insert(Shop.open, Order(3)), await e.app.insert(NewShop.open, Order(3))]
            assert [getattr(await e.end(one), "result", None) for one in both] == ["sold 3", "sold anew 3"]


class Renamed(Machine):
    @step(name="brand-new", aliases=["old", "older"])
    async def method(self, order: Order, ctx: Context) -> Outcome[str]:
        return Done(f"{ctx.step} {order.id}")

    @step
    async def begin(self, order: Order, ctx: Context) -> Outcome[str]:
        return Next(self.method, order)


async def test_aliases_find_old_names(engine: Opening) -> None:
    """Rows that carry an old name of a step run it, and are told its present name."""
    async with engine() as e:
        olds = [await written(e, fsm="Renamed", step=name) for name in ("old", "older", "brand-new")]
        python = await written(e, fsm="Renamed", step="method")
        async with e.worker(Renamed()):
            for old in olds:
                handle = e.app.handle(old, Renamed.method)
                assert await e.end(handle) == Finished(old, "brand-new 7")
            chained = await e.app.insert(Renamed.begin, Order(8))
            assert await e.end(chained) == Finished(chained.id, "brand-new 8")
        assert (await e.rows.row(python))["claims"] == 0


async def test_undecodable_states(engine: Opening) -> None:
    """A row whose state does not fit is put back with the reason and no attempt burned; its neighbours run."""
    async with engine() as e:
        states = ['{"id": "seven"}', "{}", "null", "[]", '"text"', '{"id": 1.5}']
        bad = [await written(e, state=state, priority=-1) for state in states]
        neighbours = [await e.app.insert(Shop.open, Order(n)) for n in range(5)]
        async with e.worker(Shop(), queues={"default": 3}):
            for n, neighbour in enumerate(neighbours):
                assert await e.end(neighbour) == Finished(neighbour.id, f"sold {n}")
            events = await e.seen.until(StateUndecodable, count=len(bad))
            for number in bad:
                await e.rows.until(number, status="runnable", locked_by=None)
        assert {event.id for event in events} == set(bad)
        for event in events:
            assert (event.machine, event.step) == ("Shop", "open")
            assert "the state of Shop.open" in event.error
        for number in bad:
            row = await e.rows.row(number)
            assert (row["attempt"], row["seq"]) == (0, 0)
            assert "does not fit Order" in row["last_error"]
            assert 4 < (row["eligible_at"] - row["updated_at"]).total_seconds() < 30


async def test_put_backs_are_no_crashes(engine: Opening) -> None:
    """A row that was put back, and claimed often before, survives its first crash; its first rest is short."""
    async with engine() as e, e.worker(Shop(), max_crashes=3, **BRIEF):
        number = await written(e, state="{}", claims=500)
        for count in (1, 2, 3):
            await e.seen.until(StateUndecodable, count=count)
            row = await e.rows.until(number, status="runnable")
            assert (row["crashes"], row["attempt"]) == (0, 0)
            rest = (row["eligible_at"] - row["updated_at"]).total_seconds()
            assert 5 * 2 ** (count - 1) <= rest <= 6 * 2 ** (count - 1)
            await e.rows.fetch("update @.instances set eligible_at = now() where id = $1 and $2 < 3", number, count)
        await e.rows.fetch(
            "update @.instances set status = 'executing', claims = claims + 1, locked_by = 'dead', "
            "state = '{\"id\": 3}', lease_expires_at = now() - interval '1 s', eligible_at = now() where id = $1",
            number,
        )
        assert await e.end(e.app.handle(number, Shop.open)) == Finished(number, "sold 3")


async def test_an_undecodable_row_runs_when_it_fits_again(engine: Opening) -> None:
    """The row is not lost: once the code (or the row) is mended it runs, and its error is gone."""
    async with engine() as e, e.worker(Shop(), poll_interval=seconds(0.1), max_poll_interval=seconds(0.1)):
        number = await written(e, state="{}")
        await e.seen.until(StateUndecodable)
        await e.rows.until(number, status="runnable")
        await e.rows.fetch("update @.instances set state = '{\"id\": 3}', eligible_at = now() where id = $1", number)
        handle = e.app.handle(number, Shop.open)
        assert await e.end(handle) == Finished(number, "sold 3")
        assert (await handle.get()).last_error is None


async def test_an_undecodable_partition_head_frees_its_key(engine: Opening) -> None:
    """When a bad row at the head of a partition is put back, its siblings get their turn at once, without a poll."""
    async with engine() as e:
        await written(e, state="{}", partition_key="p")
        sibling = await e.app.insert(Shop.open, Order(1), partition_key="p")
        async with e.worker(Shop(), poll_interval=NEVER, max_poll_interval=NEVER):
            assert await sibling.wait(seconds(3)) == Finished(sibling.id, "sold 1")
