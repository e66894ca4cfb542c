"""The parameters and results of the statements in `store/statements.py`.

Types that are created at every step opt out of cyclic garbage collection (`gc=False`): they hold no reference cycles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from gen_durable.context import Child
from gen_durable.instances import Status
from gen_durable.signals import Received
from gen_durable.store.blocked_rows import BlockedRows

Row = Sequence[Any]
"""A row as the driver returns it."""
ReturnedClaim: TypeAlias = tuple[int, int, float | None, str | None]
"""A claim that a worker gives back: id, epoch, first delay in seconds, reason; the last two None if it did not run."""


@dataclass(frozen=True, slots=True)
class FollowUps:
    """What must follow a committed transaction; `Notifier.act_on_follow_ups` does it.

    `queues`: they have new runnable rows. `cascade_origins`: origins whose descendants must be cancelled; None stands
    for any. `workers_with_cancel_requests`: workers that run an instance with a cancel request. `blocked`: new
    rows that wait for a gate, for the events of a caller's transaction.
    """

    queues: frozenset[str] = frozenset()
    cascade_origins: frozenset[int | None] = frozenset()
    workers_with_cancel_requests: frozenset[str] = frozenset()
    blocked: tuple[BlockedRows, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.queues or self.cascade_origins or self.workers_with_cancel_requests)


NO_FOLLOW_UPS: Final = FollowUps()


class Claim(msgspec.Struct, eq=False, gc=False):
    """A row that this worker may run: its fence (id, epoch, seq) and the input of its step.

    `outcome_encoder.advance_claim` updates it after each committed outcome. `is_interrupted` is set before its task
    is cancelled.
    """

    id: int
    machine: str
    version: int
    step: str
    state: str
    attempt: int
    epoch: int
    seq: int
    queue: str
    priority: int
    partition_key: str | None
    unique_key: bytes | None
    parent_id: int | None
    awaits: list[str] | None
    limited: str | None = None  # the key of the slot it occupies; "" if it took a token and no slot
    inbox: tuple[Received, ...] = ()
    children: tuple[Child, ...] | None = ()  # None if there are too many: they are read page by page
    is_interrupted: bool = False
    is_in_thread: bool = False  # a `def` hook runs for it, which a cancel cannot interrupt
    visit: int = 0
    step_errors: int = 0  # how often the step has raised in this visit
    crashes: int = 0  # how often in a row its worker died or lost its lease
    timed_out: bool = False  # its deadline has woken it, not a signal
    taken: list[int] | None = None  # ids of the signals that this execution took; None if it called no `take`
    journal: str | None = None  # JSON, written by earlier executions of this visit
    step_journal: object = None  # the `StepJournal` of this execution, once used (engine/journal_action_runner.py)
    is_woken_by_deadline: bool = False  # not by a signal or its children
    is_decrypted: bool = False  # by core/claim_and_outcome_encryption.py, if there is a codec
    # Parts that are too large to come with the claim: engine/claim_part_loader.py reads them before the first step.
    is_large: bool = False
    has_unread_inbox: bool = False
    has_unread_children: bool = False
    has_unread_activities: bool = False


@dataclass(frozen=True, slots=True)
class AcquireLimitResult:
    """The result of an attempt to acquire a limit inside a step.

    If `is_granted`, the step continues after `wait_seconds`; otherwise it tries again then. `has_ticket`: the
    database has stored the ticket, and the step must release it. `is_lost`: another worker has taken the claim over.
    """

    is_granted: bool
    wait_seconds: float | None
    has_ticket: bool
    is_lost: bool


@dataclass(frozen=True, slots=True)
class UnmetDemand:
    """A queue in which a pick found fewer rows than it demanded.

    `next_due`: seconds until the next row is due, None if none waits. `contended`: due rows behind a busy gate.
    `needs_slot`: due rows were left, because they may be claimed only for a free slot.
    """

    queue: str
    next_due: float | None
    contended: int
    needs_slot: bool = False


@dataclass(frozen=True, slots=True)
class PickResult:
    """The result of a pick.

    `scan_positions`: by queue, where its live rows begin, as JSON, if the search for them was slow. `last_groups`: by
    fair queue, the group served last. `woken_queues`: queues in which blocked rows became due. `blocked`: rows that the
    pick has blocked; a gate may occur several times.
    """

    claims: list[Claim]
    unmet: list[UnmetDemand]
    scan_positions: dict[str, str] = field(default_factory=dict[str, str])
    last_groups: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    woken_queues: frozenset[str] = frozenset()
    blocked: list[BlockedRows] = field(default_factory=list[BlockedRows])


@dataclass(slots=True)
class ManyChildren:
    """The children of an outcome that starts too many for one statement: each encoded, and the unique keys of all.

    `ids` are allocated in advance if states are encrypted: a payload is encrypted for its instance.
    """

    encoded: list[bytes]
    keys: list[bytes | None]
    size: int = 0
    ids: list[int] | None = None

    @classmethod
    def empty(cls) -> ManyChildren:
        return cls([], [])

    def add(self, encoded: bytes, key: bytes | None) -> None:
        self.encoded.append(encoded)
        self.keys.append(key)
        self.size += len(encoded)

    def encode_parts(self, ids: Sequence[int], count: int, size: int) -> Iterator[str]:
        """JSON arrays of at most `count` children with their ids, ordered by unique key where there are keys.

        An array is at most `size` bytes, apart from a single child that is larger.

        Every insert takes unique keys in this order, so that two inserts cannot deadlock.
        """
        order: Sequence[int] = range(len(self.encoded))
        if any(key is not None for key in self.keys):
            order = sorted(order, key=lambda n: (self.keys[n] is None, self.keys[n] or b"", n))
        part: list[bytes] = []
        part_size = 0
        for n in order:
            child = b'{"id":%d,' % ids[n] + self.encoded[n][1:]
            if part and (len(part) == count or part_size + len(child) > size):
                yield (b"[" + b",".join(part) + b"]").decode()
                part, part_size = [], 0
            part.append(child)
            part_size += len(child)
        if part:
            yield (b"[" + b",".join(part) + b"]").decode()


class Commit(msgspec.Struct, eq=False, gc=False):
    """An outcome, encoded: one row of a flush."""

    id: int
    epoch: int
    seq: int
    kind: str
    step: str | None = None
    value: str | None = None
    delay: float | None = None
    error: str | None = None
    parent: int | None = None
    extra: str | None = None
    many_children: ManyChildren | None = None
    # For the history: the step that ran, or None if the machine has no history; times are of a monotonic clock.
    ran_step: str | None = None
    began: float = 0.0
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class FlushResult:
    """The result of a flush, by instance id.

    `stale_ids`: rejected by the fence. `already_committed_ids`: by an earlier try. `cancel_requested_ids`: not
    committed, because the row has a cancel request.
    """

    stale_ids: frozenset[int] = frozenset()
    already_committed_ids: frozenset[int] = frozenset()
    follow_ups: FollowUps = NO_FOLLOW_UPS
    cancel_requested_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class GcResult:
    """The result of a gc: how many rows were deleted, where the next call starts, and whether more may be due."""

    deleted: int
    visited_until: datetime | None
    more: bool


class InsertResult(NamedTuple):
    """The result for one start: the id, or None if it was skipped, and whether the instance is new.

    `blocked_on`: the gate that the new row waits for. A tuple, because a batch makes thousands of them.
    """

    id: int | None
    new: bool
    blocked_on: str | None = None
    is_claimed: bool = False  # a worker of this process has claimed it in the same transaction


@dataclass(frozen=True, slots=True)
class OutgoingSignal:
    """One signal to send, to an id or to the holder of a unique key."""

    target: int | None
    key: bytes | None
    name: str
    payload: str | None
    dedup_key: str | None


@dataclass(frozen=True, slots=True)
class CancelResult:
    """The result for one target of a cancel: its id, or None if it does not exist, its status before, and a verdict."""

    id: int | None
    was: Status | None
    verdict: str


@dataclass(frozen=True, slots=True)
class CascadeResult:
    """The result of one batch of a cascade: instances ended, cancels requested, and whether children are left.

    `refused`: children whose rows the database does not let change; `refusal`: the SQLSTATE of one of them.
    """

    ended: int
    requested: int
    follow_ups: FollowUps
    more: bool
    refused: list[int]
    refusal: str | None


@dataclass(frozen=True, slots=True)
class ReapedClaim:
    """A claim taken back by the reaper; `dead` if the instance was failed after too many crashes."""

    id: int
    machine: str
    version: int
    step: str
    queue: str
    crashes: int
    dead: bool


@dataclass(frozen=True, slots=True)
class ReapResult:
    """The result of a reap: the claims taken back, and the wake-ups that this caused."""

    claims: list[ReapedClaim]
    follow_ups: FollowUps


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The result of a release: the released rows, and the queues of rows that were unblocked."""

    ids: list[int]
    woken_queues: list[str]


@dataclass(frozen=True, slots=True)
class EndedInstance:
    """The end of an instance that a client waits for; `status` is None if the instance does not exist."""

    id: int
    status: Status | None
    result: str | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class UnknownStep:
    """Due rows of a machine, version and step that the worker does not know."""

    machine: str
    version: int
    step: str
    queue: str
    waiting: int
