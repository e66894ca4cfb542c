"""Encode typed values as JSON and decode them: dataclasses, msgspec structs, pydantic models, TypedDicts, builtins.

Nothing is pickled, and stored data never names a class. A value that `jsonb` cannot store is rejected here, before it
can fail a batch. msgspec writes NaN and infinity as `null` and NUL characters as an escape: searching its output for
`null` and `\\u0000` is cheap, so the slow, exact check runs only for values that contain them.
"""

from __future__ import annotations

import functools
import gc
import json
import re
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, Final, Generic, Protocol, TypeVar, cast, get_args, get_origin, is_typeddict, runtime_checkable

import msgspec

from gen_durable.errors import DecodeError, DefinitionError, EncodeError, TooLarge
from gen_durable.jsonb_form import may_change_as_jsonb, to_jsonb_form
from gen_durable.validation import MAX_DEPTH, MAX_METADATA, MAX_PAYLOAD

T = TypeVar("T")
V = TypeVar("V", bytes, str, bytes | str)
JSON_NULL = b"null"
_MAY_EXPAND: Final = MAX_PAYLOAD // 60  # no JSON becomes 60 times as long when its numbers are written out
_LARGE: Final = 100_000  # bytes
ENCRYPTED_PREFIX: Final = "encrypted:1:"
"""The prefix of an encrypted payload (gen_durable.encryption), which is a JSON string."""


@runtime_checkable
class _PydanticModel(Protocol):
    """The methods used of a pydantic model (2.11 or later); pydantic itself is never imported here."""

    def model_dump(self, *, mode: str, by_alias: bool, round_trip: bool, warnings: bool) -> Any: ...
    def model_dump_json(self) -> str: ...


class JsonCodec(Generic[T]):
    """Encodes and decodes values of one type."""

    __slots__ = ("_accepts_null", "_accepts_text", "_decode", "_may_change", "_plain_class", "_type", "_what")

    def __init__(self, type_: object, what: str) -> None:
        self._type = type_
        self._what = what
        model: Any = type_ if _is_pydantic_model_class(type_) else None
        self._plain_class = _accepted_classes(type_)
        try:
            decoder = msgspec.json.Decoder(cast(Any, type_), dec_hook=_decode_hook)
            info = msgspec.inspect.type_info(cast(Any, type_))
        except Exception as error:
            raise DefinitionError(f"{what}: the type {type_name(type_)} cannot be stored as JSON: {error}") from error
        if model is None and isinstance(info, msgspec.inspect.CustomType):
            raise DefinitionError(
                f"{what}: the type {type_name(type_)} cannot be stored as JSON: "
                "use a dataclass, a msgspec.Struct, a pydantic model, a TypedDict or a dict"
            )
        self._decode: Callable[[bytes | str], T] = (
            decoder.decode if model is None else functools.partial(model.model_validate_json, by_name=True)
        )
        self._may_change = may_change_as_jsonb(info)
        self._accepts_text = False
        self._accepts_text = self._can_decode(f'"{ENCRYPTED_PREFIX}AAAA"')
        self._accepts_null = self._can_decode("null")

    def _can_decode(self, raw: str) -> bool:
        try:
            self.decode(raw)
        except DecodeError:
            return False
        return True

    def check_type(self, value: object) -> None:
        """Raise `EncodeError` if an isinstance check shows that the value is not of this type."""
        expected = self._plain_class
        if expected is None or isinstance(value, expected):
            return
        raise EncodeError(f"{self._what} takes {type_name(self._type)}, got {type(value).__name__}")

    def encode(self, value: T) -> bytes:
        self.check_type(value)
        raw = encode_json(value, self._what)
        if self._accepts_text and is_encrypted_json(raw):
            raise EncodeError(f"{self._what} begins with {ENCRYPTED_PREFIX!r}, which marks encrypted payloads")
        return raw

    def encode_and_decode(self, value: T, *, canonical: bool = False) -> tuple[str, T]:
        """A value as JSON text, and decoded again. Raises `EncodeError` if its JSON does not decode.

        `canonical`: the text and the value that `jsonb` will give back, for a value that is used at once.
        """
        raw = self.encode(value)
        if canonical and (self._may_change or b"-0.0" in raw):
            raw = to_jsonb_form(raw) if len(raw) < _LARGE else _call_without_gc(to_jsonb_form, raw)
        try:
            return raw.decode(), self.decode(raw)
        except DecodeError as error:
            raise EncodeError(f"{error}: the stored value could not be decoded") from None

    def encode_and_check_decodable(self, value: T) -> str:
        """A value as JSON text. Raises `EncodeError` if it is not of this type, by decoding it again where needed."""
        if value is None and self._accepts_null:
            return "null"
        if self._type is Any:
            return self.encode(value).decode()
        return self.encode_and_decode(value)[0]

    def decode(self, raw: bytes | str) -> T:
        try:
            # Most types reject an encrypted payload by themselves; a type that accepts any text would not.
            if self._accepts_text and is_encrypted_json(raw):
                raise ValueError
            if len(raw) > _LARGE:
                return _call_without_gc(self._decode, raw)
            return self._decode(raw)
        except Exception as error:
            if is_encrypted_json(raw):
                raise DecodeError(f"{self._what}: {NO_CODEC}") from None
            reason = _explain_decode_error_without_values(error, self._type)
            raise DecodeError(f"{self._what}: stored JSON does not fit {type_name(self._type)}: {reason}") from None


def _call_without_gc(decode: Callable[[V], T], raw: V) -> T:
    """Decode without garbage collections in between, which walk over what is being decoded again and again."""
    if not gc.isenabled():
        return decode(raw)
    gc.disable()
    try:
        return decode(raw)
    finally:
        gc.enable()


def make_json_codec(type_: object, what: str) -> JsonCodec[Any]:
    """A codec for a type as written in an annotation; `what` names the value in errors."""
    return JsonCodec(type_, what)


def encode_json(value: object, what: str) -> bytes:
    """A value as JSON bytes. Raises `EncodeError` with the part that cannot be stored, or `TooLarge`."""
    try:
        raw = _ENCODER.encode(value)
    except RecursionError:
        raise EncodeError(f"{what} is nested too deeply or holds itself: at most {MAX_DEPTH} levels") from None
    except UnicodeEncodeError:
        raise EncodeError(f"{what} holds a lone surrogate, which has no UTF-8 form") from None
    except Exception as error:
        raise EncodeError(f"{what} cannot be stored as JSON: {error}") from error
    if len(raw) > MAX_DEPTH:  # so many brackets at least
        _check_size_and_depth(raw, what)
    if b"null" in raw and value is not None and _has_nonfinite(msgspec.to_builtins(value, enc_hook=_encode_hook)):
        raise EncodeError(f"{what} holds NaN or an infinity, which JSON cannot store: use None")
    if b"\\u0000" in raw and b"\\u0000" in raw.replace(b"\\\\", b""):
        raise EncodeError(f"{what} holds a NUL character in a string, which Postgres cannot store")
    return raw


def _check_size_and_depth(raw: bytes, what: str) -> None:
    """Raise `TooLarge` or `EncodeError` if JSON is larger or deeper than what is stored."""
    if len(raw) > MAX_PAYLOAD:
        raise TooLarge(
            f"{what} is {len(raw):,} bytes of JSON, at most {MAX_PAYLOAD:,} are allowed: "
            "store large data elsewhere and keep a reference to it"
        )
    if len(raw) > _MAY_EXPAND and (size := written_out_size(raw)) > MAX_PAYLOAD:
        raise TooLarge(
            f"{what} is {size:,} bytes of JSON with its numbers written out, at most {MAX_PAYLOAD:,} are allowed"
        )
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _nesting_depth(raw) > MAX_DEPTH:
        raise EncodeError(f"{what} is nested too deeply: at most {MAX_DEPTH} levels")


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Metadata as JSON text: an object, at most 8,000 bytes."""
    if not isinstance(metadata, Mapping):
        raise EncodeError(f"metadata must be a dict, got {type(metadata).__name__}")
    for key in metadata:
        if not isinstance(key, str):
            raise EncodeError(f"metadata must have keys of type str, got one of type {type(key).__name__}")
    raw = encode_json(dict(metadata), "metadata")
    if (size := written_out_size(raw)) > MAX_METADATA:
        raise TooLarge(f"metadata is {size:,} bytes of JSON, at most {MAX_METADATA:,} are allowed: use the state")
    return raw.decode()


def decode_untyped_json(raw: bytes | str) -> Any:
    """JSON without a type: dicts, lists and scalars."""
    return msgspec.json.decode(raw)


def decode_untyped_payload(raw: bytes | str) -> Any:
    """Like `decode_untyped_json`, for a payload. Raises `DecodeError` if it is still encrypted, or cannot be read."""
    if isinstance(raw, UnreadablePayload):
        raise DecodeError(raw.reason)
    if is_encrypted_json(raw):
        raise DecodeError(f"the payload cannot be read: {NO_CODEC}")
    try:
        return msgspec.json.decode(raw)
    except (RecursionError, msgspec.DecodeError) as error:  # jsonb stores what Python cannot read: 10,000 levels, 1e400
        raise DecodeError(f"the stored JSON cannot be read ({type(error).__name__})") from None


class UnreadablePayload(bytes):
    """A payload that could not be decrypted, as it is stored; decoding it raises `DecodeError(reason)`."""

    reason: str = ""


def is_encrypted_json(raw: bytes | str) -> bool:
    """Whether JSON is an encrypted payload."""
    return raw.startswith(_PREFIX_TEXT) if isinstance(raw, str) else raw.startswith(_PREFIX_BYTES)


def type_name(type_: object) -> str:
    """The name of a type in messages."""
    if type_ is None or type_ is type(None):
        return "None"
    if isinstance(type_, type):
        return type_.__name__
    return str(type_).replace("typing.", "")


def _encode_hook(value: object) -> object:
    if isinstance(value, _PydanticModel):
        # By field names and without computed fields, so that it decodes whatever the aliases of the model are.
        # Pydantic's warnings would quote the values.
        return value.model_dump(mode="json", by_alias=False, round_trip=True, warnings=False)
    raise EncodeError(f"it contains an object of type {type(value).__name__}")


def _decode_hook(type_: type[object], value: object) -> object:
    if _is_pydantic_model_class(type_):
        try:
            # From JSON: a strict model accepts a datetime or a tuple from JSON, but not from plain Python values.
            return cast(Any, type_).model_validate_json(msgspec.json.encode(value), by_name=True)
        except Exception as error:
            raise _NestedModelError(_explain_decode_error_without_values(error, type_)) from None
    raise DecodeError(f"objects of type {type_name(type_)} cannot be read")


NO_CODEC: Final = "it is encrypted, and this client has no codec: pass Durable(codec=...)"
_PREFIX_TEXT: Final = f'"{ENCRYPTED_PREFIX}'
_PREFIX_BYTES: Final = _PREFIX_TEXT.encode()
_ENCODER = msgspec.json.Encoder(enc_hook=_encode_hook)


def _is_pydantic_model_class(type_: object) -> bool:
    return isinstance(type_, type) and hasattr(type_, "model_validate_json") and hasattr(type_, "model_dump")


def _accepted_classes(type_: object) -> tuple[type, ...] | None:
    """The classes that a value must be an instance of, where the annotation names classes."""
    if type_ is None:
        return (type(None),)
    if is_typeddict(type_):
        return (dict,)
    if isinstance(type_, type) and get_origin(type_) is None:
        if type_ is Any:  # a class since Python 3.11, but not one that isinstance takes
            return None
        if type_ is float:
            return (float, int)
        return (type_,)
    return None


class _NestedModelError(ValueError):
    """A nested pydantic model rejected its part; the text quotes no value. msgspec adds the place to a ValueError."""


_STRING: Final = re.compile(rb'"[^"]*"')
_EXPONENT: Final = re.compile(rb"[0-9]e([+-]?[0-9]+)")
_STEPS: Final = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")  # 1 and -1, as signed bytes
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[{]}")
_PLACE = re.compile(r" - at `[^`]*`(?: in `[^`]*`)?$")
_QUOTES_VALUE = re.compile(r"Invalid (?:enum )?value ")
_SAFE_WORDS = ("Input should be", "Field required", "Extra inputs")


def _explain_decode_error_without_values(error: Exception, type_: object) -> str:
    """Why a value did not decode: places and expectations, never the value itself."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        names = _pydantic_field_names(type_)
        found = cast(Any, errors)(include_input=False, include_url=False, include_context=False)
        return "; ".join(
            f"{_format_location_without_keys(e['loc'], names)}: {_pydantic_message_without_value(e)}" for e in found[:5]
        )
    text = str(error)
    place = _PLACE.search(text)
    at = place.group() if place is not None else ""
    cause = error.__cause__
    if cause is not None and not isinstance(cause, _NestedModelError):
        return f"the type's own check raised {type(cause).__name__}{at}"
    if _QUOTES_VALUE.match(text):
        return f"Invalid value{at}"
    return text


def _pydantic_message_without_value(error: dict[str, Any]) -> str:
    """The message of a pydantic error, or its code where the message may quote the value."""
    message = str(error["msg"])
    return message if message.startswith(_SAFE_WORDS) else str(error["type"])


def _format_location_without_keys(location: tuple[str | int, ...], names: set[str]) -> str:
    """Where in a pydantic model: fields and indexes, but not the keys of dicts, which are data."""
    return ".".join(str(p) if isinstance(p, int) or p in names else "[...]" for p in location) or "$"


def _pydantic_field_names(type_: object) -> set[str]:
    """The names of all fields of a pydantic model and of the models in it."""
    names: set[str] = set()
    seen: set[int] = set()
    stack = [type_]
    while stack:
        one = stack.pop()
        stack.extend(get_args(one))
        if id(one) in seen or not _is_pydantic_model_class(one):
            continue
        seen.add(id(one))
        for name, field in cast(Any, one).model_fields.items():
            names.update(n for n in (name, field.alias, field.validation_alias) if isinstance(n, str))
            stack.append(field.annotation)
    return names


_FINITE_ENCODER: Final = json.JSONEncoder(allow_nan=False, check_circular=False, skipkeys=True)


def _has_nonfinite(value: Any) -> bool:
    """Whether plain values hold NaN or an infinity. The encoder of the standard library raises for them, in C."""
    try:
        _FINITE_ENCODER.encode(value)
    except ValueError:
        return True
    return False


def _nesting_depth(raw: bytes) -> int:
    """The number of levels of valid JSON. Only brackets are looked at one by one."""
    brackets = _remove_strings(raw).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0)


def _remove_strings(raw: bytes) -> bytes:
    """JSON without its strings; escaped quotes go first, so that a string ends at the next quote."""
    if b"\\" in raw:
        raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    return _STRING.sub(b"", raw)


def written_out_size(raw: bytes) -> int:
    """The bytes of JSON with each number written out, as `jsonb` writes it: 1e300 has 301 digits."""
    exponents = _EXPONENT.findall(_remove_strings(raw)) if b"e" in raw else ()
    return len(raw) + sum(abs(int(exponent)) for exponent in exponents)
