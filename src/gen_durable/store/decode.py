"""The answers of the engine's calls: rows as the database sends them, read into what `store/types.py` describes.

In: rows, in the order of columns that the function in `sql/functions` names. Out: typed values.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from gen_durable.codec import decode_plain
from gen_durable.context import Child
from gen_durable.instances import Instance, Status
from gen_durable.signals import Received
from gen_durable.store.types import (
    NO_WAKEUPS,
    CancelTarget,
    Cascaded,
    Claim,
    Flushed,
    Picked,
    QueueNews,
    Reaping,
    Reclaimed,
    Released,
    Row,
    Wakeups,
)

TOO_MANY: Final = "true"  # children_of.sql
INSTANCE: Final = (
    "i.id, i.fsm, i.fsm_version, i.step, i.status, i.queue, i.priority, i.partition_key, i.unique_key, i.awaits, "
    "i.attempt, i.crashes, i.claims, i.seq, i.last_error, i.locked_by, i.parent_id, i.children_pending, i.eligible_at, "
    "i.await_deadline, i.inserted_at, i.updated_at, i.finished_at, i.state::text, i.result::text, i.metadata::text, "
    "i.blocked_on, i.due_at"
)
"""The columns of instances_of.sql, as `read_instance` takes them."""


def read_picked(rows: Sequence[Row]) -> Picked:
    """Claims, and below them what `pick.sql` tells of queues, in rows without an id."""
    claims: list[Claim] = []
    news: list[QueueNews] = []
    heads: dict[str, str] = {}
    turns: dict[str, str | None] = {}
    woken: set[str] = set()
    blocked: dict[str, int] = {}
    for row in rows:
        if row[0] is not None:
            claims.append(read_claim(row))
        elif row[8] is None:
            woken.update(row[13] or ())
            blocked = decode_plain(row[19])
        elif row[19] is not None:
            heads[row[8]] = row[19]
        elif row[18] is None:
            turns[row[8]] = row[20]
        else:
            news.append(QueueNews(row[8], row[17], row[18]))
    return Picked(claims, news, heads, turns, frozenset(woken), blocked)


def read_claim(row: Row) -> Claim:
    """A row of a claim."""
    claim = Claim(*row[:15])
    if row[15] is not None:
        claim.inbox = read_inbox(row[15])
    if row[16] is not None:
        claim.children = None if row[16] == TOO_MANY else read_children(row[16])
    claim.visit = row[21]
    claim.journal = row[22]
    return claim


def read_inbox(text: str) -> tuple[Received, ...]:
    """The signals that are given to a step."""
    return tuple(
        Received(s["id"], s["name"], (s["payload"] or "null").encode(), datetime.fromtimestamp(s["at"], UTC))
        for s in decode_plain(text)
    )


def read_children(text: str) -> tuple[Child, ...]:
    """The children that are given to a step."""
    return tuple(
        Child(
            id=c["id"],
            machine=c["machine"],
            version=c["version"],
            step=c["step"],
            status=Status(c["status"]),
            last_error=c["last_error"],
            raw_result=None if c["status"] != "done" else (c["result"] or "null").encode(),
            raw_state=c["state"].encode(),
        )
        for c in decode_plain(text)
    )


def read_reaping(rows: Sequence[Row]) -> Reaping:
    """The claims that `reap.sql` took back, and, from rows without an id, what became ready."""
    claims = [Reclaimed(*row[:7]) for row in rows if row[0] is not None]
    reports = [row for row in rows if row[0] is None]
    if not reports:
        return Reaping(claims, NO_WAKEUPS)
    parents: set[int | None] = {parent for row in reports for parent in row[7] or ()}
    if any(row[8] for row in reports):
        parents.add(None)
    return Reaping(claims, Wakeups(frozenset(row[4] for row in reports if row[4] is not None), frozenset(parents)))


def read_released(rows: Sequence[Row]) -> Released:
    """What `release.sql` has given back, and the queues in which rows became runnable."""
    return Released([row[0] for row in rows if row[0] is not None], [row[1] for row in rows if row[0] is None])


def read_flushed(rows: Sequence[Row]) -> Flushed:
    """The answer of `flush.sql`."""
    stale, already, woken, cancel_children, cancel_requested = rows[0]
    return Flushed(
        frozenset(stale or ()),
        frozenset(already or ()),
        read_wakeups(woken, cancel_children),
        frozenset(cancel_requested or ()),
    )


def read_cascaded(rows: Sequence[Row]) -> Cascaded:
    """The answer of `cascade.sql`."""
    ended, requested, woken, cancel_children, check_cancels, more = rows[0]
    return Cascaded(ended, requested, read_wakeups(woken, cancel_children, check_cancels), more)


def read_cancelled(rows: Sequence[Row]) -> tuple[list[CancelTarget], Wakeups]:
    """The answer of `cancel.sql`; its first row also holds what became ready."""
    targets = [CancelTarget(row[1], None if row[2] is None else Status(row[2]), row[3]) for row in rows]
    return targets, read_wakeups(*rows[0][4:7])


def read_wakeups(
    woken: Sequence[str] | None,
    cancel_children: Sequence[int] | None,
    check_cancels: Sequence[str] | None = None,
) -> Wakeups:
    """What a call made ready, from the columns `woken`, `cancel_children` and `check_cancels`."""
    if not (woken or cancel_children or check_cancels):
        return NO_WAKEUPS
    return Wakeups(frozenset(woken or ()), frozenset(cancel_children or ()), frozenset(check_cancels or ()))


def read_instance(row: Row) -> Instance:
    """A row of instances_of.sql."""
    values = list(row)
    values[4] = Status(values[4])
    values[9] = tuple(values[9] or ())
    for n in (23, 24, 25):  # state, result, metadata
        values[n] = None if values[n] is None else values[n].encode()
    return Instance(*values)
