"""`SyncDurable`: the same calls for code that does not await, from any number of threads."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from tests.support.engine import seconds

from gen_durable import (
    Await,
    Context,
    Done,
    Durable,
    Fail,
    Failed,
    Finished,
    Machine,
    Outcome,
    Pending,
    Signal,
    Start,
    Status,
    SyncDurable,
    SyncHandle,
    Worker,
    step,
)
from gen_durable.errors import (
    ConfigError,
    DatabaseUnavailable,
    Duplicate,
    GenDurableError,
    InputError,
    InstanceFailed,
    NoTarget,
    NotFound,
    SchemaMissing,
)


@dataclass(frozen=True)
class Paid:
    amount: int


paid = Signal("paid", Paid)


class Till(Machine):
    @step
    async def open(self, total: int, ctx: Context) -> Outcome[int]:
        return Await(paid, then=self.close, state=total, timeout=seconds(30))

    @step
    async def close(self, total: int, ctx: Context) -> Outcome[int]:
        payment = ctx.take(paid)
        return Done(total + payment.amount) if payment is not None else Fail("nobody paid")

    @step
    async def burn(self, total: int, ctx: Context) -> Outcome[int]:
        return Fail("it burns")


@contextmanager
def working(dsn: str, schema: str) -> Iterator[None]:
    """A worker in a thread of its own, as a sync program may have one elsewhere."""
    import asyncio

    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Till()]):
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_the_whole_of_it(dsn: str, schema: str) -> None:
    """insert, signal, get and wait do what they do in `Durable`."""
    with SyncDurable(dsn, schema=schema) as app, working(dsn, schema):
        handle = app.insert(Till.open, 1, unique_key="till", priority=3)
        assert isinstance(handle, SyncHandle)
        assert repr(handle) == f"SyncHandle({handle.id})"
        assert handle.wait(seconds(0.01)) == Pending(handle.id)
        assert app.get("till").priority == 3
        assert app.signal("till", paid, Paid(9), dedup_key="e") is True
        assert handle.wait(seconds(10)) == Finished(handle.id, 10)
        assert handle.get().status is Status.DONE
        burnt = app.insert(Till.burn, 1)
        assert burnt.wait(seconds(10)) == Failed(burnt.id, "it burns")
        assert handle.result(10) == 10
        with pytest.raises(InstanceFailed, match="it burns"):
            burnt.result(10)


def test_conflicts_and_batches(dsn: str, schema: str) -> None:
    """`on_conflict` and `insert_many` answer as in `Durable`."""
    with SyncDurable(dsn, schema=schema) as app:
        first = app.insert(Till.open, 1, unique_key="k")
        with pytest.raises(Duplicate) as caught:
            app.insert(Till.open, 2, unique_key="k")
        assert caught.value.existing_id == first.id
        assert app.insert(Till.open, 2, unique_key="k", on_conflict="skip") is None
        assert app.insert(Till.open, 2, unique_key="k", on_conflict="existing").id == first.id
        several = app.insert_many([Start(Till.open, 1), Start(Till.open, 2, unique_key="k")], on_conflict="skip")
        assert [one is None for one in several] == [False, True]
        assert app.insert_many([]) == []


def test_errors(dsn: str, schema: str) -> None:
    """Refusals reach the caller as the same errors."""
    with SyncDurable(dsn, schema=schema) as app:
        with pytest.raises(NoTarget):
            app.signal(4711, paid, Paid(1))
        with pytest.raises(NotFound):
            app.get("nobody")
        with pytest.raises(InputError):
            app.insert(Till.open, 1, priority=40_000)
        with pytest.raises(InputError):
            app.insert(Till.open, "one")  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(InputError, match="has no option 'prio'"):
            app.insert(Till.open, 1, prio=1)  # type: ignore[call-overload]  # wrong on purpose


def test_the_same_doors_as_async(dsn: str, schema: str) -> None:
    """Every client call has its twin: a handle from an id, and signalling by handle."""
    with SyncDurable(dsn, schema=schema) as app, working(dsn, schema):
        made = app.insert(Till.open, 1)
        again = app.handle(made.id, Till.open)  # type: ignore[attr-defined]
        assert again.signal(paid, Paid(2)) is True
        assert again.wait(seconds(10)) == Finished(made.id, 3)


def test_many_threads(dsn: str, schema: str) -> None:
    """Calls from many threads go side by side: a wait in one does not hold up the others."""
    with SyncDurable(dsn, schema=schema) as app, working(dsn, schema), ThreadPoolExecutor(16) as threads:

        def sale(number: int) -> object:
            handle = app.insert(Till.open, number, unique_key=f"till:{number}")
            app.signal(handle, paid, Paid(1000))
            return handle.wait(seconds(10)) == Finished(handle.id, number + 1000)

        blocked = [threads.submit(app.insert(Till.open, 0).wait, seconds(2)) for _ in range(4)]
        assert all(threads.map(sale, range(60)))
        assert all(isinstance(one.result(), Pending) for one in blocked)


def test_not_open(dsn: str, schema: str) -> None:
    """Before opening and after closing every call says so; closing twice is nothing; opening again works."""
    app = SyncDurable(dsn, schema=schema)
    with pytest.raises(ConfigError, match="not open"):
        app.insert(Till.open, 1)
    with app:
        handle = app.insert(Till.open, 1)
        with pytest.raises(ConfigError, match="open already"):
            app.open()
    for call in (lambda: app.get(1), lambda: app.signal(1, paid, Paid(1)), handle.wait, handle.get):
        with pytest.raises(ConfigError, match="not open"):
            call()
    app.close()
    with app:
        assert app.get(handle.id).state == 1


def test_opening_fails_cleanly(dsn: str, bare_schema: str) -> None:
    """When opening fails no thread stays behind, and the object can be used again."""
    before = threading.active_count()
    app = SyncDurable(dsn, schema=bare_schema)
    with pytest.raises(SchemaMissing):
        app.open()
    with pytest.raises(DatabaseUnavailable):
        SyncDurable("postgresql://nobody@127.0.0.1:1/none").open()
    assert threading.active_count() == before
    with SyncDurable(dsn, schema=bare_schema, migrate=True) as made:
        assert made.insert(Till.open, 1).id == 1
    with app:
        assert app.get(1).state == 1


def test_closing_ends_waits(dsn: str, schema: str) -> None:
    """A thread that waits while another closes gets an error of ours instead of hanging for ever."""
    app = SyncDurable(dsn, schema=schema)
    app.open()
    handle = app.insert(Till.open, 1)
    caught: list[BaseException] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        try:
            handle.wait()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waiting.wait(5)
    handle.wait(seconds(0.1))  # by now the other one waits too
    app.close()
    thread.join(3)
    assert not thread.is_alive(), "the thread hangs"
    assert isinstance(caught[0], GenDurableError)


def test_a_server_that_does_not_answer_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Its connection is given up in the background; the loop does not end before that has."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db?connect_timeout=1"
        with pytest.raises(DatabaseUnavailable):
            SyncDurable(dsn).open()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
