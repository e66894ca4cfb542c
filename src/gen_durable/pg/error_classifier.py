"""Classify what a statement raised: may it be retried, and on which connection.

Anything but a plain SQL error counts as a dead connection: asyncpg raises InternalClientError and similar errors when
its backend is killed.
"""

from __future__ import annotations

import enum
from typing import Final

import asyncpg

MALFORMED_DSN: Final = "malformed DSN. Percent-encode special characters in its user name and password."
READ_ONLY_DATABASE: Final = (
    "the database is read-only: it is a standby, or default_transaction_read_only is on. Connect to the primary, or "
    "with a login that may write."
)


class FaultKind(enum.Enum):
    """How the caller can react to an error."""

    GONE = "gone"  # the connection is dead or useless: reconnect; whether the statement committed is unknown
    BUSY = "busy"  # nothing was committed, the same statement may succeed later
    LOCK_TIMED_OUT = (
        "lock timed out"  # a lock timed out: nothing was committed, another session holds a row of this batch
    )
    REFUSED = "refused"  # the statement's data or text is at fault: the same statement will fail again


class ConnectionLost(Exception):
    """The connection broke, or could not be opened. If `sent`, whether the statement committed is unknown."""

    def __init__(self, cause: BaseException, *, sent: bool, hides_cause: bool = False) -> None:
        # A ValueError about a malformed DSN may quote a piece of the password; so may any error of a DSN whose parts
        # are unclear (`hides_cause`).
        is_bad_dsn = isinstance(cause, ValueError) and not isinstance(cause, asyncpg.InterfaceError)
        self.hides_cause = hides_cause or is_bad_dsn
        super().__init__(f"{type(cause).__name__}: {MALFORMED_DSN if self.hides_cause else cause}")
        self.cause = cause
        self.sent = sent

    @property
    def problem(self) -> str:
        """A sentence for users: the database is read-only, or not reachable and why."""
        return READ_ONLY_DATABASE if self.is_read_only else f"the database is not reachable ({self})"

    @property
    def is_read_only(self) -> bool:
        """Whether the server refused to write."""
        return sqlstate_of(self.cause) == READ_ONLY

    @property
    def is_server_unusable(self) -> bool:
        """Whether the server itself reported a shutdown, or that it is read-only now."""
        return sqlstate_of(self.cause) in _UNUSABLE_CODES


READ_ONLY: Final = "25006"
_GONE_CODES: Final = frozenset({READ_ONLY, "57P01", "57P02", "57P03", "57P04", "57P05", "53300"})
_UNUSABLE_CODES: Final = frozenset({READ_ONLY, "57P01", "57P02", "57P03"})
WRONG_ISOLATION: Final = "GD006"  # it lies in the session, not in the statement
_BUSY_CODES: Final = frozenset({"40001", "40P01", "57014", WRONG_ISOLATION})
_BUSY_CLASSES: Final = frozenset({"53", "58", "25", "XX"})
_DATA_CLASSES: Final = frozenset({"22", "54"})


def classify_error(error: BaseException) -> FaultKind:
    """Classify an error of the driver."""
    code = getattr(error, "sqlstate", None)
    if not isinstance(error, asyncpg.PostgresError) or not isinstance(code, str):
        return FaultKind.GONE
    if code in _GONE_CODES or code.startswith("08"):
        return FaultKind.GONE
    if code == "55P03":
        return FaultKind.LOCK_TIMED_OUT
    if code in _BUSY_CODES or code[:2] in _BUSY_CLASSES:
        return FaultKind.BUSY
    return FaultKind.REFUSED


def is_caused_by_data(error: BaseException) -> bool:
    """Whether a row of the statement is at fault: its data are invalid, or too large for the server's memory."""
    code = sqlstate_of(error) or ""
    return code[:2] in _DATA_CLASSES or code == "XX000"  # XX000: "invalid memory alloc request size"


def to_connection_lost(error: Exception) -> ConnectionLost:
    """The `ConnectionLost` for a statement that was sent. A read-only server has certainly not executed it."""
    return ConnectionLost(error, sent=sqlstate_of(error) != READ_ONLY)


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE of a server error of asyncpg or psycopg, or None for any other error."""
    code = getattr(error, "sqlstate", None)
    return code if isinstance(code, str) else None


def describe_for_log(error: BaseException) -> str:
    """The type and SQLSTATE of an error. Its message stays out of logs: it may quote a payload."""
    code = sqlstate_of(error)
    return type(error).__name__ if code is None else f"{type(error).__name__}, SQLSTATE {code}"


def detail_and_hint_of(error: BaseException) -> tuple[str | None, str | None]:
    """The DETAIL and HINT of a server error."""
    diagnostics = getattr(error, "diag", None)  # psycopg
    if diagnostics is not None:
        return diagnostics.message_detail, diagnostics.message_hint
    return getattr(error, "detail", None), getattr(error, "hint", None)


def table_of(error: BaseException) -> str | None:
    """The table that a server error names."""
    diagnostics = getattr(error, "diag", None)  # psycopg
    name = getattr(error, "table_name", None) if diagnostics is None else diagnostics.table_name
    return name if isinstance(name, str) else None


def constraint_of(error: BaseException) -> str | None:
    """The constraint or unique index that a statement would have violated."""
    diagnostics = getattr(error, "diag", error)  # psycopg, asyncpg
    name = getattr(diagnostics, "constraint_name", None)
    return name if isinstance(name, str) else None


def message_of(error: BaseException) -> str:
    """The message of a server error, without DETAIL and HINT."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.args[0])  # `str(error)` has all three
    diagnostics = getattr(error, "diag", None)  # psycopg
    return str(error) if diagnostics is None else str(diagnostics.message_primary)


def unwrap_driver_error(error: BaseException) -> BaseException:
    """The driver's error inside a wrapper of SQLAlchemy or Django."""
    while (inner := error.__cause__) is not None and sqlstate_of(inner) is not None:
        error = inner
    return error


SqlError = asyncpg.PostgresError
