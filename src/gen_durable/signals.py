"""Signals: named, typed messages to an instance.

Declare each signal once, at module level; clients send it and steps await it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, overload

from gen_durable.errors import DecodeError, DefinitionError, SignalFault, UnreadableSignal
from gen_durable.json_codec import JsonCodec, decode_untyped_payload, make_json_codec
from gen_durable.validation import check_name, check_text_key

P = TypeVar("P")


class Signal(Generic[P]):
    """A signal's name and the type of its payload.

    `payment = Signal("payment", Paid)`; `Signal("go")` has no payload.
    """

    __slots__ = ("_codec", "name", "payload_type")

    @overload
    def __init__(self: Signal[None], name: str) -> None: ...
    @overload
    def __init__(self, name: str, payload_type: type[P]) -> None: ...
    def __init__(self, name: str, payload_type: object = None) -> None:
        check_name(name, "a signal's name", DefinitionError)
        self.name = name
        self.payload_type = payload_type
        self._codec: JsonCodec[P] | None = None

    @property
    def codec(self) -> JsonCodec[P]:
        """The codec of payloads, built at first use: forward references are resolved by then."""
        if self._codec is None:
            self._codec = make_json_codec(self.payload_type, f"signal {self.name!r}")
        return self._codec

    @overload
    def of(self: Signal[None], *, dedup_key: str | None = None) -> SignalMessage: ...
    @overload
    def of(self, payload: P, *, dedup_key: str | None = None) -> SignalMessage: ...
    def of(self, payload: object = None, *, dedup_key: str | None = None) -> SignalMessage:
        """This signal with a payload, for an instance that is inserted with it: `signals=[payment.of(Paid(100))]`.

        Raises `EncodeError`.
        """
        if dedup_key is not None:
            check_text_key(dedup_key, "dedup_key")
        text, _ = self.codec.encode_and_decode(cast(P, payload))  # what no worker could read is not sent
        return SignalMessage(self.name, text, dedup_key)

    def __repr__(self) -> str:
        return f"Signal({self.name!r})"


@dataclass(frozen=True, slots=True)
class SignalMessage:
    """A signal with its payload as JSON, from `Signal.of`."""

    name: str
    payload: str
    dedup_key: str | None = None

    def __repr__(self) -> str:
        return f"SignalMessage({self.name!r})"


@dataclass(frozen=True, slots=True)
class Received:
    """One signal in an instance's inbox, not decoded: use `Context.take` and `Context.take_all`."""

    id: int
    name: str
    payload: bytes
    inserted_at: datetime

    def __repr__(self) -> str:
        return f"Received(id={self.id}, name={self.name!r})"


def decode_signal_payloads(signal: Signal[P], several: Iterable[Received]) -> list[P]:
    """The payloads of signals. Raises `UnreadableSignal` with all that do not fit the type."""
    payloads: list[P] = []
    faults: list[SignalFault] = []
    for received in several:
        try:
            payloads.append(signal.codec.decode(received.payload))
        except DecodeError as error:
            faults.append(SignalFault(received.id, received.name, str(error)))
    if faults:
        raise UnreadableSignal(tuple(faults))
    return payloads


SignalState: TypeAlias = Literal["waiting", "never_read", "consumed", "rejected"]


@dataclass(frozen=True, slots=True)
class StoredSignal:
    """One signal of an instance, as `app.signals` reads it.

    `state`: "waiting" in the inbox; "never_read" if its instance has ended without it; "consumed", kept because of its
    dedup key; "rejected", because no worker could read it, for `reason`. `size` is in bytes.
    """

    id: int
    target_id: int
    machine: str
    name: str
    state: SignalState
    inserted_at: datetime
    size: int
    dedup_key: str | None
    reason: str | None
    raw_payload: bytes | None

    @property
    def payload(self) -> Any:
        """The payload as plain JSON values; None without `payloads=True`. Raises `DecodeError` if it is encrypted."""
        return None if self.raw_payload is None else decode_untyped_payload(self.raw_payload)

    def __repr__(self) -> str:
        return f"StoredSignal(id={self.id}, name={self.name!r}, state={self.state!r})"
