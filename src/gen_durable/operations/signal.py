"""Signal: check and encode a signal, store it for its target, and wake the target's queue."""

from __future__ import annotations

from typing import Any, Final

from gen_durable.core.services import Services
from gen_durable.core.start_and_signal_encryption import encrypt_signal_for_target
from gen_durable.errors import InputError, NoTarget, TooLarge
from gen_durable.handles import Handle, describe_target, parse_target
from gen_durable.signals import Signal
from gen_durable.store.types import OutgoingSignal
from gen_durable.validation import MAX_CLAIM_PART, MAX_INBOX, check_text_key

HOLDER_TRIES: Final = 5


def make_outgoing_signal(
    services: Services,
    target: int | str | bytes | Handle[Any],
    signal: Signal[Any],
    payload: object,
    dedup_key: str | None,
) -> OutgoingSignal:
    """The signal as `signal.sql` takes it. Raises `InputError` and `EncodeError`."""
    if not isinstance(signal, Signal):
        raise InputError(f"signal takes a Signal, got {type(signal).__name__}: declare it as Signal(name, type)")
    instance, key = parse_target(target, services)
    if dedup_key is not None:
        check_text_key(dedup_key, "dedup_key")
    text, _ = signal.codec.encode_and_decode(payload)  # what no worker could read is not sent
    return OutgoingSignal(instance, key, signal.name, text, dedup_key)


async def send_signal(services: Services, outgoing: OutgoingSignal) -> str:
    """Deliver a signal. Returns the verdict of `signal.sql`, which `is_delivered_or_raise` reads."""
    if services.encryption is None:
        return await _send_and_wake(services, outgoing)
    # A payload is encrypted for its target, so the holder of a key is looked up first. If the key has changed hands
    # meanwhile, the next try finds the new holder.
    for _ in range(HOLDER_TRIES):
        target = outgoing.target
        if target is None and outgoing.key is not None:
            target = await services.statement_runner.run(
                services.statements.live_id_of_key(outgoing.key), "signal", may_run_twice=True
            )
        if target is None:
            break
        verdict = await _send_and_wake(services, encrypt_signal_for_target(outgoing, target, services.encryption))
        if verdict != "no_target" or outgoing.target is not None:
            return verdict
    return "no_target"


def is_delivered_or_raise(verdict: str, target: int | str | bytes | Handle[Any], name: str) -> bool:
    """Whether the call delivered the signal; False if its dedup key was used before. Raises for other verdicts."""
    if verdict == "no_target":
        raise NoTarget(f"signal {name!r}: {describe_target(target)} is unknown or has ended")
    if verdict == "full":
        raise TooLarge(
            f"signal {name!r}: {describe_target(target)} has {MAX_INBOX:,} unconsumed signals of this name, or "
            f"{MAX_CLAIM_PART:,} bytes of them with this one; or twice as much of all names, and does not await this "
            "one. It takes no more until it consumes some, or until `gen-durable signals rm` deletes them"
        )
    return verdict == "delivered"


async def _send_and_wake(services: Services, outgoing: OutgoingSignal) -> str:
    result = await services.signal_runner.send(outgoing)
    if result.woken_queue is not None:
        services.notifier.wake(result.woken_queue)
    return result.verdict
