"""One bad outcome never harms the others of its batch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gen_durable import Context, Done, Durable, Fail, Failed, Finished, Machine, Outcome, Start, Worker, step
from gen_durable.errors import EncodeError
from gen_durable.telemetry import Event, StepCommitted

BAD: dict[int, Any] = {17: "a\0b", 42: float("nan"), 77: object()}


@dataclass(frozen=True)
class Number:
    """Which of the hundred it is."""

    n: int


class Crowd(Machine):
    """A hundred instances that all return at the same moment."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.here = 0
        self.all_here = asyncio.Event()
        self.errors: dict[int, Exception] = {}

    @step
    async def meet(self, number: Number, ctx: Context) -> Outcome[Any]:
        self.here += 1
        if self.here == self.size:
            self.all_here.set()
        await self.all_here.wait()
        return Done(BAD.get(number.n, number.n))

    async def on_error(self, state: Number, ctx: Context, error: Exception) -> Outcome[Any]:
        self.errors[state.n] = error
        return Fail(error)


async def test_of_a_hundred_outcomes_three_bad_ones_reach_on_error_and_97_commit(dsn: str, schema: str) -> None:
    """A NUL character, a NaN and an unserialisable object are their own step's error; the other 97 are done."""
    crowd = Crowd(100)
    events: list[Event] = []
    async with Durable(dsn, schema=schema) as app:
        app.events.subscribe(events.append)
        async with Worker(app, machines=[crowd], queues={"default": 100}):
            handles = await app.insert_many([Start(Crowd.meet, Number(n)) for n in range(100)])
            endings = await asyncio.gather(*(h.wait(timedelta(seconds=20)) for h in handles))
        assert [n for n, ending in enumerate(endings) if not isinstance(ending, Finished)] == [17, 42, 77]
        assert set(crowd.errors) == {17, 42, 77}
        assert all(isinstance(error, EncodeError) for error in crowd.errors.values())
        texts = {n: endings[n] for n in BAD}
        for n, words in ((17, "NUL"), (42, "NaN"), (77, "object")):
            ending = texts[n]
            assert isinstance(ending, Failed)
            assert words in ending.error
        assert {(await app.get(h.id)).claims for h in handles} == {1}
        assert sum(isinstance(e, StepCommitted) for e in events) == 100
