"""ActiveClaim: what a cancel request and an interruption do to a claim."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gen_durable.engine.active_claim import ActiveClaim


def claim_of_step(*, is_async: bool = True) -> ActiveClaim:
    entry = SimpleNamespace(spec=SimpleNamespace(is_async=is_async))
    claim = SimpleNamespace(id=1, is_interrupted=False, is_in_thread=False)
    return ActiveClaim(cast(Any, claim), cast(Any, entry), leased_at=0.0)


async def wait_long() -> None:
    await asyncio.sleep(60)


async def test_it_has_begun_when_its_task_has_run() -> None:
    """Neither while it is buffered, nor before the event loop has run its task."""
    active = claim_of_step()
    assert active.has_begun() is False
    active.task = asyncio.create_task(wait_long())
    assert active.has_begun() is False
    await asyncio.sleep(0)
    assert active.has_begun() is True
    active.task.cancel()


@pytest.mark.parametrize(
    ("is_async", "in_step", "is_interrupted"), [(True, True, True), (True, False, False), (False, True, False)]
)
async def test_a_cancel_request_interrupts_an_async_step_only(
    is_async: bool, in_step: bool, is_interrupted: bool
) -> None:
    """A `def` step cannot be interrupted, and between two steps the claim runner sees the request."""
    active = claim_of_step(is_async=is_async)
    assert not active.is_cancel_requested()
    active.task = asyncio.create_task(wait_long())
    active.is_in_step = in_step
    active.apply_cancel_request("enough")
    assert active.is_cancel_requested() is True
    assert active.cancel_reason == "enough"
    assert active.claim.is_interrupted is is_interrupted
    assert active.task.cancelling() == is_interrupted
    active.task.cancel()


async def test_a_new_claim_is_not_in_a_step_and_has_no_outcome() -> None:
    """A cancel request does not interrupt it while it is buffered: its task would then end its claim no more."""
    active = claim_of_step()
    active.apply_cancel_request("enough")
    assert not active.claim.is_interrupted
    assert (active.has_slot, active.has_outcome) == (True, False)


async def test_a_buffered_claim_can_be_interrupted() -> None:
    """It has no task to cancel, but the mark keeps it from starting."""
    active = claim_of_step()
    active.interrupt()
    assert active.claim.is_interrupted is True
