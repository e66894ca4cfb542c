"""What an error of the driver means for the caller.

In: whatever a statement raised. Out: one of four words. Anything that is not a plain SQL error counts as a dead
connection (asyncpg raises InternalClientError and friends when a backend is killed under it).
"""

from __future__ import annotations

import enum
from typing import Final

import asyncpg


class Fault(enum.Enum):
    """What to do about an error."""

    GONE = "gone"  # the connection is dead or useless: reconnect; whether the statement committed is unknown
    BUSY = "busy"  # nothing was committed, the same statement may succeed later
    BLOCKED = "blocked"  # a lock was not to be had: nothing was committed, somebody holds a row of this batch
    REFUSED = "refused"  # the statement's data or text is at fault: the same statement will fail again


class ConnectionLost(Exception):
    """The connection broke, or could not be made. If `sent`, whether the statement committed is unknown."""

    def __init__(self, cause: BaseException, *, sent: bool) -> None:
        # The words about a DSN that cannot be read may hold a piece of the password; the driver's own errors do not.
        unread = isinstance(cause, ValueError) and not isinstance(cause, asyncpg.InterfaceError)
        words = "the DSN cannot be read (percent-encode special characters in its password)" if unread else str(cause)
        super().__init__(f"{type(cause).__name__}: {words}")
        self.cause = cause
        self.sent = sent

    @property
    def server_left(self) -> bool:
        """Whether the server itself said that it goes, or that it is not to be written to any more."""
        return sqlstate(self.cause) in _LEFT_CODES


READ_ONLY: Final = "25006"
_GONE_CODES: Final = frozenset({READ_ONLY, "57P01", "57P02", "57P03", "57P04", "57P05", "53300"})
_LEFT_CODES: Final = frozenset({READ_ONLY, "57P01", "57P02", "57P03"})
_BUSY_CODES: Final = frozenset({"40001", "40P01", "57014"})
_BUSY_CLASSES: Final = frozenset({"53", "58", "25", "XX"})


def classify(error: BaseException) -> Fault:
    """What an error from the driver means."""
    code = getattr(error, "sqlstate", None)
    if not isinstance(error, asyncpg.PostgresError) or not isinstance(code, str):
        return Fault.GONE
    if code in _GONE_CODES or code.startswith("08"):
        return Fault.GONE
    if code == "55P03":
        return Fault.BLOCKED
    if code in _BUSY_CODES or code[:2] in _BUSY_CLASSES:
        return Fault.BUSY
    return Fault.REFUSED


def lost(error: Exception) -> ConnectionLost:
    """An error of a statement that was sent. A server that has become read-only has done nothing, that is certain."""
    return ConnectionLost(error, sent=sqlstate(error) != READ_ONLY)


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a server error, of asyncpg or of psycopg."""
    code = getattr(error, "sqlstate", None)
    return code if isinstance(code, str) else None


def kind_of(error: BaseException) -> str:
    """An error for a log, without its words, which may quote a payload."""
    code = sqlstate(error)
    return type(error).__name__ if code is None else f"{type(error).__name__}, SQLSTATE {code}"


def detail_of(error: BaseException) -> tuple[str | None, str | None]:
    """The DETAIL and HINT of a server error."""
    said = getattr(error, "diag", None)
    if said is not None:
        return said.message_detail, said.message_hint
    return getattr(error, "detail", None), getattr(error, "hint", None)


def message_of(error: BaseException) -> str:
    """The words of a server error, without DETAIL."""
    said = getattr(error, "diag", None)
    return str(error) if said is None else str(said.message_primary)


def server_error(error: BaseException) -> BaseException:
    """What the server said, inside what SQLAlchemy or Django made of it."""
    while (inner := error.__cause__) is not None and sqlstate(inner) is not None:
        error = inner
    return error


SqlError = asyncpg.PostgresError
