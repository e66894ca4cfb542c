"""The outcomes that wait for the next flush, in their order, and which of them go in one statement."""

from __future__ import annotations

from typing import Final, Generic, TypeAlias, TypeVar

from gen_durable.store.types import Commit

MAX_FLUSH_BYTES: Final = 1_000_000  # of payloads in one flush
SMALL_OUTCOME: Final = 1000  # bytes; such an outcome always fits
LARGE_OUTCOME: Final = 100_000  # bytes; a larger outcome is written apart, so that no other waits for it

R = TypeVar("R")
QueuedOutcome: TypeAlias = "tuple[Commit, R]"
"""An outcome and its receiver."""


class CommitQueue(Generic[R]):
    """The outcomes of one worker, each with its receiver."""

    __slots__ = ("_entries", "_payload_bytes")

    def __init__(self) -> None:
        self._entries: list[QueuedOutcome[R]] = []
        self._payload_bytes = 0  # of those that are not small: small ones always fit

    def __len__(self) -> int:
        return len(self._entries)

    def add_outcome(self, entry: QueuedOutcome[R], size: int) -> None:
        """Queue an outcome; `size` is its `payload_size`."""
        self._entries.append(entry)
        if size > SMALL_OUTCOME:
            self._payload_bytes += size

    def put_back(self, entries: list[QueuedOutcome[R]]) -> None:
        """Queue outcomes again, before all others."""
        self._entries = entries + self._entries
        self._recount_payload_bytes()

    def take_batch(self, count: int) -> list[QueuedOutcome[R]]:
        """Take the outcomes of the next flush: at most `count`, and MAX_FLUSH_BYTES of payloads."""
        entries = self._entries
        if self._payload_bytes > MAX_FLUSH_BYTES:
            batch, self._entries = _take_batch_that_fits(entries, count)
        else:
            batch, self._entries = entries[:count], entries[count:]
        if self._payload_bytes:
            self._recount_payload_bytes()
        return batch

    def _recount_payload_bytes(self) -> None:
        sizes = (payload_size(commit) for commit, _ in self._entries)
        self._payload_bytes = sum(size for size in sizes if size > SMALL_OUTCOME)


def payload_size(commit: Commit) -> int:
    return len(commit.value or "") + len(commit.extra or "")


def should_flush_apart(commit: Commit) -> bool:
    """Whether an outcome is written apart from the others; its claim keeps its slot until then."""
    return commit.many_children is not None or payload_size(commit) > LARGE_OUTCOME


def _take_batch_that_fits(
    entries: list[QueuedOutcome[R]], count: int
) -> tuple[list[QueuedOutcome[R]], list[QueuedOutcome[R]]]:
    """The outcomes of one flush, whose bytes are too many to go together, and those that are left.

    What fits goes before what was queued earlier and is larger: outcomes are of different instances, and a small one
    must not wait for megabytes before it. The first is always in, so each has its turn.
    """
    batch: list[QueuedOutcome[R]] = []
    left: list[QueuedOutcome[R]] = []
    size = 0
    for entry in entries:
        more = payload_size(entry[0])
        fits = len(batch) < count and (more <= SMALL_OUTCOME or size + more <= MAX_FLUSH_BYTES)
        if fits or not batch:
            batch.append(entry)
            size += more
        else:
            left.append(entry)
    return batch, left
