"""The notifier between two processes: what a worker's endpoint is called with, here and across NOTIFY."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gen_durable.client import Durable
from gen_durable.core.notification_messages import CancelChildren, Message, QueueReady
from gen_durable.core.notifier import Notifier
from gen_durable.core.services import services_of
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import Statement
from gen_durable.store.types import FollowUps


class Endpoint:
    """A worker as the notifier sees it; `free` rows can be taken from every queue."""

    def __init__(self, name: str, free: int = 0) -> None:
        self.name = name
        self._free = free
        self.calls: asyncio.Queue[str] = asyncio.Queue()
        self.expected: list[tuple[str, int]] = []

    def wake_and_get_capacity(self, queue: str) -> int:
        self.calls.put_nowait(f"wake {queue}")
        return self._free

    def start_hand_off(self, rows_by_queue: object, add_pick: object) -> None:
        return None

    def wake_by_message(self, queue: str) -> None:
        self.wake_and_get_capacity(queue)

    def wake_all(self) -> None:
        self.calls.put_nowait("wake all")

    def notify_if_pick_misses(self, queue: str, count: int) -> None:
        self.expected.append((queue, count))

    def check_cancel_requests_soon(self) -> None:
        self.calls.put_nowait("check cancels")

    async def next(self) -> str:
        return await asyncio.wait_for(self.calls.get(), 10)


async def listening(notifier: Notifier, endpoint: Endpoint) -> None:
    """Add a worker, and wait until notifications reach it."""
    notifier.add_worker(endpoint)
    assert notifier.listener is not None
    await asyncio.wait_for(notifier.listener.listening.wait(), 10)
    assert [await endpoint.next(), await endpoint.next()] == ["check cancels", "wake all"]


async def test_messages_reach_the_worker_of_another_process(dsn: str, schema: str) -> None:
    """A queue wakes every worker, a request to check cancels only the one it names."""
    async with Durable(dsn, schema=schema) as here, Durable(dsn, schema=schema) as there:
        notifier, endpoint = services_of(here).notifier, Endpoint("there:1:a")
        await listening(services_of(there).notifier, endpoint)
        notifier.act_on_follow_ups(FollowUps(workers_with_cancel_requests=frozenset({"there:1:b"})))
        notifier.act_on_follow_ups(
            FollowUps(frozenset({"cancel_children:7"}), workers_with_cancel_requests=frozenset({"there:1:a"}))
        )
        assert {await endpoint.next(), await endpoint.next()} == {"check cancels", "wake cancel_children:7"}
        assert endpoint.calls.empty()


async def test_a_payload_of_a_newer_version_is_ignored(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        services, endpoint = services_of(app), Endpoint("w")
        await listening(services.notifier, endpoint)
        await services.pool.run(services.statements.notify(["default"]))
        await services.pool.run(services.statements.notify(["pause:default"]))
        await services.pool.run(services.statements.notify(["queue:default"]))
        assert await endpoint.next() == "wake default"
        assert endpoint.calls.empty()


async def test_a_worker_that_can_take_all_rows_is_woken_without_notify(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as here, Durable(dsn, schema=schema) as there:
        notifier, local, remote = services_of(here).notifier, Endpoint("l", free=2), Endpoint("r")
        await listening(services_of(there).notifier, remote)
        notifier.add_worker(local)
        notifier.wake("default", 2)
        notifier.act_on_follow_ups(FollowUps(workers_with_cancel_requests=frozenset({"l"})))
        assert local.calls.get_nowait() == "wake default"
        assert local.calls.get_nowait() == "check cancels"
        assert local.expected == [("default", 2)]
        notifier.wake("other", 3)
        assert await remote.next() == "wake other"
        assert remote.calls.empty()
        assert local.expected == [("default", 2)]  # the others were notified: nothing is left to report


async def test_every_queue_and_every_worker_is_woken(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        notifier, one, two = services_of(app).notifier, Endpoint("1", free=9), Endpoint("2", free=9)
        await listening(notifier, one)
        notifier.add_worker(two)
        notifier.wake_queues(["a", "b"])
        notifier.wake_local_workers()
        for endpoint in (one, two):
            assert [endpoint.calls.get_nowait() for _ in range(3)] == ["wake a", "wake b", "wake all"]
            notifier.remove_worker(endpoint)


async def test_the_workers_of_a_process_share_a_listener(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        notifier, one, two = services_of(app).notifier, Endpoint("1"), Endpoint("2")
        await listening(notifier, one)
        listener = notifier.listener
        notifier.add_worker(two)
        assert notifier.listener is listener
        for endpoint in (one, two):
            notifier.remove_worker(endpoint)


async def test_children_are_cancelled_here(dsn: str, schema: str) -> None:
    """Those of a transaction of this process, and those that another process asks for."""
    async with Durable(dsn, schema=schema) as app:
        notifier = services_of(app).notifier
        notifier.act_on_follow_ups(FollowUps(cascade_origins=frozenset({7})))
        notifier.act_on_message(CancelChildren(8))
        await asyncio.sleep(0)
        assert set(notifier.cascader._tasks) == {7, 8}


async def test_full_picks_are_notified_of_at_intervals(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The intervals of each queue are its own."""
    sent: list[Message] = []
    async with Durable(dsn, schema=schema) as app:
        notifier = services_of(app).notifier
        monkeypatch.setattr(notifier, "send_message_soon", sent.append)
        monkeypatch.setattr("gen_durable.core.notifier.FULL_PICK_INTERVAL", 60.0)
        for queue in ("a", "b", "a"):
            notifier.notify_full_pick(queue)
        assert sent == [QueueReady("a"), QueueReady("b")]
        monkeypatch.setattr("gen_durable.core.notifier.FULL_PICK_INTERVAL", 0.0)
        notifier.notify_full_pick("a")
        assert sent[2:] == [QueueReady("a")]


async def test_rows_not_found_are_notified_of_at_once_and_then_at_intervals(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last report comes late rather than never, unless the client is closed."""
    sent: asyncio.Queue[Message] = asyncio.Queue()
    monkeypatch.setattr("gen_durable.core.notifier.MISSED_INTERVAL", 0.2)
    async with Durable(dsn, schema=schema) as app:
        notifier = services_of(app).notifier
        monkeypatch.setattr(notifier, "send_message_soon", sent.put_nowait)
        for _ in range(3):
            notifier.notify_rows_not_found("q")
        began = time.monotonic()
        assert sent.qsize() == 1
        assert sent.get_nowait() == QueueReady("q")
        assert await asyncio.wait_for(sent.get(), 10) == QueueReady("q")
        assert time.monotonic() - began > 0.1
        again = asyncio.get_running_loop().time()
        notifier.notify_rows_not_found("q")
        timer = notifier._missed["q"]
        assert timer.when() > again
        assert sent.empty()
    assert timer.cancelled()
    assert notifier._missed == {}


class Unanswered(Pool):
    """A pool whose statements are not answered."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def run(self, statement: Statement[Any], *, timeout: float | None = None) -> Any:
        self.asked.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is open."""


async def test_close_gives_up_a_notification_that_is_not_answered(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task has ended then."""
    monkeypatch.setattr("gen_durable.core.notifier.CLOSE_TIMEOUT", 0.05)
    async with Durable(dsn, schema=schema) as app:
        notifier = services_of(app).notifier
        notifier._pool = pool = Unanswered()
        notifier.send_message_soon(QueueReady("q"))
        await pool.asked.wait()
        task = notifier._task
        async with asyncio.timeout(10):
            await notifier.close()
        assert task is not None
        assert task.cancelled()


async def test_a_removed_worker_is_not_woken(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        notifier, endpoint = services_of(app).notifier, Endpoint("w", free=1)
        await listening(notifier, endpoint)
        notifier.remove_worker(endpoint)
        notifier.wake("default")
        notifier.recover_from_missed_messages()
        assert endpoint.calls.empty()
