"""Which outcomes go in one flush: by number, and by bytes."""

from __future__ import annotations

import pytest

from gen_durable.engine import commit_queue
from gen_durable.engine.commit_queue import LARGE_OUTCOME, CommitQueue, payload_size, should_flush_apart
from gen_durable.store.types import Commit, ManyChildren


@pytest.fixture(autouse=True)
def _bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "MAX_FLUSH_BYTES", 1000)
    monkeypatch.setattr(commit_queue, "SMALL_OUTCOME", 100)


def entry(size: int) -> tuple[Commit, None]:
    return Commit(1, 1, 0, "done", value="x" * size), None


def queue_of(*sizes: int) -> CommitQueue[None]:
    queue: CommitQueue[None] = CommitQueue()
    for size in sizes:
        queue.add_outcome(entry(size), size)
    return queue


def sizes_of_batches(queue: CommitQueue[None], count: int = 500) -> list[list[int]]:
    batches: list[list[int]] = []
    while queue:
        batches.append([payload_size(commit) for commit, _ in queue.take_batch(count)])
    return batches


def test_the_size_of_an_outcome_is_that_of_its_state_and_its_extra() -> None:
    assert payload_size(Commit(1, 1, 0, "next", value="12345", extra="123")) == 8
    assert payload_size(Commit(1, 1, 0, "next", extra="123")) == 3
    assert payload_size(Commit(1, 1, 0, "next")) == 0


def test_an_outcome_is_large_by_its_bytes_or_by_its_children() -> None:
    assert not should_flush_apart(entry(LARGE_OUTCOME)[0])
    assert should_flush_apart(entry(LARGE_OUTCOME + 1)[0])
    assert should_flush_apart(Commit(1, 1, 0, "children", many_children=ManyChildren.empty()))


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([1, 500, 500], [[1, 500, 500]]),  # small ones are not counted
        ([500, 501], [[500], [501]]),
        ([500, 500, 101], [[500, 500], [101]]),
        ([100] * 10 + [950], [[100] * 10 + [950]]),  # a hundred bytes are small
        ([600, 600, 100, 1], [[600, 100, 1], [600]]),
        ([950, 950, 100], [[950, 100], [950]]),
        ([1001, 1001], [[1001], [1001]]),
    ],
)
def test_a_flush_takes_as_many_bytes_as_allowed(sizes: list[int], batches: list[list[int]]) -> None:
    """Small outcomes always go along. The same holds for outcomes that were put back."""
    assert sizes_of_batches(queue_of(*sizes)) == batches
    again = queue_of()
    again.put_back([entry(size) for size in sizes])
    assert len(again) == len(sizes)
    assert sizes_of_batches(again) == batches


def test_what_was_taken_is_not_counted_any_more() -> None:
    """A queue that had too many bytes once takes all that fit the next time."""
    queue = queue_of(900, 900)
    assert [len(queue.take_batch(500)), len(queue.take_batch(500)), len(queue)] == [1, 1, 0]
    for size in (1, 500, 500):
        queue.add_outcome(entry(size), size)
    assert sizes_of_batches(queue) == [[1, 500, 500]]


def test_a_flush_takes_no_more_outcomes_than_allowed() -> None:
    """Also where it is cut by bytes."""
    assert sizes_of_batches(queue_of(1, 2, 3, 4, 5), 2) == [[1, 2], [3, 4], [5]]
    assert sizes_of_batches(queue_of(900, 1, 2, 900), 2) == [[900, 1], [2, 900]]


def test_outcomes_that_are_put_back_go_first() -> None:
    queue = queue_of(3, 4)
    queue.put_back([entry(1), entry(2)])
    assert sizes_of_batches(queue, 3) == [[1, 2, 3], [4]]
