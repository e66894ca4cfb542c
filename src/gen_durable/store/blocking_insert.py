"""Inserts that block rows whose gate is busy, and the second look that they need after their commit."""

from __future__ import annotations

from collections.abc import Sequence

from gen_durable.store.start_encoder import EncodedStarts
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import InsertResult


def insert_blocking_busy(statements: StatementBuilder, encoded: EncodedStarts) -> Statement[list[InsertResult]]:
    """An `insert` without unique keys. After its commit, run `unblock_new_rows` with the rows that it has blocked."""
    plain = statements.insert_encoded(encoded, "raise")
    return Statement(
        plain.text.replace("notify => false", "notify => false, blocks_busy => true"), plain.args, plain.read
    )


def unblock_new_rows(statements: StatementBuilder, rows: Sequence[InsertResult]) -> Statement[list[str]]:
    """Unblock those of these rows whose gate became free during their insert. Returns the queues to wake."""
    waiting = [(row.id, row.blocked_on) for row in rows if row.blocked_on is not None]
    text = statements.schema.render("select @schema.unblock_new_rows($1,$2)")
    return Statement(
        text, ([row_id for row_id, _ in waiting], [gate for _, gate in waiting]), lambda rows: rows[0][0] or []
    )
