"""Messages of a login that may only connect: they cost a bounded number of statements, and change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.support.engine import NEVER, Engine, Opening, soon
from tests.support.roles import PASSWORD, login_dsn

from gen_durable import Context, Finished, job
from gen_durable.core import listener as listener_module
from gen_durable.core.cancel_cascader import REQUEST_SECONDS
from gen_durable.core.listener import Listener
from gen_durable.core.notification_messages import Message, QueueReady
from gen_durable.core.services import services_of
from gen_durable.engine.claim_table import CHECK_SECONDS
from gen_durable.engine.wakeup_budget import BURST, PICKS_PER_FIND, PICKS_PER_SECOND
from gen_durable.pg.persistent_connection import ConnectionTarget
from gen_durable.store.statements import StatementBuilder

COUNT = 50_000
MOST_BYTES = 4_000_000
CALLS = ("pick", "cancel_requests_of", "cancel_listed_descendants")
SEND = "select pg_notify($1, payload) from unnest($2::text[]) as payload"


@job
async def noop(n: int) -> int:
    """Nothing, durably."""
    return n


class Stop:
    """A step that runs until it is told to end."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()


@contextmanager
def stranger(dsn: str, schema: str) -> Iterator[str]:
    """The DSN of a login that has no role."""
    name = f"{schema}_nobody"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {name} login password '{PASSWORD}'")
        try:
            yield login_dsn(dsn, name)
        finally:
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [name])
            connection.execute(f"drop role {name}")


def hostile_payloads(workers: list[str], seed: int) -> list[str]:
    """Every kind of payload, of every length, and bytes that mean nothing."""
    chance = random.Random(seed)
    kinds = [
        lambda n: f"queue:{n}",
        lambda n: f"queue:{'q' * chance.randrange(1, 7900)}{n}",
        lambda n: f"cancel_children:{n}",
        lambda n: f"cancel_children:{2**63 - n}",
        lambda n: f"cancel_children:{'9' * chance.randrange(17, 7000)}{n}",
        lambda n: f"check_cancel_requests:{chance.choice(workers)}{n}",
        lambda n: "".join(chr(chance.randrange(1, 0xD800)) for _ in range(chance.randrange(1, 60))),
        lambda n: f"{chance.choice(['queue', 'cancel_children', 'check_cancel_requests'])}:",
    ]
    return [chance.choice(kinds)(n) for n in range(COUNT)]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many statements of each kind that messages can cause were made."""
    counter: Counter[str] = Counter()
    for name in CALLS:
        original = getattr(StatementBuilder, name)

        def counting(self: Any, *args: Any, _name: str = name, _original: Any = original, **named: Any) -> Any:
            counter[_name] += 1
            return _original(self, *args, **named)

        monkeypatch.setattr(StatementBuilder, name, counting)
    return counter


async def flood(dsn: str, channel: str, payloads: list[str], repeated: list[str]) -> None:
    """Send all payloads, and each of the repeated ones 500 times: Postgres sends those of one transaction once."""
    connection = await asyncpg.connect(dsn)
    try:
        for i in range(0, len(payloads), 5000):
            await connection.execute(SEND, channel, payloads[i : i + 5000])
        for _ in range(500):
            for payload in repeated:
                await connection.execute("select pg_notify($1, $2)", channel, payload)
    finally:
        await connection.close()


@asynccontextmanager
async def arrived(e: Engine) -> AsyncIterator[None]:
    """Ends when the listener has got what was sent before the end of the block."""
    listener = services_of(e.app).notifier.listener
    assert listener is not None
    seen = asyncio.Event()
    connection = await listener._connection.connect()
    await connection.add_listener(f"{e.rows.schema}_last", lambda *_: seen.set())
    yield
    await e.rows.connection.execute(f"notify {e.rows.schema}_last, 'last'")
    await soon(seen.wait())


@pytest.mark.direct(reason="LISTEN does not pass a pooler")
async def test_a_flood_costs_a_bounded_number_of_statements(
    engine: Opening, dsn: str, schema: str, sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a step runs, whose cancel requests are read. It goes on: no message ends what no row says to end."""
    stop = Stop()
    # pytest keeps every record that is logged, and another test may have left the level at DEBUG.
    monkeypatch.setattr(logging.root.manager, "disable", logging.INFO)
    monkeypatch.setattr(listener_module, "MAX_PER_SECOND", 10 * COUNT)  # all of them arrive

    @job(name="held")
    async def held(n: int, ctx: Context) -> int:
        stop.began.set()
        await stop.may_end.wait()
        return n

    async with engine() as e:
        polls = {"poll_interval": NEVER, "max_poll_interval": NEVER}
        async with e.worker(noop, held, reap_interval=None, gc_interval=None, **polls):
            names = list(services_of(e.app).notifier._workers)
            await services_of(e.app).notifier.listener.listening.wait()  # type: ignore[union-attr]
            running = await e.app.insert(held, 1)
            await soon(stop.began.wait())
            with stranger(dsn, schema) as hostile:
                payloads, channel = hostile_payloads(names, 7), f"{schema}_wake"
                repeated = ["queue:default", "cancel_children:", "cancel_children:1"]
                repeated.append(f"check_cancel_requests:{names[0]}")
                sent.clear()
                tracemalloc.start()
                tasks = len(asyncio.all_tasks())
                most_tasks = 0
                began = time.monotonic()
                async with arrived(e):
                    sending = asyncio.ensure_future(flood(hostile, channel, payloads, repeated))
                    while not sending.done():
                        most_tasks = max(most_tasks, len(asyncio.all_tasks()) - tasks)
                        await asyncio.sleep(0.005)
                    await sending
                took = time.monotonic() - began
                most_tasks = max(most_tasks, len(asyncio.all_tasks()) - tasks)
                with contextlib.suppress(TimeoutError):  # what the loop has not read yet is in the driver's buffers
                    async with asyncio.timeout(20):
                        while tracemalloc.get_traced_memory()[0] >= MOST_BYTES:  # noqa: ASYNC110
                            await asyncio.sleep(0.1)
                grown, _ = tracemalloc.get_traced_memory()
                tracemalloc.stop()
            assert sent["pick"] <= BURST + took * PICKS_PER_SECOND + 2 * PICKS_PER_FIND
            assert sent["cancel_requests_of"] <= 2 + took / CHECK_SECONDS
            assert sent["cancel_listed_descendants"] <= 2 + took / REQUEST_SECONDS
            assert most_tasks <= 20
            assert grown < MOST_BYTES
            stop.may_end.set()
            assert isinstance(await e.end(running), Finished)
            again = await e.app.insert(noop, 2)
            assert isinstance(await e.end(again), Finished)


class Received:
    """What a listener passes on."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.recoveries = 0
        self._news = asyncio.Event()

    def act_on_message(self, message: Message) -> None:
        self.messages.append(message)
        self._news.set()

    def recover_from_missed_messages(self) -> None:
        self.recoveries += 1
        self._news.set()

    async def until_recovered(self, times: int) -> None:
        while self.recoveries < times:
            self._news.clear()
            await soon(self._news.wait())

    async def until_received(self, message: Message) -> None:
        while message not in self.messages:
            self._news.clear()
            await soon(self._news.wait())


@pytest.mark.direct(reason="LISTEN does not pass a pooler")
async def test_a_listener_rests_from_a_flood(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes on no more than its bound, closes its connection, and listens again with a recovery."""
    monkeypatch.setattr(listener_module, "MAX_PER_SECOND", 500)
    monkeypatch.setattr(listener_module, "FLOOD_PAUSE", 0.05)
    received = Received()
    listener = Listener(ConnectionTarget(dsn), f"{schema}_wake", received)
    listener.start()
    connection = await asyncpg.connect(dsn)
    try:
        await soon(listener.listening.wait())
        await connection.execute(SEND, f"{schema}_wake", [f"queue:{n}" for n in range(20_000)])
        await received.until_recovered(2)
        assert len(received.messages) <= 500
        await soon(listener.listening.wait())
        await asyncio.sleep(1)  # the window of the flood
        await connection.execute(SEND, f"{schema}_wake", ["queue:later"])
        await received.until_received(QueueReady("later"))
    finally:
        await connection.close()
        await listener.stop()


@pytest.mark.direct(reason="LISTEN does not pass a pooler")
async def test_work_goes_on_without_a_listener(
    engine: Opening, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While floods keep the listener away, a row of another process is found by polling."""
    monkeypatch.setattr(listener_module, "MAX_PER_SECOND", 0)
    polls = {"poll_interval": timedelta(seconds=0.1), "max_poll_interval": timedelta(seconds=0.1)}
    async with engine() as e, engine() as other, e.worker(noop, **polls):
        listener = services_of(e.app).notifier.listener
        assert listener is not None
        await soon(listener.listening.wait())
        for n in range(3):
            handle = await other.app.insert(noop, n)
            assert await other.end(handle) == Finished(handle.id, n)
