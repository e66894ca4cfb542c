"""A silent server is probed on a second connection, and its connection is cut only if the probe finds it dead."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from tests.support.hosts import Gating, Place, address_of, several

from gen_durable.pg import dead_server_watchdog
from gen_durable.pg.connector import (
    ConnectionTarget,
    HostConnection,
    connect_to_first_usable_host,
    connect_to_host,
)
from gen_durable.pg.dead_server_watchdog import DeadServerWatchdog, find_server_problem
from gen_durable.pg.dsn import Host, split_dsn_by_host

pytestmark = pytest.mark.direct("a pooler has no timeline")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_server_watchdog, "PROBE_AFTER", 0.01)


async def watched(dsn: str) -> HostConnection:
    return await connect_to_first_usable_host(ConnectionTarget(dsn, pooled=False))


async def test_a_statement_that_ends_in_time_is_not_probed(dsn: str, gated: Gating) -> None:
    """No timer is left behind."""
    async with gated() as gate:
        target = ConnectionTarget(several(dsn, gate.place), pooled=False)
        current = await connect_to_first_usable_host(target)
        opened = gate.opened
        cut: list[HostConnection] = []
        with DeadServerWatchdog(current, target, cut.append):
            pass
        await asyncio.sleep(0.1)
        assert (gate.opened, cut) == (opened, [])
        current.driver_connection.terminate()


async def test_a_probe_ends_with_its_statement(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cut the connection under the next statement."""
    began, go = asyncio.Event(), asyncio.Event()

    async def find(_: HostConnection, __: ConnectionTarget) -> str:
        began.set()
        await go.wait()
        return "is dead"

    monkeypatch.setattr(dead_server_watchdog, "find_server_problem", find)
    current, cut = await watched(dsn), list[HostConnection]()
    with DeadServerWatchdog(current, ConnectionTarget(dsn), cut.append):
        await began.wait()
    go.set()
    await asyncio.sleep(0.01)
    assert cut == []
    assert not current.driver_connection.is_closed()
    current.driver_connection.terminate()


async def test_a_server_is_probed_again_and_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may die after a probe found it alive. The cut is logged with its reason, and told."""
    found, cut = [None, None, "is dead"], asyncio.Queue[HostConnection]()

    async def find(_: HostConnection, __: ConnectionTarget) -> str | None:
        return found.pop(0)

    monkeypatch.setattr(dead_server_watchdog, "find_server_problem", find)
    current = await watched(dsn)
    with caplog.at_level(logging.WARNING, "gen_durable.pg"):
        with DeadServerWatchdog(current, ConnectionTarget(dsn), cut.put_nowait):
            assert await asyncio.wait_for(cut.get(), 10) is current
        assert current.driver_connection.is_closed()
    (warning,) = caplog.messages
    assert warning == f"{current.host.name} has not answered for 0.01 s and is dead: cutting its connection"


async def probed(driver_connection: Any, host: Host, *others: Host) -> str | None:
    return await find_server_problem(
        HostConnection(driver_connection, host, others, pooled=False), ConnectionTarget("")
    )


async def test_a_probe_names_itself_and_ends(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Administrators see what the connection is for."""
    probes: list[tuple[str, asyncpg.Connection[Any]]] = []

    async def record(host: Host, target: ConnectionTarget, timeout: float) -> asyncpg.Connection[Any]:
        driver_connection = await connect_to_host(host, target, timeout)
        probes.append((target.application_name, driver_connection))
        return driver_connection

    monkeypatch.setattr(dead_server_watchdog, "connect_to_host", record)
    (host,) = split_dsn_by_host(dsn).hosts
    assert await probed(None, host) is None
    ((name, driver_connection),) = probes
    assert name == "gen_durable probe"
    assert driver_connection.is_closed()


async def test_a_server_that_rejects_the_probe_is_alive(dsn: str) -> None:
    """Here the database does not exist. Its timeline is unknown, so another host's says nothing."""
    (host,) = split_dsn_by_host(dsn).hosts
    missing = urlsplit(dsn)._replace(path="/missing").geturl()
    (elsewhere,) = split_dsn_by_host(several(missing, address_of(dsn))).hosts
    assert await probed(None, elsewhere, host) is None
    assert await probed(None, host, elsewhere) is None


async def test_a_server_that_cannot_report_its_timeline_is_alive(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby, or a pooler's console."""
    monkeypatch.setattr(dead_server_watchdog, "_TIMELINE", "select 1 / 0")
    (host,) = split_dsn_by_host(dsn).hosts
    assert await probed(None, host) is None


async def test_a_server_that_answers_no_probe_is_dead(dsn: str, dead: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it takes no connection, or takes one and says nothing more. A dead host beside it does not matter."""
    (host,) = split_dsn_by_host(dsn).hosts
    (refusing,) = split_dsn_by_host(several(dsn, dead)).hosts
    assert await probed(None, refusing, host) == "accepts no new connection"
    assert await probed(None, host, refusing) is None
    monkeypatch.setattr(dead_server_watchdog, "PROBE_TIMEOUT", 0.3)
    monkeypatch.setattr(dead_server_watchdog, "_TIMELINE", "select pg_sleep(60)")
    assert await asyncio.wait_for(probed(None, host), 10) == "accepts no new connection"
