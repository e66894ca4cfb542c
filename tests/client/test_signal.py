"""Signals: to whom they go, when they are taken for the same, and when there is nobody to take them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.support.engine import Engine, Opening, seconds

from gen_durable import Await, Context, Done, Finished, Machine, Next, Outcome, Signal, step
from gen_durable.errors import NoTarget


@dataclass(frozen=True)
class Paid:
    amount: int


paid = Signal("paid", Paid)
go = Signal("go")
never = Signal("never")


class Till(Machine):
    """Collects one payment, then waits for `go`."""

    @step
    async def open(self, total: int, ctx: Context) -> Outcome[int]:
        return Await(paid, then=self.collect, state=total)

    @step
    async def collect(self, total: int, ctx: Context) -> Outcome[int]:
        payment = ctx.take(paid)
        return Next(self.wait, total + (payment.amount if payment else 0))

    @step
    async def wait(self, total: int, ctx: Context) -> Outcome[int]:
        return Await(go, then=self.close, state=total)

    @step
    async def close(self, total: int, ctx: Context) -> Outcome[int]:
        return Done(total)


async def inbox(e: Engine) -> list[tuple[str, bool]]:
    rows = await e.rows.fetch("select name, consumed from @.signals order by id")
    return [(row["name"], row["consumed"]) for row in rows]


async def test_by_id_by_key_by_handle(engine: Opening) -> None:
    """An instance is reached by its id, its unique key as text or bytes, and its handle in both ways."""
    async with engine() as e, e.worker(Till()):
        handles = [await e.app.insert(Till.open, n, unique_key=f"till:{n}") for n in range(5)]
        assert await e.app.signal(handles[0].id, paid, Paid(100))
        assert await e.app.signal("till:1", paid, Paid(100))
        assert await e.app.signal(b"till:2", paid, Paid(100))
        assert await e.app.signal(handles[3], paid, Paid(100))
        assert await handles[4].signal(paid, Paid(100))
        for handle in handles:
            assert await handle.signal(go)
        assert [await e.end(h) for h in handles] == [Finished(h.id, 100 + n) for n, h in enumerate(handles)]


async def test_before_anybody_waits(engine: Opening) -> None:
    """A signal that comes before the step awaits it is kept, not lost."""
    async with engine() as e:
        handle = await e.app.insert(Till.open, 1)
        assert await e.app.signal(handle, go)
        assert await e.app.signal(handle, paid, Paid(2))
        assert await inbox(e) == [("go", False), ("paid", False)]
        async with e.worker(Till()):
            assert await e.end(handle) == Finished(handle.id, 3)


class Door(Machine):
    """Waits for `go`, and that is all."""

    @step
    async def shut(self, _: None, ctx: Context) -> Outcome[str]:
        return Await(go, then=self.open, state=None)

    @step
    async def open(self, _: None, ctx: Context) -> Outcome[str]:
        return Done("open")


async def test_before_the_first_step(engine: Opening) -> None:
    """A signal delivered before the first step ran wakes the await of that step: it must not sleep for ever."""
    async with engine() as e:
        handle = await e.app.insert(Door.shut, None)
        assert await e.app.signal(handle, go)
        async with e.worker(Door()):
            assert await handle.wait(seconds(3)) == Finished(handle.id, "open")


async def test_another_name_does_not_wake(engine: Opening) -> None:
    """A signal that is not awaited lies in the inbox and wakes nobody."""
    async with engine() as e, e.worker(Till()):
        handle = await e.app.insert(Till.open, 1)
        before = await e.rows.until(handle, status="awaiting_signal")
        assert await e.app.signal(handle, never)
        after = await e.rows.row(handle)
        assert (after["status"], after["claims"]) == ("awaiting_signal", before["claims"])


async def test_dedup_true_then_false(engine: Opening) -> None:
    """The second delivery with a dedup key is recognised, and only one signal lies in the inbox."""
    async with engine() as e:
        handle = await e.app.insert(Till.open, 1)
        assert await e.app.signal(handle, paid, Paid(1), dedup_key="evt-1") is True
        assert await e.app.signal(handle, paid, Paid(1), dedup_key="evt-1") is False
        assert await e.app.signal(handle, paid, Paid(2), dedup_key="evt-2") is True
        assert await inbox(e) == [("paid", False), ("paid", False)]


async def test_dedup_after_consumption(engine: Opening) -> None:
    """A redelivery is recognised after the first one was consumed, while the instance lives; nothing is paid twice."""
    async with engine() as e, e.worker(Till()):
        handle = await e.app.insert(Till.open, 0, unique_key="till")
        assert await e.app.signal("till", paid, Paid(5), dedup_key="evt") is True
        await e.rows.until(handle, step="close", status="awaiting_signal")
        assert await inbox(e) == [("paid", True)]
        assert await e.app.signal("till", paid, Paid(5), dedup_key="evt") is False
        assert await e.app.signal(handle, go)
        assert await e.end(handle) == Finished(handle.id, 5)
        assert await inbox(e) == [("paid", True)], "kept with the row, without its payload"


async def test_dedup_keys_are_of_one_instance(engine: Opening) -> None:
    """Two instances may be sent the same dedup key."""
    async with engine() as e:
        one = await e.app.insert(Till.open, 1)
        two = await e.app.insert(Till.open, 2)
        assert await e.app.signal(one, paid, Paid(1), dedup_key="k") is True
        assert await e.app.signal(two, paid, Paid(1), dedup_key="k") is True


async def test_without_a_dedup_key_each_counts(engine: Opening) -> None:
    """Equal signals without a dedup key are different signals."""
    async with engine() as e:
        handle = await e.app.insert(Till.open, 1)
        assert [await e.app.signal(handle, paid, Paid(1)) for _ in range(3)] == [True] * 3
        assert len(await inbox(e)) == 3


async def test_no_target(engine: Opening) -> None:
    """Unknown ids and keys, ended instances and keys that nobody holds any more raise `NoTarget`, naming the target."""
    async with engine() as e:
        with pytest.raises(NoTarget, match="instance 999999 is unknown or has ended"):
            await e.app.signal(999_999, paid, Paid(1))
        with pytest.raises(NoTarget, match="key 'nobody' is unknown"):
            await e.app.signal("nobody", paid, Paid(1))
        handle = await e.app.insert(Till.open, 1, unique_key="till")
        with pytest.raises(NoTarget, match=r"'Till' is unknown"):
            await e.app.signal("Till", paid, Paid(1))
        async with e.worker(Till()):
            await e.app.signal(handle, paid, Paid(1))
            await e.app.signal(handle, go)
            await e.end(handle)
        for target in (handle, handle.id, "till"):
            with pytest.raises(NoTarget, match="signal 'paid'"):
                await e.app.signal(target, paid, Paid(1))
        assert await inbox(e) == []


async def test_no_target_for_a_key_kept_by_an_ended_holder(engine: Opening) -> None:
    """A scope that holds `done` keeps the key, but an ended holder takes no signals."""
    async with engine() as e, e.worker(Till()):
        handle = await e.app.insert(Till.close, 1, unique_key="k", unique_scope=("runnable", "executing", "done"))
        await e.end(handle)
        with pytest.raises(NoTarget):
            await e.app.signal("k", paid, Paid(1))


async def test_a_signal_wakes_at_once(engine: Opening) -> None:
    """A delivery wakes the parked row without waiting for a poll, also when client and worker are different objects."""
    hour = seconds(3600)
    async with engine() as e, engine() as other, e.worker(Till(), poll_interval=hour, max_poll_interval=hour):
        handle = await e.app.insert(Till.open, 1)
        await e.rows.until(handle, status="awaiting_signal")
        await other.app.signal(handle.id, paid, Paid(1))
        await other.app.signal(handle.id, go)
        assert await e.end(handle) == Finished(handle.id, 2)
