"""The states and limits of new instances as JSON, and policies of limits as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gen_durable.codec import encode
from gen_durable.errors import TooLarge
from gen_durable.limits import Concurrency, Limit, Policy
from gen_durable.starts import Start
from gen_durable.validation import MAX_BATCH_BYTES


def encode_limits(limits: Sequence[Limit]) -> str:
    """Limits as the JSON that `resolve_limit_keys.sql` reads."""
    return encode([[limit.name, limit.partition, limit.weight] for limit in limits], "limits").decode()


def policy_columns(policy: Policy) -> tuple[str, int | None, float | None, int | None]:
    """The columns of a policy in `limits`: kind, slots, period, burst."""
    if isinstance(policy, Concurrency):
        return "concurrency", policy.slots, None, None
    return "rate", None, policy.period, policy.burst


def encode_states(starts: Sequence[Start[Any]]) -> list[str]:
    """The states of an insert. Raises `TooLarge` if they are too large together, before the rest is encoded."""
    states: list[str] = []
    size = 0
    for start in starts:
        state, _ = start.step.state_codec.encode_and_decode(start.state)
        size += len(state) + (len(start.metadata) if start.metadata is not None else 0)
        if size > MAX_BATCH_BYTES:
            raise TooLarge(
                f"the instances of one call are over {MAX_BATCH_BYTES:,} bytes of JSON: insert them in several calls, "
                "or store large data elsewhere and pass a reference to it"
            )
        states.append(state)
    return states
