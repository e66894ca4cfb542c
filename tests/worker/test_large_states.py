"""Large states that are claimed together are decoded in turn: the event loop runs other work between two of them."""

from __future__ import annotations

import asyncio
import time

from tests.support.engine import Opening

from gen_durable import Context, Done, Machine, Outcome, Start, step
from gen_durable.engine.claim_runner import LARGE_STATE

COUNT = 8


class Large(Machine):
    """Notes in which iteration of the event loop each of its steps began."""

    def __init__(self) -> None:
        self.iterations: list[int] = []
        self._now = 0
        self._counter: asyncio.Handle | None = None

    def count(self) -> None:
        self._now += 1
        self._counter = asyncio.get_running_loop().call_soon(self.count)

    def stop(self) -> None:
        if self._counter is not None:
            self._counter.cancel()

    @step
    async def begin(self, state: str, ctx: Context) -> Outcome[int]:
        self.iterations.append(self._now)
        return Done(len(state))


async def iterations_of(engine: Opening, size: int) -> list[int]:
    """The iterations in which the steps of eight instances with states of `size` bytes began."""
    machine = Large()
    async with engine() as e:
        handles = await e.app.insert_many([Start(Large.begin, "x" * size) for _ in range(COUNT)])
        machine.count()
        async with e.worker(machine):
            for handle in handles:
                assert handle is not None
                await e.end(handle)
        machine.stop()
    return machine.iterations


async def test_large_states_are_decoded_one_per_iteration(engine: Opening) -> None:
    """With its quotes, the JSON of each is just as large as it needs to be. None waits longer than an iteration."""
    began = time.monotonic()
    assert len(set(await iterations_of(engine, LARGE_STATE - 2))) == COUNT
    assert time.monotonic() - began < COUNT


async def test_small_states_begin_together(engine: Opening) -> None:
    assert len(set(await iterations_of(engine, 10))) < COUNT
