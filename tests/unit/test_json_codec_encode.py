"""The codec, outward: every kind of value becomes JSON that `jsonb` takes, or is refused with the reason."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address
from typing import Any, NewType, TypedDict

import msgspec
import pydantic
import pytest

from gen_durable.errors import EncodeError, TooLarge
from gen_durable.json_codec import decode_untyped_json, encode_json, encode_metadata, make_json_codec
from gen_durable.validation import MAX_METADATA, MAX_PAYLOAD


@dataclass(frozen=True)
class Line:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: int
    lines: tuple[Line, ...] = ()
    notes: list[str] = field(default_factory=list[str])
    placed: datetime | None = None


class Cart(msgspec.Struct, frozen=True):
    customer: str
    lines: list[Line] = []


class Customer(pydantic.BaseModel):
    name: str
    score: float = 0.0
    parent: Customer | None = None


@dataclass(frozen=True)
class Visit:
    customer: Customer
    others: tuple[Customer, ...] = ()


class Invoice(TypedDict):
    total: int
    lines: list[Line]


class Anything(pydantic.BaseModel):
    held: Any = None


class Machine(pydantic.BaseModel):
    address: IPv4Address


@dataclass
class Box:
    held: Any = None


UserId = NewType("UserId", int)

VALUES: list[tuple[Any, Any]] = [
    (Line, Line("a", 2)),
    (Order, Order(1, (Line("a"), Line("b", 3)), ["n"], datetime(2030, 1, 1, tzinfo=UTC))),
    (Order, Order(1)),
    (Cart, Cart("ada", [Line("a")])),
    (Customer, Customer(name="ada", score=1.5, parent=Customer(name="bob"))),
    (Visit, Visit(Customer(name="ada"), (Customer(name="bob"),))),
    (list[Customer], [Customer(name="ada")]),
    (Customer | None, None),
    (Invoice, Invoice(total=1, lines=[Line("a")])),
    (dict[str, int], {"a": 1, "": 2}),
    (dict, {"a": [1, None, True, "x"]}),
    (list[int], [1, 2]),
    (int, -1),
    (float, 0.1),
    (float, 3),
    (str, "ü \u2028 \U0001f600"),
    (bool, False),
    (None, None),
    (type(None), None),
    (Any, {"a": 1}),
    (Line | None, Line("a")),
    (UserId, UserId(5)),
    (Machine, Machine(address=IPv4Address("192.0.2.1"))),
]


@pytest.mark.parametrize(("type_", "value"), VALUES)
def test_a_value_comes_back_as_it_was(type_: Any, value: Any) -> None:
    """What is encoded decodes to an equal value of the same type."""
    codec = make_json_codec(type_, "the state")
    back = codec.decode(codec.encode(value))
    assert back == value
    assert isinstance(value, (int, float)) or type(back) is type(value)


def test_it_is_plain_json() -> None:
    """The stored form is JSON that any reader knows, with the names of the fields."""
    raw = make_json_codec(Order, "x").encode(Order(1, (Line("a"),)))
    assert json.loads(raw) == {"id": 1, "lines": [{"sku": "a", "count": 1}], "notes": [], "placed": None}


def test_a_default_fills_a_field_that_was_not_stored() -> None:
    """A state from before a field was added still decodes, if the field has a default."""
    assert make_json_codec(Order, "x").decode(b'{"id": 1}') == Order(1)


def test_a_subclass_is_taken_for_its_base() -> None:
    """A value of a subclass may be stored where the base is expected."""

    @dataclass(frozen=True)
    class Special(Line):
        colour: str = "red"

    assert make_json_codec(Line, "x").decode(make_json_codec(Line, "x").encode(Special("a"))) == Line("a")


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", serialize_by_alias=True)

    plain: int = pydantic.Field(alias="Plain")
    apart: int = pydantic.Field(validation_alias="In", serialization_alias="Out")

    @pydantic.computed_field
    def double(self) -> int:
        return 2 * self.plain


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    at: datetime
    ids: tuple[int, ...]


@dataclass
class Holder:
    aliased: Aliased
    strict: Strict


def test_pydantic_models_come_back_whatever_their_settings() -> None:
    """Aliases, computed fields, `extra="forbid"` and strict mode do not keep a model from being read back."""
    aliased = Aliased.model_validate({"Plain": 1, "In": 2})
    strict = Strict(at=datetime(2030, 1, 1, tzinfo=UTC), ids=(1, 2))
    for value in (aliased, strict, Holder(aliased, strict)):
        codec = make_json_codec(type(value), "x")
        assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: [1, {"a": x}],
        lambda x: Box(Box(x)),
        lambda x: Customer(name="null", score=x),
        lambda x: Visit(Customer(name="a"), (Customer(name="b", score=x),)),
        lambda x: {"null": (x,)},
        lambda x: Customer(name="a", parent=Customer(name="b", score=x)),
    ],
)
def test_nan_and_infinity_are_refused(wrap: Any, bad: float) -> None:
    """A float that JSON cannot store is refused wherever it is, and does not silently become null."""
    with pytest.raises(EncodeError, match="the state holds NaN or an infinity"):
        encode_json(wrap(bad), "the state")


def test_null_is_not_taken_for_nan() -> None:
    """None and the text "null" are fine."""
    assert encode_json({"a": None, "null": "null"}, "x") == b'{"a":null,"null":"null"}'


@pytest.mark.parametrize(
    "bad", ["\0", "a\0b", ["x", {"y": "\0"}], {"\0": 1}, Line("\\\0"), Customer(name="\0"), Box("\\\\\0")]
)
def test_nul_is_refused(bad: object) -> None:
    """Postgres cannot store the character NUL in jsonb, so it is refused here."""
    with pytest.raises(EncodeError, match="the state holds a NUL character"):
        encode_json(bad, "the state")


@pytest.mark.parametrize("good", ["\\u0000", "\\\\u0000", "a\\u0000b", {"\\u0000": "\\"}])
def test_the_text_that_looks_like_an_escaped_nul_is_fine(good: object) -> None:
    """A backslash followed by u0000 is six harmless characters."""
    assert decode_untyped_json(encode_json(good, "x")) == good


@pytest.mark.parametrize("bad", ["\ud800", ["a", "\udfff"], {"\ud800": 1}, Line("\ud800"), Box(Box("\ud800"))])
def test_a_lone_surrogate_is_refused(bad: object) -> None:
    """Half a character has no UTF-8 form."""
    with pytest.raises(EncodeError, match="the state holds a lone surrogate"):
        encode_json(bad, "the state")


@pytest.mark.parametrize("number", [2**53 + 1, 2**64, -(2**63) - 1, 10**300])
def test_huge_ints_are_kept_exactly(number: int) -> None:
    """Ints do not become floats on the way."""
    assert make_json_codec(int, "x").decode(encode_json(number, "x")) == number
    assert decode_untyped_json(encode_json([number], "x")) == [number]


def test_an_absurd_int_is_refused() -> None:
    """An int too long to be written in digits is that value's error."""
    with pytest.raises(EncodeError, match="the state cannot be stored as JSON"):
        encode_json(10**5000, "the state")


@pytest.mark.parametrize("kind", ["list", "dict", "mixed"])
def test_depth_64_is_fine_and_65_is_not(kind: str) -> None:
    """Nesting has a bound, and it is exact."""
    value: object = 1
    for level in range(64):
        value = [value] if kind == "list" or (kind == "mixed" and level % 2) else {"[{": value}
    assert encode_json(value, "x")
    with pytest.raises(EncodeError, match="the state is nested too deeply: at most 64 levels"):
        encode_json([value], "the state")


def test_breadth_and_brackets_in_text_are_not_depth() -> None:
    """Many brackets beside each other or inside text do not count as nesting."""
    assert encode_json([[[]] for _ in range(1000)], "x")
    assert encode_json(['[{"\\' * 200], "x")
    assert encode_json("[" * 100, "x")


def test_the_size_limit_is_exact() -> None:
    """One million bytes of JSON pass, one more does not, and the error says how many there were."""
    assert len(encode_json("a" * (MAX_PAYLOAD - 2), "x")) == MAX_PAYLOAD
    with pytest.raises(TooLarge, match="the state is 1,000,001 bytes of JSON, at most 1,000,000 are allowed"):
        encode_json("a" * (MAX_PAYLOAD - 1), "the state")


def test_the_size_limit_of_metadata_is_exact() -> None:
    """8,000 bytes pass, one more does not."""
    assert len(encode_metadata({"k": "a" * (MAX_METADATA - 8)})) == MAX_METADATA
    with pytest.raises(TooLarge, match="metadata is 8,001 bytes of JSON, at most 8,000 are allowed"):
        encode_metadata({"k": "a" * (MAX_METADATA - 7)})


def test_a_value_is_as_the_database_gives_it_back_where_it_is_used_at_once() -> None:
    """Else it is stored as it was written. `jsonb` orders keys, and has no negative zero."""
    mapping, number = make_json_codec(dict[str, float], "x"), make_json_codec(float, "x")
    assert mapping.encode_and_decode({"bb": 1.5, "a": 2.5}, canonical=True)[0] == '{"a":2.5,"bb":1.5}'
    assert mapping.encode_and_decode({"bb": 1.5, "a": 2.5})[0] == '{"bb":1.5,"a":2.5}'
    assert number.encode_and_decode(-0.0, canonical=True)[0] in ("0", "0.0")
    assert number.encode_and_decode(-0.0)[0] == "-0.0"


def test_a_value_that_holds_itself_is_refused() -> None:
    """Cycles through lists, dataclasses and models end in an error, not in a crash."""
    loop: list[object] = []
    loop.append(loop)
    box = Box()
    box.held = {"again": box}
    model = Anything()
    model.held = [model]
    for value in (loop, box):
        with pytest.raises(EncodeError, match="the state is nested too deeply or holds itself"):
            encode_json(value, "the state")
    with pytest.raises(EncodeError, match="the state"):
        encode_json(model, "the state")


class Socket:
    """Nothing that can be stored."""

    def __repr__(self) -> str:
        return "CANARY"


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": [x]}, Box, lambda x: Anything(held=x)])
def test_an_object_that_cannot_be_stored_is_named_by_its_type(wrap: Any) -> None:
    """The error says what is in the way, and does not show it."""
    with pytest.raises(EncodeError, match=r"the state cannot be stored as JSON: .*Socket") as caught:
        encode_json(wrap(Socket()), "the state")
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "value", "words"),
    [
        (Line, Order(1), "takes Line, got Order"),
        (Line, {"sku": "a"}, "takes Line, got dict"),
        (Line, Line, "takes Line, got type"),
        (Customer, Line("a"), "takes Customer, got Line"),
        (Invoice, [1], "takes Invoice, got list"),
        (None, 0, "takes None, got int"),
        (str, 5, "takes str, got int"),
        (int, "5", "takes int, got str"),
        (dict, [], "takes dict, got list"),
    ],
)
def test_a_value_of_another_type_is_refused(type_: object, value: object, words: str) -> None:
    """A wrong state is refused where it is written, not when the next step reads it."""
    with pytest.raises(EncodeError, match=f"the state {words}"):
        make_json_codec(type_, "the state").encode(value)


def test_a_model_with_values_that_do_not_fit_prints_no_warning() -> None:
    """Pydantic would warn and quote the value; what does not fit shows when it is read."""
    assert encode_json(Customer.model_construct(name=5, score="CANARY"), "x")


def test_every_field_is_stored_even_when_it_has_its_default() -> None:
    """A default that changes in the code does not change what was stored."""
    stored = decode_untyped_json(encode_json(Customer(name="a"), "x"))
    assert set(stored) == set(Customer.model_fields)
    assert set(decode_untyped_json(encode_json(Order(1), "x"))) == {f.name for f in dataclasses.fields(Order)}
