"""Listing: what to look for among instances, and what is found: a page at a time, or counted.

In: filters as a user writes them. Out: the JSON that `filter_sql.sql` takes, or an error that names the filter. A page
goes on where its cursor says, in the order of ids, newest first: rows that change meanwhile are never seen twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from typing_extensions import TypedDict

from gen_durable.codec import decode_plain, encode, encode_metadata
from gen_durable.errors import InputError
from gen_durable.instances import Instance, Status
from gen_durable.starts import Scope
from gen_durable.validation import check_key, check_moment, check_name, check_text_key

PAGE: Final = 50
MAX_PAGE: Final = 1000
MAX_COUNT: Final = 10_000
_CURSOR = re.compile(r"i([0-9a-f]{1,16})")


class Filters(TypedDict, total=False):
    """What `list`, `list_all` and `count` look for; all that are given must fit.

    `unique_key` finds who holds the key now. `..._after` is from that moment on, `..._before` up to but without it.
    `metadata` must be contained: `{"tenant": "acme"}` finds all that say so, whatever else they say.
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


@dataclass(frozen=True, slots=True)
class Page:
    """Some instances, newest first, and where to go on: `app.list(..., after=page.cursor)`; None at the end.

    A page may be short, even empty, and still have a cursor: one call looks at so many rows and no more.
    """

    instances: tuple[Instance, ...]
    cursor: str | None

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.instances)

    def __len__(self) -> int:
        return len(self.instances)


@dataclass(frozen=True, slots=True)
class Count:
    """How many instances there are; an estimate where counting them would take long."""

    value: int
    exact: bool


def wanted(filters: Mapping[str, object]) -> str:
    """Filters as `filter_sql.sql` takes them. One that is None is as good as not given."""
    found: dict[str, object] = {}
    for name, value in filters.items():
        if name not in Filters.__annotations__:
            raise InputError(f"there is no filter {name!r}: use some of {', '.join(Filters.__annotations__)}")
        if value is not None:
            found[name] = _checked(name, cast(Any, value))
    return encode(found, "the filters").decode()


def _checked(name: str, value: Any) -> object:
    match name:
        case "status":
            return _statuses(value)
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
            return check_key(value, name).hex()
        case "metadata":
            return decode_plain(encode_metadata(value))
        case _:
            return check_moment(value, name).isoformat()


def _statuses(value: object) -> list[str]:
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, Iterable):
        raise InputError(f"status takes a status or several, got {type(value).__name__}")
    try:
        return sorted({Status(one).value for one in cast("Iterable[str]", several)})
    except ValueError as error:
        raise InputError(f"status: {error}: use some of {', '.join(Status)}") from None


def check_limit(limit: int) -> int:
    """How many instances a page may have."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InputError(f"limit must be an int from 1 to {MAX_PAGE}, got {limit!r}")
    return limit


def cursor_of(below: int | None) -> str | None:
    """A place between two instances, as it is handed out."""
    return None if below is None else f"i{below:x}"


def place_of(cursor: str | None) -> int | None:
    """The id below which a page begins."""
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None or (below := int(found[1], 16)) >= 2**63:
        raise InputError("after must be the cursor of a page, as it was handed out")
    return below
