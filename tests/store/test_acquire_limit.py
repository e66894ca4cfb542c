"""Slots and tokens that steps ask for from inside: they count as long as the claim that has asked lives."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.support.rows import executing, parked
from tests.support.store import Store

from gen_durable.limits import Limit
from gen_durable.store.types import AcquireLimitResult

SLOT = "insert into @schema.limits (name, kind, slots) values ('l', 'concurrency', 1);\n"
RATE = "insert into @schema.limits (name, kind, period, burst) values ('r', 'rate', 3600, 2);\n"
DEAD = {"claimed-again": executing(8, claims=3), "given-up": parked(8, claims=2)}


def enter(store: Store, instance: int, ticket: int, name: str = "l", claim: int = 1) -> AcquireLimitResult:
    return store.run(store.calls.acquire_step_limit(instance, claim, Limit(name), ticket))


def ticket(number: int, instance: int, claim: int) -> str:
    return (
        "insert into @schema.step_slots (ticket, slot_key, instance_id, claim) values "
        f"({number}, 'l', {instance}, {claim});\n"
    )


@pytest.mark.parametrize("row", DEAD.values(), ids=DEAD)
def test_who_has_lost_its_claim_is_told(store: Store, row: str) -> None:
    """Its row was claimed again, or it has committed an outcome and does not execute any more."""
    store.given(SLOT + row)
    assert enter(store, 8, 80, claim=2).is_lost
    assert store.sql("select from @schema.step_slots") == []


@pytest.mark.parametrize("row", DEAD.values(), ids=DEAD)
def test_the_ticket_of_a_dead_claim_counts_nowhere(store: Store, row: str) -> None:
    """Not as a slot, not in the list, and the reaper deletes it."""
    store.given(SLOT + row + executing(1) + ticket(80, 8, 2))
    (limit,) = store.run(store.calls.limit_states())
    assert limit.taken == 0
    assert enter(store, 1, 10).is_granted
    store.run(store.calls.delete_tickets_of_dead_claims())
    assert [r["ticket"] for r in store.sql("select * from @schema.step_slots")] == [10]


@pytest.mark.parametrize("row", DEAD.values(), ids=DEAD)
def test_a_dead_ticket_behind_makes_no_room(store: Store, row: str) -> None:
    """The slot is taken by a row; a dead ticket that was drawn later is not one that could step back."""
    store.given(SLOT + row + executing(1) + executing(2, slot_key="l") + ticket(10, 1, 1) + ticket(80, 8, 2))
    assert not enter(store, 1, 10).is_granted


def test_places_are_taken_in_the_order_of_asking(store: Store) -> None:
    """Who asks again has the place that it had."""
    store.given(SLOT + executing(1) + executing(2))
    answers = [enter(store, instance, ticket) for instance, ticket in ((1, 10), (2, 20), (1, 10))]
    assert [answer.is_granted for answer in answers] == [True, False, True]
    store.run(store.calls.release_step_limit(10))
    assert enter(store, 2, 20).is_granted


def test_tokens_asked_for_from_inside_are_gone(store: Store) -> None:
    store.given(RATE + executing(1))
    assert [enter(store, 1, n, "r").is_granted for n in (1, 2, 3, 4)] == [True, True, False, False]


def test_a_limit_that_is_replaced_while_a_step_waits_is_locked_by_its_new_kind(store: Store, dsn: str) -> None:
    """The step waits for the gate of a slot; then the limit is a rate, and the step holds the gate of that."""
    store.given(SLOT + executing(1))
    request = store.calls.acquire_step_limit(1, 1, Limit("l"), 10)
    gate = "select * from @schema.gate_locks where id = @schema.gate_row_id('rate/l')"
    held = f"{gate} and xmax = pg_current_xact_id()::xid"
    replace = "select @schema.remove_limit('l', false), @schema.set_limit('l', 'rate', null, 3600, 1, null, false)"

    async def wait_and_look() -> int:
        step, operator = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        try:
            async with step.transaction():
                async with operator.transaction():
                    await operator.execute(store.schema.render(replace))
                    waiting = asyncio.ensure_future(step.fetch(request.text, *request.args))
                    blocked = "select cardinality(pg_blocking_pids($1))"
                    while not await operator.fetchval(blocked, step.get_server_pid()):
                        assert not waiting.done()
                await waiting
                return len(await step.fetch(store.schema.render(held)))
        finally:
            step.terminate()
            operator.terminate()

    assert asyncio.run(wait_and_look()) == 1
