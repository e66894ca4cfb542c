"""Counts the instances of the demo by machine, step and status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gen_durable.instances import Status
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.row_decoder import decode_status
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement
from gen_durable.store.types import Row

_COUNT_BY_STEP: Final = (
    "select fsm, step, status::text, count(*) from @schema.instances group by fsm, step, status order by 1, 2, 3"
)


@dataclass(frozen=True, slots=True)
class StepCount:
    """How many instances of a machine are in a step and a status."""

    machine: str
    step: str
    status: Status
    count: int


async def count_by_step_and_status(connection: PersistentConnection, schema: Schema) -> list[StepCount]:
    """All instances, counted by machine, step and status. Reads the whole table: use it on small ones."""
    return await connection.run(Statement(schema.render(_COUNT_BY_STEP), (), _decode_step_counts))


def _decode_step_counts(rows: Sequence[Row]) -> list[StepCount]:
    return [StepCount(machine, step, decode_status(status), count) for machine, step, status, count in rows]
