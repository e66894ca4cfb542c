"""Statements for listing, counting, deleting and retrying instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gen_durable.instances import Instance, Status
from gen_durable.listing import MAX_COUNT, Count, Page, encode_cursor
from gen_durable.store.row_decoder import INSTANCE, decode_instance, decode_status
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement
from gen_durable.store.types import Row


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The result of a delete: the status, whether the instance was deleted, and the waiting parent that prevents it."""

    id: int
    was: Status
    deleted: bool
    parent: int | None


@dataclass(frozen=True, slots=True)
class RetryResult:
    """The result of a retry: the status before, and the queue of the instance if it runs again."""

    id: int
    was: Status
    queue: str | None


class InstanceAdminStatementBuilder:
    """The statements, for one schema."""

    __slots__ = ("_count", "_delete", "_list", "_retry")

    def __init__(self, schema: Schema) -> None:
        s = f'"{schema.name}"'
        self._list = (
            f"select l.rest, {INSTANCE} from {s}.list($1::text::jsonb,$2,$3) as l "  # noqa: S608
            f"left join lateral {s}.instances_of(l.ids,$4) as i on true order by i.id desc"
        )
        self._count = f"select value, exact from {s}.count($1::text::jsonb,$2)"  # noqa: S608
        self._delete = f"select id, was, deleted, waiting from {s}.delete_instance($1,$2)"  # noqa: S608
        self._retry = f"select id, was, woken_queue from {s}.retry($1,$2,false)"  # noqa: S608

    def list(self, encoded_filters: str, below: int | None, limit: int, *, payloads: bool) -> Statement[Page]:
        """`encoded_filters` is the result of `gen_durable.listing.encode_filters`."""
        return Statement(self._list, (encoded_filters, below, limit, payloads), _decode_page)

    def count(self, encoded_filters: str) -> Statement[Count]:
        return Statement(self._count, (encoded_filters, MAX_COUNT), lambda rows: Count(*rows[0]))

    def delete_instance(self, instance: int | None, key: bytes | None) -> Statement[DeleteResult | None]:
        def read(rows: Sequence[Row]) -> DeleteResult | None:
            return DeleteResult(rows[0][0], decode_status(rows[0][1]), rows[0][2], rows[0][3]) if rows else None

        return Statement(self._delete, (instance, key), read)

    def retry(self, instance: int | None, key: bytes | None) -> Statement[RetryResult | None]:
        def read(rows: Sequence[Row]) -> RetryResult | None:
            return RetryResult(rows[0][0], decode_status(rows[0][1]), rows[0][2]) if rows else None

        return Statement(self._retry, (instance, key), read)


def _decode_page(rows: Sequence[Row]) -> Page:
    instances: tuple[Instance, ...] = tuple(decode_instance(tuple(row)[1:]) for row in rows if row[1] is not None)
    return Page(instances, encode_cursor(rows[0][0]))
