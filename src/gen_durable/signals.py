"""Signals: named, typed messages to an instance.

Declare each signal once, at module level; clients send it and steps await it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar, overload

from gen_durable.codec import Codec, codec_for
from gen_durable.errors import DefinitionError
from gen_durable.validation import check_name

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
        self._codec: Codec[P] | None = None

    @property
    def codec(self) -> Codec[P]:
        """The codec of payloads, built at first use: forward references are resolved by then."""
        if self._codec is None:
            self._codec = codec_for(self.payload_type, f"signal {self.name!r}")
        return self._codec

    def __repr__(self) -> str:
        return f"Signal({self.name!r})"


@dataclass(frozen=True, slots=True)
class Received:
    """One signal in an instance's inbox, not decoded: use `Context.take` and `Context.take_all`."""

    id: int
    name: str
    payload: bytes
    inserted_at: datetime

    def __repr__(self) -> str:
        return f"Received(id={self.id}, name={self.name!r})"
