"""`list`, `list_all`, `count`, `delete`, `retry` and metadata, as users call them; and their mistakes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.engine import Opening, unlike

from gen_durable import (
    Context,
    Done,
    Fail,
    Failed,
    Finished,
    Machine,
    Outcome,
    ScheduleChildren,
    Signal,
    Start,
    Status,
    SyncDurable,
    step,
)
from gen_durable.errors import InputError, NotFound, TooLarge, WrongStatus
from gen_durable.listing import Count
from gen_durable.operations import instance_admin
from gen_durable.outcomes import Await
from gen_durable.store.instance_admin import InstanceAdminStatementBuilder

broken: set[str] = set()
go = Signal("go")


class Shop(Machine):
    """Fails as long as the test says so."""

    @step
    async def start(self, name: str, ctx: Context) -> Outcome[str]:
        return Fail("broken") if name in broken else Done(name)

    @step
    async def fan(self, names: list[str], ctx: Context) -> Outcome[int]:
        children = [Start(Shop.start, name, metadata={"name": name}) for name in names]
        return ScheduleChildren(children, then=self.join, state=names)

    @step
    async def join(self, names: list[str], ctx: Context) -> Outcome[int]:
        return Fail("no child") if not ctx.children else Done(sum(child.ok for child in ctx.children))

    @step
    async def park(self, name: str, ctx: Context) -> Outcome[str]:
        return Await(go, then=self.start, state=name)


@pytest.fixture(autouse=True)
def mended() -> None:
    broken.clear()


async def test_metadata(engine: Opening) -> None:
    """What was said at the insert is told, found, and nothing by default; children have theirs."""
    async with engine() as e, e.worker(Shop()):
        one = await e.app.insert(Shop.start, "a", metadata={"tenant": "acme", "n": 1})
        two, three = await e.app.insert_many(
            [Start(Shop.start, "b", metadata={"tenant": "acme"}), Start(Shop.start, "c")]
        )
        assert (await one.get()).metadata == {"tenant": "acme", "n": 1}
        assert (await three.get()).metadata == {}
        assert [i.id for i in await e.app.list(metadata={"tenant": "acme"})] == [two.id, one.id]
        assert await e.app.count(metadata={"tenant": "acme", "n": 1}) == Count(1, exact=True)
        fan = await e.app.insert(Shop.fan, ["x", "y"])
        await e.end(fan)
        assert [i.metadata["name"] for i in await e.app.list(parent=fan.id)] == ["y", "x"]


async def test_pages_and_all(engine: Opening) -> None:
    """A page has a cursor as long as there is more; `list_all` goes through all."""
    async with engine() as e:
        handles = await e.app.insert_many([Start(Shop.start, str(n)) for n in range(7)])
        ids = [h.id for h in reversed(handles)]
        page = await e.app.list(limit=4)
        assert ([i.id for i in page], len(page)) == (ids[:4], 4)
        rest = await e.app.list(limit=4, after=page.cursor)
        assert ([i.id for i in rest], rest.cursor) == (ids[4:], None)
        assert [i.id async for i in e.app.list_all(machine="Shop", status=Status.RUNNABLE)] == ids
        assert [i.id async for i in e.app.list_all(status="done")] == []


async def test_all_are_read_page_by_page(
    engine: Opening, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages with payloads are smaller."""
    monkeypatch.setattr(instance_admin, "MAX_PAGE", 3)
    monkeypatch.setattr(instance_admin, "PAGE", 2)
    pages: list[tuple[int, bool]] = []
    statement = InstanceAdminStatementBuilder.list

    def noted(self: InstanceAdminStatementBuilder, filters: str, after: Any, size: int, *, payloads: bool) -> Any:
        pages.append((size, payloads))
        return statement(self, filters, after, size, payloads=payloads)

    monkeypatch.setattr(InstanceAdminStatementBuilder, "list", noted)
    async with engine() as e:
        handles = await e.app.insert_many([Start(Shop.start, str(n)) for n in range(5)])
        ids = [h.id for h in reversed(handles)]
        assert [i.id async for i in e.app.list_all()] == ids
        assert [i.state async for i in e.app.list_all(payloads=True)] == ["4", "3", "2", "1", "0"]
    read = [(3, False)] * 2 + [(2, True)] * 3
    assert pages == read
    with SyncDurable(dsn, schema=schema) as app:
        assert [i.id for i in itertools.islice(app.list_all(), 9)] == ids
        assert [i.state for i in itertools.islice(app.list_all(payloads=True), 9)] == ["4", "3", "2", "1", "0"]
        assert pages == read * 2
        first = app.list(limit=4)
        assert [i.state for i in app.list(after=first.cursor, payloads=True)] == ["0"]


async def test_payloads_only_if_asked_for(engine: Opening) -> None:
    """Without them the state is not there, and says how to get it."""
    async with engine() as e:
        handle = await e.app.insert(Shop.start, "secret")
        (light,) = await e.app.list()
        with pytest.raises(InputError, match=rf"instance {handle.id} was listed without its state"):
            _ = light.state
        (whole,) = await e.app.list(payloads=True)
        assert whole.state == "secret"
        assert [i.state async for i in e.app.list_all(payloads=True)] == ["secret"]


NOW = datetime.now(UTC)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "limit must be an int from 1 to 1000"),
    ({"limit": 1001}, "limit must be an int from 1 to 1000"),
    ({"after": "x"}, "after must be the cursor of a page"),
    ({"after": "iffffffffffffffff"}, "after must be the cursor of a page"),
    ({"after": 7}, "after must be the cursor of a page"),
    ({"colour": "red"}, "unknown filter 'colour': use some of status"),
    ({"status": "gone"}, "status: 'gone' is not a valid Status: use some of runnable"),
    ({"status": 7}, "status takes a status or several"),
    ({"machine": "a b"}, "machine must be 1 to 200 characters"),
    ({"version": "1"}, "version must be an int"),
    ({"parent": -1}, "parent must be an int"),
    ({"partition_key": ""}, "partition_key must not be empty"),
    ({"unique_key": 7}, "unique_key must be str or bytes"),
    ({"inserted_after": NOW.replace(tzinfo=None)}, "inserted_after must be timezone-aware"),
    ({"metadata": "x"}, "metadata must be a dict"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
async def test_mistakes(engine: Opening, options: dict[str, Any], words: str) -> None:
    """A filter that cannot be is refused with its name."""
    async with engine() as e:
        assert await unlike(e.app.list(**options), InputError, words) is None
        if not {"limit", "after"} & set(options):
            assert await unlike(e.app.count(**options), InputError, words) is None


async def test_bad_metadata(engine: Opening) -> None:
    """Metadata is a small object with text for keys."""
    async with engine() as e:
        bad: list[tuple[Any, type[Exception], str]] = [
            ("x", InputError, "metadata must be a dict, got str"),
            ({1: 2}, InputError, "metadata must have keys of type str, got one of type int"),
            ({"x": object()}, InputError, "metadata cannot be stored as JSON"),
            ({"x": "y" * 9000}, TooLarge, "metadata is 9,0.. bytes of JSON, at most 8,000"),
        ]
        for metadata, error, words in bad:
            with pytest.raises(error, match=words):
                await e.app.insert(Shop.start, "a", metadata=metadata)
        assert (await e.app.count()).value == 0


async def test_delete(engine: Opening) -> None:
    """What has ended can be deleted; what lives cannot, and says so."""
    async with engine() as e:
        handle = await e.app.insert(Shop.start, "a")
        with pytest.raises(WrongStatus, match=f"instance {handle.id} is runnable: only an ended instance") as refused:
            await handle.delete()
        assert (refused.value.id, refused.value.status) == (handle.id, Status.RUNNABLE)
        async with e.worker(Shop()):
            await e.end(handle)
        await handle.delete()
        with pytest.raises(NotFound, match=f"instance {handle.id} is unknown"):
            await e.app.delete(handle)


async def test_delete_spares_what_a_parent_may_read(engine: Opening) -> None:
    """A child that has ended goes when its parent has ended."""
    async with engine() as e, e.worker(Shop()):
        parent = await e.app.insert(Shop.fan, ["a"])
        await e.end(parent)
        (child,) = await e.app.list(parent=parent.id)
        late = "status = 'runnable', finished_at = null, eligible_at = now() + '1 h'"
        await e.rows.fetch(f"update @.instances set {late} where id = $1", parent.id)
        with pytest.raises(WrongStatus, match=f"its parent {parent.id} has not ended"):
            await e.app.delete(child.id)
        await e.rows.fetch(f"update @.instances set {late} where id = $1", child.id)
        with pytest.raises(WrongStatus, match=f"instance {child.id} is runnable: only an ended instance"):
            await e.app.delete(child.id)


async def test_retry(engine: Opening) -> None:
    """A failed instance goes on at once in a running worker, and whoever waits hears of its second end."""
    async with engine() as e, e.worker(Shop()):
        broken.add("a")
        handle = await e.app.insert(Shop.start, "a")
        assert isinstance(await e.end(handle), Failed)
        broken.clear()
        await handle.retry()
        assert await e.end(handle) == Finished(handle.id, "a")
        with pytest.raises(WrongStatus, match="is done: only a failed or cancelled instance can be retried"):
            await handle.retry()
        with pytest.raises(NotFound):
            await e.app.retry(999)


async def test_retry_of_a_join(engine: Opening) -> None:
    """A join that has failed reads its children again."""
    async with engine() as e, e.worker(Shop()):
        broken.update(("a", "b"))
        handle = await e.app.insert(Shop.fan, ["a", "b", "c"])
        assert await e.end(handle) == Finished(handle.id, 1)
        await e.rows.fetch("update @.instances set status = 'failed', result = null where id = $1", handle.id)
        await handle.retry()
        assert await e.end(handle) == Finished(handle.id, 1)


async def test_for_code_that_does_not_await(dsn: str, schema: str) -> None:
    """`SyncDurable` has all of it."""
    with SyncDurable(dsn, schema=schema) as app:
        one = app.insert(Shop.start, "a", metadata={"n": 1})
        two = app.insert(Shop.start, "b")
        assert [i.id for i in app.list(limit=1)] == [two.id]
        assert [i.id for i in app.list_all(machine="Shop")] == [two.id, one.id]
        assert app.count(metadata={"n": 1}, inserted_after=NOW - timedelta(hours=1)) == Count(1, exact=True)
        for refused in (one.retry, one.delete, lambda: app.retry(one), lambda: app.delete(one.id)):
            with pytest.raises(WrongStatus, match="is runnable"):
                refused()
