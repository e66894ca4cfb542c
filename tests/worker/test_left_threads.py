"""A thread that a `def` step started and left running cannot change what the step returned."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from tests.support.engine import BRIEF, Opening

from gen_durable import Context, Done, Finished, Machine, Next, Outcome, job, step

changed = threading.Event()
loops: list[asyncio.AbstractEventLoop] = []


def change_later(state: dict[str, Any]) -> None:
    """Change a state while the event loop is kept busy: after the step has returned, before the loop has its answer."""

    def change() -> None:
        time.sleep(0.1)
        state["word"] = "changed"
        changed.set()

    loops[0].call_soon_threadsafe(lambda: (changed.wait(5), None)[1])
    threading.Thread(target=change, daemon=True).start()


class Leaves(Machine):
    @step
    def first(self, word: str, ctx: Context) -> Outcome[str]:
        state = {"word": word}
        change_later(state)
        return Next(self.second, state)

    @step
    async def second(self, state: dict[str, Any], ctx: Context) -> Outcome[str]:
        return Done(state["word"])


@job
def result(word: str) -> dict[str, Any]:
    state = {"word": word}
    change_later(state)
    return state


async def test_the_state_that_was_returned_is_committed(engine: Opening) -> None:
    """The next step gets what the step returned, also when it runs ahead, and the history has the same."""
    loops[:] = [asyncio.get_running_loop()]
    changed.clear()
    async with engine() as e, e.worker(Leaves(), **BRIEF):
        handle = await e.app.insert(Leaves.first, "returned")
        assert await e.end(handle) == Finished(handle.id, "returned")


async def test_the_result_that_was_returned_is_committed(engine: Opening) -> None:
    loops[:] = [asyncio.get_running_loop()]
    changed.clear()
    async with engine() as e, e.worker(result, **BRIEF):
        handle = await e.app.insert(result, "returned")
        assert await e.end(handle) == Finished(handle.id, {"word": "returned"})
