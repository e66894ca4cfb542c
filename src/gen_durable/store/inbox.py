"""Statements for inboxes: their pages, rejected signals, and reading, restoring and deleting signals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gen_durable.signals import Received, StoredSignal
from gen_durable.store.python_range_times import clamped_time
from gen_durable.store.row_decoder import decode_inbox
from gen_durable.store.schema import Schema
from gen_durable.store.statements import PAGE_BYTES, Statement
from gen_durable.store.types import Row


@dataclass(frozen=True, slots=True)
class RejectResult:
    """The result of a rejection: the rejected signals, and the queues in which rows became runnable."""

    ids: frozenset[int]
    woken_queues: list[str]


@dataclass(frozen=True, slots=True)
class RetryRejectedResult:
    """Signals that are tried again, the queues to wake, and the (instance, signal) after which the next call begins."""

    ids: list[int]
    woken_queues: list[str]
    after: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DeleteSignalsResult:
    """The instance, how many signals were deleted, and the queues of rows that were unblocked."""

    id: int
    deleted: int
    woken_queues: list[str]


class InboxStatementBuilder:
    """The statements, for one schema."""

    __slots__ = ("_delete", "_inbox_page", "_reject", "_rejected", "_restore", "_retry", "_signals")

    def __init__(self, schema: Schema) -> None:
        s = f'"{schema.name}"'
        times = clamped_time("inserted_at")
        columns = f"id, target_id, machine, name, state, {times}, size, dedup_key, reason, payload::text"
        self._inbox_page = f"select {s}.inbox_page($1,$2,$3,$4,$5)"
        self._reject = f"select rejected, woken_queues from {s}.reject_signals_and_release_claims($1,$2,$3,$4,$5)"  # noqa: S608
        self._retry = (
            "select readmitted, woken_queues, last_target, last_signal "  # noqa: S608
            f"from {s}.retry_signals_others_rejected($1,$2,$3,$4,$5,$6)"
        )
        self._restore = f"select verdict, woken_queue from {s}.restore_signals($1,false)"  # noqa: S608
        self._delete = f"select id, deleted, woken_queues from {s}.delete_signals($1,$2,$3)"  # noqa: S608
        self._signals = f"select {columns} from {s}.signals_of($1,$2,$3,$4)"  # noqa: S608
        self._rejected = f"select {columns} from {s}.rejected_signals($1,$2,$3,$4)"  # noqa: S608

    def inbox_page(
        self, instance: int, after: int, names: Sequence[str] | None = None, without: Sequence[str] = ()
    ) -> Statement[list[Received]]:
        """The next signals of an inbox, after the id `after`: at most PAGE_BYTES, and at least one."""
        args = (instance, after, PAGE_BYTES, names, without)
        return Statement(self._inbox_page, args, lambda rows: list(decode_inbox(rows[0][0] or "[]")))

    def reject_signals_and_release_claims(
        self, instance: int, epoch: int, ids: Sequence[int], reasons: Sequence[str], fingerprint: str
    ) -> Statement[RejectResult]:
        """Reject signals of one claim, and end the claim."""
        count = len(ids)
        args = ([instance] * count, [epoch] * count, list(ids), list(reasons), [fingerprint] * count)
        return Statement(
            self._reject, args, lambda rows: RejectResult(frozenset(rows[0][0] or ()), list(rows[0][1] or ()))
        )

    def retry_signals_others_rejected(
        self, fingerprints: Sequence[tuple[str, int, str]], after: tuple[int, int], batch: int
    ) -> Statement[RetryRejectedResult]:
        """`fingerprints` are (machine, version, fingerprint)."""

        def read(rows: Sequence[Row]) -> RetryRejectedResult:
            ids, queues, target, signal = rows[0]
            return RetryRejectedResult(list(ids or ()), list(queues or ()), (target or 0, signal or 0))

        columns: list[list[object]] = [[entry[n] for entry in fingerprints] for n in range(3)]
        return Statement(self._retry, (*columns, *after, batch), read)

    def restore_signals(self, ids: Sequence[int]) -> Statement[list[tuple[str, str | None]]]:
        """The verdict and the queue to wake, for each signal."""
        return Statement(self._restore, (list(ids),), lambda rows: [(row[0], row[1]) for row in rows])

    def delete_signals(
        self, instance: int | None, key: bytes | None, name: str | None
    ) -> Statement[DeleteSignalsResult | None]:
        def read(rows: Sequence[Row]) -> DeleteSignalsResult | None:
            return DeleteSignalsResult(rows[0][0], rows[0][1], list(rows[0][2] or ())) if rows else None

        return Statement(self._delete, (instance, key, name), read)

    def signals_of(
        self, instance: int | None, key: bytes | None, limit: int, *, payloads: bool
    ) -> Statement[list[StoredSignal]]:
        return Statement(self._signals, (instance, key, limit, payloads), _decode_signals)

    def rejected_signals(self, after: tuple[int, int], limit: int, *, payloads: bool) -> Statement[list[StoredSignal]]:
        return Statement(self._rejected, (*after, limit, payloads), _decode_signals)


def _decode_signals(rows: Sequence[Row]) -> list[StoredSignal]:
    signals: list[StoredSignal] = []
    for row in rows:
        values = list(row)
        values[9] = None if values[9] is None else values[9].encode()
        signals.append(StoredSignal(*values))
    return signals
