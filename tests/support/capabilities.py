"""What a Postgres store for a workflow worker offers, capability by capability, and that it is here.

| there | here | module |
|---|---|---|
| a run queue: from enqueue to dead letter | insert, pick, keep, flush, reap, `on_dead_letter` | test_run_queue |
| enqueue in the caller's transaction | `connection=` | test_caller_transaction |
| a checkpointer behind the lease | `ctx.checkpoint`, `last_checkpoint`, `clear_checkpoint` | test_checkpointer |
| step progress | `ctx.progress`, `app.progress`, `gen-durable show`, view `step_status` | test_step_progress |
| an activity log | `ctx.run`, `app.activities` | test_activity_log |
| the caller owns what is his: migrations, logs, schema | `migrate`, `logging`, `schema=` | test_ownership |
| a read side | `app.get`, `list`, `count`, `delete`, `metadata=` | test_read_side |
| defects that it has | none of them | test_known_defects |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import pytest

from gen_durable import Durable, Handle, Instance, Worker, job
from gen_durable.core.services import services_of
from gen_durable.store.statements import Statement
from gen_durable.store.types import Claim, Commit, FlushResult, ReapedClaim

SOON = timedelta(seconds=15)
BRIEF: dict[str, Any] = {
    "lease_ttl": timedelta(seconds=0.9),
    "heartbeat_interval": timedelta(seconds=0.3),
    "reap_interval": timedelta(seconds=0.1),
}


@job
async def double(n: int) -> int:
    """The run of these tests."""
    return n * 2


class Engine:
    """An open client, and a worker's calls made by hand."""

    def __init__(self, app: Durable) -> None:
        self.app = app

    async def claim(
        self, count: int = 1, *, lease: float = 60, worker: str = "w", queue: str = "default"
    ) -> list[Claim]:
        known = ["double/1/run"]
        return (
            await services_of(self.app).pool.run(
                services_of(self.app).statements.pick(worker, {queue: count}, known, lease)
            )
        ).claims

    async def complete(self, claim: Claim, result: str) -> FlushResult:
        commit = Commit(claim.id, claim.epoch, claim.seq, "done", value=result, parent=claim.parent_id)
        return await services_of(self.app).pool.run(services_of(self.app).statements.flush([commit]))

    async def beat(self, claim: Claim, lease: float) -> list[int]:
        """Which claims were lost."""
        return await services_of(self.app).pool.run(
            services_of(self.app).statements.heartbeat([(claim.id, claim.epoch)], lease)
        )

    async def reclaim(self, max_crashes: int | None = None) -> list[ReapedClaim]:
        return (await services_of(self.app).pool.run(services_of(self.app).statements.reap(100, max_crashes))).claims

    async def sql(self, text: str, *args: object) -> list[Any]:
        return await services_of(self.app).pool.run(
            Statement(services_of(self.app).statements.schema.render(text), args, list)
        )

    async def end(self, handle: Handle[Any], **workers: Any) -> Any:
        """How an instance ends, with a worker for it."""
        async with Worker(self.app, **workers):
            return await handle.wait(SOON)

    async def until(self, handle: Handle[Any], test: Callable[[Instance], bool]) -> Instance:
        async with asyncio.timeout(15):
            while True:
                row = await handle.get()
                if test(row):
                    return row
                await asyncio.sleep(0.01)


Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[Engine]]


@pytest.fixture
def engine(dsn: str, schema: str) -> Opening:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Engine]:
        async with Durable(dsn, schema=schema) as app:
            yield Engine(app)

    return opened
