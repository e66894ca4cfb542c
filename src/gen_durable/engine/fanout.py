"""Brood: the children of an outcome that starts too many of them for one statement, and of the join that reads them.

In: a commit with a brood. Out: the answer of its flush. One transaction locks the parent, starts the children part by
part, and commits the outcome: all of them are there with that commit, or none. The parent's row stays locked meanwhile,
so nobody takes its claim, however long it takes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Final

from gen_durable.context import Child
from gen_durable.encryption import PayloadEncryption
from gen_durable.pg.connection import RunStatement
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import Statements
from gen_durable.store.types import Commit, Flushed

PART: Final = 1000
PAGE: Final = 1000

ReadChildren = Callable[[int, int], Awaitable[list[Child]]]
"""A page of the children of an instance: its id, and the id after which the page begins."""


async def commit_in_transaction(
    ask: RunStatement, *, calls: Statements, commit: Commit, worker: str | None = None
) -> Flushed:
    """Flush one outcome, with its children if they are many, inside a transaction."""
    brood = commit.brood
    if brood is None:
        return await ask(calls.flush([commit], worker, time.perf_counter()))
    woken: set[str] = set()
    ids = await ask(calls.begin_fanout(commit, 0 if brood.ids is not None else len(brood.encoded)))
    if ids is not None:  # else the flush tells whether it came too late or is there already
        for part in brood.parts(brood.ids or ids, PART):
            queues = await ask(calls.spawn(commit, part))
            woken.update(queues)
    flushed = await ask(calls.flush([commit], worker, time.perf_counter()))
    wakeups = dataclasses.replace(flushed.wakeups, queues=flushed.wakeups.queues | woken)
    return dataclasses.replace(flushed, wakeups=wakeups)


def children_reader(pool: Pool, calls: Statements, seal: PayloadEncryption | None = None) -> ReadChildren:
    """How a step reads children that are too many to come along with its claim."""

    async def read(parent: int, after: int) -> list[Child]:
        children = await pool.run_safely(calls.children(parent, after, PAGE))
        return children if seal is None else list(seal.children(children))

    return read
