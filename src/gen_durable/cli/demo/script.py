"""The story of the demo: a shop is opened, its customers pay or do not, and one of its workers is killed.

In: a database, a stage to show it on, a pace. Out: a `Told`, all that is needed to judge afterwards what happened.
Nothing here helps the engine: orders are inserted, signals are sent, a process is killed, and the rest is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from gen_durable import Durable, Handle, Start
from gen_durable.cli.database import Database
from gen_durable.cli.demo.event_log import Note, Reader
from gen_durable.cli.demo.machines import Checkout, Order, Paid, Receipt, payment, stocktake
from gen_durable.cli.demo.processes import Crew, Member, State
from gen_durable.cli.demo.program import SCHEMA
from gen_durable.cli.demo.view import Event, Scene, Stage, Tone
from gen_durable.doctor import count_by_step
from gen_durable.errors import GenDurableError
from gen_durable.pg.migrate import migrate
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

ORDERS: Final = 40
GOODS: Final = ("tea", "bread", "cheese", "plums", "candles", "soap", "honey")
CHARGES_BEFORE_KILL: Final = 6
SETTLED: Final = 0.2
"""Seconds until an outcome that a killed worker had already sent is committed; much less than a lease."""
PATIENCE: Final = 60.0
"""Seconds, beside the planned ones, after which the demo gives up waiting."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An order, what its customer will pay (None: nothing), and the hold on its instance."""

    order: Order
    amount: int | None
    handle: Handle[Receipt]


@dataclass(slots=True)
class Told:
    """What happened, as seen from outside of the database."""

    placed: list[Placed] = field(default_factory=list[Placed])
    executions: Counter[int] = field(default_factory=Counter[int])
    held: set[int] = field(default_factory=set[int])
    """The instances whose steps the killed worker was in the middle of."""
    again: set[int] = field(default_factory=set[int])
    """Those of them that were seen running again."""
    paid_twice: int = 0
    drained: bool = False
    seconds: float = 0.0


class Stuck(GenDurableError):
    """The story does not go on."""


class Story:
    """Tells the story once."""

    def __init__(self, database: Database, crew: Crew, notes: Path, stage: Stage, pace: float) -> None:
        self._database = database
        self._crew = crew
        self._reader = Reader(notes)
        self._stage = stage
        self._pace = pace
        self._opened = time.monotonic()
        self._scene = Scene(database.where, members=crew.members)
        self._subjects: dict[int, str] = {}
        self._charges = 0
        self._expired = 0
        self._victim: Member | None = None
        self._named = 0
        self._struck: asyncio.Queue[int] = asyncio.Queue()
        self.told = Told()

    async def tell(self) -> Told:
        """From an empty schema to the end of the last order."""
        link = self._database.link
        await link.run_script(f'drop schema if exists "{SCHEMA}" cascade')
        await migrate(link, Schema(SCHEMA))
        listening = asyncio.create_task(self._listen())
        try:
            await self._hire()
            await self._hire()
            async with Durable(self._database.dsn, schema=SCHEMA) as app:
                await self._open_shop(app)
                await self._go_on(app)
                self.told.seconds = time.monotonic() - self._opened
                self.told.drained = await self._crew.dismiss()
        finally:
            listening.cancel()
            await self._crew.dismiss()
        self._read_notes()
        self._show()
        return self.told

    async def _open_shop(self, app: Durable) -> None:
        orders = list(_orders(self._pace))
        self._opened = time.monotonic()
        handles = await app.insert_many(
            Start(Checkout.place, order, unique_key=f"order:{order.number}") for order, _ in orders
        )
        self.told.placed = [Placed(*one, handle) for one, handle in zip(orders, handles, strict=True)]
        await app.insert(stocktake, "cellar")
        self._tell(f"{len(orders)} orders placed, and a stocktake begun")

    async def _go_on(self, app: Durable) -> None:
        customers = asyncio.create_task(self._pay(app))
        accident = asyncio.create_task(self._kill_one())
        try:
            async with asyncio.timeout(PATIENCE + 20 * self._pace):
                while not (customers.done() and accident.done() and self._all_ended()):
                    self._scene.counts = await count_by_step(self._database.link, Schema(SCHEMA))
                    self._show()
                    await asyncio.sleep(0.15)
            await asyncio.gather(customers, accident)
        except TimeoutError:
            self._tell("some orders do not come to an end; giving up", Tone.BAD)
        finally:
            customers.cancel()
            accident.cancel()

    async def _pay(self, app: Durable) -> None:
        """Customers pay one after the other; the bank tells us of every fifth payment twice."""
        paying = [placed for placed in self.told.placed if placed.amount is not None]
        await asyncio.sleep(0.5 * self._pace)
        for placed in paying:
            number, amount = placed.order.number, placed.amount or 0
            for _ in range(2 if number % 5 == 0 else 1):
                new = await app.signal(f"order:{number}", payment, Paid(amount), dedup_key=f"payment:{number}")
                self.told.paid_twice += not new
            await asyncio.sleep(7 * self._pace / len(paying))

    async def _kill_one(self) -> None:
        """Kill a worker in the middle of a charge, for certain: it is frozen first, and then looked at."""
        await self._until(lambda: self._charges >= CHARGES_BEFORE_KILL)
        victim = self._victim = self._crew.members[1]
        while True:
            instance = await self._struck.get()
            self._crew.freeze(victim)
            if instance in await self._held_by(victim):
                break
            self._crew.thaw(victim)
        await self._crew.kill(victim)
        await asyncio.sleep(SETTLED)
        held = await self._held_by(victim)
        self.told.held = set(held)
        self._named = instance
        step, subject = held[instance], self._subjects[instance]
        others = f" (and {len(held) - 1} other steps)" if len(held) > 1 else ""
        self._tell(f"{victim} killed with SIGKILL while running {step} for {subject}{others}", Tone.BAD)
        await asyncio.sleep(self._pace)
        await self._hire(instead_of=victim)

    async def _held_by(self, member: Member) -> dict[int, str]:
        """What a worker is in the middle of, as the database sees it: steps by instance."""
        query = Schema(SCHEMA).render("select id, step from @schema.instances where locked_by = $1")
        return await self._database.link.run(Statement(query, (member.name,), _pairs))

    async def _hire(self, instead_of: Member | None = None) -> None:
        member = await self._crew.hire(instead_of)
        await self._until(lambda: member.state is State.WORKING or member.process.returncode is not None)
        if member.state is not State.WORKING:
            raise Stuck(f"{member} ended before it began, with exit code {member.process.returncode}")

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110  # what is waited for happens in other processes
            await asyncio.sleep(0.02)

    async def _listen(self) -> None:
        while True:
            self._read_notes()
            await asyncio.sleep(0.03)

    def _read_notes(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for note in self._reader.fresh():
                self._hear(note)

    def _hear(self, note: Note) -> None:
        member = self._crew.of(note.pid)
        match note.kind:
            case "ready":
                member.state, member.name = State.WORKING, note.worker
                role = f", in the place of {member.instead_of}" if member.instead_of is not None else ""
                self._tell(f"{member} (pid {member.pid}) is ready{role}", Tone.GOOD)
            case "began":
                self._began(member, note)
            case "committed":
                self._committed(member, note)
            case "reaped":
                several = "1 instance" if len(note.ids) == 1 else f"{len(note.ids)} instances"
                self._tell(f"lease ran out: {several} taken back by {member}", Tone.GOOD)

    def _began(self, member: Member, note: Note) -> None:
        self.told.executions[note.id] += 1
        self._subjects[note.id] = note.subject
        member.doing[note.id] = f"{note.step} {note.subject}"
        if note.id in self.told.held - self.told.again:
            self.told.again.add(note.id)
            if note.id == self._named:
                self._tell(f"{note.step} for {note.subject} runs again, on {member}", Tone.GOOD)
        if member is self._victim and note.step == "charge":
            self._struck.put_nowait(note.id)

    def _committed(self, member: Member, note: Note) -> None:
        member.doing.pop(note.id, None)
        member.steps += 1
        self._charges += note.step == "charge"
        subject = self._subjects[note.id]
        if note.outcome == "Retry":
            self._tell(f"{note.machine} of {subject} raised an error; it will be tried again")
        elif note.outcome == "Fail":
            self._expired += 1
            if self._expired == 1:
                self._tell(f"{subject} was not paid in time; others will follow")

    def _all_ended(self) -> bool:
        return bool(self._scene.counts) and all(count.status.terminal for count in self._scene.counts)

    def _tell(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        at = time.monotonic() - self._opened if self.told.placed else 0.0
        event = Event(at, text, tone)
        self._scene.events.append(event)
        self._stage.event(event)

    def _show(self) -> None:
        self._scene.at = time.monotonic() - self._opened
        self._stage.show(self._scene)


def _orders(pace: float) -> list[tuple[Order, int | None]]:
    """Every fourth customer never pays, and has a few seconds to do so; the others have two minutes."""
    orders: list[tuple[Order, int | None]] = []
    for number in range(1, ORDERS + 1):
        items = tuple(GOODS[(number + i) % len(GOODS)] for i in range(1 + number % 3))
        pays = number % 4 != 0
        patience = timedelta(minutes=2) if pays else timedelta(seconds=(4 + number / 9) * pace)
        orders.append((Order(number, items, patience), 10 * number if pays else None))
    return orders


def _pairs(rows: Sequence[Sequence[Any]]) -> dict[int, str]:
    return {row[0]: row[1] for row in rows}
