"""Lists as parameters that the driver encodes fast: one text for a list of names or numbers, nothing for empty ones."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def empty_if_all_none(column: list[T | None]) -> list[T | None]:
    """A column, or an empty list if it has no values: this saves the driver the encoding, and SQL fills in nulls."""
    return column if column.count(None) < len(column) else []


def names_array_sql(n: int) -> str:
    """A parameter of names as an array: names contain no space, and one text is encoded faster than many."""
    return f"pg_catalog.string_to_array(${n}, ' ', '')"


def numbers_array_sql(number: int) -> str:
    """The expression for an array of integers that travels as one text: asyncpg takes longer to encode an array."""
    return f"${number}::pg_catalog.text::bigint[]"


def join_numbers(numbers: list[int]) -> str:
    """Integers for `numbers_array_sql`."""
    return "{" + ",".join(map(str, numbers)) + "}"


def join_names(names: list[str | None]) -> str:
    """Names for `names_array_sql`; an empty text if all are None."""
    return " ".join([name or "" for name in names]) if names.count(None) < len(names) else ""
