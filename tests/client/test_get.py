"""Reading one instance."""

from __future__ import annotations

import pytest
from tests.support.engine import Opening

from gen_durable import Await, Context, Done, Fail, Machine, Outcome, Signal, Status, step
from gen_durable.errors import NotFound

go = Signal("go")


class Lamp(Machine, version=2):
    @step
    async def off(self, watts: int, ctx: Context) -> Outcome[str]:
        return Await(go, then=self.on, state=watts)

    @step
    async def on(self, watts: int, ctx: Context) -> Outcome[str]:
        return Done("on") if watts < 100 else Fail("too bright")


async def test_by_id_key_and_handle(engine: Opening) -> None:
    """The same instance is found by its id, its key and its handle, with every column as it is."""
    async with engine() as e:
        handle = await e.app.insert(Lamp.off, 60, unique_key="lamp", priority=3, queue="light", partition_key="hall")
        found = [await e.app.get(handle.id), await e.app.get("lamp"), await e.app.get(handle), await handle.get()]
        assert all(one == found[0] for one in found)
        seen = found[0]
        assert (seen.id, seen.machine, seen.version, seen.step) == (handle.id, "Lamp", 2, "off")
        assert (seen.status, seen.queue, seen.priority) == (Status.RUNNABLE, "light", 3)
        assert (seen.partition_key, seen.unique_key) == ("hall", b"lamp")
        assert (seen.attempt, seen.claims, seen.seq, seen.crashes) == (0, 0, 0, 0)
        assert (seen.state, seen.result, seen.last_error, seen.locked_by) == (60, None, None, None)
        assert (seen.started_at, seen.finished_at) == (None, None)
        assert seen.eligible_at.tzinfo is not None


async def test_through_its_life(engine: Opening) -> None:
    """`get` follows the instance: parked with the awaited names, then done with its result."""
    async with engine() as e, e.worker(Lamp()):
        handle = await e.app.insert(Lamp.off, 60)
        await e.rows.until(handle, status="awaiting_signal")
        parked = await handle.get()
        assert (parked.status, parked.awaits, parked.step) == (Status.AWAITING_SIGNAL, ("go",), "on")
        await handle.signal(go)
        await e.end(handle)
        ended = await handle.get()
        assert (ended.status, ended.result, ended.awaits) == (Status.DONE, "on", ())
        assert ended.finished_at is not None
        assert ended.status.terminal
        assert parked.started_at is not None
        assert ended.started_at == parked.started_at  # of the first claim
        assert ended.inserted_at <= ended.started_at < ended.finished_at


async def test_a_failed_one(engine: Opening) -> None:
    """A failed instance shows its reason, and has no result."""
    async with engine() as e, e.worker(Lamp()):
        handle = await e.app.insert(Lamp.on, 200)
        await e.end(handle)
        failed = await handle.get()
        assert (failed.status, failed.last_error, failed.result) == (Status.FAILED, "too bright", None)


async def test_not_found(engine: Opening) -> None:
    """Unknown ids and keys raise `NotFound` and are named in it."""
    async with engine() as e:
        with pytest.raises(NotFound, match="instance 77 is unknown"):
            await e.app.get(77)
        with pytest.raises(NotFound, match="holder of key 'lamp' is unknown"):
            await e.app.get("lamp")


async def test_repr_shows_no_payload(engine: Opening) -> None:
    """What is printed of an instance names it and hides its state."""
    async with engine() as e:
        handle = await e.app.insert(Lamp.off, 31_337)
        assert repr(await handle.get()) == f"Instance(id={handle.id}, Lamp.off, runnable)"
