"""Many or large instances to start are encoded in chunks, so that the event loop runs other work in between."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gen_durable import Context, Done, Machine, Next, Outcome, ScheduleChildren, Start, job, step
from gen_durable.engine.outcome_encoder import CHUNK_BYTES, EncodedOutcome, encode_outcome
from gen_durable.errors import TooLarge
from gen_durable.starts import to_step_spec
from gen_durable.store.types import Claim

SIZE = 100_000


@job
async def leaf(value: str) -> str:
    return value


class Starter(Machine):
    @step
    async def begin(self, _: int, ctx: Context) -> Outcome[int]:
        return Done(0)


def starts(count: int, size: int = SIZE) -> list[Start[Any]]:
    return [Start(leaf, str(n) + "x" * size) for n in range(count)]


def encode(outcome: Outcome[Any]) -> EncodedOutcome:
    claim = Claim(1, "Starter", 1, "begin", "0", 0, 1, 0, "default", 0, None, None, None, None)
    ctx = Context(1, "Starter", 1, "begin", 0, "default", 0, None, None, None, "w", 1, 0)
    return encode_outcome(claim, to_step_spec(Starter.begin, "test"), ctx, outcome, may_continue=False)


def finish(encoded: EncodedOutcome) -> int:
    """Encode the rest. Returns how many chunks it took."""
    chunks = 1
    while encoded.encode_next_chunk():
        chunks += 1
    return chunks


@pytest.mark.parametrize("kind", ["next", "done"])
def test_a_large_spawn_is_complete_after_several_chunks(kind: str) -> None:
    starter = Starter()
    outcome: Outcome[Any] = Next(starter.begin, 0, spawn=starts(20)) if kind == "next" else Done(0, spawn=starts(20))
    encoded = encode(outcome)
    assert encoded.remaining_starts is not None
    assert len(encoded.commit.extra or "") < 2 * CHUNK_BYTES
    assert finish(encoded) > 4
    spawned = json.loads(encoded.commit.extra or "")["spawn"]
    assert [one["state"][:2].rstrip("x") for one in spawned] == [str(n) for n in range(20)]


def test_large_children_are_encoded_in_chunks() -> None:
    encoded = encode(ScheduleChildren(starts(20), then=Starter().begin, state=0))
    children = encoded.commit.many_children
    assert children is not None
    assert len(children.encoded) < 5
    assert finish(encoded) > 4
    assert len(children.encoded) == 20


def test_a_few_small_ones_are_encoded_at_once() -> None:
    encoded = encode(Done(0, spawn=starts(3, 100)))
    assert encoded.remaining_starts is None
    assert len(json.loads(encoded.commit.extra or "")["spawn"]) == 3


def test_a_spawn_that_is_too_large_is_refused() -> None:
    encoded = encode(Done(0, spawn=starts(70, 950_000)))
    with pytest.raises(TooLarge, match="64,000,000 bytes"):
        finish(encoded)
