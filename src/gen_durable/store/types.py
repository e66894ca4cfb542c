"""What goes into the calls and what comes out of them.

What is made at every step is kept from the garbage collector (`gc=False`): nothing in it can lead back to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from gen_durable.context import Child
from gen_durable.instances import Status
from gen_durable.signals import Received

Row = Sequence[Any]
"""A row as the database sends it."""


@dataclass(frozen=True, slots=True)
class Wakeups:
    """What a transaction made ready: `Notifier.publish` turns it into messages.

    `cancel_children`: parents whose children must be cancelled; None stands for any parent. `check_cancels`: workers
    that run an instance with a cancel request.
    """

    queues: frozenset[str] = frozenset()
    cancel_children: frozenset[int | None] = frozenset()
    check_cancels: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.queues or self.cancel_children or self.check_cancels)


NO_WAKEUPS: Final = Wakeups()


class Claim(msgspec.Struct, eq=False, gc=False):
    """A row that this worker may run: the fence (id, epoch, seq) and all that the step is told.

    It changes as its steps go on (`rooms.run.advance`); `abandoned` is set before its task is cancelled.
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
    limited: str | None = None  # the slot it takes; "": it has taken a token, but no slot
    inbox: tuple[Received, ...] = ()
    children: tuple[Child, ...] | None = ()  # None: too many to come along, they are read page by page
    abandoned: bool = False
    visit: int = 0
    journal: str | None = None  # what former executions of this visit have left, as JSON
    notes: object = None  # of this execution, once it has written any (rooms.scribe)
    opened: bool = False  # by the codec, if there is one (rooms.sealer)


@dataclass(frozen=True, slots=True)
class LimitAnswer:
    """What a step is told that asked for a limit: go on (after `seconds`), or ask again (then).

    `held`: the ticket is in the line, and is to be given back.
    """

    may: bool
    seconds: float | None
    held: bool
    lost: bool


@dataclass(frozen=True, slots=True)
class UnmetDemand:
    """A queue in which a pick found fewer rows than it demanded.

    `next_due`: seconds until the next row is due, None if none waits. `contended`: due rows behind a busy gate.
    """

    queue: str
    next_due: float | None
    contended: int


@dataclass(frozen=True, slots=True)
class Picked:
    """The answer of a pick.

    `floors`: by queue, where its live rows begin, as JSON, if the search for them was slow. `last_groups`: by fair
    queue, the group served last. `woken`: queues in which blocked rows became due. `blocked`: how many rows the pick
    blocked, by gate.
    """

    claims: list[Claim]
    unmet: list[UnmetDemand]
    floors: dict[str, str] = field(default_factory=dict[str, str])
    last_groups: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    woken: frozenset[str] = frozenset()
    blocked: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class ManyChildren:
    """The children of an outcome that starts too many for one statement: each encoded, and the unique keys of all.

    `ids` are those that were drawn before, for states that are sealed to them.
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

    def parts(self, ids: Sequence[int], size: int) -> Iterator[str]:
        """JSON arrays of so many children with the ids they get, in listed order; by key where there are keys.

        Whoever starts instances takes their keys in the same order, so that two never wait for each other.
        """
        order: Sequence[int] = range(len(self.encoded))
        if any(key is not None for key in self.keys):
            order = sorted(order, key=lambda n: (self.keys[n] is None, self.keys[n] or b"", n))
        for i in range(0, len(order), size):
            part = (b'{"id":%d,' % ids[n] + self.encoded[n][1:] for n in order[i : i + size])
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
    # For the history: the step that ran (None: nothing is kept), and when, by a clock that only tells durations.
    origin: str | None = None
    began: float = 0.0
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class Flushed:
    """The answer of a flush.

    `stale`: outcomes that came too late. `already`: outcomes that an earlier try had committed. `cancel_requested`:
    rows with a cancel request, whose outcomes were not committed.
    """

    stale: frozenset[int] = frozenset()
    already: frozenset[int] = frozenset()
    wakeups: Wakeups = NO_WAKEUPS
    cancel_requested: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Inserted:
    """One instance asked for: its id (None: skipped), and whether it is new."""

    id: int | None
    new: bool


@dataclass(frozen=True, slots=True)
class OutgoingSignal:
    """One signal to be delivered, to an id or to the holder of a key."""

    target: int | None
    key: bytes | None
    name: str
    payload: str | None
    dedup_key: str | None


@dataclass(frozen=True, slots=True)
class CancelTarget:
    """What became of one target of a cancel: its id (None: there is none), its status before, and a verdict."""

    id: int | None
    was: Status | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Cascaded:
    """What one batch of a cascade did: instances ended, cancels requested, and whether children are left."""

    ended: int
    requested: int
    wakeups: Wakeups
    more: bool


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """A claim taken back by the reaper; dead: failed for good."""

    id: int
    machine: str
    version: int
    step: str
    queue: str
    crashes: int
    dead: bool


@dataclass(frozen=True, slots=True)
class Reaping:
    """The answer of a reap: the claims taken back, and what became ready because of it."""

    claims: list[Reclaimed]
    wakeups: Wakeups


@dataclass(frozen=True, slots=True)
class Released:
    """The answer of a release: the rows given back, and the queues of rows that were next in their partition keys."""

    ids: list[int]
    woken: list[str]


@dataclass(frozen=True, slots=True)
class FinishedInstance:
    """How an instance that is waited for has ended; status None: there is no such instance."""

    id: int
    status: Status | None
    result: str | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class UnknownStep:
    """Due rows of a name that the worker does not know."""

    machine: str
    version: int
    step: str
    queue: str
    waiting: int
