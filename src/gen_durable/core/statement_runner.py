"""Run one statement for a waiting caller, with retries that are safe.

A statement that must not run twice is repeated only if nothing of it was executed. Errors carry no text of the server,
which may quote a payload, and no traceback that shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from gen_durable.backoff import GrowingPauses
from gen_durable.errors import DatabaseUnavailable
from gen_durable.pg.error_classifier import ConnectionLost, FaultKind, SqlError, classify_error
from gen_durable.pg.pool import Pool
from gen_durable.pg.sqlstate_errors import to_library_error
from gen_durable.store.statements import Statement

T = TypeVar("T")
RETRIES: Final = 5
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.8


class StatementRunner:
    """Runs the statements of one `Durable`. `get_pool` returns its pool, or raises `ConfigError` while it is closed."""

    __slots__ = ("_get_pool", "_schema")

    def __init__(self, get_pool: Callable[[], Pool], schema: str) -> None:
        self._get_pool = get_pool
        self._schema = schema

    async def run(self, statement: Statement[T], operation: str, *, may_run_twice: bool) -> T:
        """Run a statement, called `operation` in errors. After a lost answer it is retried if it `may_run_twice`."""
        pool = self._get_pool()
        pauses: GrowingPauses | None = None
        for retries_left in range(RETRIES, -1, -1):
            try:
                return await pool.run(statement)
            except ConnectionLost as error:
                if retries_left == 0 or (error.sent and not may_run_twice):
                    unsure = "; it may or may not have been executed" if error.sent else ""
                    raise DatabaseUnavailable(f"{operation}: {error.problem}{unsure}") from error
            except SqlError as error:
                # After a deadlock or a full disk nothing was executed, so every statement may be repeated.
                if retries_left == 0 or classify_error(error) is FaultKind.REFUSED:
                    raise to_library_error(error, operation, self._schema) from None
            pauses = pauses or GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE)
            await asyncio.sleep(pauses.next_seconds())
        raise AssertionError("unreachable")
