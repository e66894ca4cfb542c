"""A load whose every acknowledgement is written down, and an account of them in the end.

In: a DSN of all hosts. Out: what was acknowledged and when; and, from the rows that are there in the end, what of it
was lost. Each execution of a step draws a token and puts it into the state, so an outcome that was acknowledged, lost
and made again by another execution is distinguished from one that stayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg

from gen_durable import (
    Await,
    Context,
    Done,
    Durable,
    Finished,
    Machine,
    Outcome,
    Signal,
    Worker,
    step,
)
from gen_durable.errors import DatabaseUnavailable, NoTarget, NotFound
from gen_durable.invariant_checker import diagnose
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from gen_durable.telemetry import Event, StepCommitted

T = TypeVar("T")
CALLERS = 16
PAUSE = 0.02
DRAIN = 90.0
go = Signal("go", str)


@dataclass(frozen=True)
class Papers:
    """What an instance carries: the token of each step that has run."""

    first: str = ""
    last: str = ""


@dataclass
class Ledger:
    """What was acknowledged. Times are of the monotonic clock."""

    inserts: dict[str, int] = field(default_factory=dict[str, int])
    signals: set[str] = field(default_factory=set[str])
    drawn: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    outcomes: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    results: dict[str, Papers] = field(default_factory=dict[str, Papers])
    times: list[float] = field(default_factory=list[float])
    unknown: int = 0
    missed: int = 0

    @property
    def acknowledged(self) -> int:
        return len(self.inserts) + len(self.signals) + len(self.outcomes)

    def note(self) -> None:
        self.times.append(time.monotonic())

    def record(self, event: Event) -> None:
        """A step's outcome was committed."""
        if isinstance(event, StepCommitted):
            self.outcomes[event.id, event.step] = self.drawn[event.id, event.step]
            self.note()

    def draw(self, ctx: Context) -> str:
        token = secrets.token_hex(4)
        self.drawn[ctx.id, ctx.step] = token
        return token


class Errand(Machine):
    """Waits for a signal, and ends."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    @step
    async def begin(self, papers: Papers, ctx: Context) -> Outcome[Papers]:
        return Await(go, then=self.end, state=replace(papers, first=self.ledger.draw(ctx)))

    @step
    async def end(self, papers: Papers, ctx: Context) -> Outcome[Papers]:
        return Done(replace(papers, last=self.ledger.draw(ctx)))


@dataclass(frozen=True)
class Account:
    """What became of what was acknowledged."""

    lost_inserts: int
    lost_signals: int
    lost_outcomes: int
    open: int
    broken: int

    @property
    def lost(self) -> int:
        return self.lost_inserts + self.lost_signals + self.lost_outcomes


class Load:
    """Callers that insert, signal and wait, and a worker; each with connections of its own."""

    def __init__(self, app: Durable, ledger: Ledger) -> None:
        self._app = app
        self.ledger = ledger
        self._run = secrets.token_hex(4)
        self._numbers = iter(range(10**9))
        self._stopping = asyncio.Event()
        self._tasks = [asyncio.create_task(self._caller()) for _ in range(CALLERS)]

    async def _caller(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._errand(f"{self._run}:{next(self._numbers)}")
            except (NoTarget, NotFound):
                self.ledger.missed += 1  # an acknowledged call is missing: `account` lists it
            await asyncio.sleep(PAUSE)

    async def _errand(self, key: str) -> None:
        ledger = self.ledger
        app = self._app
        handle = await self._told(lambda: app.insert(Errand.begin, Papers(), unique_key=key, on_conflict="existing"))
        ledger.inserts[key] = handle.id
        ledger.note()
        await self._told(lambda: app.signal(handle, go, key, dedup_key=key))
        ledger.signals.add(key)
        ledger.note()
        ending = await self._told(handle.wait)
        assert isinstance(ending, Finished), ending
        ledger.results[key] = ending.result

    async def _told(self, ask: Callable[[], Awaitable[T]]) -> T:
        """An answer, however often it takes. Every call here may be made twice."""
        while True:
            try:
                return await ask()
            except DatabaseUnavailable as error:
                self.ledger.unknown += "may or may not" in str(error)
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """No new errands; those under way go on to their end, unless something of them was lost."""
        self._stopping.set()
        done, late = await asyncio.wait(self._tasks, timeout=DRAIN)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()


@asynccontextmanager
async def loaded(dsn: str, schema: str) -> AsyncGenerator[Load]:
    """A load on a schema that is there."""
    ledger = Ledger()
    async with (
        Durable(dsn, schema=schema) as app,
        Durable(dsn, schema=schema) as working,
        Worker(working, machines=[Errand(ledger)], queues={"default": 20}, drain_timeout=timedelta(seconds=2)),
    ):
        working.events.subscribe(ledger.record)
        load = Load(app, ledger)
        try:
            yield load
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await load.stop()


async def account(dsn: str, schema: str, ledger: Ledger) -> Account:
    """Compare what was acknowledged with the rows of the leader."""
    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetch(
            f"select id, convert_from(unique_key, 'utf8') as key, status, result, state from \"{schema}\".gen_durable"
        )
        waiting = {row[0] for row in await connection.fetch(f'select target_id from "{schema}".signals')}
    finally:
        await connection.close()
    rows = {row["key"]: row for row in found}
    kept = {key: rows[key] for key, number in ledger.inserts.items() if key in rows and rows[key]["id"] == number}
    by_id = {row["id"]: row for row in kept.values()}
    papers = {number: _papers(row) for number, row in by_id.items()}
    link = PersistentConnection(ConnectionTarget(dsn))
    broken = sum(finding.count for finding in await diagnose(link, Schema(schema)))
    await link.close()
    return Account(
        lost_inserts=len(ledger.inserts) - len(kept),
        lost_signals=sum(
            key not in kept or (kept[key]["status"] != "done" and kept[key]["id"] not in waiting)
            for key in ledger.signals
        ),
        lost_outcomes=sum(
            number not in papers or getattr(papers[number], "first" if name == "begin" else "last") != token
            for (number, name), token in ledger.outcomes.items()
        ),
        open=sum(row["status"] != "done" for row in rows.values()),
        broken=broken,
    )


def _papers(row: Any) -> Papers:
    said = row["result"] if row["status"] == "done" else row["state"]
    return Papers(**json.loads(said)) if said is not None else Papers()
