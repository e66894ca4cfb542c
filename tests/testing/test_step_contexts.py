"""make_context(): one step, called without a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Fail,
    Machine,
    Next,
    Outcome,
    RetryPolicy,
    Signal,
    Status,
    job,
    step,
)
from gen_durable.errors import EncodeError
from gen_durable.testing import child_done, child_failed, make_context, round_trip, sent


@dataclass(frozen=True)
class Paid:
    amount: int


payment = Signal("payment", Paid)
hurry = Signal("hurry")


@job
def pack(sku: str) -> list[str]:
    return [sku]


class Shop(Machine, queue="shop", version=3):
    @step
    async def collect(self, order: int, ctx: Context) -> Outcome[int]:
        paid = ctx.take(payment)
        return Fail("payment never came") if paid is None else Next(self.join, paid.amount)

    @step
    async def join(self, amount: int, ctx: Context) -> Outcome[int]:
        if any(not child.ok for child in ctx.children):
            return Await(hurry, state=amount)
        return Done(len(ctx.results(pack)))

    @step
    async def keyed(self, state: dict[Any, int], ctx: Context) -> Outcome[int]:
        return Done(0)


async def test_signals_come_as_typed_values() -> None:
    ctx = make_context(Shop.collect, awaited=[sent(payment, Paid(100)), sent(payment, Paid(7))], inbox=[sent(hurry)])
    outcome = await Shop().collect(42, ctx)
    assert isinstance(outcome, Next)
    assert (outcome.step.name, outcome.state) == ("join", 100)
    assert ctx.take_all(payment) == [Paid(7)], "the step took the first"
    assert ctx.take_all(hurry) == [], "it was not awaited"
    assert not ctx.timed_out
    assert make_context(Shop.collect, timed_out=True).timed_out
    assert [s.name for s in ctx.awaited] == ["payment", "payment"]
    assert [s.id for s in ctx.inbox] == [1, 2, 3], "ids as the database gives them: each its own, in order"
    assert ctx.inbox[0].inserted_at < ctx.inbox[2].inserted_at


async def test_no_signal_is_a_deadline_that_fired() -> None:
    outcome = await Shop().collect(42, make_context(Shop.collect))
    assert isinstance(outcome, Fail)
    assert outcome.reason == "payment never came"


async def test_children_come_as_typed_results() -> None:
    done = make_context(Shop.join, children=[child_done(pack, ["a"]), child_done(pack, ["b"])])
    assert done.results(pack) == [["a"], ["b"]]
    outcome = await Shop().join(1, done)
    assert isinstance(outcome, Done)
    assert outcome.result == 2

    mixed = make_context(Shop.join, id=10, children=[child_done(pack, ["a"]), child_failed(pack, "no box")])
    assert isinstance(await Shop().join(1, mixed), Await)
    assert [(c.id, c.status, c.last_error) for c in mixed.children] == [
        (11, Status.DONE, None),
        (12, Status.FAILED, "no box"),
    ]


def test_the_rest_of_the_context_is_as_a_worker_makes_it() -> None:
    ctx = make_context(Shop.collect)
    assert (ctx.machine, ctx.version, ctx.step, ctx.queue, ctx.attempt) == ("Shop", 3, "collect", "shop", 0)
    ctx = make_context(
        Shop.collect, attempt=2, queue="q", priority=5, partition_key="p", unique_key="order:1", parent_id=9
    )
    assert (ctx.attempt, ctx.queue, ctx.priority, ctx.partition_key) == (2, "q", 5, "p")
    assert (ctx.unique_key, ctx.parent_id) == (b"order:1", 9)


def test_a_payload_or_result_of_another_type_is_refused() -> None:
    with pytest.raises(EncodeError, match="signal 'payment' takes Paid, got int"):
        sent(payment, 100)  # type: ignore[misc]
    with pytest.raises(EncodeError, match="NaN"):
        sent(Signal("load", float), float("nan"))


def test_a_state_goes_through_json() -> None:
    keyed: dict[Any, int] = {1: 2}
    assert round_trip(Shop.keyed, keyed) == {"1": 2}
    with pytest.raises(EncodeError, match=r"Shop\.collect takes int, got str"):
        round_trip(Shop.collect, "x")  # type: ignore[arg-type]


async def double(n: int) -> int:
    return n * 2


class Journalled(Machine):
    @step
    async def work(self, n: int, ctx: Context) -> Outcome[list[int]]:
        done = ctx.last_checkpoint or 0
        await ctx.checkpoint(done + 1)
        ctx.progress(0.5, "half")
        return Done([await ctx.run("double", double, n, retry=RetryPolicy(attempts=3)), ctx.last_checkpoint])

    @step
    def in_thread(self, n: int, ctx: Context) -> Outcome[int]:
        ctx.sync.checkpoint(n)
        return Done(ctx.sync.run("double", double, ctx.last_checkpoint))


async def test_the_journal_is_on_paper() -> None:
    """Activities are called, checkpoints remembered, without a database; what a former execution left is answered."""
    fresh = await Journalled().work(4, make_context(Journalled.work))
    assert isinstance(fresh, Done)
    assert fresh.result == [8, 1]
    again = await Journalled().work(4, make_context(Journalled.work, checkpoint=6, finished={"double": 100}))
    assert isinstance(again, Done)
    assert again.result == [100, 7]
    assert make_context(Journalled.work, id=3).idempotency_key == "testing-3-0"
    assert make_context(Journalled.work, checkpoint=None).has_checkpoint


def test_the_journal_of_a_def_step_is_on_paper_too() -> None:
    """`ctx.sync` needs no loop."""
    outcome = Journalled().in_thread(5, make_context(Journalled.in_thread))
    assert isinstance(outcome, Done)
    assert outcome.result == 10
