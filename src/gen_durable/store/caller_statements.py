"""Statements for callers' transactions: those that run on a caller's own connection, and the look at their commits.

On a caller's connection, whatever its driver, every parameter is a text with a cast: all drivers bind texts alike, and
no codec or adapter that the caller has set up for arrays, JSON or times applies. Each answer comes with the id of the
transaction, by which the library recognises its commit; with `notify` the statement notifies inside the transaction.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from gen_durable.store.start_encoder import INSERT_COLUMNS
from gen_durable.store.start_or_update import (
    SignalOrStart,
    StartOrUpdate,
    StartOrUpdateResult,
    decode_start_or_update,
    start_or_update_parameters,
)
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import CancelResult, FollowUps, InsertResult, OutgoingSignal, Row

TRANSACTION: Final = "pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text"
INSERT: Final = (
    *("text", "text", "text", "text", "text", "int2[]", "text[]", "float8[]", "timestamptz[]"),  # INSERT_COLUMNS
    *("bytea[]", "text[]", "text", "jsonb[]", "text[]", "jsonb[]", "float8[]", "jsonb[]"),
)
IDS: Final = "int8[]"
SIGNAL: Final = ("int8[]", "bytea[]", "text[]", "jsonb[]", "text[]", "bool")
SIGNAL_OR_START: Final = ("bytea", "text", "jsonb", "text", "jsonb", "int8")
DEBOUNCE: Final = ("bytea", "jsonb", "float8", "int8", "jsonb")
CANCEL: Final = ("int8[]", "bytea[]", "text", "bool", "bool")
_PARAMETER: Final = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class CallerStatementBuilder:
    """`insert`, `signal` and `cancel`, for a caller's connection."""

    statements: StatementBuilder

    @property
    def _quoted_schema(self) -> str:
        return f'"{self.statements.schema.name}"'

    def insert(
        self, statement: Statement[list[InsertResult]], *, notify: bool
    ) -> Statement[tuple[list[InsertResult], int | None]]:
        """`statement` is an `insert` or an `insert_with_ids`."""
        types = (*INSERT, IDS)[: len(statement.args)]
        columns = ",".join((INSERT_COLUMNS, *(f"${n}" for n in range(6, len(types) + 1))))
        text = (
            f"select i.ord, i.id, i.inserted, i.blocked_on, {TRANSACTION} "  # noqa: S608
            f"from {self._quoted_schema}.insert({columns},notify => ${len(types) + 1}) as i order by i.ord"
        )
        return _with_text_parameters(
            Statement(
                text,
                (*statement.args, notify),
                lambda rows: ([InsertResult(*row[1:4]) for row in rows], _decode_transaction_id(rows[0][4])),
            ),
            (*types, "bool"),
        )

    def allocate_ids(self, count: int) -> Statement[list[int]]:
        """The array comes back as a text: drivers read arrays differently."""
        statement = self.statements.allocate_ids(count)
        text = statement.text.replace("allocate_ids($1)", "allocate_ids($1)::pg_catalog.text")
        return _with_text_parameters(
            Statement(text, statement.args, lambda rows: [int(n) for n in rows[0][0][1:-1].split(",")]), ("int4",)
        )

    def live_id_of_key(self, key: bytes) -> Statement[int | None]:
        return _with_text_parameters(self.statements.live_id_of_key(key), ("bytea",))

    def signal(
        self, outgoing: OutgoingSignal, *, notify: bool
    ) -> Statement[tuple[tuple[int | None, str, str | None], int | None]]:
        statement = self.statements.signal([outgoing])
        text = (
            f"select s.ord, s.target, s.verdict, s.woken_queue, {TRANSACTION}, "  # noqa: S608
            f"case when $6 then {self._quoted_schema}.notify_workers('queue', array[s.woken_queue]) end "
            f"from {self._quoted_schema}.signal($1,$2,$3,$4,$5) as s"
        )
        return _with_text_parameters(
            Statement(
                text,
                (*statement.args, notify),
                lambda rows: (statement.read(rows)[0], _decode_transaction_id(rows[0][4])),
            ),
            SIGNAL,
        )

    def start_or_update(self, call: StartOrUpdate, *, notify: bool) -> Statement[StartOrUpdateResult]:
        types = SIGNAL_OR_START if isinstance(call, SignalOrStart) else DEBOUNCE
        function, origin = (
            ("signal_or_start", "null::pg_catalog.int8")
            if isinstance(call, SignalOrStart)
            else ("debounce", "k.cascade_origin")
        )
        flag = f"${len(types) + 1}"
        text = (
            f"select k.target, k.verdict, k.woken_queue, {origin}, {TRANSACTION}, "  # noqa: S608
            f"case when {flag} then {self._quoted_schema}.notify_workers('queue', array[k.woken_queue]) end, "
            f"case when {flag} then {self._quoted_schema}.notify_workers("
            f"'cancel_children', array[{origin}::pg_catalog.text]) end "
            f"from {self._quoted_schema}.{function}({','.join(f'${n}' for n in range(1, len(types) + 1))}) as k"
        )
        return _with_text_parameters(
            Statement(
                text,
                (*start_or_update_parameters(call), notify),
                lambda rows: dataclasses.replace(
                    decode_start_or_update(rows), transaction=_decode_transaction_id(rows[0][4])
                ),
            ),
            (*types, "bool"),
        )

    def cancel(
        self, instance: int | None, key: bytes | None, reason: str, *, cascade: bool, notify: bool
    ) -> Statement[tuple[CancelResult, FollowUps, int | None]]:
        """Arrays come back as JSON: drivers read arrays differently."""
        statement = self.statements.cancel([(instance, key)], reason, cascade=cascade)
        columns = ("woken_queues", "cascade_origins", "workers_with_cancel_requests")
        arrays = ", ".join(f"pg_catalog.to_json(c.{column})::pg_catalog.text" for column in columns)
        kinds = zip(("queue", "cancel_children", "check_cancel_requests"), columns, strict=True)
        sent = ", ".join(
            f"case when $5 then {self._quoted_schema}.notify_workers('{kind}', c.{column}::pg_catalog.text[]) end"
            for kind, column in kinds
        )
        text = (
            f"select c.ord, c.target, c.was, c.verdict, {arrays}, {TRANSACTION}, {sent} "  # noqa: S608
            f"from {self._quoted_schema}.cancel($1,$2,$3,$4,true) as c"
        )

        def read(rows: Sequence[Row]) -> tuple[CancelResult, FollowUps, int | None]:
            (row,) = rows
            lists = [None if value is None else msgspec.json.decode(value) for value in row[4:7]]
            (target,), follow_ups = statement.read([(*row[:4], *lists)])
            return target, follow_ups, _decode_transaction_id(row[7])

        return _with_text_parameters(Statement(text, (*statement.args, notify), read), CANCEL)


def ended_transactions_statement(ids: Sequence[int]) -> Statement[dict[int, bool]]:
    """Of these transactions those that have ended, and whether they were committed. For connections of the library.

    A transaction that has ended for this snapshot has ended for all later ones: a pick then finds its rows.
    """
    text = (
        "select given.id::pg_catalog.text, pg_catalog.pg_xact_status(given.id) operator(pg_catalog.=) 'committed' "
        "from pg_catalog.unnest($1::pg_catalog.text[]::pg_catalog.xid8[]) as given (id), "
        "pg_catalog.pg_current_snapshot() as snapshot "
        "where pg_catalog.pg_visible_in_snapshot(given.id, snapshot)"
    )
    return Statement(
        text, ([str(transaction) for transaction in ids],), lambda rows: {int(row[0]): row[1] is True for row in rows}
    )


def _decode_transaction_id(text: str | None) -> int | None:
    """The id of a transaction; None if it has written nothing."""
    return None if text is None else int(text)


def _with_text_parameters(statement: Statement[Any], types: Sequence[str]) -> Statement[Any]:
    def cast_parameter(parameter: re.Match[str]) -> str:
        # Full names: the caller's search_path may lead anywhere.
        return f"cast({parameter[0]} as pg_catalog.text)::pg_catalog.{types[int(parameter[1]) - 1]}"

    return Statement(
        _PARAMETER.sub(cast_parameter, statement.text),
        tuple(_to_postgres_text(value) for value in statement.args),
        statement.read,
    )


def with_named_parameters(text: str, before: str, after: str = "") -> str:
    """A statement with each `$1` in the style of another driver: `%(p1)s`, or `:p1`."""
    return _PARAMETER.sub(lambda parameter: f"{before}p{parameter[1]}{after}", text)


def named_arguments(args: Sequence[object]) -> dict[str, object]:
    """The parameters of a statement that `with_named_parameters` made."""
    return {f"p{n}": value for n, value in enumerate(args, start=1)}


def _to_postgres_text(value: object) -> str | None:
    """A value as Postgres reads it from text."""
    match value:
        case None:
            return None
        case list():
            items = cast("list[object]", value)
            return "{" + ",".join("NULL" if item is None else _quote_array_item(item) for item in items) + "}"
        case bytes():
            return "\\x" + value.hex()
        case datetime():
            return value.isoformat()
        case _:
            return str(value)


def _quote_array_item(item: object) -> str:
    return '"' + str(_to_postgres_text(item)).replace("\\", "\\\\").replace('"', '\\"') + '"'
