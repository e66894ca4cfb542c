"""Filters, pages and counts of instances, for `list`, `list_all` and `count`.

Filters are checked here and encoded as the JSON that `filter_sql.sql` reads. Pages are ordered by id, newest first, and
a cursor is an id: a row that changes between two pages is not listed twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from typing_extensions import TypedDict

from gen_durable.errors import InputError
from gen_durable.instances import STORED_STATUSES, Instance, Status
from gen_durable.json_codec import decode_untyped_json, encode_json, encode_metadata
from gen_durable.starts import Scope
from gen_durable.validation import check_moment, check_name, check_text_key, to_stored_key

PAGE: Final = 50
MAX_PAGE: Final = 1000
MAX_COUNT: Final = 10_000
MAX_ERROR: Final = 1000
_CURSOR = re.compile(r"i([0-9a-f]{1,16})")


class Filters(TypedDict, total=False):
    """The filters of `list`, `list_all` and `count`; an instance must match all of them.

    `unique_key` finds the instance that holds the key now. `..._after` includes its moment, `..._before` excludes it.
    `metadata` matches instances whose metadata contains it: `{"tenant": "acme"}`, whatever other keys they have. `due`:
    a worker may claim the instance now. `blocked`: it waits for a partition key or a limit. `error` is a part of its
    last error, in upper or lower case.
    """

    status: Status | Scope | Iterable[Status | Scope]
    machine: str
    version: int
    step: str
    queue: str
    partition_key: str
    parent: int
    unique_key: str | bytes
    inserted_after: datetime
    inserted_before: datetime
    updated_after: datetime
    updated_before: datetime
    finished_after: datetime
    finished_before: datetime
    metadata: Mapping[str, Any]
    due: bool
    blocked: bool
    error: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some instances, newest first. `app.list(..., after=page.cursor)` lists the next page; at the end it is None.

    A page may be short, even empty, and still have a cursor: one call reads a bounded number of rows.
    """

    instances: tuple[Instance, ...]
    cursor: str | None

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.instances)

    def __len__(self) -> int:
        return len(self.instances)


@dataclass(frozen=True, slots=True)
class Count:
    """The number of instances, or an estimate if counting them would take long."""

    value: int
    exact: bool


def encode_filters(filters: Mapping[str, object]) -> str:
    """Filters as the JSON that `filter_sql.sql` reads. Raises `InputError`. A filter that is None is ignored."""
    found: dict[str, object] = {}
    for name, value in filters.items():
        if name not in Filters.__annotations__:
            raise InputError(f"unknown filter {name!r}: use some of {', '.join(Filters.__annotations__)}")
        if value is not None:
            found[name] = _encode_filter(name, cast(Any, value))
    return encode_json(found, "the filters").decode()


def _encode_filter(name: str, value: Any) -> object:
    match name:
        case "status":
            return _encode_statuses(value)
        case "machine" | "step" | "queue":
            return check_name(value, name)
        case "version" | "parent":
            most = 2**31 - 1 if name == "version" else 2**63 - 1
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise InputError(f"{name} must be an int from 0 to {most}, got {value!r}")
            return value
        case "partition_key":
            return check_text_key(value, name)
        case "unique_key":
            return to_stored_key(value, name).hex()
        case "due" | "blocked":
            if not isinstance(value, bool):
                raise InputError(f"{name} must be True or False, got {value!r}")
            return value
        case "error":
            if not isinstance(value, str) or not 1 <= len(value) <= MAX_ERROR:
                raise InputError(f"error must be a text of 1 to {MAX_ERROR:,} characters")
            return value
        case "metadata":
            return decode_untyped_json(encode_metadata(value))
        case _:
            return check_moment(value, name).isoformat()


def _encode_statuses(value: object) -> list[str]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, Iterable):
        raise InputError(f"status takes a status or several, got {type(value).__name__}")
    try:
        found = {Status(one) for one in cast("Iterable[str]", several)}
    except ValueError as error:
        raise InputError(f"status: {error}: use some of {', '.join(STORED_STATUSES)}") from None
    if Status.UNKNOWN in found:
        raise InputError(f"status: 'unknown' is not stored: use some of {', '.join(STORED_STATUSES)}")
    return sorted(status.value for status in found)


def check_page_size(limit: int) -> int:
    """The size of a page. Raises `InputError` if it is out of bounds."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InputError(f"limit must be an int from 1 to {MAX_PAGE}, got {limit!r}")
    return limit


def encode_cursor(below: int | None) -> str | None:
    """The cursor of the page that begins below an id."""
    return None if below is None else f"i{below:x}"


def decode_cursor(cursor: str | None) -> int | None:
    """The id below which the page of a cursor begins."""
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None or (below := int(found[1], 16)) >= 2**63:
        raise InputError("after must be the cursor of a page, unchanged")
    return below
