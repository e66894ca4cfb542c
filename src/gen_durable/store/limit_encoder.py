"""Limits of a start as JSON, and policies of limits as columns."""

from __future__ import annotations

from collections.abc import Sequence

from gen_durable.json_codec import encode_json
from gen_durable.limits import Concurrency, Limit, Policy


def encode_limits(limits: Sequence[Limit]) -> str:
    """Limits as the JSON that `keys_of_limits.sql` reads."""
    return encode_json([[limit.name, limit.partition, limit.weight] for limit in limits], "limits").decode()


def limit_policy_columns(policy: Policy) -> tuple[str, int | None, float | None, int | None]:
    """The columns of a policy in `limits`: kind, slots, period, burst."""
    if isinstance(policy, Concurrency):
        return "concurrency", policy.slots, None, None
    return "rate", None, policy.seconds_per_token, policy.burst
