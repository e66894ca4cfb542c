"""A password that is not percent-encoded appears in no message, whichever way its DSN came in."""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from gen_durable import Durable, SyncDurable, Worker, job
from gen_durable.cli.app import app as cli
from gen_durable.cli.database_opener import describe_dsn_without_password
from gen_durable.errors import GenDurableError
from gen_durable.pg.dsn import find_tls_weakness, may_password_be_in_other_parts, split_dsn_by_host
from gen_durable.pg.persistent_connection import ConnectionTarget

# Each piece is a word that no message contains by itself.
PASSWORDS = {
    "all of them": "zq3@zcr/zet#zx",
    "slash": "zq/zw",
    "slash and at": "zq/zw@zv",
    "number and slash": "4711/zw",
    "at": "zq@zw",
    "at and colon": "zq@zw:zv",
    "at and number": "zq@zw:4711",
    "two at": "zq@zw@zv",
    "hash": "zq#zw",
    "number and hash": "4711#zw",
    "question mark": "zq?zw",
    "number and question mark": "4711?zw",
    "an option": "4711?zw=zv",
    "an option of libpq": "4711?host=zv",
    "tls": "4711?sslmode=zv",
    "comma": "zq,zw/zv",
    "bracket": "zq[zw",
    "brackets": "[zq]zw",
    "colon": "zq:zw/zv",
    "percent": "zq%zw/zv",
    "percent at": "zq%40zw@zv",
    "a letter that is two": "zq\u2100zw",
    "space": "zq zw/zv",
    "backslash": "zq\\zw/zv",
    "ampersand": "zq&zw=zv/1",
}
PIECES = ("zq", "zcr", "zet", "zx", "zw", "zv", "4711")
FORMS = {
    "host": "postgresql://someone:{}@db.invalid/shop",
    "port": "postgresql://someone:{}@db.invalid:5433/shop",
    "hosts": "postgresql://someone:{}@one.invalid,two.invalid:5433/shop",
    "query": "postgresql://db.invalid/shop?user=someone&password={}",
}
DSNS = [
    pytest.param(form.format(password), id=f"{where}, {kind}")
    for where, form in FORMS.items()
    for kind, password in PASSWORDS.items()
]


@job
async def noop(n: int) -> int:
    return n


@pytest.fixture(autouse=True)
def _loud_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is looked up; the error quotes all that it was given, as a driver or a server might."""

    def refuse(host: object, port: object, *args: object, **options: object) -> NoReturn:
        raise socket.gaierror(-2, f"Name or service not known: {host!r} {port!r}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def check(text: str) -> None:
    assert [piece for piece in PIECES if piece in text] == [], text


@pytest.mark.parametrize("dsn", DSNS)
def test_no_message_names_a_piece(
    dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Durable, SyncDurable, a worker, listen_dsn, DATABASE_URL and the commands: errors, tracebacks, logs, reprs."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    calls: list[Callable[[], Any]] = [
        lambda: asyncio.run(open_and_close(Durable(dsn))),
        lambda: asyncio.run(Worker(Durable(dsn), jobs=[noop]).start()),
        lambda: asyncio.run(open_and_close(Durable("postgresql://db.invalid/shop", listen_dsn=dsn))),
        lambda: asyncio.run(open_and_close(Durable(dsn, pooler="transaction"))),
        lambda: SyncDurable(dsn).open(),
    ]
    for call in calls:
        with pytest.raises(GenDurableError) as caught:
            call()
        check("".join(traceback.format_exception(caught.value)))
    monkeypatch.setenv("DATABASE_URL", dsn)
    with pytest.raises(GenDurableError) as caught:
        asyncio.run(open_and_close(Durable()))
    check("".join(traceback.format_exception(caught.value)))
    for words in (["ls"], ["migrate"], ["doctor"], ["ls", "--dsn", dsn]):
        done = CliRunner().invoke(cli, words)
        assert done.exit_code in (1, 2)
        check(done.output)
    check("\n".join([record.getMessage() for record in caplog.records] + [str(r.exc_info) for r in caplog.records]))


async def open_and_close(app: Durable) -> None:
    check(repr(app))
    try:
        await app.open()
    finally:
        await app.close()


@pytest.mark.parametrize("dsn", DSNS)
def test_no_part_is_named(dsn: str) -> None:
    """By what names a DSN in messages: its description, its hosts, a warning about TLS, and their reprs."""
    check(describe_dsn_without_password(dsn))
    check(repr(ConnectionTarget(dsn)))
    check(find_tls_weakness(dsn, {}) or "")
    try:
        hosts = split_dsn_by_host(dsn)
    except ValueError:
        return  # connecting reports it without its text
    check(repr(hosts) + "".join(host.name for host in hosts.hosts))


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://someone:secret@db.example/shop",
        "postgresql://someone:a%2Fb%40c%23d%3Fe@one:1,two:2/shop?sslmode=require",
        "postgresql://postgres@/postgres?host=/run/pg&port=5433",
        "postgresql://[::1]:5433/shop",
        "postgresql://db.example/shop?user=someone&password=secret&sslmode=verify-full",
        "postgresql://db.example/shop?search_path=shop",
    ],
)
def test_a_clear_dsn_is_named(dsn: str) -> None:
    """Messages about it say where it leads."""
    assert not may_password_be_in_other_parts(dsn)
    assert describe_dsn_without_password(dsn) != "the database"
