"""Children that are too many for one statement: their insert with the outcome, and their reading by the join.

One transaction locks the parent, inserts the children part by part, and commits the outcome: all children exist after
that commit, or none. The parent's row stays locked meanwhile, so its claim cannot be taken over, however long it takes.
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

INSERT_BATCH: Final = 1000
PAGE: Final = 1000

ReadChildren = Callable[[int, int], Awaitable[list[Child]]]
"""Reads a page of children: the parent's id, and the child id after which the page begins."""


async def commit_in_transaction(
    run: RunStatement, *, statements: Statements, commit: Commit, worker: str | None = None
) -> Flushed:
    """Flush one outcome inside a transaction, with its children if they are many."""
    children = commit.brood
    if children is None:
        return await run(statements.flush([commit], worker, time.perf_counter()))
    queues: set[str] = set()
    ids = await run(statements.begin_fanout(commit, 0 if children.ids is not None else len(children.encoded)))
    if ids is not None:  # else the fence does not match, and the flush answers why
        for part in children.parts(children.ids or ids, INSERT_BATCH):
            woken = await run(statements.spawn(commit, part))
            queues.update(woken)
    flushed = await run(statements.flush([commit], worker, time.perf_counter()))
    wakeups = dataclasses.replace(flushed.wakeups, queues=flushed.wakeups.queues | queues)
    return dataclasses.replace(flushed, wakeups=wakeups)


def children_reader(pool: Pool, statements: Statements, encryption: PayloadEncryption | None = None) -> ReadChildren:
    """A reader for the children that are too many to come with their parent's claim."""

    async def read(parent: int, after: int) -> list[Child]:
        children = await pool.run_safely(statements.children(parent, after, PAGE))
        return children if encryption is None else list(encryption.children(children))

    return read
