"""Several hosts: whatever is wrong with the others, the one that can be written to is found, and found again."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import pytest
from tests.support.hosts import Gating, Place, Standby, address_of, several
from tests.support.schemas import diagnose

from gen_durable import Durable, Finished, Worker, job
from gen_durable.core.services import services_of
from gen_durable.errors import DatabaseUnavailable
from gen_durable.pg import connector, dead_server_watchdog
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.statements import Statement

SLEEP = Statement("select pg_sleep($1)", (1.5,), len)
WHERE = Statement("select pg_postmaster_start_time()::text", (), lambda rows: str(rows[0][0]))
PID = Statement("select pg_backend_pid()", (), lambda rows: int(rows[0][0]))


@job
async def double(number: int) -> int:
    return number * 2


def within(seconds: float) -> AbstractAsyncContextManager[object]:
    return asyncio.timeout(seconds)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test does not wait as long for a frozen server."""
    monkeypatch.setattr(dead_server_watchdog, "PROBE_AFTER", 0.3)
    monkeypatch.setattr(dead_server_watchdog, "PROBE_TIMEOUT", 0.3)
    monkeypatch.setattr(connector, "HOST_TIMEOUT", 1.0)


async def test_a_dead_host_first(dsn: str, schema: str, dead: Place) -> None:
    """Refused is answered: the next host has its turn at once."""
    began = time.monotonic()
    async with Durable(several(dsn, dead, address_of(dsn)), schema=schema) as app, Worker(app, jobs=[double]):
        assert time.monotonic() - began < connector.STAGGER
        handle = await app.insert(double, 4)
        assert await handle.wait(timedelta(seconds=10)) == Finished(handle.id, 8)


async def test_a_silent_host_first(dsn: str, schema: str, silent: Place) -> None:
    """A host that says nothing holds up a new connection by half a second, not by its timeout."""
    link = PersistentConnection(ConnectionTarget(several(dsn, silent, address_of(dsn))))
    began = time.monotonic()
    await link.run(PID)
    assert connector.STAGGER <= time.monotonic() - began < connector.HOST_TIMEOUT - 1
    await link.close()


async def test_a_standby_first(dsn: str, schema: str, standby: Standby) -> None:
    """A host that takes no writes is passed over."""
    standby.set_read_only(True)
    async with Durable(several(dsn, standby.place, address_of(dsn)), schema=schema) as app:
        await app.insert(double, 4)


async def test_a_host_that_refuses_the_role_first(dsn: str, schema: str, standby: Standby) -> None:
    """An error of the server moves on too, which is no OSError: here a database that is not there."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create database {schema}")
    try:
        own = several(dsn, standby.place, address_of(dsn)).replace("/postgres?", f"/{schema}?")
        link = PersistentConnection(ConnectionTarget(own))
        assert await link.run(PID)
        await link.close()
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"drop database {schema} with (force)")


async def test_no_host_can_be_used(dsn: str, dead: Place, standby: Standby) -> None:
    """The error tells of each host, at once, and without a password."""
    standby.set_read_only(True)
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailable) as raised:
        await Durable(several("postgresql://postgres:hush@/postgres", dead, standby.place)).open()
    assert time.monotonic() - began < 2
    assert f"127.0.0.1:{dead[1]}: ConnectionRefusedError" in str(raised.value)
    assert "read-only" in str(raised.value)
    assert "hush" not in str(raised.value)


async def test_a_standby_is_promoted_while_another_host_is_silent(
    schema: str, silent: Place, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who could not be used is asked again as long as another has not answered."""
    monkeypatch.setattr(connector, "HOST_TIMEOUT", 30.0)
    standby.set_read_only(True)
    link = PersistentConnection(ConnectionTarget(several("postgresql://postgres@/postgres", silent, standby.place)))
    asking = asyncio.ensure_future(link.run(PID))
    await asyncio.sleep(connector.STAGGER + 0.5)
    assert not asking.done()
    await asyncio.to_thread(standby.set_read_only, False)
    promoted = time.monotonic()
    await asking
    assert time.monotonic() - promoted < 2
    await link.close()


async def test_a_server_turns_read_only(dsn: str, schema: str, standby: Standby) -> None:
    """The next call goes to the next host; the caller does not notice."""
    hosts = several(dsn, standby.place, address_of(dsn))
    async with Durable(standby.dsn, schema=schema, migrate=True):
        pass
    async with Durable(hosts, schema=schema, pool_size=4) as app:
        await asyncio.gather(*(app.insert(double, n) for n in range(20)))
        standby.set_read_only(True)
        await app.insert(double, 20)
        assert (await app.count()).value == 1
    assert not await diagnose(dsn, schema)
    standby.set_read_only(False)
    async with Durable(standby.dsn, schema=schema) as app:
        assert (await app.count()).value == 20


async def test_a_write_is_refused_as_read_only(dsn: str, schema: str) -> None:
    """Nothing was done then, so it is done again on a new connection; no other link to that server is kept."""
    async with Durable(dsn, schema=schema, pool_size=4) as app:
        before = []
        for link in services_of(app).pool._connections:
            connection = await link.connect()
            if services_of(app).connection_target.pooled:
                return  # the next one to use that server connection would be the one who is refused
            await connection.execute("set session characteristics as transaction read only")
            before.append(connection)
        await app.insert(double, 20)
        assert all(connection.is_closed() for connection in before), "links to a demoted server were kept"
        assert (await app.count()).value == 1


async def test_a_worker_follows(dsn: str, schema: str, standby: Standby) -> None:
    """A worker of a server that turns read-only goes on with the rows of the next."""
    async with Durable(standby.dsn, schema=schema, migrate=True), Durable(dsn, schema=schema) as direct:
        waiting = await direct.insert(double, 21)
        async with (
            Durable(several(dsn, standby.place, address_of(dsn)), schema=schema) as app,
            Worker(app, jobs=[double]),
        ):
            handle = await app.insert(double, 4)
            assert await handle.wait(timedelta(seconds=10)) == Finished(handle.id, 8)
            await asyncio.to_thread(standby.set_read_only, True)
            assert await direct.handle(waiting.id, double).wait(timedelta(seconds=15)) == Finished(waiting.id, 42)


async def test_a_server_freezes(dsn: str, schema: str, gated: Gating, impatient: None) -> None:
    """An answer that is owed by a frozen server is not waited for: the link is cut, and the next host asked."""
    async with gated() as gate, within(8):
        link = PersistentConnection(ConnectionTarget(several(dsn, gate.place, address_of(dsn))))
        await link.run(PID)
        assert gate.opened >= 1
        gate.freeze()
        with pytest.raises(ConnectionLost) as raised:
            await link.run(PID)
        assert raised.value.sent
        await link.run(PID)
        await link.close()


async def test_a_worker_outlives_a_frozen_server(dsn: str, schema: str, gated: Gating, impatient: None) -> None:
    """Outcomes that were under way are committed by way of the next host, once."""
    began, go = asyncio.Event(), asyncio.Event()

    @job
    async def held(number: int) -> int:
        began.set()
        await go.wait()
        return number * 2

    async with (
        gated() as gate,
        within(20),
        Durable(dsn, schema=schema) as direct,
        Durable(several(dsn, gate.place, address_of(dsn)), schema=schema) as app,
        Worker(app, jobs=[held]),
    ):
        handle = await app.insert(held, 4)
        await began.wait()
        gate.freeze()
        go.set()
        assert await direct.handle(handle.id, held).wait(timedelta(seconds=10)) == Finished(handle.id, 8)


async def test_a_connection_that_is_closed_while_it_connects_stays_closed(dsn: str, gated: Gating) -> None:
    """The server answers after the close: the new session is ended, and the call says that all is closed."""
    async with gated() as gate, within(10):
        link = PersistentConnection(ConnectionTarget(several(dsn, gate.place)))
        gate.freeze()
        connecting = asyncio.create_task(link.connect())
        while not gate.opened:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        link.terminate()
        gate.thaw()
        with pytest.raises(ConnectionLost, match="closed"):
            await connecting


async def test_a_close_that_is_not_answered_is_no_error(dsn: str, gated: Gating) -> None:
    """Whoever closes is done with it: a server that freezes just then breaks nothing, least of all an opening."""
    async with gated() as gate, within(10):
        link = PersistentConnection(ConnectionTarget(several(dsn, gate.place)))
        await link.run(PID)
        gate.freeze()
        await link.close()


async def test_a_link_that_is_gone_is_noticed_by_its_socket(dsn: str, gated: Gating) -> None:
    """The driver sets none of this: a link that was cut would be waited on for ever."""
    async with gated() as gate:
        link = PersistentConnection(ConnectionTarget(several(dsn, gate.place)))
        sock = (await link.connect())._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [5, 2, 3, 10_000]
        await link.close()


async def test_a_slow_statement_is_left_alone(dsn: str, gated: Gating, impatient: None) -> None:
    """A server that speaks to others may take its time: the statement is neither cut nor cancelled."""
    async with gated() as gate:
        link = PersistentConnection(ConnectionTarget(several(dsn, gate.place)))
        before = await link.run(PID)
        opened = gate.opened
        assert await link.run(SLEEP) == 1
        assert gate.opened > opened, "nobody asked whether the server lives"
        assert await link.run(PID) == before
        await link.close()


@pytest.mark.parametrize("newer", [True, False])
async def test_a_leader_that_was_replaced(
    dsn: str, standby: Standby, impatient: None, monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    """A server that lives and does not answer is left when another host is of a newer timeline, and only then.

    The timelines are settings here; `make chaos-failover` has real ones.
    """
    monkeypatch.setattr(
        dead_server_watchdog, "_TIMELINE", "select coalesce(current_setting('test.timeline', true), '00000002')"
    )
    hosts = several(dsn, address_of(dsn), standby.place)
    standby.configure("test.timeline", "00000003" if newer else "00000002")
    link = PersistentConnection(ConnectionTarget(hosts))
    before = await link.run(WHERE)
    if newer:
        with pytest.raises(ConnectionLost):
            await link.run(SLEEP)
        assert await link.run(WHERE) != before, "the host that was left is the last to be asked"
    else:
        assert await link.run(SLEEP) == 1
        assert await link.run(WHERE) == before
    await link.close()
