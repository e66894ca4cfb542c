"""Orders: what a signal or a cancel says, checked, and what its answer means; for both clients, on any connection.

In: the arguments of a call. Out: values for the database, and the answers of the call, or its errors.
"""

from __future__ import annotations

from typing import Any

from gen_durable.errors import InputError, NoTarget, NotFound, TooLarge
from gen_durable.handles import Handle, address, called
from gen_durable.instances import Cancellation
from gen_durable.signals import Signal
from gen_durable.store.types import CancelTarget, OutgoingSignal
from gen_durable.validation import MAX_INBOX, check_text_key, clean_error


def delivery_of(
    target: int | str | bytes | Handle[Any], signal: Signal[Any], payload: object, dedup_key: str | None
) -> OutgoingSignal:
    """A signal to be sent, checked and encoded."""
    if not isinstance(signal, Signal):
        raise InputError(f"signal takes a Signal, got {type(signal).__name__}: declare it as Signal(name, type)")
    instance, key = address(target)
    if dedup_key is not None:
        check_text_key(dedup_key, "dedup_key")
    return OutgoingSignal(instance, key, signal.name, signal.codec.encode(payload).decode(), dedup_key)


def was_delivered(verdict: str, target: int | str | bytes | Handle[Any], signal: Signal[Any]) -> bool:
    """Whether a signal was delivered now."""
    if verdict == "no_target":
        raise NoTarget(f"signal {signal.name!r}: {called(target)} is unknown or has ended")
    if verdict == "full":
        raise TooLarge(
            f"signal {signal.name!r}: {called(target)} has {MAX_INBOX:,} signals that it has not consumed, "
            "and takes no more until it has"
        )
    return verdict == "delivered"


def reason_of(reason: str) -> str:
    """The reason of a cancel, as it is stored."""
    if not isinstance(reason, str) or not reason:
        raise InputError(f"cancel takes a reason that is a text, got {reason!r}")
    return clean_error(reason)


def cancellation_of(
    found: CancelTarget, target: int | str | bytes | Handle[Any], ended: int = 0, asked: int = 0
) -> Cancellation:
    """What a cancel has done: to the target, and to so many others."""
    if found.id is None or found.was is None:
        by_key = isinstance(target, (str, bytes))
        raise NotFound(f"cancel: {called(target)} is unknown" + (" or has ended" if by_key else ""))
    return Cancellation(found.id, found.was, ended + (found.verdict == "ended"), asked + (found.verdict == "requested"))
