"""Instances that begin with their signals, and signals that begin their instance."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest
from tests.support.drivers import CONNECTIONS, SIX
from tests.support.engine import NEVER, Engine, Opening, soon

from gen_durable import (
    Await,
    Context,
    Done,
    Durable,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Signal,
    Start,
    SyncDurable,
    Worker,
    job,
    step,
)
from gen_durable.contrib.aes import AesGcm
from gen_durable.errors import EncodeError, InputError, NoTarget, TooLarge

note = Signal("note", int)
go = Signal("go")


class Notebook(Machine):
    """Adds up so many notes."""

    @step
    async def start(self, count: int, ctx: Context) -> Outcome[list[int]]:
        return Next(self.collect, (count, []))

    @step
    async def collect(self, state: tuple[int, list[int]], ctx: Context) -> Outcome[list[int]]:
        count, notes = state
        notes = [*notes, *ctx.take_all(note)]
        return Done(notes) if len(notes) >= count else Await(note, state=(count, notes))


class Library(Machine):
    """Starts notebooks with a note each, and one more on the side."""

    @step
    async def start(self, count: int, ctx: Context) -> Outcome[list[int]]:
        children = (Start(Notebook.start, 1, signals=[note.of(n)], queue="children") for n in range(count))
        return ScheduleChildren(children, then=self.end, state=None)

    @step
    async def end(self, state: None, ctx: Context) -> Outcome[list[int]]:
        side = Start(Notebook.start, 1, unique_key="side", unique="forever", signals=[note.of(7)])
        return Done([n for notes in ctx.results(Notebook.start) for n in notes], spawn=[side])


@pytest.fixture(params=[None, AesGcm({"k": bytes(32)})], ids=["clear", "encrypted"])
def codec(request: pytest.FixtureRequest) -> AesGcm | None:
    """All of it with and without encryption."""
    return cast("AesGcm | None", request.param)


async def test_an_instance_begins_with_its_signals(engine: Opening, codec: AesGcm | None) -> None:
    """In their order, in insert and in insert_many, also on the caller's connection."""
    async with engine(codec=codec) as e, e.worker(Notebook()):
        one = await e.app.insert(Notebook.start, 2, signals=[note.of(1), note.of(2)])
        assert await soon(one.result()) == [1, 2]
        starts = [Start(Notebook.start, 1, signals=[note.of(n)]) for n in range(3)]
        starts.append(Start(Notebook.start, 0))
        assert [await soon(h.result()) for h in await e.app.insert_many(starts)] == [[0], [1], [2], []]
        on_callers = await e.app.insert(
            Notebook.start, 1, signals=iter([note.of(3)]), connection=e.rows.connection, notify="in_transaction"
        )
        assert await soon(on_callers.result()) == [3]


async def test_children_and_spawned_instances_begin_with_their_signals(engine: Opening, codec: AesGcm | None) -> None:
    """Few children, which go in one statement, and many, which go in several; and spawned instances."""
    queues = {"default": 10, "children": 100}
    async with engine(codec=codec) as e, e.worker(Library(), Notebook(), queues=queues):
        for count in (3, 1200):
            handle = await e.app.insert(Library.start, count)
            assert await soon(handle.result()) == list(range(count))
        assert await soon(e.app.handle("side", Notebook.start).result()) == [7]


async def test_an_existing_holder_receives_nothing(engine: Opening, codec: AesGcm | None) -> None:
    """Signals of a start are part of the new instance: `or_start` reaches the holder."""
    async with engine(codec=codec) as e:
        holder = await e.app.insert(Notebook.start, 1, unique_key="n")
        for on_conflict in ("existing", "skip"):
            start = Start(Notebook.start, 1, unique_key="n", signals=[note.of(1)])
            await e.app.insert_many([start], on_conflict=on_conflict)
        assert await e.rows.value("select count(*) from @.signals") == 0
        assert (await e.rows.row(holder))["has_signals"] is False


async def test_signal_or_start(engine: Opening, codec: AesGcm | None) -> None:
    """The first call starts the instance, the second reaches it; a repeated one is recognised, also after the end."""
    async with engine(codec=codec) as e, e.worker(Notebook()):
        start = Start(Notebook.start, 2)
        first = await e.app.signal("n", note, 1, dedup_key="a", or_start=start)
        assert (bool(first), first.is_new, first.is_delivered) == (True, True, True)
        again = await e.app.signal("n", note, 1, dedup_key="a", or_start=start)
        assert (bool(again), again.is_new, again.handle.id) == (False, False, first.handle.id)
        second = await e.app.signal("n", note, 2, dedup_key="b", or_start=Start(Notebook.start, 9, unique_key="n"))
        assert (bool(second), second.is_new, second.handle.id) == (True, False, first.handle.id)
        assert await soon(second.handle.result()) == [1, 2]
        late = await e.app.signal("n", note, 1, dedup_key="a", or_start=start)
        assert (bool(late), late.handle.id) == (False, first.handle.id)
        assert await soon(late.handle.result()) == [1, 2]
        assert await e.rows.count() == 1


async def test_a_kept_key_starts_nothing(engine: Opening, codec: AesGcm | None) -> None:
    """Under a key that an ended instance keeps there is no target."""
    async with engine(codec=codec) as e, e.worker(Notebook()):
        start = Start(Notebook.start, 1, unique_key="n", unique="forever")
        first = await e.app.signal("n", note, 1, dedup_key="a", or_start=start)
        await soon(first.handle.result())
        with pytest.raises(NoTarget, match="'n' is kept by an instance that has ended"):
            await e.app.signal("n", note, 2, dedup_key="b", or_start=start)
        assert not await e.app.signal("n", note, 1, dedup_key="a", or_start=start)


async def test_many_callers_at_once(engine: Opening, codec: AesGcm | None) -> None:
    """Twenty events, each sent twice, to a key whose instance ends after every third: each counts once."""
    async with engine(codec=codec) as e, e.worker(Notebook()):
        calls = [
            e.app.signal("n", note, n % 20, dedup_key=str(n % 20), or_start=Start(Notebook.start, 3)) for n in range(40)
        ]
        results = await soon(asyncio.gather(*calls))
        assert sum(map(bool, results)) == 20
        taken = await e.rows.fetch("select dedup_key from @.signals")
        assert sorted(int(row["dedup_key"]) for row in taken) == list(range(20))
        assert sum(result.is_new for result in results) == await e.rows.count()


@pytest.mark.parametrize("kind", SIX)
async def test_in_a_callers_transaction(dsn: str, schema: str, kind: str, codec: AesGcm | None) -> None:
    """Rolled back with the caller, or committed; every driver binds the same texts."""
    async with (
        Durable(dsn, schema=schema, codec=codec) as app,
        CONNECTIONS[kind](dsn, schema) as caller,
        Worker(app, machines=[Notebook()]),
    ):
        caller.app = caller.app if codec is None else with_codec(caller.app, codec)
        start = Start(Notebook.start, 2, metadata={"a": "ä 'x' {1}"})
        async with caller.transaction(commit=False):
            gone = await caller.signal("n", note, 1, or_start=start)
            assert gone.is_new
        async with caller.transaction(commit=True):
            first = await caller.signal("n", note, 1, dedup_key="a", or_start=start)
            again = await caller.signal("n", note, 1, dedup_key="a", or_start=start)
            second = await caller.signal("n", note, 2, or_start=start)
        assert (first.is_new, again.is_delivered, second.is_new) == (True, False, False)
        assert first.handle.id == second.handle.id != gone.handle.id
        assert await soon(app.handle("n", Notebook.start).result()) == [1, 2]


def with_codec(app: Durable | SyncDurable, codec: AesGcm) -> Durable | SyncDurable:
    """The caller's client, not open, with a codec."""
    inner = app._app if isinstance(app, SyncDurable) else app
    schema = inner._services.schema.name
    return (
        SyncDurable(schema=schema, codec=codec) if isinstance(app, SyncDurable) else Durable(schema=schema, codec=codec)
    )


def test_from_a_script(dsn: str, schema: str) -> None:
    """`SyncDurable` has the same calls, with handles of its own."""

    async def work(ready: threading.Event, stop: asyncio.Event) -> None:
        async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Notebook()]):
            ready.set()
            await stop.wait()

    ready, stop, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[work(ready, stop)])
    thread.start()
    try:
        assert ready.wait(30)
        with SyncDurable(dsn, schema=schema) as app:
            started = app.signal("n", note, 1, or_start=Start(Notebook.start, 2))
            assert started
            assert started.is_new
            reached = app.signal("n", note, 2, or_start=Start(Notebook.start, 2))
            assert not reached.is_new
            assert reached.handle.result(30) == [1, 2]
            assert app.insert(Notebook.start, 1, signals=[note.of(3)]).result(30) == [3]
            waiting = app.debounce(Notebook.start, 0, unique_key="d", delay=NEVER)
            assert app.debounce(Notebook.start, 1, unique_key="d", delay=NEVER).id == waiting.id
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def refused(e: Engine, error: type[Exception], words: str, **options: Any) -> None:
    with pytest.raises(error, match=words):
        await e.app.signal(
            **{"target": "n", "signal": note, "payload": 1, "or_start": Start(Notebook.start, 1)} | options
        )


async def test_what_is_refused(engine: Opening) -> None:
    """Before the database is touched, each by name."""
    async with engine() as e:
        await refused(e, InputError, "the same key", or_start=Start(Notebook.start, 1, unique_key="other"))
        await refused(e, InputError, "needs a unique key", target=42)
        await refused(
            e, InputError, r"or_start takes Start\(...\), got Job", or_start=job(name="j")(test_what_is_refused)
        )
        await refused(e, InputError, "takes a Signal", signal="note")
        await refused(e, EncodeError, "signal 'note'", payload=object())
        with pytest.raises(InputError, match=r"signals takes values such as payment\.of"):
            Start(Notebook.start, 1, signals=[note])  # type: ignore[list-item]
        with pytest.raises(InputError, match="signals takes a list"):
            Start(Notebook.start, 1, signals=5)  # type: ignore[arg-type]
        with pytest.raises(TooLarge, match="at most 1,000 signals"):
            Start(Notebook.start, 1, signals=[go.of()] * 1001)
        with pytest.raises(InputError, match="dedup_key"):
            go.of(dedup_key="")
        assert await e.rows.count() == 0


def test_a_message_shows_no_payload() -> None:
    assert repr(note.of(123456)) == "SignalMessage('note')"
