"""The codec, inward: stored JSON becomes a value of the type, or an error that names the place and never the value."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from gen_durable.errors import DecodeError, DefinitionError
from gen_durable.json_codec import decode_untyped_json, make_json_codec, type_name

CANARY = "CANARY"


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Plain:
    number: int
    colour: Colour = Colour.RED
    size: Literal["small", "large"] = "small"
    moment: datetime | None = None
    price: Decimal = Decimal(0)
    uuid: UUID | None = None


@dataclass
class Checked:
    text: str

    def __post_init__(self) -> None:
        raise ValueError(f"{self.text} is not nice")


@dataclass
class Nested:
    plain: Plain | None = None
    checked: Checked | None = None


class Model(pydantic.BaseModel):
    number: int = 0
    colour: Colour = Colour.RED
    by_key: dict[str, int] = {}
    text: Annotated[str, pydantic.Field(max_length=3)] = ""
    uuid: UUID | None = None
    inner: list[Model] = []

    @pydantic.field_validator("text")
    @classmethod
    def nice(cls, text: str) -> str:
        if text == "bad":
            raise ValueError(f"{CANARY} {text}")
        return text


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class Part(pydantic.BaseModel):
    weight: int = pydantic.Field(default=0, alias="Weight")


class Whole(pydantic.BaseModel):
    parts: list[Part] = []
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    f: int = 0


class Owner(pydantic.BaseModel):
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@dataclass
class WithModel:
    model: Model
    several: list[Model]


class Left(msgspec.Struct, tag=True):
    a: int


class Right(msgspec.Struct, tag=True):
    a: int


class Record(TypedDict):
    number: int


MISFITS: list[tuple[Any, str, str]] = [
    (Plain, '{"number": "CANARY"}', r"Plain: Expected `int`, got `str` - at `\$\.number`"),
    (Plain, '{"colour": "CANARY", "number": 1}', r"Plain: Invalid value - at `\$\.colour`"),
    (Plain, '{"size": "CANARY", "number": 1}', r"Plain: Invalid value - at `\$\.size`"),
    (Plain, '{"size": "CANARY - at `CANARY`", "number": 1}', r"Plain: Invalid value - at `\$\.size`"),
    (Plain, '{"moment": "CANARY", "number": 1}', r"at `\$\.moment`"),
    (Plain, '{"price": "CANARY", "number": 1}', r"at `\$\.price`"),
    (Plain, '{"uuid": "CANARY", "number": 1}', r"at `\$\.uuid`"),
    (Plain, "{}", r"missing required field `number`"),
    (Plain, '["CANARY"]', r"Expected `object`, got `array`"),
    (Nested, '{"plain": {"number": "CANARY"}}', r"at `\$\.plain\.number`"),
    (Nested, '{"checked": {"text": "CANARY"}}', r"the type's own check raised ValueError - at `\$\.checked`"),
    (Checked, '{"text": "CANARY"}', r"Checked: the type's own check raised ValueError"),
    (dict[str, int], '{"CANARY": "CANARY"}', r"Expected `int`, got `str` - at `\$\[(0|\.\.\.)\]`"),
    (dict[int, int], '{"CANARY": 1}', r"Expected `int`, got `str`"),
    (Left | Right, '{"type": "CANARY", "a": 1}', r"Invalid value - at `\$\.type`"),
    (Record, '{"number": "CANARY"}', r"Record: Expected `int`, got `str` - at `\$\.number`"),
    (None, '"CANARY"', r"None: Expected `null`, got `str`"),
    (Model, '{"number": "CANARY"}', r"Model: number: Input should be a valid integer"),
    (Model, '{"colour": "CANARY"}', r"Model: colour: Input should be 'red'"),
    (Model, '{"text": "bad"}', r"Model: text: value_error"),
    (Model, '{"text": "CANARY"}', r"Model: text: string_too_long"),
    (Model, '{"uuid": "CANARY"}', r"Model: uuid: Input should be a valid UUID|uuid_parsing"),
    (Model, '{"by_key": {"CANARY": "CANARY"}}', r"Model: by_key\.\[\.\.\.\]: Input should be a valid integer"),
    (Model, '{"inner": [{}, {"number": "CANARY"}]}', r"Model: inner\.1\.number: Input should be"),
    (Whole, '{"parts": [{"weight": "CANARY"}]}', r"Whole: parts\.0\.(weight|Weight): Input should be"),
    (Owner, '{"pet": {"kind": "CANARY"}}', r"Owner: pet: union_tag_invalid"),
    (WithModel, '{"model": {"number": "CANARY"}, "several": []}', r"number: Input should be .* - at `\$\.model`"),
    (WithModel, '{"model": {}, "several": [{"text": "bad"}]}', r"text: value_error - at `\$\.several\[0\]`"),
    (list[Model], '[{"number": "CANARY"}]', r"number: Input should be .* - at `\$\[(0|\.\.\.)\]`"),
    (Model, '{"number": "CANARY"', r"Model: \$: json_invalid"),
    (Record, '{"number": "CANARY"', r"Record: "),
]


@pytest.mark.parametrize(("type_", "stored", "words"), MISFITS)
def test_a_misfit_names_place_and_type_but_not_the_value(type_: Any, stored: str, words: str) -> None:
    """The error of a state that does not fit says where and what was expected; it never quotes what was stored."""
    with pytest.raises(DecodeError, match=rf"(?s)^the state of X: stored JSON does not fit .*{words}") as caught:
        make_json_codec(type_, "the state of X").decode(stored)
    assert CANARY not in str(caught.value)
    assert caught.value.__suppress_context__, "a traceback would print the original error, and the value in it"


def test_bytes_and_text_decode_alike() -> None:
    """The driver gives text, the encoder bytes."""
    assert make_json_codec(Record, "x").decode('{"number": 1}') == make_json_codec(Record, "x").decode(b'{"number": 1}')
    assert decode_untyped_json("[1, null]") == [1, None]


def test_five_errors_of_a_model_are_named() -> None:
    """A value that fits nowhere has a short error, too."""
    stored = json.dumps(dict.fromkeys("abcdef", "x"))
    with pytest.raises(DecodeError, match=r"Whole: a: [^;]*; b: [^;]*; c: [^;]*; d: [^;]*; e: [^;]*$"):
        make_json_codec(Whole, "the state").decode(stored)


class Opaque:
    pass


@dataclass
class Wrapping:
    opaque: Opaque | None = None


def test_a_part_of_a_type_that_has_no_json_form_is_not_read() -> None:
    """The type is declared inside another one, so only a row shows it."""
    with pytest.raises(DecodeError, match="objects of type Opaque cannot be read"):
        make_json_codec(Wrapping, "the state").decode('{"opaque": {}}')


@pytest.mark.parametrize("type_", [Opaque, object, Plain | Checked, 5, "Plain"])
def test_a_type_that_cannot_be_stored_is_refused_when_it_is_declared(type_: object) -> None:
    """A wrong annotation is an error of the definition, not of the first row."""
    with pytest.raises(DefinitionError, match=r"the state of X: the type .* cannot be stored as JSON"):
        make_json_codec(type_, "the state of X")


@pytest.mark.parametrize(
    ("type_", "name"), [(None, "None"), (type(None), "None"), (Plain, "Plain"), (int, "int"), (Any, "Any")]
)
def test_types_are_called_as_users_call_them(type_: object, name: str) -> None:
    """Messages say Plain, not <class '...Plain'>."""
    assert type_name(type_) == name
