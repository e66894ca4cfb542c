"""What a step is told about its instance, and what it can ask for.

In: the claim as the database gave it. Out: typed signals and children, read-only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from gen_durable.codec import decode_plain
from gen_durable.instances import Status
from gen_durable.signals import Received, Signal

if TYPE_CHECKING:
    from gen_durable.outcomes import Startable

P = TypeVar("P")
S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Child:
    """One child of this round, ended: its status, and its result or error."""

    id: int
    machine: str
    version: int
    step: str
    status: Status
    last_error: str | None
    raw_result: bytes | None
    raw_state: bytes

    @property
    def ok(self) -> bool:
        """Whether the child ended as done."""
        return self.status is Status.DONE

    @property
    def state(self) -> Any:
        """The last state as plain JSON values."""
        return decode_plain(self.raw_state)

    @property
    def result(self) -> Any:
        """The result as plain JSON values; `Context.results` gives it typed."""
        return None if self.raw_result is None else decode_plain(self.raw_result)

    def __repr__(self) -> str:
        return f"Child(id={self.id}, machine={self.machine!r}, status={self.status.value!r})"


class Context(msgspec.Struct, frozen=True, eq=False, repr_omit_defaults=True):
    """Handed to every step beside its state."""

    id: int
    machine: str
    version: int
    step: str
    attempt: int
    queue: str
    priority: int
    partition_key: str | None
    unique_key: bytes | None
    parent_id: int | None
    worker: str
    claim: int
    seq: int
    inbox: tuple[Received, ...] = ()
    awaited: tuple[Received, ...] = ()
    children: tuple[Child, ...] = ()

    def first(self, signal: Signal[P]) -> P | None:
        """The oldest awaited payload of a signal; None when it did not come (the deadline fired)."""
        for received in self.awaited:
            if received.name == signal.name:
                return signal.codec.decode(received.payload)
        return None

    def all_of(self, signal: Signal[P]) -> list[P]:
        """Every payload of a signal in the inbox, oldest first, whether it was awaited or not."""
        return [signal.codec.decode(r.payload) for r in self.inbox if r.name == signal.name]

    def results(self, step: Startable[S, R]) -> list[R]:
        """The results of this round's children that are done, of the machine or job of `step`; in start order."""
        from gen_durable.outcomes import step_of  # here, not above: outcomes' types speak of Context

        spec = step_of(step, "ctx.results")
        codec = spec.result_codec
        mine = [c for c in self.children if c.machine == spec.machine.name and c.raw_result is not None and c.ok]
        return [cast(R, codec.decode(c.raw_result)) for c in mine if c.raw_result is not None]

    def __repr__(self) -> str:
        return f"Context(id={self.id}, {self.machine}.{self.step}, attempt={self.attempt})"
