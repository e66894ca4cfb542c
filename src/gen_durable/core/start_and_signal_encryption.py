"""Encrypts the payloads of new instances and of signals, each for the instance that it belongs to.

It is in use only if the `Durable` has a codec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, cast

import msgspec

from gen_durable.encryption import PayloadEncryption, signal_field, state_field
from gen_durable.store.packed_lists import split_jsons, split_names, split_numbers
from gen_durable.store.start_or_update import SignalOrStart, StartOrUpdate, with_payload_for_holder
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import InsertResult, OutgoingSignal

_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def encrypt_insert_statement(
    statements: StatementBuilder,
    statement: Statement[list[InsertResult]],
    ids: list[int],
    encryption: PayloadEncryption,
) -> Statement[list[InsertResult]]:
    """An insert with its states and first signals encrypted for the ids that were allocated."""
    machines, versions, steps, states = cast("tuple[str, str, str, str]", statement.args[:4])
    columns = (split_names(machines), split_numbers(versions), split_names(steps), split_jsons(states))
    signals = cast("list[str | None]", statement.args[16])
    return statements.insert_with_ids(
        statement,
        ids,
        [
            encryption.encrypt(state, instance, state_field(machine, version, step))
            for instance, machine, version, step, state in zip(ids, *columns, strict=True)
        ],
        [
            None if of_one is None else encrypt_first_signals(of_one.encode(), instance, encryption).decode()
            for instance, of_one in zip(ids, signals, strict=False)  # the list is empty if no start has signals
        ],
    )


def encrypt_first_signals(signals: bytes, instance: int, encryption: PayloadEncryption) -> bytes:
    """The first signals of an instance, JSON from `encode_first_signals`, encrypted for it."""
    decoded = _OBJECTS.decode(signals)
    for one in decoded:
        field = signal_field(msgspec.json.decode(one["name"], type=str))
        one["payload"] = msgspec.Raw(encryption.encrypt(bytes(one["payload"]).decode(), instance, field).encode())
    return msgspec.json.encode(decoded)


def encrypt_start(start: dict[str, msgspec.Raw], instance: int, encryption: PayloadEncryption) -> None:
    """Encrypt the state and the first signals of an instance, from `encode_start`, for its id."""
    state = encryption.encrypt(bytes(start["state"]).decode(), instance, _state_field_of_start(start))
    start["state"] = msgspec.Raw(state.encode())
    if "signals" in start:
        start["signals"] = msgspec.Raw(encrypt_first_signals(bytes(start["signals"]), instance, encryption))


def add_id(start: dict[str, msgspec.Raw], instance: int) -> None:
    """Add the id that an instance was encrypted for."""
    start["id"] = msgspec.Raw(str(instance).encode())


def _state_field_of_start(start: Mapping[str, msgspec.Raw]) -> str:
    machine, step = (msgspec.json.decode(start[name], type=str) for name in ("fsm", "step"))
    return state_field(machine, msgspec.json.decode(start["version"], type=int), step)


def encrypt_keyed_start(call: StartOrUpdate, instance: int, encryption: PayloadEncryption) -> StartOrUpdate:
    """A keyed start that is encrypted for a new instance, and for no holder."""
    start = dict(call.start)
    encrypt_start(start, instance, encryption)
    add_id(start, instance)
    return dataclasses.replace(call, start=start)


def add_encrypted_payload_for_holder(
    encrypted: StartOrUpdate, clear: StartOrUpdate, holder: int, encryption: PayloadEncryption
) -> StartOrUpdate:
    """A keyed start that is encrypted for a new instance, and now also for the holder of its key."""
    if isinstance(clear, SignalOrStart):
        payload, field = clear.message.payload, signal_field(clear.message.name)
    else:
        # The holder gets the step and the version of this start too (debounce.sql).
        payload, field = bytes(clear.start["state"]).decode(), _state_field_of_start(clear.start)
    return with_payload_for_holder(encrypted, holder, encryption.encrypt(payload, holder, field))


def encrypt_signal_for_target(outgoing: OutgoingSignal, target: int, encryption: PayloadEncryption) -> OutgoingSignal:
    """A signal with its payload encrypted for its target. It keeps its key: the target must still hold it."""
    payload = outgoing.payload
    if payload is not None:
        payload = encryption.encrypt(payload, target, signal_field(outgoing.name))
    return dataclasses.replace(outgoing, target=target, payload=payload)
