"""Children that are too many for one statement: their insert with the outcome, and their reading by the join.

One transaction locks the parent, inserts the children part by part, and commits the outcome: all children exist after
that commit, or none. The parent's row stays locked meanwhile, so its claim cannot be taken over, however long it takes.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Final

from gen_durable.context import Child
from gen_durable.encryption import PayloadEncryption
from gen_durable.pg.persistent_connection import RunStatement
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Commit, FlushResult

INSERT_BATCH: Final = 1000
INSERT_BYTES: Final = 4_000_000
PAGE: Final = 1000


async def flush_in_transaction(
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
            woken_queues = await run(statements.insert_started_instances(commit, part))
            queues.update(woken_queues)
    flushed = await run(statements.flush([commit], worker, time.perf_counter()))
    follow_ups = dataclasses.replace(flushed.follow_ups, queues=flushed.follow_ups.queues | queues)
    return dataclasses.replace(flushed, follow_ups=follow_ups)


class ChildrenReader:
    """Reads the children that are too many to come with their parent's claim."""

    __slots__ = ("_encryption", "_pool", "_statements")

    def __init__(self, pool: Pool, statements: StatementBuilder, encryption: PayloadEncryption | None = None) -> None:
        self._pool = pool
        self._statements = statements
        self._encryption = encryption

    async def read_page(self, parent: int, after: int) -> list[Child]:
        """The page of children whose ids follow `after`."""
        children = await self._pool.run_idempotent(self._statements.children_page(parent, after, PAGE))
        return children if self._encryption is None else list(self._encryption.decrypt_children(children))
