"""Callers' transactions: watched by their ids, checked together, and forgotten when they take too long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.core.test_notifier import Endpoint, listening

from gen_durable.client import Durable
from gen_durable.core import caller_transaction_watcher
from gen_durable.core.caller_transaction_watcher import CallerTransactionWatcher
from gen_durable.core.notification_messages import Message
from gen_durable.core.services import services_of
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import Statement
from gen_durable.store.types import FollowUps

ID = "select pg_current_xact_id()::text"


class CountingPool(Pool):
    """A pool that keeps the ids and times of each check; the next `failures` checks fail."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.checks: list[list[int]] = []
        self.times: list[tuple[float, float]] = []  # when each check began and ended
        self.failures = 0
        self.begun = asyncio.Event()
        self.may_run = asyncio.Event()
        self.may_run.set()
        self._news = asyncio.Event()

    async def run(self, statement: Statement[Any], *, timeout: float | None = None) -> Any:
        (ids,) = statement.args
        assert isinstance(ids, Sequence)
        self.checks.append([int(transaction) for transaction in ids])
        self.begun.set()
        if self.failures:
            self.failures -= 1
            raise ConnectionError("lost")
        await self.may_run.wait()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            return await self._pool.run(statement, timeout=timeout)
        finally:
            self.times.append((began, loop.time()))
            self._news.set()

    async def checked(self) -> None:
        """Wait for the end of the next check, and let the watcher act on it."""
        self._news.clear()
        await self._news.wait()
        await asyncio.sleep(0)

    async def close(self) -> None:
        """The pool belongs to the client."""


class Watch:
    """A watcher, the checks that it makes, and a worker that it wakes."""

    def __init__(self, app: Durable) -> None:
        self.pool = CountingPool(services_of(app).pool)
        self.endpoint = Endpoint("w", free=100)
        services_of(app).notifier.add_worker(self.endpoint)
        self.watcher = CallerTransactionWatcher(self.pool, services_of(app).notifier, app.events)

    def add(self, transaction: int, *queues: str) -> None:
        self.watcher.act_after_commit(transaction, FollowUps(frozenset(queues)))

    async def idle(self) -> None:
        """Return once no transaction is pending."""
        async with asyncio.timeout(10):
            while self.watcher._pending:
                await self.pool.checked()


@asynccontextmanager
async def watching(dsn: str, schema: str) -> AsyncIterator[Watch]:
    async with Durable(dsn, schema=schema) as app:
        notifier = services_of(app).notifier
        made = Watch(app)
        assert notifier.listener is not None
        await notifier.listener.listening.wait()
        assert [await made.endpoint.next(), await made.endpoint.next()] == ["check cancels", "wake all"]
        yield made
        await made.watcher.close()
        notifier.remove_worker(made.endpoint)


@asynccontextmanager
async def transactions(dsn: str, count: int) -> AsyncIterator[list[tuple[int, Any]]]:
    """Open transactions: their ids and what ends them."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            connection = await asyncpg.connect(dsn)
            stack.push_async_callback(connection.close)
            transaction = connection.transaction()
            await transaction.start()
            found.append((int(await connection.fetchval(ID)), transaction))
        yield found


async def test_one_statement_checks_all_transactions(dsn: str, schema: str) -> None:
    """Each commit is followed by its wake-up, a rollback by none, whatever the order."""
    async with watching(dsn, schema) as watch, transactions(dsn, 10) as opened:
        for number, (transaction, _) in enumerate(opened):
            watch.add(transaction, f"q{number}")
            watch.add(transaction, f"r{number}")
        await asyncio.sleep(0.1)
        assert max(watch.pool.checks, key=len) == [transaction for transaction, _ in opened]
        assert watch.endpoint.calls.empty()
        await opened[7][1].rollback()
        for number in (3, 9, 0):
            await opened[number][1].commit()
            assert {await watch.endpoint.next(), await watch.endpoint.next()} == {f"wake q{number}", f"wake r{number}"}
        for number in (1, 2, 4, 5, 6, 8):
            await opened[number][1].rollback()
        await watch.idle()
        assert watch.endpoint.calls.empty()
        checks = len(watch.pool.checks)
        await asyncio.sleep(0.1)
        assert len(watch.pool.checks) == checks  # nothing to look for
        assert (watch.watcher._timer, watch.watcher._checking) == (None, None)


async def test_checks_become_rare_while_a_transaction_takes_long(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of its length apart; a new transaction, or a report of a commit, has all checked at once."""
    monkeypatch.setattr(caller_transaction_watcher, "LONGEST_PAUSE", 1000.0)
    async with watching(dsn, schema) as watch, transactions(dsn, 2) as opened:
        (old, slow), (new, quick) = opened

        async def grow_old() -> None:
            """As if the last call was long ago: the next check has a long pause after it."""
            watch.watcher._active_at -= 1000
            await watch.pool.checked()

        watch.add(old, "old")
        await grow_old()
        checks = len(watch.pool.checks)
        await asyncio.sleep(0.2)
        assert len(watch.pool.checks) == checks
        await quick.commit()
        timer = watch.watcher._timer
        watch.add(new, "new")
        assert timer is not None
        assert timer.cancelled()
        assert await watch.endpoint.next() == "wake new"
        await grow_old()
        await slow.commit()
        watch.watcher.check_transactions_soon()
        assert await watch.endpoint.next() == "wake old"


async def test_checks_keep_a_distance(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many transactions are added."""
    monkeypatch.setattr(caller_transaction_watcher, "SHORTEST_INTERVAL", 0.15)
    async with watching(dsn, schema) as watch, transactions(dsn, 2) as ((first, one), (second, other)):
        watch.add(first, "q1")
        await watch.pool.checked()
        watch.add(second, "q2")
        await watch.pool.checked()
        (_, ended), (began, _) = watch.pool.times
        assert began - ended > 0.14
        await one.rollback()
        await other.rollback()


async def test_new_transactions_do_not_put_off_a_check(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However quickly they follow each other."""
    monkeypatch.setattr(caller_transaction_watcher, "FIRST_PAUSE", 0.05)
    async with watching(dsn, schema) as watch, transactions(dsn, 1) as ((transaction, opened),):
        for number in range(10):
            watch.add(transaction, f"q{number}")
            await asyncio.sleep(0.01)
        assert watch.pool.checks
        await opened.rollback()


async def test_one_check_at_a_time(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is added during a check is part of the next one; the worker here needs no message."""
    async with watching(dsn, schema) as watch, transactions(dsn, 2) as ((first, one), (second, other)):
        sent: list[Message] = []
        monkeypatch.setattr(watch.watcher._notifier, "send_message_soon", sent.append)
        watch.pool.may_run.clear()
        watch.add(first, "q1")
        await watch.pool.begun.wait()
        watch.add(second, "q2")
        await asyncio.sleep(0.05)
        assert watch.pool.checks == [[first]]
        assert watch.watcher._timer is None
        await one.commit()
        await other.commit()
        watch.pool.may_run.set()
        assert [await watch.endpoint.next(), await watch.endpoint.next()] == ["wake q1", "wake q2"]
        assert sent == []


async def test_on_the_loop_follow_ups_are_acted_on_at_once_and_once(dsn: str, schema: str) -> None:
    async with watching(dsn, schema) as watch:
        watch.watcher.act_on_follow_ups(FollowUps(frozenset({"q"})))
        assert watch.endpoint.calls.get_nowait() == "wake q"
        await asyncio.sleep(0.01)
        assert watch.endpoint.calls.empty()


async def test_a_failed_check_is_repeated(dsn: str, schema: str) -> None:
    async with watching(dsn, schema) as watch, transactions(dsn, 1) as ((transaction, opened),):
        watch.pool.failures = 3
        watch.add(transaction, "q")
        await opened.commit()
        assert await watch.endpoint.next() == "wake q"
        assert len(watch.pool.checks) >= 4


async def test_the_number_of_transactions_is_bounded(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten first; polling finds its rows."""
    monkeypatch.setattr(caller_transaction_watcher, "MAX_TRANSACTIONS", 2)
    async with watching(dsn, schema) as watch, transactions(dsn, 3) as opened:
        for number, (transaction, _) in enumerate(opened):
            watch.add(transaction, f"q{number}")
        assert list(watch.watcher._pending) == [opened[1][0], opened[2][0]]
        for _, transaction in opened:
            await transaction.commit()
        assert {await watch.endpoint.next(), await watch.endpoint.next()} == {"wake q1", "wake q2"}


async def test_a_transaction_that_takes_too_long_is_forgotten(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_transaction_watcher, "MAX_AGE", 0.05)
    async with watching(dsn, schema) as watch, transactions(dsn, 1) as ((transaction, opened),):
        watch.add(transaction, "q")
        await watch.idle()
        await opened.commit()
        assert watch.endpoint.calls.empty()


async def test_many_cancelled_parents_are_named_together(dsn: str, schema: str) -> None:
    """A transaction that cancels a thousand trees is not remembered by a thousand ids."""
    async with watching(dsn, schema) as watch, transactions(dsn, 1) as ((transaction, opened),):
        few = frozenset(range(1, caller_transaction_watcher.MAX_ORIGINS + 1))
        for _ in range(2):
            watch.watcher.act_after_commit(transaction, FollowUps(cascade_origins=few))
        (pending,) = watch.watcher._pending.values()
        assert pending.follow_ups.cascade_origins == few
        for parent in range(1, 1001):
            watch.watcher.act_after_commit(transaction, FollowUps(cascade_origins=frozenset({parent})))
        (pending,) = watch.watcher._pending.values()
        assert None in pending.follow_ups.cascade_origins
        assert len(pending.follow_ups.cascade_origins) <= caller_transaction_watcher.MAX_ORIGINS
        await opened.rollback()


async def test_any_thread_may_add(dsn: str, schema: str) -> None:
    """In debug mode the loop refuses calls of other threads."""
    asyncio.get_running_loop().set_debug(True)
    async with watching(dsn, schema) as watch, transactions(dsn, 1) as ((transaction, opened),):
        await opened.commit()
        thread = threading.Thread(target=watch.add, args=(transaction, "q"))
        thread.start()
        assert await watch.endpoint.next() == "wake q"
        thread.join()


async def test_close_notifies_of_what_is_committed_and_forgets_the_rest(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later calls do nothing: a connection of the caller's may still report its commits."""
    async with (
        Durable(dsn, schema=schema) as app,
        Durable(dsn, schema=schema) as there,
        transactions(dsn, 2) as ((first, committed), (second, _)),
    ):
        remote = Endpoint("r")
        await listening(services_of(there).notifier, remote)
        cascader = services_of(there).notifier.cascader
        monkeypatch.setattr(
            type(cascader),
            "start_cascade",
            lambda self, origin: self is cascader and remote.calls.put_nowait(f"cascade {origin}"),
        )
        watcher = services_of(app).caller_transaction_watcher
        assert watcher is not None
        watcher.act_after_commit(second, FollowUps(frozenset({"open"})))
        watcher.act_after_commit(first, FollowUps(frozenset({"committed"}), frozenset({7}), frozenset({"r"})))
        await committed.commit()
        await app.close()
        found = {await remote.next(), await remote.next(), await remote.next()}
        assert found == {"wake committed", "check cancels", "cascade 7"}
        watcher.act_after_commit(second, FollowUps(frozenset({"late"})))
        watcher.check_transactions_soon()
        watcher.act_on_follow_ups(FollowUps(frozenset({"late"})))
        assert not watcher._pending
        services_of(there).notifier.remove_worker(remote)


async def test_close_waits_at_most_a_second_for_the_database(dsn: str, schema: str) -> None:
    async with watching(dsn, schema) as watch, transactions(dsn, 1) as ((transaction, _),):
        hung = asyncio.Event()

        async def hang(*_: object, **__: object) -> Any:
            hung.set()
            await asyncio.Event().wait()

        watch.pool.run = hang  # type: ignore[method-assign]
        watch.add(transaction, "q")
        await hung.wait()
        checking = watch.watcher._checking
        async with asyncio.timeout(10):
            await watch.watcher.close()
        assert checking is not None
        assert checking.cancelled()


async def test_close_waits_for_the_check_under_way(dsn: str, schema: str) -> None:
    """Then it makes a last one, which may find more, and plans none."""
    async with watching(dsn, schema) as watch, transactions(dsn, 1) as ((transaction, _),):
        watch.pool.may_run.clear()
        watch.add(transaction, "q")
        await watch.pool.begun.wait()
        closing = asyncio.create_task(watch.watcher.close())
        await asyncio.sleep(0.02)
        assert len(watch.pool.checks) == 1
        watch.pool.may_run.set()
        await closing
        assert len(watch.pool.checks) == 2
        assert watch.watcher._timer is None


async def test_close_makes_the_check_that_was_planned(dsn: str, schema: str) -> None:
    """Instead of the timer, which would make another one meanwhile."""
    async with watching(dsn, schema) as watch, transactions(dsn, 1) as ((transaction, _),):
        watch.pool.may_run.clear()
        watch.add(transaction, "q")
        closing = asyncio.create_task(watch.watcher.close())
        await asyncio.sleep(0.05)
        assert len(watch.pool.checks) == 1
        watch.pool.may_run.set()
        await closing
        assert len(watch.pool.checks) == 1
