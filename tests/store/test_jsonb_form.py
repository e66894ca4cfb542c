"""A value that was never stored is the value that the database gives back: order of keys, zeros, ints and floats."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gen_durable.json_codec import JsonCodec

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=6)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [-0.0, 0.0, 1e15, 1e16, -1e16, 1.5e17, 123456789012345678.0, 1e22, 1.7976931348623157e308, 5e-324, 1e-7]
)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | FLOATS
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=12,
)


class Holder(msgspec.Struct):
    """A type with known fields and unknown ones."""

    name: str
    share: float
    rest: dict[str, Any]
    either: int | float = 0


HOLDERS = st.builds(Holder, TEXT, FLOATS, st.dictionaries(TEXT, VALUES, max_size=3), NUMBERS)


def check_round_trip(dsn: str, codec: JsonCodec[Any], values: list[Any]) -> None:
    encoded = [codec.encode_and_decode(value, canonical=True) for value in values]

    async def stored() -> list[str]:
        connection = await asyncpg.connect(dsn)
        try:
            rows = await connection.fetch(
                "select t::jsonb::text as t from unnest($1::text[]) with ordinality as u (t, n) order by n",
                [text for text, _ in encoded],
            )
        finally:
            await connection.close()
        return [row["t"] for row in rows]

    for (_, value), text in zip(encoded, asyncio.run(stored()), strict=True):
        # By their repr: -0.0 equals 0.0, 1e16 equals an int, and dicts are equal in any order.
        assert repr(value) == repr(codec.decode(text))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=st.lists(VALUES, min_size=1, max_size=40))
def test_any_value_survives_jsonb_as_it_is(dsn: str, values: list[Any]) -> None:
    check_round_trip(dsn, JsonCodec(Any, "a state"), values)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=st.lists(HOLDERS, min_size=1, max_size=20))
def test_a_typed_value_survives_jsonb_as_it_is(dsn: str, values: list[Any]) -> None:
    check_round_trip(dsn, JsonCodec(Holder, "a state"), values)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (dict[str, int], {"bb": 1, "a": 2, "é": 3, "c": 4}),
        (Any, {"x": -0.0, "y": 1e16, "list": [{"b": 1, "a": 2}]}),
        (list[float], [-0.0, 1e16]),
        (int | float, 1e16),
        (dict[Any, int], {1: 1, "1": 2, "": 3}),
    ],
)
def test_known_differences(dsn: str, type_: Any, value: Any) -> None:
    check_round_trip(dsn, JsonCodec(type_, "a state"), [value])
