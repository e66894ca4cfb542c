"""Encryption beside the database: ids are allocated whatever it takes, and a fan-out does not block the event loop."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.core.test_statement_runner import DEADLOCK, LOST, REFUSED, UNREACHABLE, FailingPool

from gen_durable.core import claim_and_outcome_encryption
from gen_durable.core.claim_and_outcome_encryption import CHUNK, ClaimAndOutcomeEncryption
from gen_durable.encryption import PayloadContext, PayloadEncryption, state_field
from gen_durable.errors import DatabaseRefused
from gen_durable.store.schema import Schema
from gen_durable.store.statements import StatementBuilder


class Reversing:
    """A codec that is easy to read."""

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        return data[::-1]


ENCRYPTION = PayloadEncryption(Reversing(), "s", read_unencrypted=False)


def encryption_of(pool: FailingPool) -> ClaimAndOutcomeEncryption:
    return ClaimAndOutcomeEncryption(ENCRYPTION, pool, StatementBuilder(Schema("s")))


@pytest.mark.parametrize("error", [LOST, UNREACHABLE, DEADLOCK])
async def test_ids_are_allocated_after_an_outage(error: Exception) -> None:
    """However long it takes, with pauses."""
    pool = FailingPool(error, error)
    answer: object = await encryption_of(pool)._allocate_ids(3)
    assert answer == 7  # what the pool returns in the end
    first, second, third = pool.times
    assert second - first > 0.9 * claim_and_outcome_encryption.FIRST_PAUSE
    assert third - second > 1.8 * claim_and_outcome_encryption.FIRST_PAUSE


async def test_ids_that_are_refused_are_an_error() -> None:
    """Without the words of the server."""
    pool = FailingPool(REFUSED)
    with pytest.raises(DatabaseRefused, match="allocate_ids") as raised:
        await encryption_of(pool)._allocate_ids(3)
    assert len(pool.times) == 1
    assert "canary" not in str(raised.value)


async def test_other_tasks_run_while_a_fan_out_is_encrypted() -> None:
    """After each chunk of it; the ids are added later."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    ids = range(1, 10 * CHUNK + 1)
    child = b'{"fsm":"m","version":1,"step":"s","state":"x"}'
    encrypted = await encryption_of(FailingPool())._encrypt_children(ids, [child] * len(ids))
    counting.cancel()
    assert 10 <= turns <= 12
    starts = [msgspec.json.decode(one) for one in encrypted]
    assert [set(start) for start in starts] == [{"fsm", "version", "step", "state"}] * len(ids)
    state = msgspec.json.encode(starts[4]["state"]).decode()
    assert ENCRYPTION.decrypt(state, 5, state_field("m", 1, "s")) == '"x"'
