"""The statements of the test harness: they read instances and shift time. Their texts are in `sql/`, one per file."""

from __future__ import annotations

from importlib.resources import files

from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement
from gen_durable.testing.instance_snapshot import Snapshot, decode_snapshot

_SQL = files("gen_durable.testing").joinpath("sql")


class HarnessStatements:
    """The statements for one schema."""

    __slots__ = (
        "_due_queues",
        "_expire_lease",
        "_fire_timeouts",
        "_schema",
        "_shifts",
        "_snapshots",
        "delete_rows_and_reset_ids",
        "lock_other_due_rows",
    )

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._snapshots = _read_sql(schema, "instance_snapshots")
        self._due_queues = _read_sql(schema, "due_queues")
        self._shifts = _read_sql(schema, "timestamp_shifts")
        self._fire_timeouts = _read_sql(schema, "fire_timeouts")
        self._expire_lease = _read_sql(schema, "expire_lease")
        self.delete_rows_and_reset_ids = _read_sql(schema, "delete_rows_and_reset_ids")
        self.lock_other_due_rows = _read_sql(schema, "lock_other_due_rows")

    def read_snapshots(
        self, *, instance: int | None = None, key: bytes | None = None, machine: str | None = None, live: bool = False
    ) -> Statement[list[Snapshot]]:
        return Statement(
            self._snapshots, (instance, key, machine, live), lambda rows: [decode_snapshot(row) for row in rows]
        )

    def read_due_queues(self) -> Statement[list[str]]:
        return Statement(self._due_queues, (), lambda rows: [row[0] for row in rows])

    def read_timestamp_shifts(self) -> Statement[list[str]]:
        return Statement(self._shifts, (self._schema.name,), lambda rows: [row[0] for row in rows])

    def fire_timeouts(self, instance: int | None) -> Statement[list[int]]:
        return Statement(self._fire_timeouts, (instance,), lambda rows: [row[0] for row in rows])

    def expire_lease(self, instance: int, claim: int) -> Statement[list[int]]:
        return Statement(self._expire_lease, (instance, claim), lambda rows: [row[0] for row in rows])


def _read_sql(schema: Schema, name: str) -> str:
    return schema.render(_SQL.joinpath(f"{name}.sql").read_text("utf-8"))
