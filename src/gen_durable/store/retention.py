"""Statements of retention: what machines declare, and the deletion of instances with a keep of their own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from gen_durable.retention import Retention
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement
from gen_durable.store.types import GcResult


class RetentionStatementBuilder:
    """The statements, for one schema. `gc` itself is in `StatementBuilder`."""

    __slots__ = ("_declare", "_declared", "_gc_kept")

    def __init__(self, schema: Schema) -> None:
        s = f'"{schema.name}"'
        self._declare = f"select {s}.declare_retentions($1,$2,$3,$4,$5)"
        self._declared = f"select fsm, done, failed, cancelled from {s}.declared_retentions()"  # noqa: S608
        self._gc_kept = f"select deleted, visited_until, more from {s}.gc_rows_with_own_retention($1,$2,$3)"  # noqa: S608

    def declare_retentions(self, retentions: Mapping[str, Retention | None]) -> Statement[bool]:
        """Store the retentions by machine; None for a machine that declares none. Returns whether any has changed."""
        done, failed, cancelled = zip(
            *((None, None, None) if each is None else each.seconds for each in retentions.values()), strict=True
        )
        declares = [each is not None for each in retentions.values()]
        args = (list(retentions), declares, list(done), list(failed), list(cancelled))
        return Statement(self._declare, args, lambda rows: bool(rows[0][0]))

    def declared_retentions(self) -> Statement[dict[str, Retention]]:
        """The retentions that machines declare, by machine."""
        return Statement(self._declared, (), lambda rows: {row[0]: Retention(*list(row)[1:]) for row in rows})

    def gc_rows_with_own_retention(
        self, batch: int, *, skip: int = 0, after: datetime | None = None
    ) -> Statement[GcResult]:
        """Delete instances whose own keep has passed. The arguments are those of `StatementBuilder.gc`."""
        return Statement(self._gc_kept, (batch, skip, after), lambda rows: GcResult(*rows[0]))
