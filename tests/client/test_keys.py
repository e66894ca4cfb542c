"""Unique keys over time: how long a key is held, and which instance it finds after its holder has ended."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.engine import NEVER, Engine, Opening, seconds

from gen_durable import (
    Await,
    Context,
    Done,
    Fail,
    Finished,
    Machine,
    Outcome,
    Pending,
    ScheduleChildren,
    Signal,
    Start,
    SyncDurable,
    step,
)
from gen_durable.contrib.aes import AesGcm
from gen_durable.errors import Duplicate, InputError, InstanceFailed, NoTarget, NotFound, WrongStatus

go = Signal("go")


class Counter(Machine):
    """Ends with its number once it is sent a signal, or fails for a negative one."""

    @step
    async def start(self, number: int, ctx: Context) -> Outcome[int]:
        ctx.progress(1.0, message="counted")
        return Await(go, then=self.end, state=number)

    @step
    async def end(self, number: int, ctx: Context) -> Outcome[int]:
        if number < 0:
            return Fail("negative")
        return Done(number)


class Parent(Machine):
    """Starts one child under a key, for ever."""

    @step
    async def start(self, _: None, ctx: Context) -> Outcome[int]:
        child = Start(Counter.start, 7, unique_key="child", unique="forever", delay=NEVER)
        return ScheduleChildren([child], then=self.join, state=None)

    @step
    async def join(self, _: None, ctx: Context) -> Outcome[int]:
        return Done(len(ctx.children))


async def count_to(e: Engine, number: int, key: str, **options: Any) -> int:
    """An instance under the key that has ended with the number. Returns its id."""
    handle = await e.app.insert(Counter.start, number, unique_key=key, **options)

    async def has_reported() -> bool:
        return await e.app.progress(handle.id) != []

    await e.rows.when(has_reported)
    await handle.signal(go)
    await handle.wait()
    return handle.id


async def test_a_key_is_held_forever(engine: Opening) -> None:
    """After the end a second insert is a duplicate, is skipped, or gets the instance that has ended."""
    async with engine() as e, e.worker(Counter()):
        first = await count_to(e, 5, "k", unique="forever")
        with pytest.raises(Duplicate) as caught:
            await e.app.insert(Counter.start, 0, unique_key="k")
        assert caught.value.existing_id == first
        assert await e.app.insert(Counter.start, 0, unique_key="k", on_conflict="skip") is None
        again = await e.app.insert(Counter.start, 0, unique_key="k", unique="forever", on_conflict="existing")
        assert await again.wait() == Finished(first, 5)
        assert await e.rows.count() == 1


async def test_live_is_the_default(engine: Opening) -> None:
    """`unique="live"` says what the default does: the key is free after the end."""
    async with engine() as e, e.worker(Counter()):
        first = await count_to(e, 1, "k", unique="live")
        second = await count_to(e, 2, "k")
        assert first != second
        scopes = await e.rows.fetch("select unique_scope, keep_seconds from @.instances")
        assert [(list(row[0]), row[1]) for row in scopes] == [([], None)] * 2


async def test_a_key_finds_the_last_instance_of_those_that_have_ended(engine: Opening) -> None:
    """Each read by key, also the handle's."""
    async with engine() as e, e.worker(Counter()):
        await count_to(e, 1, "k")
        last = await count_to(e, 2, "k")
        assert (await e.app.get("k")).id == last
        assert await e.app.history("k") == await e.app.history(last) != []
        assert await e.app.progress("k") == await e.app.progress(last) != []
        assert (await e.app.activities("k"), await e.app.checkpoint("k")) == ([], None)
        handle = e.app.handle("k", Counter.start)
        assert (await handle.wait(), await handle.result(), (await handle.get()).id) == (Finished(last, 2), 2, last)
        assert [one.id for one in await e.app.list(unique_key="k")] == [last, last - 1]


async def test_a_key_finds_its_live_holder_first(engine: Opening) -> None:
    """Also if a holder before it has a higher id: an insert that waits for a key has drawn its id already."""
    async with engine() as e:
        live = await e.app.insert(Counter.start, 0, unique_key="k", delay=NEVER)
        await e.rows.fetch(
            "insert into @.instances (id, fsm, step, status, finished_at, unique_key) overriding system value "
            "values ($1, 'Counter', 'end', 'done', now(), 'k')",
            live.id + 100,
        )
        assert (await e.app.get("k")).id == live.id
        assert await e.app.handle("k", Counter.start).wait(0) == Pending(live.id)


async def test_a_handle_by_key_looks_up_its_instance_with_each_call(engine: Opening) -> None:
    """Made before the instance, it follows the key; it has no id of its own."""
    async with engine() as e, e.worker(Counter()):
        handle = e.app.handle("k", Counter.start)
        assert repr(handle) == "Handle(b'k')"
        assert handle == e.app.handle(b"k", Counter.start)
        for unknown in (handle.get(), handle.wait(), handle.cancel(), handle.retry(), handle.delete()):
            with pytest.raises(NotFound, match="the holder of key b'k' is unknown"):
                await unknown
        with pytest.raises(InputError, match="has no id"):
            _ = handle.id
        first = await e.app.insert(Counter.start, 3, unique_key="k")
        assert await handle.wait(0) == Pending(first.id)
        assert await handle.signal(go)
        assert await handle.result() == 3
        second = await e.app.insert(Counter.start, 4, unique_key="k")
        assert (await handle.get()).id == second.id
        assert await e.app.signal(handle, go)
        assert await handle.result() == 4
        await e.app.delete(handle)
        assert (await handle.get()).id == first.id


@pytest.mark.parametrize("unique", ["live", "forever"])
async def test_signal_and_cancel_by_key_go_to_the_live_holder(engine: Opening, unique: Any) -> None:
    """An instance that has ended takes no signal and cannot be cancelled, also if it holds its key."""
    async with engine() as e, e.worker(Counter()):
        await count_to(e, 1, "k", unique=unique)
        with pytest.raises(NoTarget, match="is unknown or has ended"):
            await e.app.signal("k", go)
        with pytest.raises(NotFound, match="is unknown or has ended"):
            await e.app.cancel("k")


async def test_with_a_codec(engine: Opening) -> None:
    """Payloads are encrypted for their instance: reads by key decrypt, and a signal to an ended holder is refused."""
    async with engine(codec=AesGcm({"k": bytes(32)})) as e, e.worker(Counter()):
        last = await count_to(e, 6, "k", unique="forever")
        assert (await e.app.get("k")).result == 6
        assert await e.app.handle("k", Counter.start).wait() == Finished(last, 6)
        assert [report.message for report in await e.app.progress("k")] == ["counted"]
        with pytest.raises(NoTarget):
            await e.app.signal("k", go)
        with pytest.raises(NoTarget):
            await e.app.signal("k", go, connection=e.rows.connection)


async def test_retry_by_key(engine: Opening) -> None:
    """The last instance of the key runs again, whether it holds the key or not; a live one is refused."""
    async with engine() as e:
        for unique in ("live", "forever"):
            key = f"retry {unique}"
            async with e.worker(Counter()):
                failed = await count_to(e, -1, key, unique=unique)
            with pytest.raises(InstanceFailed):
                await e.app.handle(key, Counter.start).result()
            await e.app.retry(key)
            assert (await e.rows.row(failed))["status"] == "runnable"
            with pytest.raises(WrongStatus):
                await e.app.retry(key)


async def test_delete_frees_a_key(engine: Opening) -> None:
    """An operator deletes the row of a forever key: the key can be inserted again."""
    async with engine() as e, e.worker(Counter()):
        first = await count_to(e, 1, "k", unique="forever")
        await e.app.delete("k")
        assert await count_to(e, 2, "k", unique="forever") != first


async def test_keep_is_stored(engine: Opening) -> None:
    """In seconds; a forever key keeps for good unless `keep` says how long."""
    async with engine() as e:
        starts = [
            Start(Counter.start, 0, unique_key="a", unique="forever"),
            Start(Counter.start, 0, unique_key="b", unique="forever", keep=seconds(90)),
            Start(Counter.start, 0, keep=0),
            Start(Counter.start, 0, unique_key="d"),
        ]
        handles = await e.app.insert_many(starts)
        kept = [(await e.rows.row(handle))["keep_seconds"] for handle in handles]
        assert kept == [float("inf"), 90.0, 0.0, None]
        alone = await e.app.insert(Counter.start, 0, keep=5, connection=e.rows.connection)
        assert (await e.rows.row(alone))["keep_seconds"] == 5.0
        for_good = await e.app.insert(Counter.start, 0, unique_key="e", unique="forever", connection=e.rows.connection)
        assert (await e.rows.row(for_good))["keep_seconds"] == float("inf")


async def test_children_and_spawned_instances(engine: Opening) -> None:
    """Both take the options of `Start`."""
    spawned = Start(Counter.start, 0, unique_key="spawned", unique="forever", keep=60, delay=NEVER)

    class Spawns(Machine):
        @step
        async def start(self, _: None, ctx: Context) -> Outcome[None]:
            return Done(spawn=[spawned])

    async with engine() as e, e.worker(Parent(), Spawns(), Counter()):
        parent = await e.app.insert(Parent.start, None)
        await e.rows.until(parent, status="awaiting_children")
        await (await e.app.insert(Spawns.start, None)).wait()
        rows = await e.rows.fetch("select * from @.instances where unique_key is not null order by id")
        assert [(row["unique_key"], row["keep_seconds"], len(row["unique_scope"])) for row in rows] == [
            (b"child", float("inf"), 7),
            (b"spawned", 60.0, 7),
        ]


async def test_keys_from_code_without_await(engine: Opening, dsn: str, schema: str) -> None:
    """`SyncDurable` has the same options and the same handle."""
    async with engine() as e, e.worker(Counter()):
        done: list[Any] = []

        def use() -> None:
            with SyncDurable(dsn, schema=schema) as app:
                handle = app.handle("k", Counter.start)
                app.insert(Counter.start, 8, unique_key="k", unique="forever", keep=3600)
                assert app.signal(handle, go)
                done.append(handle.result())
                again = app.insert(Counter.start, 0, unique_key="k", on_conflict="existing")
                done.extend([again.result(), handle.get().result, repr(handle)])
                with pytest.raises(InputError):
                    _ = handle.id

        thread = threading.Thread(target=use)
        thread.start()

        async def ended() -> bool:
            return not thread.is_alive()

        await e.rows.when(ended)
        assert done == [8, 8, 8, "SyncHandle(b'k')"]
