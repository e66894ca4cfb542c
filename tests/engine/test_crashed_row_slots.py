"""CrashedRowSlots: how many rows that crashed twice in a row run together."""

from __future__ import annotations

from typing import Any, cast

from gen_durable.engine.crashed_row_slots import MAX_TOGETHER, CrashedRowSlots
from gen_durable.store.types import Claim


def claim(number: int, crashes: int = 2) -> Claim:
    return Claim(number, *cast(Any, [None] * 13), crashes=crashes)


def test_they_start_with_one_and_each_outcome_doubles_the_number() -> None:
    rows, first = CrashedRowSlots(None), claim(1)
    assert (rows.free_count, rows.is_idle) == (1, True)
    rows.add_claim(first)
    assert (rows.free_count, rows.is_idle) == (0, False)
    rows.remove_claim(first)
    rows.raise_concurrency()
    rows.raise_concurrency()
    assert rows.free_count == 4
    rows.reset_concurrency()
    assert rows.free_count == 1


def test_the_number_is_bounded() -> None:
    rows = CrashedRowSlots(None)
    for _ in range(100):
        rows.raise_concurrency()
    assert rows.free_count == MAX_TOGETHER


def test_beside_one_at_its_last_chance_none_starts() -> None:
    rows = CrashedRowSlots(5)
    rows.raise_concurrency()
    rows.raise_concurrency()
    rows.add_claim(claim(1, crashes=3))
    assert rows.free_count == 3
    rows.add_claim(last := claim(2, crashes=4))
    assert rows.free_count == 0
    rows.remove_claim(last)
    assert rows.free_count == 3


def test_a_claim_that_was_taken_over_does_not_remove_its_successor() -> None:
    rows, former, later = CrashedRowSlots(None), claim(1), claim(1)
    rows.add_claim(former)
    rows.add_claim(later)
    rows.remove_claim(former)
    assert not rows.is_idle
