"""The bare ceiling: the engine's own SQL functions, called by a loop that does nothing else.

One connection, one statement after the other, in batches: no slots, tasks, codecs, leases
or wake-ups. The engine loses what all of these cost, and gains because its pick and its flush overlap.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from gen_durable import Context, Durable, ScheduleChildren, Start
from gen_durable.core.services import services_of
from gen_durable.engine.outcome_and_children_flusher import flush_outcome_and_children
from gen_durable.engine.outcome_encoder import encode_outcome
from gen_durable.pg.connector import connect_to_first_usable_host
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.starts import to_step_spec
from gen_durable.store.statements import Statement
from gen_durable.store.types import Claim, Commit
from tools.bench.process_main import Parent
from tools.bench.work import CHAIN, Fan, known

T = TypeVar("T")
RunStatement = Callable[[Statement[Any]], Awaitable[Any]]
BATCH = 200
LEASE = 15.0
VALUE = "1"
AFTER = dict(pairwise(CHAIN))


async def open_runner(app: Durable) -> RunStatement:
    """Open one connection, and return a function that runs statements on it."""
    connection = (await connect_to_first_usable_host(services_of(app).connection_target)).driver_connection

    async def run(statement: Statement[T]) -> T:
        return statement.read(await connection.fetch(statement.text, *statement.args))

    return run


async def pick(run: RunStatement, app: Durable, batch: int, queue: str = "default") -> list[Claim]:
    """Pick claims, in the order of their ids."""
    picked = await run(services_of(app).statements.pick("bare", {queue: batch}, known(), LEASE))
    return sorted(picked.claims, key=lambda claim: claim.id)


async def finish(run: RunStatement, app: Durable, claims: list[Claim], *, steps: int = 0) -> None:
    """End claims that have run ahead by `steps` steps."""
    commits = [Commit(c.id, c.epoch, c.seq + steps, "done", value=VALUE, parent=c.parent_id) for c in claims]
    await run(services_of(app).statements.flush(commits))


async def drain(parent: Parent, app: Durable, *, batch: int = BATCH, queue: str = "default") -> None:
    """A role: pick, finish, and again."""
    run = await open_runner(app)
    count, at = 0, 0.0
    await parent.wait_for_start()
    while claims := await pick(run, app, batch, queue):
        await finish(run, app, claims)
        count += len(claims)
        at = time.monotonic()
    parent.report(count, at)
    await parent.wait_for_stop()


async def chain(parent: Parent, app: Durable, *, run_ahead: bool, batch: int = BATCH) -> None:
    """A role: chains of five steps; with run-ahead one claim serves all steps, without it each has its own."""
    run = await open_runner(app)
    count, at = 0, 0.0
    await parent.wait_for_start()
    while claims := await pick(run, app, batch):
        if run_ahead:
            for number, following in enumerate(CHAIN[1:]):
                commits = [
                    Commit(c.id, c.epoch, c.seq + number, "continue", step=following, value=VALUE) for c in claims
                ]
                await run(services_of(app).statements.flush(commits))
            ending = claims
        else:
            going = [c for c in claims if c.step != CHAIN[-1]]
            ending = [c for c in claims if c.step == CHAIN[-1]]
            if going:
                commits = [Commit(c.id, c.epoch, c.seq, "next", step=AFTER[c.step], value=VALUE) for c in going]
                await run(services_of(app).statements.flush(commits))
        if ending:
            await finish(run, app, ending, steps=len(CHAIN) - 1 if run_ahead else 0)
            count += len(ending)
            at = time.monotonic()
    parent.report(count, at)
    await parent.wait_for_stop()


async def fan(parent: Parent, app: Durable, *, children: int, batch: int = BATCH) -> None:
    """A role: a parent, its children, and the join."""
    run = await open_runner(app)
    await parent.wait_for_start()
    await run(services_of(app).statements.insert([Start(Fan.spread, children)], "raise"))
    (parent_claim,) = await pick(run, app, 1)
    outcome = await Fan().spread(children, cast(Context, None))
    assert isinstance(outcome, ScheduleChildren)
    shown = cast(Context, SimpleNamespace(awaited=()))
    spawned = encode_outcome(parent_claim, to_step_spec(Fan.spread, "fan"), shown, outcome, may_continue=False)
    while spawned.encode_next_chunk():
        pass
    many_children = spawned.commit.many_children
    if many_children is None:
        await run(services_of(app).statements.flush([spawned.commit]))
    else:
        await PersistentConnection(services_of(app).connection_target).run_in_transaction(
            partial(flush_outcome_and_children, statements=services_of(app).statements, commit=spawned.commit)
        )
    count = 0
    while claims := await pick(run, app, batch):
        await finish(run, app, claims)
        count += len(claims)
    assert count == children + 1, count
    parent.report(count, time.monotonic())
    await parent.wait_for_stop()
