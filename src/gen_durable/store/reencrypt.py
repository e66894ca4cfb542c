"""Statements that read payloads table by table, and write those that were encrypted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement
from gen_durable.store.types import Row

PAYLOAD_TABLES: Final = ("instances", "signals", "transitions", "checkpoints", "activities", "progress")


@dataclass(frozen=True, slots=True)
class StoredPayload:
    """One payload: its column, the field that it is encrypted for, and its value as text."""

    column: str
    field: str
    text: str


@dataclass(frozen=True, slots=True)
class PayloadRow:
    """A row of a table with payloads: its primary key, its instance, whether that is executing, and its payloads."""

    key: list[str]
    instance: int
    is_executing: bool
    payloads: tuple[StoredPayload, ...]


@dataclass(frozen=True, slots=True)
class PayloadReplacement:
    """A payload that was encrypted again, and the text that it replaces."""

    key: list[str]
    instance: int
    former: str
    fresh: str


@dataclass(frozen=True, slots=True)
class ReplacePayloadsResult:
    """How many payloads were written, and the instances that were left out, because they execute or are locked."""

    written: int
    busy: list[int]


class PayloadStatementBuilder:
    """The statements, for one schema."""

    __slots__ = ("_page", "_replace")

    def __init__(self, schema: Schema) -> None:
        s = f'"{schema.name}"'
        columns = "key, instance, is_executing, columns, fields, payloads"
        self._page = f"select {columns} from {s}.payloads_page($1,$2,$3,$4)"  # noqa: S608
        self._replace = f"select written, busy from {s}.replace_payloads($1,$2,$3::text::jsonb,$4,$5,$6)"  # noqa: S608

    def payloads_page(
        self, table: str, after: list[str] | None, batch: int, instances: list[int] | None
    ) -> Statement[list[PayloadRow]]:
        """The next rows of a table, in the order of its primary key; of some instances, or of all."""
        return Statement(self._page, (table, after, batch, instances), _decode_payload_page)

    def replace_payloads(
        self, table: str, column: str, several: Sequence[PayloadReplacement]
    ) -> Statement[ReplacePayloadsResult]:
        """Write payloads of one column."""
        keys = msgspec.json.encode([one.key for one in several]).decode()
        lists = zip(*((one.instance, one.former, one.fresh) for one in several), strict=True)
        return Statement(self._replace, (table, column, keys, *map(list, lists)), _decode_replace_result)


def _decode_payload_page(rows: Sequence[Row]) -> list[PayloadRow]:
    return [
        PayloadRow(
            row[0],
            row[1],
            row[2],
            tuple(
                StoredPayload(column, field, text)
                for column, field, text in zip(row[3], row[4], row[5], strict=True)
                if text is not None
            ),
        )
        for row in rows
    ]


def _decode_replace_result(rows: Sequence[Row]) -> ReplacePayloadsResult:
    return ReplacePayloadsResult(rows[0][0], rows[0][1])
