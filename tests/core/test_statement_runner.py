"""Statements of waiting callers: what is repeated, how often, and what the error says in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from gen_durable.core import statement_runner
from gen_durable.core.statement_runner import RETRIES, StatementRunner
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable, GenDurableError
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import Statement

LOST = ConnectionLost(ConnectionError("no answer"), sent=True)
UNREACHABLE = ConnectionLost(ConnectionError("no server"), sent=False)
DEADLOCK = asyncpg.DeadlockDetectedError("canary")
REFUSED = asyncpg.CheckViolationError("canary")
STATEMENT: Statement[Any] = Statement("select 7", (), list)


class FailingPool(Pool):
    """A pool whose statements raise some errors before they return 7."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.times: list[float] = []

    async def run(self, statement: Statement[Any], *, timeout: float | None = None) -> Any:
        self.times.append(asyncio.get_running_loop().time())
        if self._errors:
            raise self._errors.pop(0)
        return 7

    async def close(self) -> None:
        """Nothing is open."""


async def run(pool: FailingPool, *, may_run_twice: bool) -> Any:
    return await StatementRunner(lambda: pool, "schema").run(STATEMENT, "get", may_run_twice=may_run_twice)


@pytest.mark.parametrize(
    ("error", "may_run_twice"),
    [(LOST, True), (UNREACHABLE, True), (UNREACHABLE, False), (DEADLOCK, True), (DEADLOCK, False)],
)
async def test_what_was_not_executed_or_may_run_twice_is_repeated(error: Exception, may_run_twice: bool) -> None:
    """After a pause."""
    pool = FailingPool(error)
    assert await run(pool, may_run_twice=may_run_twice) == 7
    first, second = pool.times
    assert second - first > 0.9 * statement_runner.FIRST_PAUSE


@pytest.mark.parametrize(
    ("error", "may_run_twice", "kind", "words"),
    [
        (LOST, False, DatabaseUnavailable, r"^get: .*no answer\); it may or may not have been executed$"),
        (REFUSED, True, DatabaseRefused, "23514"),
        (REFUSED, False, DatabaseRefused, "23514"),
    ],
)
async def test_what_may_have_been_executed_or_was_refused_is_not_repeated(
    error: Exception, may_run_twice: bool, kind: type[GenDurableError], words: str
) -> None:
    pool = FailingPool(error)
    with pytest.raises(kind, match=words) as raised:
        await run(pool, may_run_twice=may_run_twice)
    assert len(pool.times) == 1
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LOST, r"no answer\); it may or may not have been executed$"),
        (UNREACHABLE, r"no server\)$"),
        (DEADLOCK, "40P01"),
    ],
)
async def test_in_the_end_the_error_is_raised(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tries is bounded."""
    monkeypatch.setattr(statement_runner, "FIRST_PAUSE", 0.0)
    pool = FailingPool(*[error] * 100)
    with pytest.raises(GenDurableError, match=words):
        await run(pool, may_run_twice=True)
    assert len(pool.times) == RETRIES + 1
