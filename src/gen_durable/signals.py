"""Signals: named, typed messages to an instance.

In: a name and a payload type, declared once at module level. Out: typed payloads in the step that awaited them.
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

    `payment = Signal("payment", Paid)`; a signal that carries nothing is `Signal("go")`.
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
        """How payloads are stored; made at first use, so that forward references are resolved by then."""
        if self._codec is None:
            self._codec = codec_for(self.payload_type, f"signal {self.name!r}")
        return self._codec

    def __repr__(self) -> str:
        return f"Signal({self.name!r})"


@dataclass(frozen=True, slots=True)
class Received:
    """One signal in an instance's inbox, as it lies in the database: `Context.first` and `all_of` decode it."""

    id: int
    name: str
    payload: bytes
    inserted_at: datetime

    def __repr__(self) -> str:
        return f"Received(id={self.id}, name={self.name!r})"
