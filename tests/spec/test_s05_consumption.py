"""Section 5, continued: what a woken step consumes, and what a deadline does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.spec import HOUR, MOMENT, Engine, Gate, Handle, Kid, Opening, Play, State, finished, go, other

from gen_durable import Await, Context, Done, Fail, Next, Outcome, Retry, ScheduleChildren, Start
from gen_durable.telemetry import StepCommitted

ON: dict[str, Callable[[Play], Outcome[Any]]] = {
    "Next": lambda p: Next(p.c, {}, delay=HOUR),
    "Next, held": lambda p: Next(p.c, {}),
    "ScheduleChildren": lambda p: ScheduleChildren([Start(Kid.k, {}, queue="aside")], then=p.c, state={}),
}
ENDS: dict[str, Callable[[Play], Outcome[Any]]] = {"Done": lambda p: Done(), "Fail": lambda p: Fail("no")}
STAYS: dict[str, Callable[[Play], Outcome[Any]]] = {
    "Retry": lambda p: Retry({}, delay=HOUR),
    "Await": lambda p: Await(go, state={}),
}


async def woken(e: Engine, outcome: Callable[[Play], Outcome[Any]]) -> Handle[Any]:
    """An instance that was sent `go` and `other` while it waited for `go`, and another `go` while its step ran."""
    gate = Gate()

    async def body(play: Play, _state: State, _ctx: Context) -> Outcome[Any]:
        await gate.pass_through()
        return outcome(play)

    play = Play(a=lambda p, s, c: Await(go, then=p.b, state=s), b=body, c=lambda p, s, c: Retry(s, delay=HOUR))
    async with e.worker(play, run_ahead_steps=32):
        handle = await e.start()
        first = await e.until(StepCommitted, id=handle.id)
        assert first.outcome == "Await"
        await handle.signal(other, {"n": 0})
        await handle.signal(go, {"n": 1})
        await gate.arrival()
        await handle.signal(go, {"n": 2})
        gate.opened.set()
        await e.until(StepCommitted, id=handle.id, step="b")
    return handle


@pytest.mark.parametrize("kind", ON)
async def test_progress_consumes_exactly_the_awaited_signals_that_were_shown(engine: Opening, kind: str) -> None:
    """A step that goes on deletes what it waited for and was shown; other names and later arrivals stay."""
    async with engine() as e:
        handle = await woken(e, ON[kind])
        rows = await e.fetch("select name, payload from @.signals where target_id = $1 order by id", handle.id)
        assert [tuple(row) for row in rows] == [("other", '{"n": 0}'), ("go", '{"n": 2}')]
        assert (await e.row(handle))["awaits"] is None


# The seed deletes the inbox with a terminal outcome. Here signals that were not read stay until retention: they were
# accepted, so an operator must be able to find them; and a retried instance must be given what it was given before.
@pytest.mark.parametrize(
    ("kind", "inbox", "awaits"), [("Done", ["other", "go"], None), ("Fail", ["other", "go", "go"], ["go"])]
)
async def test_an_end_keeps_what_was_not_read(
    engine: Opening, kind: str, inbox: list[str], awaits: list[str] | None
) -> None:
    """`Done` consumes the awaited signals like any outcome that leads on; `Fail` consumes nothing."""
    async with engine() as e:
        handle = await woken(e, ENDS[kind])
        assert await e.inbox(handle) == inbox
        assert (await e.row(handle))["awaits"] == awaits


# The seed has one rule for all steps: progress consumes what was awaited. A step that takes signals by name refines it.
@pytest.mark.parametrize("kind", [*ON, *ENDS, "Await", "Await elsewhere", "Retry"])
async def test_a_step_that_takes_consumes_what_it_took(engine: Opening, kind: str) -> None:
    """Whichever outcome follows; `Retry` and `Fail` consume nothing."""
    outcomes = ON | ENDS | STAYS | {"Await elsewhere": lambda p: Await(other, then=p.c, state={})}
    taken: list[object] = []

    async def take_one(play: Play, _state: State, ctx: Context) -> Outcome[Any]:
        if not taken:
            taken.extend([ctx.take(go), ctx.take(other)])
            return outcomes[kind](play)
        return Retry({}, delay=HOUR)

    play = Play(a=lambda p, s, c: Await(go, then=p.b, state=s), b=take_one, c=lambda p, s, c: Retry(s, delay=HOUR))
    async with engine() as e:
        handle = await e.start()
        for n in (1, 2):
            await handle.signal(go, {"n": n})
        async with e.worker(play):
            await e.until(StepCommitted, id=handle.id, step="b")
        assert taken == [{"n": 1}, None]
        rows = await e.fetch("select payload from @.signals where target_id = $1 order by id", handle.id)
        left = ['{"n": 1}', '{"n": 2}'] if kind in ("Retry", "Fail") else ['{"n": 2}']
        assert [row["payload"] for row in rows] == left


async def test_signals_that_were_not_taken_wake_the_next_await_at_once(engine: Opening) -> None:
    """Of three signals each is handed out once, in order, although all came with the first claim."""
    got: list[object] = []

    def take_one(play: Play, state: State, ctx: Context) -> Outcome[Any]:
        got.append(ctx.take(go))
        return Await(go, state=state) if len(got) < 3 else Done()

    async with engine() as e:
        play = Play(a=lambda p, s, c: Await(go, then=p.b, state=s), b=take_one)
        handle = await e.start()
        for n in (1, 2, 3):
            await handle.signal(go, {"n": n})
        async with e.worker(play):
            await finished(handle)
        assert got == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert await e.inbox(handle) == []


async def test_a_timeout_does_not_look_like_the_signal_before_it(engine: Opening) -> None:
    """An `Await` with another `then` consumes the signal that woke its step, also if the step did not look at it."""
    seen: list[tuple[object, bool]] = []

    def note(play: Play, state: State, ctx: Context) -> Outcome[Any]:
        seen.append((ctx.take(go), ctx.timed_out))
        return Done()

    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s),
            b=lambda p, s, c: Await(go, then=p.c, state=s, timeout=timedelta(milliseconds=100)),
            c=note,
        )
        handle = await e.start()
        await handle.signal(go, {"n": 1})
        async with e.worker(play):
            await finished(handle)
        assert seen == [(None, True)]


async def test_what_a_step_took_before_it_raised_is_taken(engine: Opening) -> None:
    """The outcome of `on_error` consumes what the step took, and leaves the rest to the next await."""

    def raise_after_take(play: Play, state: State, ctx: Context) -> Outcome[Any]:
        ctx.take(go)
        raise ValueError

    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s),
            b=raise_after_take,
            c=lambda p, s, c: Retry(s, delay=HOUR),
            on_error=lambda p, s, c, error: Next(p.c, s),
        )
        handle = await e.start()
        for n in (1, 2):
            await handle.signal(go, {"n": n})
        async with e.worker(play):
            await e.until(StepCommitted, id=handle.id, step="b")
        rows = await e.fetch("select payload from @.signals where target_id = $1", handle.id)
        assert [row["payload"] for row in rows] == ['{"n": 2}']


async def test_timed_out_survives_a_crash_and_a_retry_until_a_signal_comes(engine: Opening) -> None:
    async with engine() as e:
        seen: list[tuple[bool, int]] = []

        def note(play: Play, state: State, ctx: Context) -> Outcome[Any]:
            seen.append((ctx.timed_out, len(ctx.awaited)))
            return Retry(state) if len(seen) < 2 else Retry(state, delay=HOUR) if len(seen) < 3 else Done()

        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s, timeout=timedelta(milliseconds=50)),
            b=note,
        )
        async with e.worker(play):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id, outcome="Await")
        await e.fetch("update @.instances set await_deadline = now() - interval '1 second'")
        (claim,) = await e.claim(lease=0.0)
        assert (claim.timed_out, claim.awaits) == (True, ["go"])
        await e.reap()
        async with e.worker(play):
            await e.until(StepCommitted, id=handle.id, step="b", times=2)
            assert seen == [(True, 0), (True, 0)]
            await handle.signal(go, {"n": 1})
            await e.fetch("update @.instances set eligible_at = now()")
            await e.until(StepCommitted, id=handle.id, step="b", times=3)
            assert seen[2] == (False, 1)


async def test_replay_consumes_nothing(engine: Opening) -> None:
    """The same step runs again, so it must see the same signals, and know that they are what it waited for."""
    async with engine() as e:
        handle = await woken(e, STAYS["Retry"])
        assert await e.inbox(handle) == ["other", "go", "go"]
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s),
            b=lambda p, s, c: Retry(s) if c.attempt < 2 else Done([r.name for r in c.awaited]),
        )
        async with e.worker(play):
            handle = await e.start()
            await handle.signal(go, {})
            assert await finished(handle) == ["go"]


async def test_another_await_consumes_nothing(engine: Opening) -> None:
    """Parking again leaves the inbox; what came unseen while the step ran wakes it at once."""
    async with engine() as e:
        handle = await woken(e, STAYS["Await"])
        assert await e.inbox(handle) == ["other", "go", "go"]
        row = await e.row(handle)
        assert (row["status"], row["awaits"]) == ("runnable", ["go"])


async def test_collecting_several_signals_does_not_spin(engine: Opening) -> None:
    """A step that awaits more of what it has seen sleeps until one comes that it has not seen."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await(go, state=s) if len(c.awaited) < 4 else Done([g["n"] for g in c.take_all(go)])
        )
        async with e.worker(play):
            handle = await e.start()
            for n in range(1, 5):
                await e.until(StepCommitted, id=handle.id, outcome="Await", times=n)
                assert (await e.row(handle))["status"] == "awaiting_signal"
                await handle.signal(go, {"n": n})
            assert await finished(handle) == [1, 2, 3, 4]
        assert len(play.script.visits) == 5


async def test_an_instance_that_never_awaits_keeps_its_signals(engine: Opening) -> None:
    """Without an await nothing is consumed, however far the instance goes; a step may look all the same."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Next(p.b, s),
            b=lambda p, s, c: Next(p.c, {"looked": [r.name for r in c.inbox], "awaited": len(c.awaited)}),
            c=lambda p, s, c: Retry(s, delay=HOUR),
        )
        handle = await e.start()
        await handle.signal(go, {})
        async with e.worker(play):
            await e.until(StepCommitted, id=handle.id, step="c")
        assert await e.inbox(handle) == ["go"]
        assert play.script.of("c")[0].state == {"looked": ["go"], "awaited": 0}


async def test_a_late_signal_serves_the_next_await_of_its_name(engine: Opening) -> None:
    """What came too late for one await is there for the next, which does not park then."""
    async with engine() as e:
        gate = Gate()

        async def second(play: Play, state: State, ctx: Context) -> Outcome[Any]:
            await gate.pass_through()
            return Await(go, then=play.c, state={"first": ctx.take(go)})

        async def first(play: Play, state: State, ctx: Context) -> Outcome[Any]:
            return Await(go, then=play.b, state=state)

        play = Play(a=first, b=second, c=lambda p, s, c: Done([s["first"], c.take_all(go)]))
        async with e.worker(play):
            handle = await e.start()
            await handle.signal(go, {"n": 1})
            await gate.arrival()
            await handle.signal(go, {"n": 2})
            gate.opened.set()
            assert await finished(handle) == [{"n": 1}, [{"n": 2}]]


async def test_a_deadline_is_a_wake_and_not_a_failure(engine: Opening) -> None:
    """When nothing comes in time, the step runs with nothing, without an error and without a counted attempt."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s, timeout=timedelta(milliseconds=200)),
            b=lambda p, s, c: Done([c.take(go), c.attempt]),
        )
        async with e.worker(play):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id, outcome="Await")
            row = await e.row(handle)
            assert timedelta(0) <= row["await_deadline"] - row["updated_at"] - timedelta(milliseconds=200) < MOMENT
            assert await finished(handle) == [None, 0]
        assert play.script.errors == []


async def test_a_deadline_leaves_what_does_not_match(engine: Opening) -> None:
    """A step that a deadline woke has the other signals in its inbox, and consumes none of them."""
    async with engine() as e:
        play = Play(
            a=lambda p, s, c: Await(go, then=p.b, state=s, timeout=timedelta(milliseconds=100)),
            b=lambda p, s, c: Await(other, then=p.c, state={"inbox": [r.name for r in c.inbox]}),
            c=lambda p, s, c: Done([s["inbox"], c.take(other)]),
        )
        async with e.worker(play):
            handle = await e.start()
            await handle.signal(other, {"n": 1})
            assert await finished(handle) == [["other"], {"n": 1}]


async def test_a_signal_in_time_lifts_the_deadline(engine: Opening) -> None:
    """A woken row is due by its signal, and its deadline means nothing any more."""
    async with engine() as e:
        play = Play(a=lambda p, s, c: Await(go, then=p.b, state=s, timeout=HOUR), b=lambda p, s, c: Done(c.take(go)))
        async with e.worker(play):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id, outcome="Await")
        await handle.signal(go, {"n": 1})
        row = await e.row(handle)
        assert (row["status"], row["due_at"]) == ("runnable", row["eligible_at"])
        assert (await handle.get()).await_deadline is None
        async with e.worker(play):
            assert await finished(handle) == {"n": 1}


async def test_a_step_of_the_same_claim_does_not_see_what_was_consumed(engine: Opening) -> None:
    """The step that follows without a new claim is shown the signals of other names only, as after a new claim."""
    seen: list[list[str]] = []

    def look(_play: Play, _state: State, ctx: Context) -> Outcome[Any]:
        seen.append([signal.name for signal in ctx.inbox])
        return Done()

    play = Play(a=lambda p, s, c: Await(go, then=p.b, state=s), b=lambda p, s, c: Next(p.c, s), c=look)
    async with engine() as e:
        async with e.worker(play, run_ahead_steps=32):
            handle = await e.start()
            await e.until(StepCommitted, id=handle.id)
            await handle.signal(other, {"n": 0})
            await handle.signal(go, {"n": 1})
            await e.until(StepCommitted, id=handle.id, step="c")
        assert (await e.row(handle))["claims"] == 2
    assert seen == [["other"]]
