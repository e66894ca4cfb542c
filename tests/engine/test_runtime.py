"""Runtime: how the parts of a worker start, and what is left of them after each way to stop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.engine import NEVER, Engine, opened, seconds, soon
from tests.worker.test_options_lease import dead_claim

from gen_durable import Instance, Worker, job
from gen_durable.core.background_task import BackgroundTask
from gen_durable.core.services import services_of
from gen_durable.engine import runtime as runtime_module
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.runtime import Runtime
from gen_durable.engine.slow_commit_connections import SlowCommitConnections
from gen_durable.engine.transactional_executor import TransactionalExecutor
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.step_registry import Registry
from gen_durable.telemetry import QueueDrained
from gen_durable.worker_options import WorkerOptions

LAZY: dict[str, Any] = {
    "poll_interval": NEVER,
    "max_poll_interval": NEVER,
    "reap_interval": None,
    "gc_interval": None,
    "lease_ttl": seconds(3600),
    "heartbeat_interval": seconds(600),
}
entered = asyncio.Event()
may_end = asyncio.Event()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global entered, may_end
    entered, may_end = asyncio.Event(), asyncio.Event()


@job
async def hold(number: int) -> int:
    entered.set()
    await may_end.wait()
    return number


@job
async def hold_on(number: int) -> int:
    """Ignores that it is interrupted."""
    entered.set()
    while not may_end.is_set():
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            continue
    return number


@job
def call(number: int) -> int:
    return number


def make_runtime(e: Engine, target: ConnectionTarget | None = None, **options: Any) -> Runtime:
    """A runtime that was not started."""
    services = services_of(e.app)
    given = WorkerOptions(**(LAZY | options))
    return Runtime(services, target or services.connection_target, given, Registry([], [hold]), "w")


def runtime_of(worker: Worker) -> Runtime:
    assert worker._runtime is not None
    return worker._runtime


def names_of_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def all_connections(runtime: Runtime) -> list[PersistentConnection]:
    plain = [c for c in runtime._connections if isinstance(c, PersistentConnection)]
    return [*plain, *runtime._transactional._connections]


async def hold_a_step(e: Engine, worker: Worker) -> ActiveClaim:
    """Insert an instance, and return its claim when its step runs."""
    await e.app.insert(hold, 1)
    await soon(entered.wait())
    (active,) = runtime_of(worker).claims.list_all()
    return active


async def test_a_worker_is_connected_when_it_has_started(dsn: str, schema: str) -> None:
    """The first row does not wait for the connections of the picker and the committer."""
    async with opened(dsn, schema) as e:
        runtime = make_runtime(e)
        runtime.picker.start = lambda: None  # type: ignore[method-assign]
        await runtime.start()
        assert runtime._pick_connection._current is not None
        assert runtime._flush_connection._current is not None
        await runtime.stop()


async def test_a_worker_starts_although_it_cannot_connect(dsn: str, schema: str) -> None:
    """Its first statements try again."""
    async with opened(dsn, schema) as e:
        runtime = make_runtime(
            e, target=replace(services_of(e.app).connection_target, dsn="postgresql://u:p@127.0.0.1:1/x")
        )
        await runtime.start()
        assert runtime._pick_connection._current is None
        await runtime.stop()


@pytest.mark.parametrize(
    ("options", "threads"),
    [({"queues": {"a": 3, "b": 2}}, 5), ({"queues": {"a": 3}, "threads": 7}, 7), ({"queues": {}}, 1)],
)
async def test_there_is_a_thread_for_each_slot(dsn: str, schema: str, options: dict[str, Any], threads: int) -> None:
    """Unless `threads` says otherwise."""
    async with opened(dsn, schema) as e:
        assert make_runtime(e, **options)._threads._size == threads


async def test_messages_reach_the_picker_and_the_claims(dsn: str, schema: str) -> None:
    """The notifier passes on what it has received."""
    async with opened(dsn, schema) as e:
        runtime = make_runtime(e, queues={"a": 2, "b": 2})
        a, b = runtime.slots.queues["a"], runtime.slots.queues["b"]
        a.has_work = b.has_work = False
        runtime.notify_if_pick_misses("a", 3)
        assert (a.expected, b.expected) == (3, 0)
        assert runtime.wake_and_get_capacity("b") == 2
        assert (a.has_work, b.has_work) == (False, True)
        b.has_work = False
        runtime.wake_all()
        assert (a.has_work, b.has_work) == (True, True)


async def test_cancel_requests_are_read_when_the_notifier_says_so(dsn: str, schema: str) -> None:
    """Long before the next heartbeat."""
    async with opened(dsn, schema) as e, e.worker(hold, **LAZY) as worker:
        active = await hold_a_step(e, worker)
        await e.rows.fetch("update @.instances set cancel_reason = 'enough'")
        runtime_of(worker).check_cancel_requests_soon()
        await until(lambda: active.cancel_reason == "enough")


class Slow(BackgroundTask):
    """A part that takes a while to end."""

    def __init__(self, connection: PersistentConnection) -> None:
        super().__init__("slow part")
        self.connection = connection
        self.had_connection: bool | None = None

    async def run_once(self) -> float:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)
            self.had_connection = not self.connection.is_closed
        return 0.0


async def test_a_stop_waits_for_each_part_before_it_closes_the_connections(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are closed in order, and nothing is left: no task, no thread, no place at the notifier."""
    async with opened(dsn, schema) as e:
        closed: list[object] = []
        for kind in (PersistentConnection, SlowCommitConnections, TransactionalExecutor):
            close = kind.close

            async def note(self: Any, close: Any = close) -> None:
                closed.append(self)
                await close(self)
                if self is runtime._pick_connection:
                    raise OSError("it was broken")

            monkeypatch.setattr(kind, "close", note)
        former = set(threading.enumerate())
        worker = e.worker(call, **(LAZY | {"reap_interval": NEVER, "gc_interval": NEVER}))
        async with worker:
            await e.end(await e.app.insert(call, 1))
            runtime = runtime_of(worker)
            slow = Slow(runtime._upkeep_connection)
            slow.start()
            runtime._upkeep.append(slow)
            assert worker.name in services_of(e.app).notifier._workers
            threads = set(threading.enumerate()) - former
            names = {thread.name for thread in threads}
            assert names >= {"gen_durable heartbeat", "gen_durable step"}
            await asyncio.sleep(0)
            closed.clear()
        assert slow.had_connection is True
        assert not any(thread.is_alive() for thread in threads if thread.name == "gen_durable heartbeat")
        assert set(closed) >= {*runtime._connections, runtime._transactional}
        assert worker.name not in services_of(e.app).notifier._workers
        left = {"gen_durable picker", "gen_durable reaper", "gen_durable gc", "gen_durable history trimmer"}
        assert not left & names_of_tasks()
        await until(lambda: not any(thread.is_alive() for thread in threads if thread.name == "gen_durable step"))


async def test_an_interrupted_stop_leaves_no_connection(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are interrupted as by the engine, and their rows are left to their leases."""
    terminated: list[object] = []
    terminate = SlowCommitConnections.terminate

    def note(self: SlowCommitConnections) -> None:
        terminated.append(self)
        terminate(self)

    monkeypatch.setattr(SlowCommitConnections, "terminate", note)
    async with opened(dsn, schema) as e:
        worker = e.worker(hold, drain_timeout=seconds(60), **LAZY)
        await worker.start()
        active = await hold_a_step(e, worker)
        runtime = runtime_of(worker)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0.02)
        assert not any(connection.is_closed for connection in all_connections(runtime))
        stopping.cancel()
        await asyncio.wait([stopping, *([worker._stop_task] if worker._stop_task else [])], timeout=10)
        assert active.claim.is_interrupted
        assert all(connection.is_closed for connection in all_connections(runtime))
        assert set(terminated) == set(runtime._side_connections)
        assert worker.name not in services_of(e.app).notifier._workers
        await until(lambda: active.task is not None and active.task.done())
        row = await e.rows.row(active.claim.id)
        assert (row["status"], row["last_error"]) == ("executing", None)


async def test_an_interrupted_stop_cancels_the_hook_of_dead_letters(dsn: str, schema: str) -> None:
    """It would go on without its worker."""
    async with opened(dsn, schema) as e:
        calling = asyncio.Event()

        async def hook(one: Instance) -> None:
            calling.set()
            await asyncio.sleep(60)

        await dead_claim(e, crashes=2)
        options: dict[str, Any] = LAZY | {"reap_interval": seconds(10)}
        worker = e.worker(queues={}, max_crashes=3, on_dead_letter=hook, drain_timeout=seconds(60), **options)
        await worker.start()
        await soon(calling.wait())
        assert "gen_durable dead letters" in names_of_tasks()
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0.02)
        stopping.cancel()
        await until(lambda: "gen_durable dead letters" not in names_of_tasks())


async def test_a_drain_waits_for_commits_whose_steps_have_ended(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not interrupted, do not count as running, and their rows are not released."""
    monkeypatch.setattr(runtime_module, "CANCEL_GRACE_SECONDS", 20.0)
    async with opened(dsn, schema) as e:
        worker = e.worker(hold, drain_timeout=seconds(0.05), **LAZY)
        await worker.start()
        active = await hold_a_step(e, worker)
        async with e.rows.connection.transaction():
            await e.rows.fetch("select from @.instances where id = $1 for update", active.claim.id)
            may_end.set()
            await until(lambda: active.task is not None and active.task.done())
            stopping = asyncio.create_task(worker.stop())
            await e.seen.until(QueueDrained)
            await asyncio.sleep(0.05)
            assert not stopping.done()
        await soon(stopping)
        assert runtime_of(worker).claims.list_all() == []
        assert (await e.rows.row(active.claim.id))["status"] == "done"
        assert e.seen.of(QueueDrained) == [QueueDrained("default", 0, 0)]


async def test_a_step_that_ignores_its_interruption_does_not_keep_the_stop(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a moment the worker stops without it. Its row is left to its lease, that of the other step is released."""
    monkeypatch.setattr(runtime_module, "CANCEL_GRACE_SECONDS", 0.05)
    async with opened(dsn, schema) as e:
        worker = e.worker(hold, hold_on, drain_timeout=seconds(0.05), **LAZY)
        await worker.start()
        ignoring = await e.app.insert(hold_on, 1)
        await soon(entered.wait())
        entered.clear()
        other = await e.app.insert(hold, 2)
        await soon(entered.wait())
        began = time.monotonic()
        try:
            async with asyncio.timeout(10):
                await worker.stop()
            released, left = await e.rows.row(other), await e.rows.row(ignoring)
        finally:
            may_end.set()
        assert time.monotonic() - began >= 0.1
        assert f"worker {worker.name}: 2 steps did not end within drain_timeout" in caplog.text
        assert (released["status"], left["status"]) == ("runnable", "executing")
        await asyncio.sleep(0.02)


async def test_a_commit_that_is_not_answered_does_not_keep_the_stop(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flush is cancelled after a moment, and no task is left."""
    monkeypatch.setattr(runtime_module, "CANCEL_GRACE_SECONDS", 0.05)
    async with opened(dsn, schema) as e:
        worker = e.worker(hold, drain_timeout=seconds(0.05), **LAZY)
        await worker.start()
        active = await hold_a_step(e, worker)
        async with e.rows.connection.transaction():
            await e.rows.fetch("lock table @.instances in access exclusive mode")
            may_end.set()
            await until(lambda: active.task is not None and active.task.done())
            await soon(worker.stop())
            assert "gen_durable flush" not in names_of_tasks()
            assert runtime_of(worker).committer.is_idle
