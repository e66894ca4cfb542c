"""Giving up while a connection is made: at any moment, and without a word in the log."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import asyncpg
import pytest
from tests.support.hosts import Gating, Place, address_of, several

from gen_durable.pg import connector as connect_module
from gen_durable.pg.connector import ConnectionTarget, connect_to_first_usable_host, connect_to_host
from gen_durable.pg.dsn import Host, split_dsn_by_host

pytestmark = pytest.mark.direct("a connection through a pooler is opened twice")
TURNS = 20
"""So many turns of the loop it takes at most until the driver waits for the host's first word."""


async def test_given_up_at_any_moment(silent: Place) -> None:
    """Cancelled between the socket's connection and the driver's first wait, the driver would leave an error behind."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    (host,) = split_dsn_by_host("postgresql://me@{}:{}/db".format(*silent)).hosts

    async def give_up(turns: int) -> bool:
        dialling = asyncio.ensure_future(connect_to_host(host, ConnectionTarget(host.dsn), 5.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        dialling.cancel()
        await asyncio.wait([dialling])
        return dialling.cancelled()

    assert all([await give_up(turns) for turns in range(TURNS)])
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=5)  # what was given up ends soon, too
    assert all(task.done() for task in left)
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize(
    ("option", "default", "words"),
    [("", 0.3, "no connection within 0.3 s"), ("?connect_timeout=1", 30.0, "within 1 s")],
)
async def test_a_host_that_does_not_answer(silent: Place, option: str, default: float, words: str) -> None:
    """The attempt ends after the timeout of the DSN, else after that of the engine."""
    target = ConnectionTarget("postgresql://me@{}:{}/db".format(*silent) + option, connect_timeout=default)
    with pytest.raises(TimeoutError, match=words):
        await asyncio.wait_for(connect_to_first_usable_host(target), 10)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[asyncpg.Connection[Any]]:
    """The driver's connections, as they are opened."""
    found: list[asyncpg.Connection[Any]] = []
    driver_connect = asyncpg.connect

    async def record(*arguments: Any, **options: Any) -> asyncpg.Connection[Any]:
        found.append(await driver_connect(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(asyncpg, "connect", record)
    return found


async def end_of_other_tasks() -> None:
    async with asyncio.timeout(10):
        while asyncio.all_tasks() != {asyncio.current_task()}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_connection_that_comes_too_late_is_ended(
    dsn: str, gated: Gating, opened: list[asyncpg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may succeed between the timeout and the cancel."""
    monkeypatch.setattr(connect_module, "CANCEL_DELAY", 60.0)
    async with gated() as gate:
        (host,) = split_dsn_by_host(several(dsn, gate.place)).hosts
        gate.freeze()
        with pytest.raises(TimeoutError):
            await connect_to_host(host, ConnectionTarget(host.dsn), 0.05)
        gate.thaw()
        async with asyncio.timeout(10):
            while not (opened and opened[0].is_closed()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


FREEZING = {
    "pooler-unknown": (None, ""),
    "direct": (False, ""),
    "read-only": (False, "&default_transaction_read_only=on"),
}


@pytest.mark.parametrize("kind", FREEZING)
async def test_a_server_that_freezes_once_it_is_reached(
    dsn: str, gated: Gating, opened: list[asyncpg.Connection[Any]], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The first statements have a timeout too, and the connection does not stay open."""
    pooled, option = FREEZING[kind]
    async with gated() as gate, asyncio.timeout(10):
        monkeypatch.setattr(connect_module, "_enable_tcp_keepalive", lambda _: gate.freeze())
        target = ConnectionTarget(
            several(dsn, gate.place, more=option + "&connect_timeout=5"), pooled, connect_timeout=0.1
        )
        with pytest.raises(TimeoutError):
            await connect_to_first_usable_host(target)
        assert [connection.is_closed() for connection in opened] == [True]


async def test_of_several_hosts_each_has_its_timeout(
    dead: Place, silent: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error tells of each. One that has failed is tried again only after a pause."""
    tried: list[str] = []

    async def record(host: Host, target: ConnectionTarget, timeout: float) -> asyncpg.Connection[Any]:
        tried.append(host.name)
        return await connect_to_host(host, target, timeout)

    monkeypatch.setattr(connect_module, "connect_to_host", record)
    monkeypatch.setattr(connect_module, "HOST_TIMEOUT", 0.1)
    monkeypatch.setattr(connect_module, "RETRY_PAUSE", 60.0)
    with pytest.raises(ConnectionError) as caught:
        await asyncio.wait_for(
            connect_to_first_usable_host(ConnectionTarget(several("postgresql://postgres@/postgres", dead, silent))), 10
        )
    first, second = (f"{host}:{port}" for host, port in (dead, silent))
    assert str(caught.value).startswith(f"no usable host: {first}: ConnectionRefusedError: ")
    assert str(caught.value).endswith(f"; {second}: no answer")
    assert tried == [first, second]


async def test_hosts_are_not_tried_any_more_once_one_is_found(
    dsn: str, dead: Place, gated: Gating, opened: list[asyncpg.Connection[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that has failed, nor one that answers late: its connection is ended."""
    monkeypatch.setattr(connect_module, "STAGGER", 0.05)
    monkeypatch.setattr(connect_module, "RETRY_PAUSE", 0.01)
    async with gated() as gate:
        gate.freeze()
        found = await connect_to_first_usable_host(
            ConnectionTarget(several(dsn, dead, gate.place, address_of(dsn)), pooled=False)
        )
        assert [host.name.rpartition(":")[2] for host in found.other_hosts] == [str(dead[1]), str(gate.place[1])]
        gate.thaw()
        async with asyncio.timeout(10):
            while len(opened) < 2 or not opened[1].is_closed():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not found.driver_connection.is_closed()
        found.driver_connection.terminate()
    await end_of_other_tasks()


def test_a_single_host_has_ten_seconds_to_answer() -> None:
    """As long as the DSN does not say otherwise."""
    assert ConnectionTarget("postgresql://one/db").connect_timeout == 10
