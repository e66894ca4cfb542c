"""The statements of a hand-off: rows become runnable and a worker of the same process claims what is due, in one
transaction. `pick.sql` decides what is claimed, so the order of rows and their gates are those of every other pick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gen_durable.store.row_decoder import CLAIM, decode_pick_result
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement
from gen_durable.store.types import InsertResult, PickResult, Row

T = TypeVar("T")
INSERT_COLUMNS: Final = 3  # of `insert_sql`
PICK_PARAMETERS: Final = 10


@dataclass(frozen=True, slots=True)
class HandOffResult(Generic[T]):
    """The result of the client's own statement, and of the pick that followed it."""

    result: T
    picked: PickResult


class HandOffStatementBuilder:
    """The statements of hand-offs, for one schema."""

    __slots__ = ("_claim", "_schema")

    def __init__(self, schema: Schema) -> None:
        self._schema = f'"{schema.name}"'
        self._claim = ", ".join(f"picked.{column}" for column in CLAIM.split(", "))

    def insert_and_pick(
        self, insert: Statement[list[InsertResult]], pick: Statement[PickResult]
    ) -> Statement[HandOffResult[list[InsertResult]]]:
        """An insert, then a pick. The demands of the pick depend on the result of the insert, so it runs second."""
        first = len(insert.args) + 1
        pick_parameters = [f"${number}" for number in range(first, first + PICK_PARAMETERS)]
        pick_parameters[2] = f"case when added.ids is not null then {pick_parameters[2]}::pg_catalog.int4[] end"
        text = (
            f"with added (ids, inserted, blocked_on) as materialized ({insert.text}) "  # noqa: S608
            f"select added.ids, added.inserted, added.blocked_on, {self._claim} from added "
            f"left join lateral {self._schema}.pick({', '.join(pick_parameters)}) as picked on true"
        )

        def read(rows: Sequence[Row]) -> HandOffResult[list[InsertResult]]:
            return HandOffResult(insert.read([rows[0][:INSERT_COLUMNS]]), _read_pick(rows, INSERT_COLUMNS))

        return Statement(text, (*insert.args, *pick.args), read)


def _read_pick(rows: Sequence[Row], columns_before: int) -> PickResult:
    """The columns of the pick; without a claim and a report there is one row in which all of them are null."""
    picked = [row[columns_before:] for row in rows]
    return decode_pick_result([row for row in picked if row[0] is not None or row[-1] is not None])
