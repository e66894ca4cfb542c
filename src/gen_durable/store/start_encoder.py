"""New instances as columns of an insert and as JSON objects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gen_durable.errors import TooLarge
from gen_durable.signals import SignalMessage
from gen_durable.starts import Start
from gen_durable.store.limit_encoder import encode_limits
from gen_durable.store.packed_lists import (
    JSON,
    empty_if_all_none,
    join_jsons,
    join_names,
    join_numbers,
    jsons_array_sql,
    names_array_sql,
    numbers_array_sql,
)
from gen_durable.validation import MAX_BATCH_BYTES

INSERT_COLUMNS: Final = ",".join(
    (
        names_array_sql(1),
        f"{numbers_array_sql(2)}::pg_catalog.int4[]",
        names_array_sql(3),
        jsons_array_sql(4),
        names_array_sql(5),
    )
)
"""The first arguments of `insert.sql`, as `insert_parameters` packs them."""


@dataclass(frozen=True, slots=True)
class EncodedStarts:
    """New instances with their states as JSON. `size`: the bytes of their payloads."""

    starts: Sequence[Start[Any]]
    states: list[str]
    size: int


def encode_starts(starts: Sequence[Start[Any]]) -> EncodedStarts:
    """The states of new instances. Raises `EncodeError`, or `TooLarge` if all payloads are too large together."""
    states: list[str] = []
    size = 0
    for start in starts:
        state, _ = start.step.state_codec.encode_and_decode(start.state)
        size += len(state) + (len(start.metadata) if start.metadata is not None else 0)
        if start.signals:
            size += sum(len(message.payload) for message in start.signals)
        if size > MAX_BATCH_BYTES:
            raise TooLarge(
                f"the instances of one call are over {MAX_BATCH_BYTES:,} bytes of JSON: insert them in several calls, "
                "or store large data elsewhere and pass a reference to it"
            )
        states.append(state)
    return EncodedStarts(starts, states, size)


def join_encoded_starts(several: Sequence[EncodedStarts]) -> EncodedStarts:
    """The instances of several calls."""
    return EncodedStarts(
        [start for encoded in several for start in encoded.starts],
        [state for encoded in several for state in encoded.states],
        sum(encoded.size for encoded in several),
    )


def encode_first_signals(messages: Sequence[SignalMessage]) -> str | None:
    """First signals as the JSON that `send_first_signals.sql` reads; None if there are none."""
    if not messages:
        return None
    signals = [
        {"name": one.name, "payload": msgspec.Raw(one.payload.encode()), "dedup_key": one.dedup_key} for one in messages
    ]
    return msgspec.json.encode(signals).decode()


def encode_start(start: Start[Any]) -> dict[str, object]:
    """An instance as the JSON object of `insert_instances_of_outcomes.sql` and `insert_if_key_free.sql`.

    Raises `EncodeError`.
    """
    state, _ = start.step.state_codec.encode_and_decode(start.state)
    encoded: dict[str, object] = {
        "fsm": start.step.machine.name,
        "version": start.step.machine.version,
        "step": start.step.name,
        "state": msgspec.Raw(state.encode()),
        "queue": start.queue,
        "priority": start.priority,
        "partition_key": start.partition_key,
        "delay": start.delay,
        "schedule_at": start.schedule_at,
        "unique_key": start.unique_key.hex() if start.unique_key is not None else None,
        "unique_scope": "{" + ",".join(start.unique_scope) + "}",
        "limits": [[limit.name, limit.partition, limit.weight] for limit in start.limits] or None,
        "group_key": start.group,
        "metadata": None if start.metadata is None else msgspec.Raw(start.metadata.encode()),
    }
    if start.keep is not None:
        encoded["keep"] = "Infinity" if math.isinf(start.keep) else start.keep  # JSON has no infinity
    if (signals := encode_first_signals(start.signals)) is not None:
        encoded["signals"] = msgspec.Raw(signals.encode())
    return encoded


def insert_parameters(encoded: EncodedStarts, on_conflict: str) -> tuple[object, ...]:
    """The parameters of `insert.sql`, up to the signals."""
    starts = encoded.starts
    required = (
        join_names([s.step.machine.name for s in starts]),
        join_numbers([s.step.machine.version for s in starts]),
        join_names([s.step.name for s in starts]),
        join_jsons(encoded.states),
        join_names([s.queue for s in starts]),
    )
    limits = empty_if_all_none([encode_limits(s.limits) if s.limits else None for s in starts])
    if [s.has_options for s in starts].count(True) == 0:  # any() with a generator takes longer
        return (*required, [], [], [], [], [], [], on_conflict, limits, [], [], [], [])
    return (
        *required,
        empty_if_all_none([s.priority or None for s in starts]),
        empty_if_all_none([s.partition_key for s in starts]),
        empty_if_all_none([s.delay or None for s in starts]),
        empty_if_all_none([s.schedule_at for s in starts]),
        empty_if_all_none([s.unique_key for s in starts]),
        empty_if_all_none(["{" + ",".join(s.unique_scope) + "}" if s.unique_scope else None for s in starts]),
        on_conflict,
        limits,
        empty_if_all_none([s.group for s in starts]),
        empty_if_all_none([s.metadata for s in starts]),
        empty_if_all_none([s.keep for s in starts]),
        empty_if_all_none([encode_first_signals(s.signals) if s.signals else None for s in starts]),
    )


def insert_sql(schema: str) -> str:
    """The text of an insert. It returns one row for all instances: the driver takes longer to decode a thousand."""
    return (
        "select pg_catalog.array_agg(id), "  # noqa: S608
        "case when not pg_catalog.bool_and(inserted) then pg_catalog.array_agg(inserted) end, "
        "case when pg_catalog.bool_or(blocked_on is not null) then pg_catalog.array_agg(blocked_on) end "
        f"from {schema}.insert({INSERT_COLUMNS},$6,$7,$8,$9,$10,$11,$12,$13{JSON},$14,$15{JSON},$16,$17{JSON},"
        "notify => false)"
    )
