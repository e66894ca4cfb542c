"""Giving up while a connection is made: at any moment, and without a word in the log."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from tests.support.hosts import Place

from gen_durable.pg.connect import Target, connect, connect_to_host
from gen_durable.pg.dsn import split_hosts

TURNS = 20
"""So many turns of the loop it takes at most until the driver waits for the host's first word."""


async def test_given_up_at_any_moment(silent: Place) -> None:
    """Cancelled between the socket's connection and the driver's first wait, the driver would leave an error behind."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    (host,) = split_hosts("postgresql://me@{}:{}/db".format(*silent)).hosts

    async def give_up(turns: int) -> bool:
        dialling = asyncio.ensure_future(connect_to_host(host, Target(host.dsn), 5.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        dialling.cancel()
        await asyncio.wait([dialling])
        return dialling.cancelled()

    assert all([await give_up(turns) for turns in range(TURNS)])
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=5)  # what was given up ends soon, too
    assert all(task.done() for task in left)
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize(
    ("option", "default", "words"),
    [("", 0.3, "no connection within 0.3 s"), ("?connect_timeout=1", 30.0, "within 1 s")],
)
async def test_a_host_that_does_not_answer(silent: Place, option: str, default: float, words: str) -> None:
    """The attempt ends after the timeout of the DSN, else after that of the engine."""
    target = Target("postgresql://me@{}:{}/db".format(*silent) + option, connect_timeout=default)
    with pytest.raises(TimeoutError, match=words):
        await asyncio.wait_for(connect(target), 10)
