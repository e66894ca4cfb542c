"""Section 5, await and signals: parking, delivery, the inbox, and no wake-up lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.spec import Engine, Gate, Handle, Opening, Play, State, finished, go, other

from gen_durable import Await, Context, Done, Fail, Next, Outcome, Signal
from gen_durable.errors import Duplicate, NoTarget
from gen_durable.telemetry import StepCommitted

third = Signal("third", dict)


async def park(e: Engine, play: Play, **options: Any) -> Handle[Any]:
    """An instance that waits, and no worker."""
    async with e.worker(play):
        handle = await e.start(**options)
        await e.until(StepCommitted, id=handle.id, outcome="Await")
    return handle


def waiting() -> Play:
    """Waits for `go` at step a, and tells at step b what it got."""
    return Play(
        a=lambda p, s, c: Await(go, then=p.b, state=s),
        b=lambda p, s, c: Done({"awaited": [r.name for r in c.awaited], "inbox": [r.name for r in c.inbox]}),
    )


async def test_parking_writes_what_is_awaited(engine: Opening) -> None:
    """A parked row names what it waits for, and has neither owner nor lease."""
    async with engine() as e:
        row = await e.row(await park(e, waiting()))
        assert (row["status"], row["awaits"]) == ("awaiting_signal", ["go"])
        assert (row["locked_by"], row["lease_expires_at"], row["await_deadline"]) == (None, None, None)


async def test_a_signal_wakes_only_on_a_name_match(engine: Opening) -> None:
    """A signal of another name is kept and wakes nobody; the right one wakes."""
    async with engine() as e:
        play = waiting()
        handle = await park(e, play)
        assert await handle.signal(other, {})
        assert (await e.row(handle))["status"] == "awaiting_signal"
        assert await handle.signal(go, {})
        assert (await e.row(handle))["status"] == "runnable"


async def test_a_signal_that_does_not_match_stays_for_its_own_await(engine: Opening) -> None:
    """What came before anyone waited for it is there when somebody does."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s),
            b=lambda p, s, c: Await(other, then=p.c, state={"go": c.take(go)}),
            c=lambda p, s, c: Done([s["go"], c.take(other), [r.name for r in c.inbox]]),
        )
        handle = await park(e, play)
        await handle.signal(other, {"n": 1})
        await handle.signal(go, {"n": 2})
        async with e.worker(play):
            result = await finished(handle)
        assert result[:2] == [{"n": 2}, {"n": 1}]


async def test_a_signal_is_a_row_that_outlives_every_process(engine: Opening) -> None:
    """Delivery does not need a worker: the signal is committed and found by whoever runs the instance later."""
    async with engine() as e:
        handle = await e.start()
        await handle.signal(go, {"n": 5})
        (row,) = await e.fetch("select * from @.signals")
        assert (row["target_id"], row["name"], row["payload"]) == (handle.id, "go", '{"n": 5}')
    async with engine() as e:
        play = waiting()
        async with e.worker(play):
            assert await finished(e.app.handle(handle.id, Play.a)) == {"awaited": ["go"], "inbox": ["go"]}


async def test_a_dead_worker_does_not_lose_a_signal(engine: Opening) -> None:
    """A woken step that dies before its commit finds the same signals when it runs again."""
    async with engine() as e:
        play = waiting()
        handle = await park(e, play)
        await handle.signal(go, {"n": 1})
        (first,) = await e.claim(lease=0.0)
        await e.reap()
        (second,) = await e.claim(lease=0.0)
        assert first.inbox == second.inbox
        assert first.awaits == second.awaits == ["go"]
        await e.reap()
        async with e.worker(play):
            assert await finished(handle) == {"awaited": ["go"], "inbox": ["go"]}


async def test_duplicates_are_caught_by_the_dedup_key(engine: Opening) -> None:
    """With a dedup key a second delivery is recognised, told, and changes nothing; each instance has its own keys."""
    async with engine() as e:
        first, second = await e.start(), await e.start()
        assert await first.signal(go, {"n": 1}, dedup_key="evt-1") is True
        assert await first.signal(go, {"n": 2}, dedup_key="evt-1") is False
        assert await first.signal(go, {"n": 3}, dedup_key="evt-2") is True
        assert await second.signal(go, {"n": 4}, dedup_key="evt-1") is True
        rows = await e.fetch("select target_id, payload from @.signals order by id")
        assert [tuple(row) for row in rows] == [
            (first.id, '{"n": 1}'),
            (first.id, '{"n": 3}'),
            (second.id, '{"n": 4}'),
        ]


async def test_a_dedup_key_is_known_after_its_signal_was_consumed(engine: Opening) -> None:
    """While the instance lives, a redelivery is recognised even when the first is long consumed."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s),
            b=lambda p, s, c: Await(other, then=p.c, state=s) if not c.awaited else Next(p.b, s),
            c=lambda p, s, c: Done(),
        )
        handle = await e.start()
        async with e.worker(play):
            await e.until(StepCommitted, id=handle.id, outcome="Await")
            await handle.signal(go, {}, dedup_key="evt-1")
            await e.until(StepCommitted, id=handle.id, outcome="Await", times=2)
        assert await e.inbox(handle) == []
        assert await handle.signal(go, {}, dedup_key="evt-1") is False
        assert await e.inbox(handle) == []


async def test_delivery_inserts_and_wakes_in_one_transaction(engine: Opening, dsn: str) -> None:
    """Nobody sees a woken row without its signal: both come with one commit, or neither with a rollback."""
    async with engine() as e:
        handle = await park(e, waiting())
        transaction = e.db.transaction()
        await transaction.start()
        await e.fetch("select @.signal($1::bigint, 'go', '{}'::jsonb)", handle.id)
        assert (await e.row(handle))["status"] == "runnable"
        assert (await handle.get()).status == "awaiting_signal"
        await transaction.rollback()
        assert (await e.row(handle))["status"] == "awaiting_signal"
        assert await e.inbox(handle) == []


async def test_a_woken_row_still_names_what_it_awaited(engine: Opening) -> None:
    """Delivery makes the row runnable and leaves `awaits`, by which the woken step knows what to consume."""
    async with engine() as e:
        handle = await park(e, waiting())
        await handle.signal(go, {})
        row = await e.row(handle)
        assert (row["status"], row["awaits"]) == ("runnable", ["go"])


async def test_without_then_the_same_step_runs_again_and_sees_the_signal(engine: Opening) -> None:
    """The woken step is the one that parked, and what it waited for is in its inbox."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: Done(c.take(go)) if c.awaited else Await(go, state={"asked": True}))
        async with e.worker(play):
            handle = await e.start({"asked": False})
            await e.until(StepCommitted, id=handle.id, outcome="Await")
            await handle.signal(go, {"n": 8})
            assert await finished(handle) == {"n": 8}
        assert [visit.state["asked"] for visit in play.script.visits] == [False, True]


async def test_the_inbox_is_shown_whole_and_the_awaited_apart(engine: Opening) -> None:
    """A step sees all signals that wait for it, and which of them it had waited for, oldest first."""
    async with engine() as e:
        play = waiting()
        handle = await park(e, play)
        for signal in (other, go, third, go):
            await handle.signal(signal, {})
        async with e.worker(play):
            assert await finished(handle) == {"awaited": ["go", "go"], "inbox": ["other", "go", "third", "go"]}


async def test_any_name_of_a_set_wakes(engine: Opening) -> None:
    """An await on several names ends with the first signal of any of them."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await([go, other], then=p.b, state=s),
            b=lambda p, s, c: Done([c.take(go), c.take(other), c.take(third)]),
        )
        handle = await park(e, play)
        await handle.signal(third, {})
        assert (await e.row(handle))["status"] == "awaiting_signal"
        await handle.signal(other, {"n": 1})
        async with e.worker(play):
            assert await finished(handle) == [None, {"n": 1}, None]


async def test_a_signal_is_addressed_by_the_key_of_its_live_holder(engine: Opening) -> None:
    """A unique key is as good an address as the id, for as long as the instance lives."""
    async with engine() as e:
        play = waiting()
        handle = await park(e, play, unique_key="order:1")
        with pytest.raises(Duplicate):
            await e.start(unique_key="order:1")
        assert await e.app.signal("order:1", go, {}) is True
        async with e.worker(play):
            await finished(handle)
        with pytest.raises(NoTarget):
            await e.app.signal("order:1", go, {})


async def test_an_unknown_or_ended_target_is_refused(engine: Opening) -> None:
    """A signal that nobody can ever receive is an error of the sender, and leaves nothing behind."""
    async with engine() as e:
        async with e.worker(Play(a=lambda p, s, c: Done() if s["ok"] else Fail("no"))):
            ended = [await e.start({"ok": True}), await e.start({"ok": False})]
            for handle in ended:
                await handle.wait()
        for target in (ended[0].id, ended[1].id, 999_999, "nobody"):
            with pytest.raises(NoTarget):
                await e.app.signal(target, go, {})
        assert await e.fetch("select * from @.signals") == []


async def test_a_signal_that_comes_before_the_parking_is_not_lost(engine: Opening) -> None:
    """A step that parks on what came while it ran is not parked: it goes on at once with the signal."""
    async with engine() as e:
        gate = Gate()

        async def slow(play: Play, state: State, ctx: Context) -> Outcome[Any]:
            await gate.pass_through()
            return Await(go, then=play.b, state=state)

        play = Play(a=slow, b=lambda p, s, c: Done(c.take(go)))
        async with e.worker(play):
            handle = await e.start()
            await gate.arrival()
            await handle.signal(go, {"n": 1})
            row = await e.row(handle)
            assert (row["status"], await e.inbox(handle)) == ("executing", ["go"])
            gate.opened.set()
            assert await finished(handle) == {"n": 1}


async def test_no_interleaving_of_deliveries_and_parkings_hangs(engine: Opening) -> None:
    """Signals sent at every moment around the parking of their targets wake all of them."""
    async with engine() as e:

        async def body(play: Play, state: State, _ctx: Context) -> Outcome[Any]:
            for _ in range(state["pause"]):
                await asyncio.sleep(0)
            return Await(go, then=play.b, state=state)

        play = Play(a=body, b=lambda p, s, c: Done(c.take(go)))
        async with e.worker(play, queues={"default": 20}):
            handles = [await e.start({"pause": n % 40}) for n in range(120)]
            await asyncio.gather(*(handle.signal(go, {"n": n}) for n, handle in enumerate(handles)))
            for n, handle in enumerate(handles):
                assert await finished(handle) == {"n": n}
