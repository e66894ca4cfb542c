"""Errors of the driver are classified by their SQLSTATE; anything but a plain SQL error counts as a dead connection."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
import pytest

from gen_durable.pg.error_classifier import (
    ConnectionLost,
    FaultKind,
    classify_error,
    describe_for_log,
    detail_and_hint_of,
    is_caused_by_data,
    message_of,
    sqlstate_of,
    to_connection_lost,
    unwrap_driver_error,
)


class Stranger(Exception):
    """An error of another driver."""

    sqlstate = "23505"


class Numbered(Exception):
    """An error with a number in place of a SQLSTATE."""

    sqlstate = 23505


class Unnumbered(asyncpg.PostgresError):
    """A server error without a SQLSTATE."""

    sqlstate = None  # type: ignore[assignment]


def server_error(code: str, message: str = "no") -> asyncpg.PostgresError:
    error: Any = asyncpg.PostgresError(message)
    error.sqlstate = code
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("reset"), FaultKind.GONE),
        (TimeoutError(), FaultKind.GONE),
        (asyncpg.InterfaceError("closed"), FaultKind.GONE),
        (Stranger(), FaultKind.GONE),
        (Unnumbered("no"), FaultKind.GONE),
        *((server_error(code), FaultKind.GONE) for code in ("25006", "57P01", "57P03", "57P05", "53300", "08006")),
        (server_error("55P03"), FaultKind.LOCK_TIMED_OUT),
        *((server_error(code), FaultKind.BUSY) for code in ("40001", "40P01", "57014", "GD006")),
        *((server_error(code), FaultKind.BUSY) for code in ("53200", "58030", "25P02", "XX000")),
        *((server_error(code), FaultKind.REFUSED) for code in ("23505", "22P02", "42501", "55000", "GD001")),
    ],
)
def test_what_an_error_means_for_the_statement(error: Exception, kind: FaultKind) -> None:
    """Whether to reconnect, to try again, or to give up."""
    assert classify_error(error) is kind


@pytest.mark.parametrize(
    ("error", "is_data"),
    [
        (server_error("22P02"), True),
        (server_error("54000"), True),
        (server_error("XX000"), True),
        (server_error("XX001"), False),
        (server_error("23505"), False),
        (OSError("reset"), False),
    ],
)
def test_errors_that_a_row_has_caused(error: Exception, is_data: bool) -> None:
    assert is_caused_by_data(error) is is_data


@pytest.mark.parametrize("code", ["25006", "57P01", "57P02", "57P03"])
def test_a_server_that_reports_its_end_is_unusable(code: str) -> None:
    assert to_connection_lost(server_error(code)).is_server_unusable


def test_a_lost_connection_keeps_its_cause() -> None:
    """Only a read-only server has certainly not executed the statement; a connection that broke says nothing."""
    error = server_error("57P05")
    lost = to_connection_lost(error)
    assert (lost.cause, lost.sent, lost.is_server_unusable) == (error, True, False)
    assert to_connection_lost(OSError("reset")).sent
    assert not to_connection_lost(server_error("25006")).sent


def test_a_malformed_dsn_is_not_quoted() -> None:
    """A ValueError about it may hold a piece of the password; the driver's own errors do not."""
    assert str(ConnectionLost(ValueError("bad port 'hush'"), sent=False)) == (
        "ValueError: malformed DSN. Percent-encode special characters in its user name and password."
    )
    own = asyncpg.exceptions.ClientConfigurationError("no such sslmode")
    assert str(ConnectionLost(own, sent=False)) == "ClientConfigurationError: no such sslmode"
    assert str(ConnectionLost(OSError("reset"), sent=False)) == "OSError: reset"


def test_a_description_has_type_and_sqlstate() -> None:
    """The message may quote a payload, and stays out."""
    assert describe_for_log(server_error("23505", "canary")) == "PostgresError, SQLSTATE 23505"
    assert describe_for_log(OSError("canary")) == "OSError"
    assert describe_for_log(Numbered("canary")) == "Numbered"
    assert sqlstate_of(Numbered()) is None


RAISE = """
do $$ begin raise exception 'primary' using errcode = 'GD001', detail = 'detail', hint = 'hint'; end $$
"""


async def test_message_detail_and_hint_of_both_drivers(dsn: str) -> None:
    """The text of either driver's error has more than the message."""
    connection = await asyncpg.connect(dsn)
    with psycopg.connect(dsn) as blocking, pytest.raises(psycopg.Error) as of_psycopg:
        blocking.execute(RAISE)
    with pytest.raises(asyncpg.PostgresError) as of_asyncpg:
        await connection.execute(RAISE)
    await connection.close()
    for error in (of_psycopg.value, of_asyncpg.value):
        assert message_of(error) == "primary"
        assert detail_and_hint_of(error) == ("detail", "hint")
        assert sqlstate_of(error) == "GD001"
    assert detail_and_hint_of(OSError()) == (None, None)
    assert message_of(OSError("reset")) == "reset"


def test_the_drivers_error_is_found_inside_its_wrappers() -> None:
    """SQLAlchemy wraps it twice. A cause that is no server error is not taken for it."""
    inner, middle, outer = server_error("23505"), Stranger(), Exception("wrapped")
    outer.__cause__, middle.__cause__, inner.__cause__ = middle, inner, OSError("reset")
    assert unwrap_driver_error(outer) is inner
    alone = Exception("alone")
    assert unwrap_driver_error(alone) is alone
