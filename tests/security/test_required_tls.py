"""`require_tls`: a network without verified TLS is refused before a byte of the login is sent."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import certifi
import pytest
from typer.testing import CliRunner

from gen_durable import Durable, SyncDurable
from gen_durable.cli.app import app as cli
from gen_durable.errors import ConfigError
from gen_durable.pg import connector as connect_module
from gen_durable.pg.connector import ConnectionTarget, connect_to_first_usable_host
from gen_durable.pg.dsn import REQUIRE_TLS_VARIABLE, are_all_hosts_local, check_required_tls

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
WEAK: dict[str, tuple[str, dict[str, str]]] = {
    "no mode": ("postgresql://u:p@db.invalid/x", {}),
    "disable": ("postgresql://u:p@db.invalid/x?sslmode=disable", {}),
    "require": ("postgresql://u:p@db.invalid/x?sslmode=require", {}),
    "verify-ca": ("postgresql://u:p@db.invalid/x?sslmode=verify-ca", {}),
    "the last mode counts": ("postgresql://u:p@db.invalid/x?sslmode=verify-full&sslmode=disable", {}),
    "an empty mode is none": ("postgresql://u:p@db.invalid/x?sslmode=verify-full&sslmode=", {}),
    "one host of several": ("postgresql://u:p@localhost,db.invalid/x", {}),
    "a host of the environment": ("postgresql:///x", {"PGHOST": "db.invalid"}),
    "a mode of the environment": ("postgresql://u:p@db.invalid/x", {"PGSSLMODE": "verify-ca"}),
    "a private address": ("postgresql://u:p@10.0.0.1/x", {}),
    "any address": ("postgresql://u:p@0.0.0.0/x", {}),
    "a name that begins like localhost": ("postgresql://u:p@localhost.invalid/x", {}),
    "a socket that is a name": ("postgresql:///x?host=%252Frun", {}),
    "a service": ("postgresql:///x?service=prod", {}),
    "a service of the environment": ("postgresql:///x", {"PGSERVICE": "prod"}),
    "a password with an @": ("postgresql://u:p@q@db.invalid/x?sslmode=verify-full", {}),
}
STRONG: dict[str, tuple[str, dict[str, str]]] = {
    "verify-full": ("postgresql://u:p@db.invalid/x?sslmode=verify-full", {}),
    "of the environment": ("postgresql://u:p@db.invalid/x", {"PGSSLMODE": "verify-full"}),
    "localhost": ("postgresql://u:p@localhost/x", {}),
    "loopback": ("postgresql://u:p@127.0.0.2,[::1]:5433/x?sslmode=disable", {}),
    "a socket": ("postgresql:///x?host=/run/postgresql", {}),
    "a socket in the place of a host": ("postgresql://u:p@%2Frun%2Fpostgresql/x", {}),
    "the default": ("postgresql:///x", {}),
}


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The names that were looked up; none is found."""
    asked: list[object] = []

    def refuse(host: object, *args: object, **options: object) -> NoReturn:
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return asked


@pytest.mark.parametrize("case", WEAK)
def test_what_is_refused(case: str, monkeypatch: pytest.MonkeyPatch, resolver: list[object]) -> None:
    """By Durable and SyncDurable, for dsn=, listen_dsn= and DATABASE_URL, by the variable, and by the commands."""
    dsn, environment = WEAK[case]
    with pytest.raises(ConfigError, match=r"^require_tls: the DSN") as caught:
        check_required_tls("the DSN", dsn, environment)
    assert "u:p" not in str(caught.value)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    calls: list[Callable[[], Any]] = [
        lambda: asyncio.run(Durable(dsn, require_tls="verify-full").open()),
        lambda: asyncio.run(
            Durable(
                "postgresql://localhost:1/x", listen_dsn=dsn, require_tls="verify-full", pooler="transaction"
            ).open()
        ),
        lambda: SyncDurable(dsn, require_tls="verify-full").open(),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"^require_tls: "):
            call()
    done = CliRunner().invoke(cli, ["--require-tls", "verify-full", "ls", "--dsn", dsn])
    assert done.exit_code == 2
    assert "require_tls" in done.output
    monkeypatch.setenv("DATABASE_URL", dsn)
    monkeypatch.setenv(REQUIRE_TLS_VARIABLE, "verify-full")
    with pytest.raises(ConfigError, match=r"^require_tls: "):
        asyncio.run(Durable().open())
    for words in (["migrate"], ["doctor"], ["count"]):
        assert "require_tls" in CliRunner().invoke(cli, words).output
    assert resolver == []


@pytest.mark.parametrize("case", STRONG)
def test_what_is_allowed(case: str) -> None:
    dsn, environment = STRONG[case]
    check_required_tls("the DSN", dsn, environment)
    assert are_all_hosts_local(dsn, environment) == ("db.invalid" not in dsn)


@pytest.mark.parametrize("value", ["require", "VERIFY-FULL", "on", True])
def test_only_one_mode_is_known(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^require_tls must be 'verify-full' or left out, got "):
        Durable("postgresql://localhost/x", require_tls=value)
    monkeypatch.setenv(REQUIRE_TLS_VARIABLE, str(value))
    with pytest.raises(ConfigError, match=f"^{REQUIRE_TLS_VARIABLE} must be"):
        Durable("postgresql://localhost/x")


def test_a_pool_of_the_caller_is_not_checked() -> None:
    with pytest.raises(ConfigError, match="not a pool of yours"):
        Durable(pool=object(), require_tls="verify-full")  # type: ignore[arg-type]


def test_the_option_of_a_command_ends_with_it(monkeypatch: pytest.MonkeyPatch, resolver: list[object]) -> None:
    CliRunner().invoke(cli, ["--require-tls", "verify-full", "ls", "--dsn", "postgresql://db.invalid/x"])
    assert resolver == []
    CliRunner().invoke(cli, ["ls", "--dsn", "postgresql://db.invalid/x"])
    assert resolver != []


@asynccontextmanager
async def server_without_tls() -> AsyncGenerator[tuple[int, bytearray]]:
    """A server that has no TLS, its port, and all that it was sent."""
    received = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(8))
        writer.write(b"N")
        received.extend(await reader.read(1000))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], received


@pytest.mark.parametrize("mode", ["", "&sslmode=prefer", "&sslmode=disable", "&sslmode=verify-full"])
async def test_nothing_is_sent_without_tls(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the DSN says when a connection is made: the server gets the request for TLS, and nothing else."""
    monkeypatch.setattr(connect_module, "are_all_hosts_local", lambda *_: False)
    async with server_without_tls() as (port, received):
        dsn = f"postgresql://someone:secret@127.0.0.1:{port}/x?sslrootcert={certifi.where()}{mode}"
        with pytest.raises((OSError, ConnectionError)):
            await connect_to_first_usable_host(ConnectionTarget(dsn, requires_tls=True))
        assert bytes(received) == SSL_REQUEST


async def test_an_own_server_needs_no_tls(dsn: str, schema: str) -> None:
    """The socket of the tests' server is on this machine."""
    async with Durable(dsn, schema=schema, require_tls="verify-full") as app:
        assert [one async for one in app.list_all()] == []
