"""Statements that run on a caller's own connection, whatever its driver.

Every parameter is a text with a cast: all drivers bind texts alike, and no codec or adapter that the caller has set up
for arrays, JSON or times applies. The statements also notify, inside the caller's transaction, so that its commit wakes
the workers; `encode_message.sql` encodes the payloads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from gen_durable.store.statements import Statement, Statements
from gen_durable.store.types import CancelResult, FollowUps, InsertResult, OutgoingSignal

INSERT: Final = (
    *("text[]", "int4[]", "text[]", "jsonb[]", "text[]", "int2[]", "text[]", "float8[]", "timestamptz[]"),
    *("bytea[]", "text[]", "text", "jsonb[]", "text[]", "jsonb[]"),
)
IDS: Final = "int8[]"
SIGNAL: Final = ("int8[]", "bytea[]", "text[]", "jsonb[]", "text[]", "text")
CANCEL: Final = ("int8[]", "bytea[]", "text", "bool", "text")
_PARAMETER: Final = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class TextStatements:
    """`insert`, `signal` and `cancel`, for a caller's connection."""

    statements: Statements

    @property
    def _schema(self) -> str:
        return f'"{self.statements.schema.name}"'

    def insert(self, statement: Statement[list[InsertResult]]) -> Statement[list[InsertResult]]:
        """`statement` is an `insert` or an `insert_as`."""
        types = (*INSERT, IDS)[: len(statement.args)]
        columns = ",".join(f"${n}" for n in range(1, len(types) + 1))
        schema = self._schema
        # One notification per queue: a listener wakes the picker of the queue, not of a row.
        text = (
            "select m.ord, m.id, m.inserted, "  # noqa: S608
            f"case when m.inserted and m.first then pg_catalog.pg_notify(${len(types) + 1}, "
            f"{schema}.encode_message('queue', m.queue)) end from "
            "(select i.*, q.queue, pg_catalog.row_number() over (partition by q.queue, i.inserted order by i.ord) "
            "operator(pg_catalog.=) 1 as first "
            f"from {schema}.insert({columns}) as i, "
            "lateral (select ($5)[i.ord] as queue) as q) as m order by m.ord"
        )
        return _with_texts(
            Statement(text, (*statement.args, self.statements.schema.channel), statement.read), (*types, "text")
        )

    def allocate_ids(self, count: int) -> Statement[list[int]]:
        """The array comes back as a text: drivers read arrays differently."""
        statement = self.statements.allocate_ids(count)
        text = statement.text.replace("allocate_ids($1)", "allocate_ids($1)::pg_catalog.text")
        return _with_texts(
            Statement(text, statement.args, lambda rows: [int(n) for n in rows[0][0][1:-1].split(",")]), ("int4",)
        )

    def id_of_key(self, key: bytes) -> Statement[int | None]:
        return _with_texts(self.statements.id_of_key(key), ("bytea",))

    def signal(self, outgoing: OutgoingSignal) -> Statement[list[tuple[int | None, str, str | None]]]:
        statement = self.statements.signal([outgoing])
        text = (
            "select s.ord, s.target, s.verdict, s.woken, "  # noqa: S608
            "case when s.woken is not null then pg_catalog.pg_notify($6, "
            f"{self._schema}.encode_message('queue', s.woken)) end from {self._schema}.signal($1,$2,$3,$4,$5) as s"
        )
        return _with_texts(Statement(text, (*statement.args, self.statements.schema.channel), statement.read), SIGNAL)

    def cancel(
        self, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> Statement[tuple[list[CancelResult], FollowUps]]:
        """The caller's commit sends the messages, so the answer holds no wake-ups."""
        statement = self.statements.cancel([(instance, key)], reason, cascade=cascade)
        text = (
            "select c.ord, c.target, c.was, c.verdict, null, null, null, (select pg_catalog.count(*) from ("  # noqa: S608
            f"select pg_catalog.pg_notify($5, {self._schema}.encode_message(message.kind, message.argument)) from ("
            "select 'queue' as kind, woken.queue as argument from pg_catalog.unnest(c.woken) as woken (queue) "
            "union all select 'cancel_children', parent.id::pg_catalog.text "
            "from pg_catalog.unnest(c.cancel_children) as parent (id) "
            "union all select 'check_cancels', worker.name from pg_catalog.unnest(c.check_cancels) as worker (name)"
            ") as message) as sent) "
            f"from {self._schema}.cancel($1,$2,$3,$4,true) as c"
        )
        return _with_texts(Statement(text, (*statement.args, self.statements.schema.channel), statement.read), CANCEL)


def _with_texts(statement: Statement[Any], types: Sequence[str]) -> Statement[Any]:
    def typed(parameter: re.Match[str]) -> str:
        # Full names: the caller's search_path may lead anywhere.
        return f"cast({parameter[0]} as pg_catalog.text)::pg_catalog.{types[int(parameter[1]) - 1]}"

    return Statement(
        _PARAMETER.sub(typed, statement.text), tuple(_text(value) for value in statement.args), statement.read
    )


def with_named_parameters(text: str, before: str, after: str = "") -> str:
    """A statement with each `$1` in the style of another driver: `%(p1)s`, or `:p1`."""
    return _PARAMETER.sub(lambda parameter: f"{before}p{parameter[1]}{after}", text)


def named_arguments(args: Sequence[object]) -> dict[str, object]:
    """The parameters of a statement that `with_named_parameters` made."""
    return {f"p{n}": value for n, value in enumerate(args, start=1)}


def _text(value: object) -> str | None:
    """A value as Postgres reads it from text."""
    match value:
        case None:
            return None
        case list():
            items = cast("list[object]", value)
            return "{" + ",".join("NULL" if item is None else _quoted(item) for item in items) + "}"
        case bytes():
            return "\\x" + value.hex()
        case datetime():
            return value.isoformat()
        case _:
            return str(value)


def _quoted(item: object) -> str:
    return '"' + str(_text(item)).replace("\\", "\\\\").replace('"', '\\"') + '"'
