"""Starts under a unique key, as values: deliver a signal or start, and debounce."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, assert_never

import msgspec

from gen_durable.signals import SignalMessage
from gen_durable.starts import Scope, Start
from gen_durable.store.schema import Schema
from gen_durable.store.start_encoder import encode_first_signals, encode_start
from gen_durable.store.statements import Statement
from gen_durable.store.types import Row

EncodedStart: TypeAlias = "dict[str, msgspec.Raw]"
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
# JSON goes as text, as in statements.py.
JSON: Final = "::pg_catalog.text::pg_catalog.jsonb"


@dataclass(frozen=True, slots=True)
class SignalOrStart:
    """A call of `signal_or_start.sql`. The signals of `start` include the message, which is for a holder."""

    key: bytes
    message: SignalMessage
    start: EncodedStart
    holder: int | None = None


@dataclass(frozen=True, slots=True)
class Debounce:
    """A call of `debounce.sql`. `state` is for a holder, if it differs from the state in `start`."""

    key: bytes
    start: EncodedStart
    max_delay: float | None
    holder: int | None = None
    state: str | None = None


StartOrUpdate: TypeAlias = SignalOrStart | Debounce


@dataclass(frozen=True, slots=True)
class StartOrUpdateResult:
    """The instance that a call reached, the verdict of its function, and what must follow the commit.

    `transaction` is the id of the caller's transaction; None in a transaction of the library.
    """

    target: int | None
    verdict: str
    woken_queue: str | None
    cascade_origin: int | None
    transaction: int | None = None


class StartOrUpdateStatementBuilder:
    """The statements of keyed starts, for one schema."""

    __slots__ = ("_debounce", "_signal_or_start")

    def __init__(self, schema: Schema) -> None:
        s = f'"{schema.name}"'
        self._signal_or_start = (
            "select target, verdict, woken_queue, null::pg_catalog.int8 from "  # noqa: S608
            f"{s}.signal_or_start($1,$2,$3{JSON},$4,$5{JSON},$6)"
        )
        self._debounce = (
            f"select target, verdict, woken_queue, cascade_origin from {s}.debounce($1,$2{JSON},$3,$4,$5{JSON})"  # noqa: S608
        )

    def start_or_update(self, call: StartOrUpdate) -> Statement[StartOrUpdateResult]:
        """The statement of a call."""
        text = self._signal_or_start if isinstance(call, SignalOrStart) else self._debounce
        return Statement(text, start_or_update_parameters(call), decode_start_or_update)


def start_or_update_parameters(call: StartOrUpdate) -> tuple[object, ...]:
    """The parameters of the call's function."""
    start = msgspec.json.encode(call.start).decode()
    match call:
        case SignalOrStart(key, message, _, holder):
            return key, message.name, message.payload, message.dedup_key, start, holder
        case Debounce(key, _, max_delay, holder, state):
            return key, start, max_delay, holder, state
        case _:
            assert_never(call)


def decode_start_or_update(rows: Sequence[Row]) -> StartOrUpdateResult:
    """The result of either function."""
    return StartOrUpdateResult(*rows[0][:4])


def encode_start_with_scope(
    start: Start[Any], scope: Sequence[Scope], signals: Sequence[SignalMessage] = ()
) -> EncodedStart:
    """An instance as an object whose parts can be encrypted, with this scope and these signals."""
    encoded = encode_start(start)
    encoded["unique_scope"] = "{" + ",".join(scope) + "}"
    if (first := encode_first_signals(signals)) is not None:
        encoded["signals"] = msgspec.Raw(first.encode())
    return _OBJECT.decode(msgspec.json.encode(encoded))


def with_payload_for_holder(call: StartOrUpdate, holder: int, payload: str) -> StartOrUpdate:
    """The call with a payload or state for one holder of the key."""
    match call:
        case SignalOrStart():
            return dataclasses.replace(call, holder=holder, message=dataclasses.replace(call.message, payload=payload))
        case Debounce():
            return dataclasses.replace(call, holder=holder, state=payload)
        case _:
            assert_never(call)
