"""Activities: what is finished is not done again within a visit of a step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.journal import SOON, Opening, Receipt, Scripted, Threaded, Till, run

from gen_durable import (
    Abort,
    Context,
    Done,
    Durable,
    Failed,
    Finished,
    Next,
    Outcome,
    Retry,
    RetryPolicy,
    Worker,
)
from gen_durable.engine import step_journal
from gen_durable.errors import EncodeError, InputError, TooLarge


async def test_a_finished_activity_is_answered_from_the_log(open_app: Opening) -> None:
    """A Retry of the step does not call it again; the answer has its type. After a Next it is called anew."""
    till, seen = Till(), []

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        receipt = await ctx.run("charge", till.charge, 5)
        seen.append((receipt, ctx.idempotency_key))
        return Retry(n) if ctx.attempt < 2 else Next(machine.second, n)

    async def second(n: int, ctx: Context) -> Outcome[Any]:
        receipt = await ctx.run("charge", till.charge, 6)
        seen.append((receipt, ctx.idempotency_key))
        return Done(receipt.amount)

    machine = Scripted(first, second)
    async with open_app() as app:
        handle, ending = await run(app, machine)
        assert ending == Finished(handle.id, 6)
        assert till.calls == [5, 6]
        assert [receipt for receipt, _ in seen] == [Receipt(5, ("paid",))] * 3 + [Receipt(6, ("paid",))]
        keys = [key for _, key in seen]
        assert len(set(keys[:3])) == 1
        assert keys[3] != keys[0]
        log = await app.activities(handle)
        assert [(a.visit, a.name, a.parameters, a.result) for a in log] == [
            (0, "charge", {"amount": 5}, {"amount": 5, "marks": ["paid"]}),
            (3, "charge", {"amount": 6}, {"amount": 6, "marks": ["paid"]}),
        ]


async def test_retries_are_in_the_log(open_app: Opening) -> None:
    """Each failed call leaves a row, and the next comes after its pause; then the answer counts."""
    till, pauses = Till(failures=2), []

    def pause(n: int) -> timedelta:
        pauses.append(n)
        return timedelta(milliseconds=20)

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        receipt = await ctx.run("charge", till.charge, 5, retry=RetryPolicy(attempts=4, backoff=pause))
        return Done(receipt.amount)

    async with open_app() as app:
        handle, ending = await run(app, Scripted(first))
        assert ending == Finished(handle.id, 5)
        log = await app.activities(handle)
        assert [(a.attempt, a.error) for a in log] == [
            (0, "ConnectionError: no line"), (1, "ConnectionError: no line"), (2, None),
        ]  # fmt: skip
        assert pauses == [0, 1]
        gap = log[1].started_at - log[0].started_at
        assert gap >= timedelta(milliseconds=20)


async def test_an_activity_that_failed_is_called_again_by_the_next_execution(open_app: Opening) -> None:
    """Its error is raised in the step and logged; only what is finished is kept. `Abort` is not retried."""
    till = Till(failures=1)

    async def refuse() -> None:
        raise Abort("never")

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        if ctx.attempt == 0:
            with pytest.raises(Abort):
                await ctx.run("refuse", refuse, retry=RetryPolicy(attempts=6))
            with pytest.raises(ConnectionError, match="no line"):
                await ctx.run("charge", till.charge, 5)
            return Retry(n)
        await ctx.run("charge", till.charge, 5)
        return Done(n)

    async with open_app() as app:
        handle, ending = await run(app, Scripted(first))
        assert isinstance(ending, Finished), ending
        assert [(a.name, a.attempt, a.ok) for a in await app.activities(handle)] == [
            ("refuse", 0, False), ("charge", 0, False), ("charge", 1, True),
        ]  # fmt: skip


async def test_a_name_stands_for_one_call(open_app: Opening) -> None:
    """The second use of a name in a visit is an error that says what to do; other mistakes are told before the call."""
    till = Till()

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        await ctx.run("charge", till.charge, 1)
        with pytest.raises(InputError, match="'charge:1'"):
            await ctx.run("charge", till.charge, 2)
        with pytest.raises(InputError, match="name of an activity"):
            await ctx.run("no spaces", till.charge, 2)
        with pytest.raises(EncodeError, match="arguments of activity 'odd'"):
            await ctx.run("odd", lambda x: None, object())
        with pytest.raises(InputError, match="then="):
            await ctx.run("charge:3", till.charge, 2, retry=RetryPolicy(then="second"))
        with pytest.raises(EncodeError, match="result of activity 'odd'"):
            await ctx.run("odd", object)
        both = await asyncio.gather(*(ctx.run(f"charge:{k}", till.charge, k) for k in (1, 2)))
        return Done([receipt.amount for receipt in both])

    async with open_app() as app:
        machine = Scripted(first)
        handle, ending = await run(app, machine)
        assert ending == Finished(handle.id, [1, 2]), machine.errors
        assert till.calls == [1, 1, 2]
        assert [a.name for a in await app.activities(handle)][:2] == ["charge", "odd"]


async def test_a_step_in_a_thread_has_the_same(open_app: Opening) -> None:
    """`ctx.sync`: a plain function is called in the step's own thread, a coroutine on the loop."""
    till, began = Till(), []

    def body(n: int, ctx: Context) -> Outcome[Any]:
        began.append((ctx.has_checkpoint, ctx.last_checkpoint, ctx.checkpoint_as(Receipt)))
        one = ctx.sync.run("slow", till.charge_slowly, 1)
        two = ctx.sync.run("quick", till.charge, 2)
        assert till.threads == {threading.get_ident()} or ctx.attempt
        ctx.sync.checkpoint(Receipt(3))
        ctx.progress(1, "done")
        if ctx.attempt == 0:
            return Retry(n)
        ctx.sync.clear_checkpoint()
        assert not ctx.has_checkpoint
        return Done([one.amount, two.amount])

    async with open_app() as app:
        handle, ending = await run(app, Threaded(body))
        assert ending == Finished(handle.id, [1, 2])
        assert till.calls == [1, 2]
        assert began == [(False, None, None), (True, {"amount": 3, "marks": []}, Receipt(3))]


async def test_the_wrong_door_is_told(open_app: Opening) -> None:
    """`ctx.sync` on the loop would wait for itself: it is refused."""

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        with pytest.raises(InputError, match="async def"):
            ctx.sync.checkpoint(1)
        return Done(n)

    async with open_app() as app:
        _, ending = await run(app, Scripted(first))
        assert isinstance(ending, Finished)


@pytest.mark.parametrize("statement", ["record_activity", "record_checkpoint"])
async def test_a_lost_answer_does_no_harm(schema: str, proxied: Callable[[], Any], statement: str) -> None:
    """The server has written it and the connection breaks: it is sent again, and counts once."""
    till = Till()

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        receipt = await ctx.run("charge", till.charge, 5)
        await ctx.checkpoint(receipt)
        return Done([receipt.amount, ctx.last_checkpoint["amount"]])

    async with proxied() as proxy, Durable(proxy.dsn, schema=schema) as app:
        proxy.losing = statement.encode()
        machine = Scripted(first)
        handle, ending = await run(app, machine)
        assert ending == Finished(handle.id, [5, 5]), machine.errors
        assert (proxy.lost, till.calls) == (1, [5])
        assert len(await app.activities(handle)) == 1


async def test_an_instance_that_is_tried_again_goes_on_with_what_is_finished(open_app: Opening) -> None:
    """The step charged and then failed for good: an operator's retry does not charge again, and has the same key."""
    till, seen, mended = Till(), [], asyncio.Event()

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        receipt = await ctx.run("charge", till.charge, 5)
        seen.append((ctx.last_checkpoint, ctx.idempotency_key, ctx.attempt))
        await ctx.checkpoint("charged")
        if not mended.is_set():
            raise ValueError("no mail today")
        return Done(receipt.amount)

    async with open_app() as app:
        machine = Scripted(first)
        async with Worker(app, machines=[machine]):
            handle = await app.insert(Scripted.first, 1)
            assert isinstance(await handle.wait(SOON), Failed)
            mended.set()
            await handle.retry()
            assert await handle.wait(SOON) == Finished(handle.id, 5), machine.errors
        assert till.calls == [5]
        assert [(checkpoint, attempt) for checkpoint, _, attempt in seen] == [(None, 0), ("charged", 0)]
        assert seen[0][1] == seen[1][1]
        assert [(t.seq, t.outcome) for t in await app.history(handle)] == [(1, "Fail"), (2, "Done")]


async def test_the_results_of_one_visit_are_bounded(open_app: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results come with the next claim: one that makes them too large is refused to the step, also after a Retry."""
    monkeypatch.setattr(step_journal, "MAX_CLAIM_PART", 1000)
    refused: list[str] = []

    async def text(length: int) -> str:
        return "x" * length

    async def first(n: int, ctx: Context) -> Outcome[Any]:
        await ctx.run("a", text, 400)
        await ctx.run("b", text, 400)
        if ctx.attempt == 0:
            return Retry(n)
        with pytest.raises(TooLarge, match="activity 'c': the results of the activities of one step are over 1,000"):
            await ctx.run("c", text, 400)
        refused.append("c")
        await ctx.run("d", text, 10)
        return Next(machine.second, n)

    async def second(n: int, ctx: Context) -> Outcome[Any]:
        return Done(len(await ctx.run("c", text, 900)))

    machine = Scripted(first, second)
    async with open_app() as app:
        handle, ending = await run(app, machine)
        assert ending == Finished(handle.id, 900)
    assert refused == ["c"]


def test_the_pauses_between_attempts_grow_up_to_half_a_minute() -> None:
    pauses = [step_journal._default_activity_backoff(attempt).total_seconds() for attempt in range(1, 30)]
    assert 0.05 <= pauses[0] <= 0.4
    assert 15 <= pauses[-1] <= 45
