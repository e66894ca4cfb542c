"""Claiming more rows than start at once: those claimed ahead hold nothing that another worker could use."""

from __future__ import annotations

import pytest
from tests.support.rows import instance
from tests.support.store import KNOWN, Store

from gen_durable.limits import Concurrency, Rate
from gen_durable.store.types import PickResult


def pick(store: Store, demand: int, free: int | None) -> PickResult:
    return store.run(store.calls.pick("w", {"default": demand}, KNOWN, 60, free=None if free is None else [free]))


def claimed(store: Store, demand: int, free: int | None) -> tuple[list[int], list[bool]]:
    """The ids claimed, and for each queue with an unmet demand whether rows were left for a free slot."""
    picked = pick(store, demand, free)
    return [claim.id for claim in picked.claims], [report.needs_slot for report in picked.unmet]


GATED = {
    "a slot of a limit": {"slot_key": "stripe"},
    "a token of a rate": {"rate_key": "mail"},
}


@pytest.fixture
def limited(store: Store) -> Store:
    store.run(store.calls.set_limit("stripe", Concurrency(50), declared=False))
    store.run(store.calls.set_limit("mail", Rate(1000, 1, burst=50), declared=False))
    return store


@pytest.mark.parametrize("gate", GATED.values(), ids=list(GATED))
def test_a_row_with_a_limit_is_claimed_only_for_a_free_slot(limited: Store, gate: dict[str, str]) -> None:
    """Beyond the free slots nothing is claimed, and the pick says that rows were left."""
    limited.given("".join(instance(n, **gate) for n in range(1, 6)))
    assert claimed(limited, demand=5, free=2) == ([1, 2], [True])
    assert claimed(limited, demand=5, free=0) == ([], [True])
    assert claimed(limited, demand=5, free=3) == ([3, 4, 5], [False])


def test_rows_without_a_gate_are_claimed_ahead(store: Store) -> None:
    """They hold nothing; so do rows of a partition key that no other row is blocked on."""
    store.given("".join(instance(n) for n in range(1, 4)))
    store.given(instance(4, partition_key="k") + instance(5, partition_key="l"))
    assert claimed(store, demand=5, free=0) == ([1, 2, 3, 4, 5], [])


def test_no_row_passes_one_that_waits_for_a_slot(limited: Store) -> None:
    """Else it would wait for as long as others come: the rows behind it are left too."""
    limited.given(instance(1) + instance(2, slot_key="stripe") + instance(3) + instance(4))
    assert claimed(limited, demand=4, free=0) == ([1], [True])
    assert claimed(limited, demand=4, free=1) == ([2, 3, 4], [False])


def test_no_row_of_lower_priority_passes_either(limited: Store) -> None:
    """The search ends at the first row that must wait for a slot."""
    limited.given(instance(1, slot_key="stripe") + instance(2, priority=5))
    assert claimed(limited, demand=4, free=0) == ([], [True])


def test_a_partition_key_that_others_are_blocked_on_is_not_claimed_ahead(store: Store) -> None:
    """Its row starts where a slot is free, so that the rows behind it follow soon."""
    store.given(instance(1, partition_key="k") + instance(2, partition_key="k", blocked_on="partition/k"))
    assert claimed(store, demand=2, free=0) == ([], [True])
    assert claimed(store, demand=2, free=1) == ([1], [False])


def test_without_free_every_row_starts_at_once(limited: Store) -> None:
    """A pick that does not say how many slots are free claims all that it demands."""
    limited.given("".join(instance(n, slot_key="stripe") for n in range(1, 4)))
    assert claimed(limited, demand=3, free=None) == ([1, 2, 3], [])
