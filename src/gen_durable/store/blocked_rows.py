"""Rows that a pick or an insert has left waiting for a gate, and the events that report them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gen_durable.telemetry import PartitionContended, RowsBlocked, RowsThrottled


class BlockedRows(msgspec.Struct, frozen=True):
    """Rows of one queue that wait for a gate from now on: how many, and the first of them.

    `granted`: how many other rows the rate limit of the gate has admitted at the same time.
    """

    gate: str
    queue: str
    count: int
    id: int
    machine: str
    granted: int = 0

    def to_event(self) -> PartitionContended | RowsBlocked | RowsThrottled:
        """The event that reports these rows."""
        kind, _, key = self.gate.partition("/")
        match kind:
            case "partition":
                return PartitionContended(self.queue, self.count, key, self.id, self.machine)
            case "rate":
                wanted = self.count + self.granted
                return RowsThrottled(key, self.count, wanted, self.granted, self.queue, self.id, self.machine)
            case _:
                return RowsBlocked(key, self.count, self.queue, self.id, self.machine)


def merge_blocked_rows(groups: Iterable[BlockedRows]) -> list[BlockedRows]:
    """The groups with one entry for each gate and queue, in the order in which these occur first."""
    merged: dict[tuple[str, str], BlockedRows] = {}
    for group in groups:
        place = group.gate, group.queue
        former = merged.get(place)
        merged[place] = group if former is None else _merge_two_groups(former, group)
    return list(merged.values())


def _merge_two_groups(one: BlockedRows, other: BlockedRows) -> BlockedRows:
    first = one if one.id < other.id else other
    return msgspec.structs.replace(first, count=one.count + other.count, granted=one.granted + other.granted)
