"""Lists as parameters that the driver encodes fast: one text for a list of names, numbers or JSON texts, nothing for
empty ones. asyncpg takes longer to encode the elements of an array than everything else that an insert does."""

from __future__ import annotations

from typing import Final, TypeVar

T = TypeVar("T")
# In what clients call JSON goes as text: a codec that a caller's pool has for jsonb must not touch it.
JSON: Final = "::pg_catalog.text[]::pg_catalog.jsonb[]"
JSON_SEPARATOR: Final = "\x01"  # JSON contains no control character except white space


def empty_if_all_none(column: list[T | None]) -> list[T | None]:
    """A column, or an empty list if it has no values: this saves the driver the encoding, and SQL fills in nulls."""
    return column if column.count(None) < len(column) else []


def names_array_sql(n: int) -> str:
    """A parameter of names as an array: names contain no space, and one text is encoded faster than many."""
    return f"pg_catalog.string_to_array(${n}, ' ', '')"


def numbers_array_sql(number: int) -> str:
    """The expression for an array of integers that travels as one text."""
    return f"${number}::pg_catalog.text::bigint[]"


def join_numbers(numbers: list[int]) -> str:
    """Integers for `numbers_array_sql`."""
    return "{" + ",".join(map(str, numbers)) + "}"


def jsons_array_sql(number: int) -> str:
    """The expression for an array of JSON values that travels as one text."""
    return f"pg_catalog.string_to_array(${number}, pg_catalog.chr(1))::pg_catalog.jsonb[]"


def join_jsons(jsons: list[str]) -> str:
    """JSON texts for `jsons_array_sql`."""
    return JSON_SEPARATOR.join(jsons)


def split_jsons(joined: str) -> list[str]:
    """The JSON texts that `join_jsons` has joined."""
    return joined.split(JSON_SEPARATOR)


def join_names(names: list[str | None]) -> str:
    """Names for `names_array_sql`; an empty text if all are None."""
    return " ".join([name or "" for name in names]) if names.count(None) < len(names) else ""


def split_names(joined: str) -> list[str]:
    """The names that `join_names` has joined, none of them None."""
    return joined.split(" ")


def split_numbers(joined: str) -> list[int]:
    """The numbers that `join_numbers` has joined."""
    return [int(number) for number in joined[1:-1].split(",")]
