"""The store, driven by hand: each call is one statement, run to its end, and its row can be looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from tests.store.machine import KNOWN

from gen_durable.outcomes import Start
from gen_durable.pg.link import Link, Target
from gen_durable.store.calls import Call, Calls
from gen_durable.store.reads import Reads
from gen_durable.store.rows import Commit, Delivery, Flushed, Inserted, Picked
from gen_durable.store.schema import Schema

T = TypeVar("T")


class Store:
    """The calls on one schema and one connection, without a loop to be seen."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.schema = Schema(schema)
        self.calls = Calls(self.schema)
        self.reads = Reads(self.schema)
        self._runner = asyncio.Runner()
        self._link = Link(Target(dsn))
        # Ids up to 100 are the test's own.
        self.sql("select setval('@schema.gen_durable_id_seq', 100), setval('@schema.signals_id_seq', 100)")

    def run(self, call: Call[T]) -> T:
        """Any call."""
        return self._runner.run(self._link.run(call))

    def sql(self, text: str, *args: object) -> list[Any]:
        """Any statement, with `@schema` in it."""
        return self.run(Call(self.schema.render(text), args, list))

    def given(self, text: str) -> None:
        """Rows to begin with (see `interleavings.given`)."""
        self._runner.run(self._link.script(self.schema.render(text)))

    def insert(self, *starts: Start[Any], on_conflict: str = "raise") -> list[Inserted]:
        return self.run(self.calls.insert(starts, on_conflict))

    def pick(self, demand: int = 10, worker: str = "w", **queues: int) -> Picked:
        return self.run(self.calls.pick(worker, queues or {"default": demand}, KNOWN, 60))

    def flush(self, *commits: Commit) -> Flushed:
        return self.run(self.calls.flush(commits))

    def signal(self, *deliveries: Delivery) -> list[tuple[int | None, str, str | None]]:
        return self.run(self.calls.signal(deliveries))

    def row(self, id: int) -> Any:  # noqa: A002  # the column's name
        """One row, and how many seconds each of its moments is away from now."""
        (found,) = self.sql(
            "select *, extract(epoch from eligible_at - clock_timestamp())::float8 as eligible_in,"
            " extract(epoch from await_deadline - clock_timestamp())::float8 as deadline_in,"
            " extract(epoch from lease_expires_at - clock_timestamp())::float8 as lease_in"
            " from @schema.gen_durable where id = $1",
            id,
        )
        return found

    def rows(self) -> list[Any]:
        return self.sql("select * from @schema.gen_durable order by id")

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
