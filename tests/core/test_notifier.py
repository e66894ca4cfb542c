"""The notifier between two processes: what a worker's endpoint is called with, here and across NOTIFY."""

from __future__ import annotations

import asyncio

from gen_durable.client import Durable
from gen_durable.core.notifier import Notifier
from gen_durable.core.services import services_of
from gen_durable.store.types import FollowUps


class Endpoint:
    """A worker as the notifier sees it; `free` rows can be taken from every queue."""

    def __init__(self, name: str, free: int = 0) -> None:
        self.name = name
        self._free = free
        self.calls: asyncio.Queue[str] = asyncio.Queue()

    def wake(self, queue: str) -> int:
        self.calls.put_nowait(f"wake {queue}")
        return self._free

    def wake_all(self) -> None:
        self.calls.put_nowait("wake all")

    def expect_pick_to_find(self, queue: str, count: int) -> None:
        """Asks for nothing."""

    def check_cancel_requests(self) -> None:
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
        notifier.act_on_follow_ups(FollowUps(workers_to_notify=frozenset({"there:1:b"})))
        notifier.act_on_follow_ups(
            FollowUps(frozenset({"cancel_children:7"}), workers_to_notify=frozenset({"there:1:a"}))
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
        notifier.act_on_follow_ups(FollowUps(workers_to_notify=frozenset({"l"})))
        assert local.calls.get_nowait() == "wake default"
        assert local.calls.get_nowait() == "check cancels"
        notifier.wake("default", 3)
        assert await remote.next() == "wake default"
        assert remote.calls.empty()


async def test_a_removed_worker_is_not_woken(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        notifier, endpoint = services_of(app).notifier, Endpoint("w", free=1)
        await listening(notifier, endpoint)
        notifier.remove_worker(endpoint)
        notifier.wake("default")
        notifier.recover_missed_messages()
        assert endpoint.calls.empty()
