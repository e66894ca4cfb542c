"""Errors of the server become errors of the library, with what the SQL functions put into them."""

from __future__ import annotations

from typing import Any

import asyncpg

from gen_durable.errors import DatabaseRefused, Duplicate
from gen_durable.pg.sqlstate_errors import to_library_error


def duplicate(detail: str | None, hint: str) -> Duplicate:
    error: Any = asyncpg.PostgresError("taken")
    error.sqlstate, error.detail, error.hint = "GD001", detail, hint
    found = to_library_error(error, "insert", "s")
    assert isinstance(found, Duplicate)
    return found


def test_a_taken_key_names_its_holder() -> None:
    """Also a key that is not text."""
    taken = duplicate(b"k\xff".hex(), "7")
    assert (taken.key, taken.existing_id) == (b"k\xff", 7)
    assert str(taken).startswith("unique_key 'k\N{REPLACEMENT CHARACTER}' is taken by instance 7: ")


def test_a_key_given_twice_has_no_holder() -> None:
    twice = duplicate(b"k".hex(), "")
    assert (twice.key, twice.existing_id) == (b"k", None)
    assert str(twice) == "unique_key 'k' is given twice in one call: nothing was inserted"


def test_another_error_repeats_no_value() -> None:
    """The server's message may quote a payload."""
    error = to_library_error(asyncpg.InvalidTextRepresentationError("canary"), "insert", "s")
    assert type(error) is DatabaseRefused
    assert str(error) == "insert: the database rejected the call (InvalidTextRepresentationError, SQLSTATE 22P02)"
