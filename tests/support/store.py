"""The store, driven by hand: each call is one statement, run to its end, and its row can be looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from tests.support.machine import KNOWN

from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.starts import Start
from gen_durable.store.instance_admin import InstanceAdminStatementBuilder
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit, FlushResult, InsertResult, OutgoingSignal, PickResult

T = TypeVar("T")


class Store:
    """The calls on one schema and one connection, without a loop to be seen."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.schema = Schema(schema)
        self.calls = StatementBuilder(self.schema)
        self.reads = InstanceAdminStatementBuilder(self.schema)
        self._runner = asyncio.Runner()
        self._link = PersistentConnection(ConnectionTarget(dsn))
        # Ids up to 100 are the test's own.
        self.sql("select setval('@schema.instances_id_seq', 100), setval('@schema.signals_id_seq', 100)")

    def run(self, call: Statement[T]) -> T:
        """Any call."""
        return self._runner.run(self._link.run(call))

    def sql(self, text: str, *args: object) -> list[Any]:
        """Any statement, with `@schema` in it."""
        return self.run(Statement(self.schema.render(text), args, list))

    def given(self, text: str) -> None:
        """Rows to begin with (see `support.rows`)."""
        self._runner.run(self._link.run_script(self.schema.render(text)))

    def insert(self, *starts: Start[Any], on_conflict: str = "raise") -> list[InsertResult]:
        return self.run(self.calls.insert(starts, on_conflict))

    def pick(self, demand: int = 10, worker: str = "w", **queues: int) -> PickResult:
        return self.run(self.calls.pick(worker, queues or {"default": demand}, KNOWN, 60))

    def flush(self, *commits: Commit) -> FlushResult:
        return self.run(self.calls.flush(commits))

    def signal(self, *deliveries: OutgoingSignal) -> list[tuple[int | None, str, str | None]]:
        return self.run(self.calls.signal(deliveries))

    def row(self, id: int) -> Any:  # noqa: A002  # the column's name
        """One row, and how many seconds each of its moments is away from now."""
        (found,) = self.sql(
            "select *, extract(epoch from eligible_at - clock_timestamp())::float8 as eligible_in,"
            " extract(epoch from await_deadline - clock_timestamp())::float8 as deadline_in,"
            " extract(epoch from lease_expires_at - clock_timestamp())::float8 as lease_in"
            " from @schema.instances where id = $1",
            id,
        )
        return found

    def rows(self) -> list[Any]:
        return self.sql("select * from @schema.instances order by id")

    def inbox(self) -> list[Any]:
        return self.sql("select * from @schema.signals order by id")

    def close(self) -> None:
        self._runner.run(self._link.close())
        self._runner.close()


@pytest.fixture
def store(dsn: str, schema: str) -> Iterator[Store]:
    """A store on a schema of its own."""
    made = Store(dsn, schema)
    yield made
    made.close()
