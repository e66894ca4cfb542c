"""What `insert` and `insert_many` do about a unique key that is taken."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engine import Opening

from gen_durable import Finished, Start, job
from gen_durable.errors import Duplicate, GenDurableError


@job
async def double(number: int) -> int:
    return number * 2


async def test_raise_is_the_default(engine: Opening) -> None:
    """`Duplicate` carries the key and the holder, names both in its message, and nothing is written."""
    async with engine() as e:
        holder = await e.app.insert(double, 1, unique_key="order:7")
        with pytest.raises(Duplicate, match=rf"'order:7' is taken by instance {holder.id}") as caught:
            await e.app.insert(double, 2, unique_key="order:7")
        assert caught.value.key == b"order:7"
        assert caught.value.existing_id == holder.id
        assert isinstance(caught.value, GenDurableError)
        assert await e.rows.count() == 1


async def test_raise_with_a_binary_key(engine: Opening) -> None:
    """A key that is no text comes back byte for byte."""
    key = b"\x00\xfe\xff"
    async with engine() as e:
        await e.app.insert(double, 1, unique_key=key)
        with pytest.raises(Duplicate) as caught:
            await e.app.insert(double, 2, unique_key=key)
        assert caught.value.key == key


async def test_skip(engine: Opening) -> None:
    """`skip` answers None and writes nothing; a free key is inserted as ever."""
    async with engine() as e:
        assert await e.app.insert(double, 1, unique_key="k", on_conflict="skip") is not None
        assert await e.app.insert(double, 2, unique_key="k", on_conflict="skip") is None
        assert await e.rows.count() == 1


async def test_existing(engine: Opening) -> None:
    """`existing` answers with a handle on the holder, whose state stays as it was."""
    async with engine() as e:
        first = await e.app.insert(double, 1, unique_key="k")
        second = await e.app.insert(double, 2, unique_key="k", on_conflict="existing")
        assert second.id == first.id
        assert await e.rows.count() == 1
        async with e.worker(double):
            assert await e.end(second) == Finished(first.id, 2)


async def test_a_race_has_one_winner(engine: Opening) -> None:
    """Of many inserts of one key at once exactly one makes a row, and all answers name it."""
    async with engine() as e:
        handles = await asyncio.gather(
            *(e.app.insert(double, n, unique_key="k", on_conflict="existing") for n in range(40))
        )
        assert len({handle.id for handle in handles}) == 1
        assert await e.rows.count() == 1


async def test_many_raise_is_all_or_nothing(engine: Opening) -> None:
    """One taken key among many: `Duplicate` names it, and not one of the others is written."""
    async with engine() as e:
        holder = await e.app.insert(double, 0, unique_key="taken")
        starts = [Start(double, n, unique_key=f"k{n}") for n in range(50)]
        starts.insert(25, Start(double, 99, unique_key="taken"))
        with pytest.raises(Duplicate) as caught:
            await e.app.insert_many(starts)
        assert (caught.value.key, caught.value.existing_id) == (b"taken", holder.id)
        assert await e.rows.count() == 1


async def test_many_raise_on_a_key_twice_in_the_batch(engine: Opening) -> None:
    """The same key twice in one call is a duplicate too, and nothing is written."""
    async with engine() as e:
        with pytest.raises(Duplicate) as caught:
            await e.app.insert_many([Start(double, 1, unique_key="k"), Start(double, 2, unique_key="k")])
        assert caught.value.key == b"k"
        assert await e.rows.count() == 0


async def test_duplicate_names_no_row_that_was_rolled_back(engine: Opening) -> None:
    """When the holder is a sibling of the same failed call, there is no instance to name."""
    async with engine() as e:
        with pytest.raises(Duplicate) as caught:
            await e.app.insert_many([Start(double, 1, unique_key="k"), Start(double, 2, unique_key="k")])
        existing = caught.value.existing_id
        assert existing is None or await e.rows.count(f"id = {existing}") == 1


async def test_many_skip_keeps_its_place(engine: Opening) -> None:
    """With `skip` the answer has None exactly where a key was taken."""
    async with engine() as e:
        await e.app.insert(double, 0, unique_key="k1")
        starts = [Start(double, n, unique_key=f"k{n}") for n in range(3)]
        handles = await e.app.insert_many(starts, on_conflict="skip")
        assert [handle is None for handle in handles] == [False, True, False]
        assert await e.rows.count() == 3


async def test_many_existing_in_order(engine: Opening) -> None:
    """With `existing` every place has a handle; a key twice in the batch has the same one twice."""
    async with engine() as e:
        old = await e.app.insert(double, 0, unique_key="b")
        starts = [Start(double, n, unique_key=key) for n, key in enumerate(["z", "b", "a", "z"])]
        z, b, a, z_again = await e.app.insert_many(starts, on_conflict="existing")
        assert b.id == old.id
        assert z.id == z_again.id
        assert len({z.id, b.id, a.id}) == 3
        assert (await z.get()).unique_key == b"z"
        assert (await a.get()).unique_key == b"a"


async def test_many_with_and_without_keys(engine: Opening) -> None:
    """Rows without a key never conflict, whatever stands beside them."""
    async with engine() as e:
        await e.app.insert(double, 0, unique_key="k")
        starts = [Start(double, 1), Start(double, 2, unique_key="k"), Start(double, 3)]
        first, taken, third = await e.app.insert_many(starts, on_conflict="skip")
        assert first is not None
        assert taken is None
        assert third is not None
        assert [(await h.get()).state for h in (first, third)] == [1, 3]
