"""An insert of a row as blocked, while its gate becomes free."""

from __future__ import annotations

from typing import Any

from tests.interleavings.test_limits import DONE
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.machine import M
from tests.support.rows import executing

from gen_durable.starts import Start
from gen_durable.store.blocking_insert import insert_blocking_busy, unblock_new_rows
from gen_durable.store.start_encoder import encode_starts
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import InsertResult

KEY = executing(1, partition_key="k")


def new_row(end: End) -> dict[str, Any]:
    return next(dict(row) for i, row in end.rows.items() if i > 3)


def is_due(end: End) -> None:
    """No row of the key is left that would unblock it."""
    assert new_row(end)["blocked_on"] is None


def inserts(calls: StatementBuilder) -> Statement[Any]:
    return insert_blocking_busy(calls, encode_starts([Start(M.s, {}, partition_key="k")]))


def looks_again(calls: StatementBuilder) -> Statement[Any]:
    """The second look at every row that waits for the key, as the client asks for its own."""
    text = unblock_new_rows(calls, [InsertResult(1, True, "partition/k")]).text.replace(
        "($1,$2)",
        "(array(select id from @schema.instances where blocked_on = $1), array(select $1 from @schema.instances"
        " where blocked_on = $1))",
    )
    return Statement(calls.schema.render(text), ("partition/k",), list)


async def test_a_key_freed_during_the_insert(exploring: Exploring, calls: StatementBuilder) -> None:
    """The end of the holder sees the row, or the second look finds the key free."""
    async with exploring() as explorer:
        report = await explorer.explore(KEY, [inserts(calls), looks_again(calls)], [calls.flush([DONE])], is_due)
    assert report.faults == []
    assert report.schedules > 5


async def test_without_the_second_look_the_row_is_stranded(exploring: Exploring, calls: StatementBuilder) -> None:
    async with exploring() as explorer:
        report = await explorer.explore(KEY, [inserts(calls)], [calls.flush([DONE])], is_due)
    assert report.faults != []
