"""What must be true of instances, in Python: the rows, and what each call makes of them.

Single-session and slow, without an index or a lock in it: a second telling of the same story, to be compared with the
first. Times are pairs (jumped, tick): time passes by jumps, and what happens later in the same moment has a later tick.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

Time = tuple[float, int]
ENDS = {"done": "done", "fail": "failed", "cancel": "cancelled"}
TERMINAL = frozenset(ENDS.values())


@dataclass
class Letter:
    """A signal in an inbox."""

    number: int
    name: str
    dedup: str | None
    consumed: bool = False


@dataclass
class Row:
    """An instance."""

    id: int
    at: Time
    status: str = "runnable"
    step: str = "s"
    priority: int = 0
    partition: str | None = None
    key: str | None = None
    claims: int = 0
    seq: int = 0
    attempt: int = 0
    crashes: int = 0
    deadline: Time | None = None
    awaits: tuple[str, ...] | None = None
    seen: frozenset[int] | None = None  # None unless it has been parked since its last claim
    timed_out: bool = False
    inbox: list[Letter] = field(default_factory=list)
    parent: int | None = None
    parent_round: int | None = None
    round: int = 0
    pending: int = 0
    needed: int | None = None
    wakes: bool = False
    cancel_rest: bool = False
    joined: bool = False
    expired: bool = False
    marked: bool = False
    finished: Time | None = None

    @property
    def live(self) -> bool:
        return self.finished is None

    @property
    def due(self) -> Time | None:
        if self.status == "runnable":
            return self.at
        return self.deadline if self.status in ("awaiting_signal", "awaiting_children") else None


class Model:
    """All instances."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.jumped = 0.0
        self.tick = 0

    def now(self, delay: float = 0.0) -> Time:
        return (self.jumped + delay, self.tick)

    def children(self, parent: int) -> list[Row]:
        return [r for r in self.rows.values() if r.parent == parent]

    # Picking.

    def is_due(self, row: Row) -> bool:
        return row.due is not None and row.due <= self.now()

    def runnable(self) -> set[int]:
        """What may be claimed now: rows without a partition key, and of each free key the first."""
        free = {r.id for r in self.rows.values() if self.is_due(r) and r.partition is None}
        busy = {r.partition for r in self.rows.values() if r.status == "executing"}
        heads: dict[str, Row] = {}
        for row in self.rows.values():
            if row.partition is not None and row.partition not in busy and self.is_due(row):
                first = heads.setdefault(row.partition, row)
                if _rank(row) < _rank(first):
                    heads[row.partition] = row
        return free | {r.id for r in heads.values()}

    def claim(self, row: Row) -> bool:
        """Claim it; whether its children are to be cancelled, once the pick is over."""
        row.joined = row.joined or row.status == "awaiting_children"
        gave_up = row.joined and row.cancel_rest
        row.timed_out = row.timed_out or row.status in ("awaiting_signal", "awaiting_children")
        row.status, row.claims, row.seen = "executing", row.claims + 1, None
        row.pending, row.expired = 0, False
        return gave_up

    # Outcomes.

    def verdict(self, id: int, claim: int, seq: int, kind: str) -> str:  # noqa: A002
        """What becomes of an outcome: written, stale, already or asked."""
        row = self.rows.get(id)
        if row is None or row.claims != claim or row.seq not in (seq, seq + 1):
            return "stale"
        if row.seq == seq + 1:
            return "already_committed"
        return "cancel_requested" if row.marked and kind not in ENDS else "written"

    def commit(self, row: Row, kind: str, *, step: str | None, delay: float | None, consumed: Iterable[int]) -> None:
        row.seq, row.crashes, row.step = row.seq + 1, 0, step or row.step
        if kind != "retry" and (kind != "await" or step is not None):
            row.joined = False
        if kind == "retry":
            row.attempt += 1
        elif kind not in ENDS and (kind != "await" or step is not None):
            row.attempt = 0
        if kind not in ("retry", "fail", "cancel"):
            row.awaits, row.deadline, row.timed_out = None, None, False
        row.seen = None
        if kind != "continue":
            row.expired = False
        for letter in [x for x in row.inbox if x.number in set(consumed)]:
            letter.consumed = True
            if letter.dedup is None:
                row.inbox.remove(letter)
        if kind in ("next", "retry"):
            row.status, row.at = "runnable", self.now(delay or 0.0)
        elif kind in ENDS:
            self.end([row], ENDS[kind])

    def park(self, row: Row, names: tuple[str, ...], seen: frozenset[int], deadline: float | None) -> None:
        row.awaits, row.seen = names, seen
        row.status, row.deadline = "awaiting_signal", None if deadline is None else self.now(deadline)
        if self.has_unseen(row):
            self.wake(row)

    def has_unseen(self, row: Row) -> bool:
        """Whether a signal that it waits for has come, and its parking step was not given it."""
        seen, names = row.seen or frozenset(), row.awaits or ()
        return any(not x.consumed and x.name in names and x.number not in seen for x in row.inbox)

    def fan_out(self, row: Row, made: list[Row], needed: int | None, *, wakes: bool, cancel_rest: bool) -> None:
        row.round += 1
        for child in made:
            child.parent, child.parent_round = row.id, row.round
            self.rows[child.id] = child
        row.status, row.pending, row.needed = "awaiting_children", len(made), needed
        row.wakes, row.cancel_rest = wakes, cancel_rest
        if row.pending < (1 if needed is None else needed):
            self.wake(row)

    def wake(self, row: Row) -> None:
        row.joined = row.status == "awaiting_children"
        row.status, row.at, row.pending = "runnable", self.now(), 0
        if row.joined:
            row.deadline = None

    def end(self, rows: list[Row], status: str) -> None:
        """Rows end together; their parents hear of it."""
        told: dict[tuple[int, int | None], list[Row]] = defaultdict(list)
        for row in rows:
            row.status, row.finished = status, self.now()
            row.key, row.pending, row.expired = None, 0, False
            if row.parent is not None:
                told[row.parent, row.parent_round].append(row)
        for (parent, round_), ended in told.items():
            self.join(parent, round_, ended)

    def join(self, parent: int, round_: int | None, ended: list[Row]) -> None:
        row = self.rows.get(parent)
        if row is None or row.status != "awaiting_children" or row.round != round_:
            return
        done = sum(child.status == "done" for child in ended)
        row.pending -= len(ended)
        row.needed = None if row.needed is None else row.needed - done
        least = 1 if row.needed is None else row.needed
        enough = row.needed is not None and row.needed <= 0
        if enough or row.pending < least or (row.wakes and done < len(ended)):
            rest = row.pending
            self.wake(row)
            if rest and row.cancel_rest:
                self.cascade(row.id, row.round)

    # Everything else that ends or moves rows.

    def reap(self, max_crashes: int) -> set[int]:
        expired = [r for r in self.rows.values() if r.status == "executing" and r.expired]
        groups: dict[str, list[Row]] = {"failed": [], "cancelled": []}
        for row in expired:
            row.claims, row.crashes, row.attempt = row.claims + 1, row.crashes + 1, row.attempt + 1
            row.expired = False
            if row.marked:
                groups["cancelled"].append(row)
            elif row.crashes >= max_crashes:
                groups["failed"].append(row)
            else:
                row.status = "runnable"
        # All of them end in one call: their parents hear of it once.
        doomed = groups["failed"] + groups["cancelled"]
        ends = {r.id: status for status, rows in groups.items() for r in rows}
        parents: dict[tuple[int, int | None], list[Row]] = defaultdict(list)
        for row in doomed:
            row.seq += 1
            parent, row.parent = row.parent, None
            self.end([row], ends[row.id])
            row.parent = parent
            if parent is not None:
                parents[parent, row.parent_round].append(row)
        for (parent, round_), ended in parents.items():
            self.join(parent, round_, ended)
        return {r.id for r in expired}

    def signal(self, row: Row | None, letter: Letter) -> str:
        if row is None or not row.live:
            return "no_target"
        if letter.dedup is not None and any(x.dedup == letter.dedup for x in row.inbox):
            return "duplicate"
        row.inbox.append(letter)
        if row.status == "awaiting_signal" and letter.name in (row.awaits or ()):
            self.wake(row)
        return "delivered"

    def cancel(self, row: Row, *, cascade: bool) -> str:
        if not row.live:
            return "over"
        first = not row.marked
        if row.status == "executing":
            row.marked = True
        else:
            row.claims += 1
            self.end([row], "cancelled")
        if cascade and first and row.round > 0:
            self.cascade(row.id, None)
        return "requested" if row.status == "executing" else "ended"

    def cascade(self, parent: int, round_: int | None) -> None:
        """Children that nobody waits for any more, and theirs."""
        for child in self.children(parent):
            if child.live and not child.marked and round_ in (None, child.parent_round):
                self.cancel(child, cascade=True)

    def retry(self, row: Row) -> bool:
        if row.status not in ("failed", "cancelled"):
            return False
        waits = row.awaits is not None and row.seen is not None and not self.has_unseen(row)
        row.status = "awaiting_signal" if waits else "runnable"
        row.attempt, row.crashes, row.claims = 0, 0, row.claims + 1
        row.finished, row.at, row.marked, row.pending = None, self.now(), False, 0
        parent = self.rows.get(row.parent or 0)
        if parent is not None and parent.status == "awaiting_children" and parent.round == row.parent_round:
            parent.pending += 1
        return True

    def collect(self, keep: float) -> set[int]:
        gone: set[int] = set()
        for row in self.rows.values():
            parent = self.rows.get(row.parent or 0)
            old = row.finished is not None and row.finished < (self.jumped - keep, self.tick)
            if old and (parent is None or not parent.live):
                gone.add(row.id)
        for id in gone:  # noqa: A001
            del self.rows[id]
        return gone


def _rank(row: Row) -> tuple[int, Time, int]:
    assert row.due is not None
    return (row.priority, row.due, row.id)
