"""DeadLetterHookCaller: one call at a time, each instance once, and nothing left at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from gen_durable import Durable, Instance, Start, job
from gen_durable.core.services import services_of
from gen_durable.engine.dead_letter_hook_caller import DeadLetterHookCaller
from gen_durable.store.statements import Statement, StatementBuilder

TASK = "gen_durable dead letters"


@job
async def noop(n: int) -> int:
    """Never run here."""
    return n


class Unreadable(StatementBuilder):
    """Statements that cannot read one instance."""

    culprit = 0

    def get(self, instance, key):  # type: ignore[no-untyped-def]
        statement = super().get(instance, key)
        return Statement("select 1 / 0", (), statement.read) if instance == self.culprit else statement


class Calls:
    """A hook that keeps the ids, and waits for `go` if it is asked to."""

    def __init__(self, count: int) -> None:
        self.ids: list[int] = []
        self.running = self.most = 0
        self.all = asyncio.Event()
        self.go = asyncio.Event()
        self.count = count

    def call_later(self, one: Instance) -> Coroutine[Any, Any, None]:
        return self.call(one)

    async def call(self, one: Instance) -> None:
        self.ids.append(one.id)
        self.running += 1
        self.most = max(self.most, self.running)
        if len(self.ids) == self.count:
            self.all.set()
        await self.go.wait()
        self.running -= 1


def hook_of(app: Durable, function: Any, statements: StatementBuilder | None = None) -> DeadLetterHookCaller:
    services = services_of(app)
    return DeadLetterHookCaller(function, services.pool, statements or services.statements, None)


async def insert(app: Durable, count: int) -> list[int]:
    return [handle.id for handle in await app.insert_many([Start(noop, n) for n in range(count)])]


def find_tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == TASK]


async def test_instances_that_come_meanwhile_wait_for_their_turn(dsn: str, schema: str) -> None:
    """One task calls the hook, in order; a later instance has a new task. A hook may return an awaitable."""
    async with Durable(dsn, schema=schema) as app:
        first, second, third = await insert(app, 3)
        calls = Calls(2)
        hook = hook_of(app, calls.call_later)
        hook.enqueue_calls([])
        assert find_tasks() == []
        for number in (first, second):
            hook.enqueue_calls([number])
        hook.enqueue_calls([])
        (task,) = find_tasks()
        calls.go.set()
        await asyncio.wait_for(task, 10)
        hook.enqueue_calls([third])
        assert len(find_tasks()) == 1
        await asyncio.wait_for(hook.close(10), 10)
        assert (calls.ids, calls.most, calls.running) == ([first, second, third], 1, 0)


async def test_an_instance_that_is_gone_or_cannot_be_read_is_logged(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The hook is called for the next one."""
    async with Durable(dsn, schema=schema) as app:
        unreadable, readable = await insert(app, 2)
        statements = Unreadable(services_of(app).statements.schema)
        statements.culprit = unreadable
        calls = Calls(1)
        calls.go.set()
        hook = hook_of(app, calls.call, statements)
        hook.enqueue_calls([unreadable, 0, readable])
        await asyncio.wait_for(hook.close(10), 10)
        assert calls.ids == [readable]
        assert caplog.messages == [
            f"on_dead_letter: instance {unreadable} could not be read (DivisionByZeroError)",
            "on_dead_letter was not called for instance 0: it has been deleted",
        ]


async def test_a_hook_that_exits_is_logged_with_its_frames(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the text of its error, which may quote a payload."""
    async with Durable(dsn, schema=schema) as app:
        number = (await app.insert(noop, 987654)).id

        async def exits(one: Instance) -> None:
            raise SystemExit(one.state)

        hook = hook_of(app, exits)
        hook.enqueue_calls([number])
        await asyncio.wait_for(hook.close(10), 10)
        (message,) = caplog.messages
        assert message.startswith(f"on_dead_letter raised SystemExit for instance {number}\n")
        assert "in exits" in message
        assert 'SystemExit("secret")\n' in message or "secret" not in message


async def test_the_end_waits_for_a_call_and_then_cancels_it(dsn: str, schema: str) -> None:
    """For as long as it is told to. The hook is not called for instances that still wait."""
    async with Durable(dsn, schema=schema) as app:
        several = await insert(app, 2)
        calls = Calls(1)
        hook = hook_of(app, calls.call)
        await hook.close(10)  # nothing was called
        hook.enqueue_calls(several)
        (task,) = find_tasks()
        await asyncio.wait_for(calls.all.wait(), 10)
        await asyncio.wait_for(hook.close(0.01), 10)
        assert task.cancelling()
        await asyncio.wait([task], timeout=5)
        assert (task.cancelled(), calls.ids) == (True, several[:1])


async def test_the_thread_of_a_hook_ends_with_it(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        (number,) = await insert(app, 1)
        threads: list[threading.Thread] = []
        hook = hook_of(app, lambda one: threads.append(threading.current_thread()))
        hook.enqueue_calls([number])
        await asyncio.wait_for(hook.close(10), 10)
        (thread,) = threads
        assert thread is not threading.current_thread()
        await asyncio.to_thread(thread.join, 5)
        assert not thread.is_alive()
