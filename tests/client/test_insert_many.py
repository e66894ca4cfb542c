"""Many instances in one call."""

from __future__ import annotations

import pytest
from tests.support.engine import Opening

from gen_durable import Context, Done, Machine, Outcome, Start, job, step
from gen_durable.errors import EncodeError, TooLarge


@job
async def double(number: int) -> int:
    return number * 2


class Greeting(Machine, queue="letters"):
    @step
    async def write(self, name: str, ctx: Context) -> Outcome[str]:
        return Done(f"dear {name}")


async def test_the_answers_are_in_order(engine: Opening) -> None:
    """The n-th handle is of the n-th start, also when keys sort differently and queues and priorities vary."""
    async with engine() as e:
        starts = [
            Start(double, n, unique_key=f"k{(n * 7) % 100:02}", queue=f"q{n % 3}", priority=n % 5) for n in range(100)
        ]
        handles = await e.app.insert_many(starts)
        found = {row["id"]: row for row in await e.rows.fetch("select * from @.instances")}
        for n, handle in enumerate(handles):
            row = found[handle.id]
            assert row["state"] == str(n)
            assert (row["queue"], row["priority"]) == (f"q{n % 3}", n % 5)
            assert row["unique_key"] == f"k{(n * 7) % 100:02}".encode()
        assert [h.id for h in handles] == sorted(h.id for h in handles)


async def test_different_machines_in_one_call(engine: Opening) -> None:
    """One call may start instances of several machines and jobs, each in its own queue."""
    async with engine() as e:
        numbers, letters = await e.app.insert_many([Start(double, 2), Start(Greeting.write, "Ada")])
        assert (await e.rows.row(numbers))["fsm"] == "double"
        assert (await e.rows.row(letters))["queue"] == "letters"


async def test_ten_thousand_in_one_call(engine: Opening) -> None:
    """The greatest batch goes in at once, in one transaction."""
    async with engine() as e:
        handles = await e.app.insert_many(Start(double, n) for n in range(10_000))
        assert len({handle.id for handle in handles}) == 10_000
        assert await e.rows.count() == 10_000
        assert await e.rows.value("select count(distinct inserted_at) from @.instances") == 1


async def test_ten_thousand_and_one_is_refused(engine: Opening) -> None:
    """One more is refused with both numbers, and nothing is written."""
    async with engine() as e:
        with pytest.raises(TooLarge, match=r"10,001 instances, at most 10,000"):
            await e.app.insert_many([Start(double, 1)] * 10_001)
        assert await e.rows.count() == 0


async def test_nothing_to_insert(engine: Opening) -> None:
    """An empty list is answered with an empty list."""
    async with engine() as e:
        assert await e.app.insert_many([]) == []
        assert await e.app.insert_many([], on_conflict="skip") == []


async def test_one_bad_state_refuses_all(engine: Opening) -> None:
    """A state in the middle that cannot be stored refuses the whole call before anything is written."""
    async with engine() as e:
        starts = [Start(double, n) for n in range(10)]
        starts[5] = Start(double, "five")  # type: ignore[arg-type]  # what an unchecked caller may do
        with pytest.raises(EncodeError, match="double"):
            await e.app.insert_many(starts)
        assert await e.rows.count() == 0
