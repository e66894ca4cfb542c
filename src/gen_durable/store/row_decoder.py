"""Decode the rows that statements return into the types of `store/types.py`.

The order of columns is that of the functions in `sql/functions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

import msgspec

from gen_durable.context import Child
from gen_durable.instances import Instance, Status
from gen_durable.json_codec import decode_untyped_json
from gen_durable.signals import Received
from gen_durable.store.blocked_rows import BlockedRows
from gen_durable.store.python_range_times import clamped_time, is_clamped, time_from_epoch
from gen_durable.store.types import (
    NO_FOLLOW_UPS,
    CancelResult,
    CascadeResult,
    Claim,
    FlushResult,
    FollowUps,
    InsertResult,
    PickResult,
    ReapedClaim,
    ReapResult,
    ReleaseResult,
    Row,
    UnmetDemand,
)

TOO_LARGE: Final = "true"  # inbox_of_claim.sql, children_of_claim.sql
LARGE_JOURNAL: Final = '{"activities": true'  # journal_of_claim.sql; jsonb writes this key first
_COLUMNS: Final = (
    *("id", "fsm", "fsm_version", "step", "status", "queue", "priority", "partition_key", "unique_key", "awaits"),
    *("attempt", "crashes", "claims", "seq", "last_error", "locked_by", "parent_id", "children_pending", "eligible_at"),
    *("await_deadline", "inserted_at", "updated_at", "finished_at", "state::text", "result::text", "metadata::text"),
    *("blocked_on", "due_at", "error_type", "last_traceback", "token_at", "rate_key", "children_needed", "step_errors"),
    *("postponements", "started_at"),
)
_TIMES: Final = {n: name for n, name in enumerate(_COLUMNS) if name.endswith("_at") or name == "await_deadline"}
INSTANCE: Final = ", ".join(
    clamped_time(f"i.{name}") if n in _TIMES else f"i.{name}" for n, name in enumerate(_COLUMNS)
)
"""The columns of instances_of.sql, in the order that `decode_instance` expects."""
CLAIM: Final = (
    "id, fsm, fsm_version, step, state, attempt, claims, seq, queue, priority, partition_key, unique_key, parent_id, "
    "awaits, limited, inbox, children, visit, step_errors, crashes, timed_out, journal, is_woken_by_deadline, report"
)
"""The columns of pick.sql, in the order that `decode_claim` expects; up to `limited` the fields of `Claim`."""


class QueueReport(msgspec.Struct, frozen=True):
    """The report of `pick.sql` about one queue; a field that was not sent has its default."""

    unmet: bool = False
    next_due: float | str | None = None  # a text: infinite, in a row that another program has written
    contended: int = 0
    needs_slot: bool = False
    scan_positions: msgspec.Raw = msgspec.Raw()
    last_group: str | msgspec.UnsetType | None = msgspec.UNSET


class PickReportColumn(msgspec.Struct, frozen=True):
    """The column `report` of `pick.sql`."""

    queues: dict[str, QueueReport] | None
    woken_queues: list[str] | None
    blocked: list[BlockedRows]


_decode_report = msgspec.json.Decoder(PickReportColumn).decode
_decode_reclaimed = msgspec.json.Decoder(list[ReapedClaim]).decode


def decode_pick_result(rows: Sequence[Row]) -> PickResult:
    """The claims, and the report, which is in a row without an id."""
    claims: list[Claim] = []
    report: PickReportColumn | None = None
    for row in rows:
        if row[0] is not None:
            claims.append(decode_claim(row))
        else:
            report = _decode_report(row[-1])
    if report is None:
        return PickResult(claims, [])
    queues = report.queues or {}
    return PickResult(
        claims,
        [
            UnmetDemand(
                name,
                None if isinstance(queue.next_due, str) else queue.next_due,
                queue.contended,
                queue.needs_slot,
            )
            for name, queue in queues.items()
            if queue.unmet
        ],
        {name: positions.decode() for name, queue in queues.items() if (positions := bytes(queue.scan_positions))},
        {name: queue.last_group for name, queue in queues.items() if queue.last_group is not msgspec.UNSET},
        frozenset(report.woken_queues or ()),
        report.blocked,
    )


def decode_insert_results(rows: Sequence[Row]) -> list[InsertResult]:
    """The results of an insert, from one row with an array per column; null for flags that are all true, or no gate."""
    ((ids, inserted, blocked_on),) = rows
    return list(map(InsertResult, ids or (), inserted or repeat(True), blocked_on or repeat(None)))


def decode_claim(row: Row) -> Claim:
    """A claim, from the columns of `CLAIM`."""
    *fields, inbox, children, visit, step_errors, crashes, timed_out, journal, is_woken_by_deadline, _report = row
    claim = Claim(*fields)
    if inbox is not None:
        if inbox == TOO_LARGE:
            claim.is_large = claim.has_unread_inbox = True
        else:
            claim.inbox = decode_inbox(inbox)
    if children is not None:
        if children == TOO_LARGE:
            claim.children = None
            claim.is_large = claim.has_unread_children = True
        else:
            claim.children = decode_children(children)
    claim.visit = visit
    claim.step_errors = step_errors
    claim.crashes = crashes
    claim.timed_out = timed_out
    claim.is_woken_by_deadline = bool(is_woken_by_deadline)
    claim.journal = journal
    if journal is not None and journal.startswith(LARGE_JOURNAL):
        claim.is_large = claim.has_unread_activities = True
    return claim


def decode_inbox(text: str) -> tuple[Received, ...]:
    """The signals of a step."""
    return tuple(
        Received(s["id"], s["name"], (s["payload"] or "null").encode(), time_from_epoch(s["at"]))
        for s in decode_untyped_json(text)
    )


def decode_children(text: str) -> tuple[Child, ...]:
    """The children of a step."""
    return tuple(
        Child(
            id=c["id"],
            machine=c["machine"],
            version=c["version"],
            step=c["step"],
            status=decode_status(c["status"]),
            last_error=c["last_error"],
            raw_result=None if c["status"] != "done" else (c["result"] or "null").encode(),
            raw_state=c["state"].encode(),
        )
        for c in decode_untyped_json(text)
    )


def decode_reap_result(rows: Sequence[Row]) -> ReapResult:
    """The result of `reap.sql`."""
    reclaimed, woken_queues, cascade_origins, cascade_due = rows[0]
    parents: list[int | None] = [*(cascade_origins or ()), *([None] if cascade_due else ())]
    return ReapResult(_decode_reclaimed(reclaimed) if reclaimed else [], decode_follow_ups(woken_queues, parents))


def decode_release_result(rows: Sequence[Row]) -> ReleaseResult:
    """The result of `release_claims.sql`."""
    released, woken_queues = rows[0]
    return ReleaseResult(released or [], woken_queues or [])


def decode_flush_result(rows: Sequence[Row]) -> FlushResult:
    """The result of `flush.sql`."""
    stale, already_committed, woken_queues, cascade_origins, cancel_requested = rows[0]
    return FlushResult(
        frozenset(stale or ()),
        frozenset(already_committed or ()),
        decode_follow_ups(woken_queues, cascade_origins),
        frozenset(cancel_requested or ()),
    )


def decode_cascade_result(rows: Sequence[Row]) -> CascadeResult:
    """The result of `cancel_listed_descendants.sql`."""
    ended, requested, woken_queues, cascade_origins, workers_with_cancel_requests, more, refused, refusal = rows[0]
    follow_ups = decode_follow_ups(woken_queues, cascade_origins, workers_with_cancel_requests)
    return CascadeResult(ended, requested, follow_ups, more, refused or [], refusal)


def decode_cancel_result(rows: Sequence[Row]) -> tuple[list[CancelResult], FollowUps]:
    """The result of `cancel.sql`; its first row also holds the wake-ups."""
    targets = [CancelResult(row[1], None if row[2] is None else decode_status(row[2]), row[3]) for row in rows]
    return targets, decode_follow_ups(*rows[0][4:7])


def decode_follow_ups(
    woken_queues: Sequence[str] | None,
    cascade_origins: Sequence[int | None] | None,
    workers_with_cancel_requests: Sequence[str] | None = None,
) -> FollowUps:
    """Follow-ups, from the columns `woken_queues`, `cascade_origins` and `workers_with_cancel_requests`."""
    if not (woken_queues or cascade_origins or workers_with_cancel_requests):
        return NO_FOLLOW_UPS
    return FollowUps(
        frozenset(woken_queues or ()), frozenset(cascade_origins or ()), frozenset(workers_with_cancel_requests or ())
    )


def decode_instance(row: Row) -> Instance:
    """A row of instances_of.sql. What cannot be read is listed in `problems`, so that it spoils no other row."""
    values = list(row)
    problems = [f"{name} is outside of the years 1 to 9999" for n, name in _TIMES.items() if is_clamped(values[n])]
    status = decode_status(values[4])
    if status is Status.UNKNOWN:
        problems.append(f"status {values[4]!r} is unknown to this version of gen_durable")
    values[4] = status
    values[9] = tuple(name or "" for name in values[9] or ())
    for n in (23, 24, 25):  # state, result, metadata
        values[n] = None if values[n] is None else values[n].encode()
    if values[25] is not None and not is_readable_json_object(values[25]):
        problems.append("metadata is not a readable object")
        values[25] = None
    values.append(tuple(problems))
    return Instance(*values)


def decode_status(word: str) -> Status:
    """A status; `UNKNOWN` for one of a newer version."""
    try:
        return Status(word)
    except ValueError:
        return Status.UNKNOWN


def is_readable_json_object(json: bytes) -> bool:
    """Whether JSON is an object that Python can decode: not too deep, no numbers out of range."""
    try:
        return isinstance(decode_untyped_json(json), dict)
    except Exception:
        return False
