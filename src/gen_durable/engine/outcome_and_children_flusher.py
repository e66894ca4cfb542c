"""Flushes one outcome inside a transaction, with its children if they are too many for one statement.

The transaction locks the parent, inserts the children part by part, and commits the outcome: all children exist after
that commit, or none. The parent's row stays locked meanwhile, so its claim cannot be taken over, however long it takes.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Final

from gen_durable.pg.persistent_connection import RunStatement
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit, FlushResult

INSERT_BATCH: Final = 1000
INSERT_BYTES: Final = 4_000_000


async def flush_outcome_and_children(
    run: RunStatement, *, statements: StatementBuilder, commit: Commit, worker: str | None = None
) -> FlushResult:
    """Flush one outcome inside a transaction, with its children if they are many."""
    children = commit.many_children
    if children is None:
        return await run(statements.flush([commit], worker, time.perf_counter()))
    queues: set[str] = set()
    ids = await run(
        statements.lock_parent_and_allocate_ids(commit, 0 if children.ids is not None else len(children.encoded))
    )
    if ids is not None:  # else the fence does not match, and the flush answers why
        for part in children.encode_parts(children.ids or ids, INSERT_BATCH, INSERT_BYTES):
            woken_queues = await run(statements.insert_instances_of_outcomes(commit, part))
            queues.update(woken_queues)
    flushed = await run(statements.flush([commit], worker, time.perf_counter()))
    follow_ups = dataclasses.replace(flushed.follow_ups, queues=flushed.follow_ups.queues | queues)
    return dataclasses.replace(flushed, follow_ups=follow_ups)
