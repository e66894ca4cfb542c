"""The read side: get, list, count, delete, metadata."""

from __future__ import annotations

import pytest
from tests.support.capabilities import Opening, double

from gen_durable import Start, Status
from gen_durable.errors import NotFound, WrongStatus


async def test_get(engine: Opening) -> None:
    """By id, by key, by handle; what is not there is told."""
    async with engine() as e:
        handle = await e.app.insert(double, 1, unique_key="order:1")
        assert {(await e.app.get(by)).id for by in (handle.id, "order:1", handle)} == {handle.id}
        with pytest.raises(NotFound, match="77 is unknown"):
            await e.app.get(77)


async def test_list_by_filters_in_pages(engine: Opening) -> None:
    """Newest first; a cursor goes on where the page ended, whatever has come since."""
    async with engine() as e:
        handles = await e.app.insert_many([Start(double, n, queue=f"q{n % 2}") for n in range(10)])
        first = await e.app.list(queue="q1", limit=3)
        await e.app.insert(double, 99, queue="q1")
        rest = await e.app.list(queue="q1", limit=3, after=first.cursor)
        odd = [h.id for h in reversed(handles) if h.id % 2 == handles[1].id % 2]
        assert [i.id for i in (*first, *rest)] == odd
        assert rest.cursor is None
        assert [i.id async for i in e.app.list_all(machine="nobody")] == []


async def test_count(engine: Opening) -> None:
    async with engine() as e:
        await e.app.insert_many([Start(double, n) for n in range(5)])
        await e.claim(2)
        for filters, expected in (({}, 5), ({"status": "executing"}, 2), ({"status": ["runnable", "executing"]}, 5)):
            count = await e.app.count(**filters)  # type: ignore[arg-type]
            assert (count.value, count.exact) == (expected, True)


async def test_delete_of_a_finished_run(engine: Opening) -> None:
    """With all that belongs to it; one that lives is refused."""
    async with engine() as e:
        handle = await e.app.insert(double, 1)
        with pytest.raises(WrongStatus, match="only an ended instance"):
            await e.app.delete(handle)
        await e.end(handle, jobs=[double])
        assert (await handle.get()).status is Status.DONE
        await e.app.delete(handle)
        assert (await e.app.count()).value == 0
        assert await e.app.history(handle) == []
        with pytest.raises(NotFound):
            await e.app.delete(handle)


async def test_metadata_containment(engine: Opening) -> None:
    """Said at the insert; found by any part of it, by nothing that it does not say."""
    async with engine() as e:
        acme = await e.app.insert(double, 1, metadata={"tenant": "acme", "tags": ["a", "b"], "n": {"x": 1, "y": 2}})
        await e.app.insert(double, 2, metadata={"tenant": "bolt"})
        await e.app.insert(double, 3)

        async def found(**metadata: object) -> list[int]:
            return [i.id for i in await e.app.list(metadata=metadata)]

        assert await found(tenant="acme") == [acme.id]
        assert await found(tags=["b"], n={"x": 1}) == [acme.id]
        assert await found(tenant="acme", tags=["c"]) == []
        assert (await e.app.get(acme)).metadata["n"] == {"x": 1, "y": 2}
        assert (await e.app.count(metadata={"tenant": "bolt"})).value == 1
