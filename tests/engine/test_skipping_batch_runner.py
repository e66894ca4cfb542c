"""A statement over a batch of rows: rows that the database refuses are skipped, all others are handled in one run."""

from __future__ import annotations

from types import SimpleNamespace

import asyncpg
import pytest

from gen_durable.engine import skipping_batch_runner
from gen_durable.engine.skipping_batch_runner import SkippingBatchRunner


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
    assert await SkippingBatchRunner("rows").run_one_batch(table.handle, 8) is is_full
    assert table.rows == ([*bad] if bad else list(range(8, rows)))


async def test_one_statement_handles_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    """A full batch is reported to the caller, which has other work between two batches."""
    table = Table(20)
    await SkippingBatchRunner("rows").run_one_batch(table.handle, 8)
    assert (table.calls, caplog.text) == (1, "")


async def test_the_fault_is_logged_once_with_the_name_of_the_rows(caplog: pytest.LogCaptureFixture) -> None:
    runner = SkippingBatchRunner("old rows")
    for _ in range(2):
        await runner.run_one_batch(Table(6, 1, 4).handle, 8)
    assert [message.split(":")[0] for message in caplog.messages] == ["old rows"]


async def test_a_fault_that_does_not_lie_in_a_row_is_raised() -> None:
    """The caller tries again later."""

    async def busy(size: int, skip: int) -> int:
        raise asyncpg.DeadlockDetectedError("busy")

    with pytest.raises(asyncpg.DeadlockDetectedError):
        await SkippingBatchRunner("rows").run_one_batch(busy, 8)


async def test_too_many_refused_rows_are_a_fault_of_the_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many are skipped; one more is raised, because the search for the others would take too long."""
    monkeypatch.setattr(skipping_batch_runner, "MAX_SKIPPED", 3)
    table = Table(6, 0, 1, 2)
    assert await SkippingBatchRunner("rows").run_one_batch(table.handle, 4) is False
    assert table.rows == [0, 1, 2]
    with pytest.raises(asyncpg.CheckViolationError):
        await SkippingBatchRunner("rows").run_one_batch(Table(8, 0, 1, 2, 3).handle, 4)


async def test_a_fault_that_stays_is_logged_again_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(skipping_batch_runner, "time", clock)
    runner = SkippingBatchRunner("rows")
    logged: list[int] = []
    for clock.now in (10_000.0, 10_599.0, 10_600.0, 10_601.0):
        await runner.run_one_batch(Table(1, 0).handle, 8)
        logged.append(len(caplog.messages))
    assert logged == [1, 1, 2, 2]
    assert caplog.messages[0] == "rows: the database refuses a row (CheckViolationError, SQLSTATE 23514); it is skipped"


async def handle_list(rows: list[int], bad: set[int], handled: list[list[int]]) -> None:
    if bad.intersection(rows):
        raise asyncpg.CheckViolationError("refused")
    handled.append(rows)


@pytest.mark.parametrize(
    ("bad", "parts"),
    [(set[int](), [[0, 1, 2, 3, 4]]), ({1}, [[0], [2, 3, 4]]), ({0, 4}, [[1], [2], [3]])],
)
async def test_the_rows_of_a_list_that_are_not_refused_are_handled_once(
    bad: set[int], parts: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    """A refused list is halved until the refused row is alone, which is logged."""
    handled: list[list[int]] = []
    await SkippingBatchRunner("rows").run_on_list(list(range(5)), lambda rows: handle_list(rows, bad, handled))
    assert handled == parts
    assert len(caplog.messages) == bool(bad)


async def test_a_fault_of_a_list_that_does_not_lie_in_a_row_is_raised() -> None:
    calls: list[int] = []

    async def busy(rows: list[int]) -> None:
        calls.append(len(rows))
        raise asyncpg.DeadlockDetectedError("busy")

    with pytest.raises(asyncpg.DeadlockDetectedError):
        await SkippingBatchRunner("rows").run_on_list([1, 2, 3], busy)
    assert calls == [3]
