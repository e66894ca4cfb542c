"""Typed values to plain JSON and back. Never pickle, never a class named by stored data.

In: a dataclass, `msgspec.Struct`, pydantic model, `TypedDict`, dict or builtin. Out: JSON bytes that `jsonb` takes and
that decode again, or an error of ours. This room owns the invariant that a value which cannot be stored is refused
here, before it is in a batch with others.

msgspec writes NaN and infinity as `null` and passes NUL characters on as an escape. Looking for the bytes `null` and
`\\u0000` in what it wrote is cheap, so the slow, exact check runs only for values that have them.
"""

from __future__ import annotations

import math
from typing import Any, Generic, Protocol, TypeVar, cast, get_origin, is_typeddict, runtime_checkable

import msgspec

from gen_durable.errors import DecodeError, DefinitionError, EncodeError, TooLarge
from gen_durable.limits import MAX_DEPTH, MAX_PAYLOAD

T = TypeVar("T")
JSON_NULL = b"null"


@runtime_checkable
class _PydanticModel(Protocol):
    """What we use of a pydantic model; pydantic itself is never imported here."""

    def model_dump(self, *, mode: str) -> Any: ...
    def model_dump_json(self) -> str: ...


class Codec(Generic[T]):
    """Stores values of one type as JSON and reads them back."""

    __slots__ = ("_decoder", "_model", "_plain_class", "_type", "_what")

    def __init__(self, type_: object, what: str) -> None:
        self._type = type_
        self._what = what
        self._model: Any = type_ if _is_pydantic(type_) else None
        self._plain_class = _runtime_class(type_)
        try:
            self._decoder = msgspec.json.Decoder(cast(Any, type_), dec_hook=_decode_hook)
            info = msgspec.inspect.type_info(cast(Any, type_))
        except Exception as error:
            raise DefinitionError(f"{what}: the type {type_name(type_)} cannot be stored as JSON: {error}") from error
        if self._model is None and isinstance(info, msgspec.inspect.CustomType):
            raise DefinitionError(
                f"{what}: the type {type_name(type_)} cannot be stored as JSON: "
                "use a dataclass, a msgspec.Struct, a pydantic model, a TypedDict or a dict"
            )

    def check(self, value: object) -> None:
        """Refuse a value that is plainly not of this type, as far as a cheap look can tell."""
        expected = self._plain_class
        if expected is None or isinstance(value, expected):
            return
        raise EncodeError(f"{self._what} takes {type_name(self._type)}, got {type(value).__name__}")

    def encode(self, value: T) -> bytes:
        self.check(value)
        return encode(value, self._what)

    def decode(self, raw: bytes | str) -> T:
        try:
            if self._model is not None:
                return cast(T, self._model.model_validate_json(raw))
            return cast(T, self._decoder.decode(raw))
        except Exception as error:
            raise DecodeError(
                f"{self._what}: stored JSON does not fit {type_name(self._type)}: {_reason(error)}"
            ) from None


def codec_for(type_: object, what: str) -> Codec[Any]:
    """A codec for a type as written in an annotation; `what` names the place in errors."""
    return Codec(type_, what)


def encode(value: object, what: str) -> bytes:
    """A value as JSON bytes, or an `EncodeError` that says what in it cannot be stored."""
    try:
        raw = _ENCODER.encode(value)
    except RecursionError:
        raise EncodeError(f"{what} is nested too deeply or holds itself: at most {MAX_DEPTH} levels") from None
    except UnicodeEncodeError:
        raise EncodeError(f"{what} holds a lone surrogate, which has no UTF-8 form") from None
    except Exception as error:
        raise EncodeError(f"{what} cannot be stored as JSON: {error}") from error
    if len(raw) > MAX_PAYLOAD:
        raise TooLarge(
            f"{what} is {len(raw):,} bytes of JSON, at most {MAX_PAYLOAD:,} are allowed: "
            "keep large data elsewhere and store where it is"
        )
    if b"null" in raw and _holds_nonfinite(msgspec.to_builtins(value, enc_hook=_encode_hook)):
        raise EncodeError(f"{what} holds NaN or an infinity, which JSON cannot store: use None")
    if b"\\u0000" in raw and b"\\u0000" in raw.replace(b"\\\\", b""):
        raise EncodeError(f"{what} holds a NUL character in a string, which Postgres cannot store")
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(raw) > MAX_DEPTH:
        raise EncodeError(f"{what} is nested too deeply: at most {MAX_DEPTH} levels")
    return raw


def decode_plain(raw: bytes | str) -> Any:
    """JSON without a type: dicts, lists and scalars."""
    return msgspec.json.decode(raw)


def type_name(type_: object) -> str:
    """How to call a type in a message."""
    if type_ is None or type_ is type(None):
        return "None"
    if isinstance(type_, type):
        return type_.__name__
    return str(type_).replace("typing.", "")


def _encode_hook(value: object) -> object:
    if isinstance(value, _PydanticModel):
        return value.model_dump(mode="json")
    raise EncodeError(f"an object of type {type(value).__name__} is in it")


def _decode_hook(type_: type[object], value: object) -> object:
    if _is_pydantic(type_):
        return cast(Any, type_).model_validate(value)
    raise DecodeError(f"objects of type {type_name(type_)} cannot be read")


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_hook)


def _is_pydantic(type_: object) -> bool:
    return isinstance(type_, type) and hasattr(type_, "model_validate_json") and hasattr(type_, "model_dump")


def _runtime_class(type_: object) -> tuple[type, ...] | None:
    """The classes that a value must be an instance of, where the annotation names them plainly."""
    if type_ is None:
        return (type(None),)
    if is_typeddict(type_):
        return (dict,)
    if isinstance(type_, type) and get_origin(type_) is None:
        if type_ is object:
            return None
        if type_ is float:
            return (float, int)
        return (type_,)
    return None


def _reason(error: Exception) -> str:
    """Why a value did not decode: places and expectations, never the value itself."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        found = cast(Any, errors)(include_input=False, include_url=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, e['loc'])) or '$'}: {e['msg']}" for e in found[:5])
    return str(error)


def _holds_nonfinite(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return True
        elif isinstance(item, dict):
            stack.extend(cast("dict[object, object]", item).values())
        elif isinstance(item, (list, tuple)):
            stack.extend(cast("list[object]", item))
    return False


def _depth(raw: bytes) -> int:
    depth = deepest = 0
    in_string = escaped = False
    for byte in raw:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in (0x7B, 0x5B):
            depth += 1
            deepest = max(deepest, depth)
        elif byte in (0x7D, 0x5D):
            depth -= 1
    return deepest
