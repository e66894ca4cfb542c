"""Requests: run the call of a user, who waits for its answer.

In: a call, its name for messages, and whether it may run twice. Out: its answer, or an error of our tree.

This room owns the invariant that a call which must not run twice is only repeated when nothing of it was done. What the
server says is told without its words, which may quote a payload; nor does a traceback show them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gen_durable.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    Duplicate,
    GenDurableError,
    InputError,
    UnknownLimit,
)
from gen_durable.pg.faults import ConnectionLost, Fault, SqlError, classify, detail_of, message_of, sqlstate
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import Statement

T = TypeVar("T")


class Requests:
    """Asks the database of one `Durable`. `pool` gives its pool, or raises while there is none."""

    __slots__ = ("_pool", "_schema")

    def __init__(self, pool: Callable[[], Pool], schema: str) -> None:
        self._pool = pool
        self._schema = schema

    async def run(self, call: Statement[T], what: str, *, safe: bool) -> T:
        """Run a call. One that is not `safe` to run twice is only repeated when nothing had been sent."""
        pool = self._pool()
        pause = 0.05
        for tries_left in range(5, -1, -1):
            try:
                return await pool.run(call)
            except ConnectionLost as error:
                if tries_left == 0 or (error.sent and not safe):
                    unsure = "; it may or may not have been done" if error.sent else ""
                    raise DatabaseUnavailable(f"{what}: the database is not reachable ({error}){unsure}") from error
            except SqlError as error:
                # A deadlock or a full disk: nothing was done, so the same may be tried again.
                if tries_left == 0 or classify(error) is Fault.REFUSED:
                    raise to_error(error, what, self._schema) from None
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")


def to_error(error: BaseException, what: str, schema: str) -> GenDurableError:
    """The server's error as one of ours."""
    code = sqlstate(error)
    if code == "GD001":
        return _duplicate(error)
    if code == "GD002":
        return UnknownLimit(
            f"{what}: {message_of(error)}: "
            "declare it with Worker(limits={...}), app.set_limit or `gen-durable limits set`"
        )
    if code in ("GD003", "GD004", "GD005"):  # limit_keys.sql, set_limit.sql: words of ours
        return InputError(f"{what}: {message_of(error)}")
    if code == "42501":
        return DatabaseRefused(
            f"{what}: permission denied: this login may not do that in schema {schema!r}; if it should, grant it the "
            "role that may (gen-durable migrate --roles)"
        )
    return DatabaseRefused(f"{what}: the database to_error the call ({type(error).__name__}, SQLSTATE {code})")


def _duplicate(error: BaseException) -> Duplicate:
    """GD001, as insert.sql raises it: the key in DETAIL, the holder in HINT (none: a sibling of the same call)."""
    detail, hint = detail_of(error)
    key = bytes.fromhex(detail or "")
    shown = repr(key.decode(errors="replace"))
    if not hint:
        return Duplicate(f"unique_key {shown} is given twice in one call: nothing was inserted", key=key)
    return Duplicate(
        f"unique_key {shown} is taken by instance {hint}: pass on_conflict='existing' or 'skip' if that is fine",
        key=key,
        existing_id=int(hint),
    )
