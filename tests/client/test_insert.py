"""What `insert` writes, option by option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_overloads

from tests.support.engine import Opening

from gen_durable import (
    Context,
    Done,
    Durable,
    Finished,
    Handle,
    Machine,
    Outcome,
    Start,
    Status,
    job,
    step,
)
from gen_durable.starts import Scope


@dataclass(frozen=True)
class Order:
    id: int
    note: str = ""


class Shop(Machine, queue="shop", version=3):
    @step
    async def open(self, order: Order, ctx: Context) -> Outcome[str]:
        return Done(f"order {order.id}")

    @step(name="second-door")
    async def other(self, order: Order, ctx: Context) -> Outcome[str]:
        return Done("other")


@job
async def double(number: int) -> int:
    return number * 2


async def test_defaults(engine: Opening) -> None:
    """A plain insert writes a runnable row, due now, in the machine's queue, with the machine's name and version."""
    async with engine() as e:
        handle = await e.app.insert(Shop.open, Order(7, "first"))
        row = await e.rows.row(handle)
        assert isinstance(handle, Handle)
        assert (row["fsm"], row["fsm_version"], row["step"], row["queue"]) == ("Shop", 3, "open", "shop")
        assert (row["status"], row["priority"], row["partition_key"], row["unique_key"]) == ("runnable", 0, None, None)
        assert (row["attempt"], row["claims"], row["seq"], row["crashes"]) == (0, 0, 0, 0)
        assert row["eligible_at"] == row["inserted_at"]
        assert row["parent_id"] is None
        assert (await handle.get()).state == {"id": 7, "note": "first"}


async def test_a_step_by_its_durable_name(engine: Opening) -> None:
    """A row may begin at any step, and is written with the step's durable name."""
    async with engine() as e:
        handle = await e.app.insert(Shop.other, Order(1))
        assert (await e.rows.row(handle))["step"] == "second-door"
        async with e.worker(Shop(), queues={"shop": 1}):
            assert await e.end(handle) == Finished(handle.id, "other")


async def test_a_job(engine: Opening) -> None:
    """A job is inserted like a step, and its handle knows the type of the result."""
    async with engine() as e:
        handle = await e.app.insert(double, 21)
        async with e.worker(double):
            assert await e.end(handle) == Finished(handle.id, 42)


async def test_queue(engine: Opening) -> None:
    """`queue` overrides the machine's own, and only workers of that queue run the row."""
    async with engine() as e:
        away = await e.app.insert(double, 1, queue="far.away:1")
        near = await e.app.insert(double, 2)
        assert (await e.rows.row(away))["queue"] == "far.away:1"
        async with e.worker(double):
            await e.end(near)
        assert (await e.rows.row(away))["status"] == "runnable"
        async with e.worker(double, queues={"far.away:1": 1}):
            assert await e.end(away) == Finished(away.id, 2)


async def test_priority_is_written(engine: Opening) -> None:
    """Every smallint is a priority."""
    async with engine() as e:
        for priority in (-32768, -1, 0, 32767):
            handle = await e.app.insert(double, 1, priority=priority)
            assert (await handle.get()).priority == priority


ran: list[int] = []


@job
async def note_order(number: int) -> None:
    ran.append(number)


async def test_lower_priority_runs_earlier(engine: Opening) -> None:
    """With one slot, rows run by priority, and equal ones in the order in which they came."""
    ran.clear()
    async with engine() as e:
        starts = [Start(note_order, n, priority=p) for n, p in enumerate([5, -3, 5, 0, -3])]
        handles = await e.app.insert_many(starts)
        async with e.worker(note_order, queues={"default": 1}):
            for handle in handles:
                await e.end(handle)
    assert ran == [1, 4, 3, 0, 2]


async def test_partition_key(engine: Opening) -> None:
    """`partition_key` is written verbatim and reaches the step."""
    async with engine() as e:
        handle = await e.app.insert(double, 1, partition_key="kunde:Ä/7")
        assert (await handle.get()).partition_key == "kunde:Ä/7"


async def test_unique_key_is_verbatim(engine: Opening) -> None:
    """A unique key is stored byte for byte, text as UTF-8, and finds the row by either spelling."""
    keys: list[tuple[str | bytes, bytes]] = [("o:7", b"o:7"), ("straße", "straße".encode()), (b"\0\xff", b"\0\xff")]
    async with engine() as e:
        for key, stored in keys:
            handle = await e.app.insert(double, 1, unique_key=key)
            assert (await handle.get()).unique_key == stored
            assert (await e.app.get(key)).id == handle.id
            assert (await e.app.get(stored)).id == handle.id


async def test_the_default_scope_is_live(engine: Opening) -> None:
    """By default a key is free again as soon as its holder has ended."""
    async with engine() as e:
        first = await e.app.insert(double, 1, unique_key="k")
        async with e.worker(double):
            await e.end(first)
        second = await e.app.insert(double, 1, unique_key="k")
        assert second.id != first.id


async def test_unique_scope_with_done_holds_for_good(engine: Opening) -> None:
    """A scope that holds `done` keeps the key taken after the end."""
    scope: tuple[Scope, ...] = ("runnable", "executing", "done")
    async with engine() as e:
        first = await e.app.insert(double, 1, unique_key="k", unique_scope=scope)
        async with e.worker(double):
            await e.end(first)
        assert (await e.app.get("k")).status is Status.DONE
        again = await e.app.insert(double, 1, unique_key="k", unique_scope=scope, on_conflict="existing")
        assert again.id == first.id


async def test_delay(engine: Opening) -> None:
    """`delay` counts from the database's own clock."""
    async with engine() as e:
        handle = await e.app.insert(double, 1, delay=timedelta(minutes=3))
        row = await e.rows.row(handle)
        late = row["eligible_at"] - row["inserted_at"] - timedelta(minutes=3)
        assert timedelta(0) <= late < timedelta(seconds=5)
        assert row["status"] == "runnable"


async def test_schedule_at(engine: Opening) -> None:
    """`schedule_at` is stored as that very moment, whatever its zone."""
    moment = datetime(2040, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    async with engine() as e:
        handle = await e.app.insert(double, 1, schedule_at=moment)
        assert (await handle.get()).eligible_at == moment


async def test_a_schedule_in_the_past_is_due(engine: Opening) -> None:
    """A moment that is over means: now."""
    async with engine() as e:
        handle = await e.app.insert(double, 4, schedule_at=datetime(2001, 1, 1, tzinfo=UTC))
        async with e.worker(double):
            assert await e.end(handle) == Finished(handle.id, 8)


def options(function: Callable[..., Any]) -> dict[str, tuple[str, object]]:
    """The keyword-only parameters, each with its type and default."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: (p.annotation, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_an_editor_shows_the_options_of_start() -> None:
    """The signature of `insert` that editors show spells them out, with their types and defaults."""
    shown = options(get_overloads(Durable.insert)[0])
    assert shown.pop("on_conflict")[1] == "raise"
    assert shown.pop("connection")[1] is None
    assert shown.pop("notify")[1] == "after_commit"
    assert shown == options(Start.__init__)
