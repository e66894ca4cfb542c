"""JSON as `jsonb` gives it back, so that a value is the same whether it came from memory or from the database.

A step that runs ahead, a waiter in the process of the worker and an activity that has just run get a value that was
never stored. `jsonb` orders keys by length and then by bytes, keeps the last of equal keys, has no negative zero, and
writes a float of 1e16 and above without a fraction, which is an int again for a type that takes both. Guarded by
tests/store/test_jsonb_form.py.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Final

import msgspec
from msgspec import inspect

_FIRST_WITHOUT_FRACTION: Final = 1e16
_LEAVES: Final = (
    inspect.BoolType,
    inspect.ByteArrayType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.DateType,
    inspect.DecimalType,
    inspect.EnumType,
    inspect.FloatType,  # an int decodes to the same float; a negative zero is looked for in the text
    inspect.IntType,
    inspect.LiteralType,
    inspect.NoneType,
    inspect.StrType,
    inspect.TimeDeltaType,
    inspect.TimeType,
    inspect.UUIDType,
)


def to_jsonb_form(raw: bytes) -> bytes:
    """The JSON that `jsonb` makes of this one, up to white space and the digits of small numbers."""
    if b"{" not in raw and b"e" not in raw and b"-0.0" not in raw:
        return raw
    # The decoder of the standard library calls Python for objects and floats only, not for each list: a megabyte of
    # brackets takes milliseconds, and the event loop waits for it (tests/unit/test_large_values.py).
    decode = _DECODE_ASCII if raw.isascii() else _DECODE
    return msgspec.json.encode(decode(raw.decode()))


def may_change_as_jsonb(type_info: inspect.Type) -> bool:
    """Whether values of a type may depend on the order of keys, or on whether a number is an int."""
    return _may_values_change(type_info, set())


def _may_values_change(info: object, seen: set[object]) -> bool:
    if isinstance(info, inspect.UnionType):
        kinds = {type(one) for one in info.types}
        if {inspect.IntType, inspect.FloatType} <= kinds:
            return True
        return any(_may_values_change(one, seen) for one in info.types)
    if isinstance(info, (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)):
        return _may_values_change(info.item_type, seen)
    if isinstance(info, inspect.TupleType):
        return any(_may_values_change(one, seen) for one in info.item_types)
    if isinstance(info, (inspect.StructType, inspect.DataclassType, inspect.NamedTupleType)):
        if info.cls in seen:
            return False
        seen.add(info.cls)
        return any(_may_values_change(field.type, seen) for field in info.fields)
    if isinstance(info, inspect.Metadata):
        return _may_values_change(info.type, seen)
    return not isinstance(info, _LEAVES)


def _sort_keys_as_jsonb(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """In the order of `jsonb`: shorter keys first. Code points are in the order of their bytes; the lengths differ."""
    return dict(pairs if len(pairs) < 2 else sorted(pairs, key=lambda pair: (len(pair[0].encode()), pair[0])))


def _sort_ascii_keys_as_jsonb(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return dict(pairs if len(pairs) < 2 else sorted(pairs, key=lambda pair: (len(pair[0]), pair[0])))


def _parse_number_as_jsonb(text: str) -> float | int:
    value = float(text)
    if value == 0.0:
        return 0.0
    if abs(value) >= _FIRST_WITHOUT_FRACTION:
        return int(Decimal(text))  # the digits that were written, not those of the binary number
    return value


_DECODE: Final = json.JSONDecoder(object_pairs_hook=_sort_keys_as_jsonb, parse_float=_parse_number_as_jsonb).decode
_DECODE_ASCII: Final = json.JSONDecoder(
    object_pairs_hook=_sort_ascii_keys_as_jsonb, parse_float=_parse_number_as_jsonb
).decode
