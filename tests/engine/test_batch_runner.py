"""A statement over a batch of rows: rows that the database refuses are skipped, all others are handled in one run."""

from __future__ import annotations

import asyncpg
import pytest

from gen_durable.engine.skip_refused_rows import SkippingBatchRunner


class Table:
    """Rows in the order of a statement, some of which fail it."""

    def __init__(self, rows: int, *bad: int) -> None:
        self.rows = list(range(rows))
        self.bad = set(bad)
        self.calls = 0

    async def handle(self, size: int, skip: int) -> int:
        self.calls += 1
        batch = self.rows[skip : skip + size]
        if self.bad.intersection(batch):
            raise asyncpg.CheckViolationError("refused")
        self.rows = [row for row in self.rows if row not in batch]
        return len(batch)


@pytest.mark.parametrize(
    ("rows", "bad", "is_full"),
    [(3, (), False), (8, (), True), (20, (), True), (7, (0,), False), (8, (5,), False), (6, (1, 4), False)],
)
async def test_all_rows_that_are_not_refused_are_handled_in_one_run(
    rows: int, bad: tuple[int, ...], is_full: bool
) -> None:
    table = Table(rows, *bad)
    assert await SkippingBatchRunner("rows").run(table.handle, 8) is is_full
    assert table.rows == ([*bad] if bad else list(range(8, rows)))


async def test_one_statement_handles_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    """A full batch is reported to the caller, which has other work between two batches."""
    table = Table(20)
    await SkippingBatchRunner("rows").run(table.handle, 8)
    assert (table.calls, caplog.text) == (1, "")


async def test_the_fault_is_logged_once_with_the_name_of_the_rows(caplog: pytest.LogCaptureFixture) -> None:
    runner = SkippingBatchRunner("old rows")
    for _ in range(2):
        await runner.run(Table(6, 1, 4).handle, 8)
    assert [message.split(":")[0] for message in caplog.messages] == ["old rows"]


async def test_a_fault_that_does_not_lie_in_a_row_is_raised() -> None:
    """The caller tries again later."""

    async def busy(size: int, skip: int) -> int:
        raise asyncpg.DeadlockDetectedError("busy")

    with pytest.raises(asyncpg.DeadlockDetectedError):
        await SkippingBatchRunner("rows").run(busy, 8)
