"""Run the demo: open a shop, let its customers pay or not, and kill one of its workers in the middle of a step.

The engine gets no help: the script inserts orders, sends signals, kills a process, and otherwise only reads. It returns
its `DemoObservations`, from which `run_verifier` decides whether the engine kept its guarantees.
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
from gen_durable.cli.database_opener import ConnectedDatabase
from gen_durable.cli.demo.event_log import EventLogReader, LogEntry
from gen_durable.cli.demo.machines import Checkout, Order, Paid, Receipt, payment, stocktake
from gen_durable.cli.demo.step_counts import count_by_step_and_status
from gen_durable.cli.demo.view_protocol import DemoEvent, DemoState, DemoView, EventLevel
from gen_durable.cli.demo.worker_processes import ProcessState, WorkerProcess, WorkerProcesses
from gen_durable.cli.demo.worker_program import SCHEMA
from gen_durable.errors import GenDurableError
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

ORDERS: Final = 40
GOODS: Final = ("tea", "bread", "cheese", "plums", "candles", "soap", "honey")
CHARGES_BEFORE_KILL: Final = 6
IN_FLIGHT_TIME: Final = 0.2
"""Seconds for an outcome that a killed worker had already sent to commit; much less than a lease."""
EXTRA_TIME: Final = 60.0
"""Seconds beyond the planned ones after which the demo gives up."""


@dataclass(frozen=True, slots=True)
class PlacedOrder:
    """An order, its handle, and the amount that its customer pays; `None` if the customer never pays."""

    order: Order
    amount: int | None
    handle: Handle[Receipt]


@dataclass(slots=True)
class DemoObservations:
    """The course of the demo, as observed outside of the database."""

    placed: list[PlacedOrder] = field(default_factory=list[PlacedOrder])
    executions: Counter[int] = field(default_factory=Counter[int])
    interrupted: set[int] = field(default_factory=set[int])
    """The instances whose steps the killed worker was running."""
    resumed: set[int] = field(default_factory=set[int])
    """Those of them that ran again on another worker."""
    duplicate_payments: int = 0
    drained: bool = False
    seconds: float = 0.0


class DemoFailed(GenDurableError):
    """The demo cannot continue."""


class DemoScript:
    """Runs the demo once."""

    def __init__(
        self, database: ConnectedDatabase, workers: WorkerProcesses, event_log: Path, view: DemoView, pace: float
    ) -> None:
        self._database = database
        self._workers = workers
        self._reader = EventLogReader(event_log)
        self._view = view
        self._pace = pace
        self._opened = time.monotonic()
        self._state = DemoState(database.location, workers=workers.workers)
        self._subjects: dict[int, str] = {}
        self._charges = 0
        self._expired = 0
        self._victim: WorkerProcess | None = None
        self._shown_instance = 0
        self._victim_charges: asyncio.Queue[int] = asyncio.Queue()
        self.seen = DemoObservations()

    async def run(self) -> DemoObservations:
        """Run from an empty schema to the end of the last order."""
        following = asyncio.create_task(self._poll_event_log())
        try:
            await self._start_worker_and_wait()
            await self._start_worker_and_wait()
            async with Durable(self._database.dsn, schema=SCHEMA) as app:
                await self._insert_orders(app)
                await self._run_payments_and_kill(app)
                self.seen.seconds = time.monotonic() - self._opened
                self.seen.drained = await self._workers.stop_all()
        finally:
            following.cancel()
            await self._workers.stop_all()
        self._record_and_report_new_entries()
        self._refresh_view()
        return self.seen

    async def _insert_orders(self, app: Durable) -> None:
        orders = list(_make_orders(self._pace))
        self._opened = time.monotonic()
        handles = await app.insert_many(
            Start(Checkout.place, order, unique_key=f"order:{order.number}") for order, _ in orders
        )
        self.seen.placed = [PlacedOrder(*one, handle) for one, handle in zip(orders, handles, strict=True)]
        await app.insert(stocktake, "cellar")
        self._report_event(f"{len(orders)} orders placed, and a stocktake inserted")

    async def _run_payments_and_kill(self, app: Durable) -> None:
        customers = asyncio.create_task(self._send_payments(app))
        killing = asyncio.create_task(self._suspend_and_kill_worker())
        try:
            async with asyncio.timeout(EXTRA_TIME + 20 * self._pace):
                await self._show_until_instances_ended(customers, killing)
            await asyncio.gather(customers, killing)
        except TimeoutError:
            self._report_event("giving up: some orders have not ended in time", EventLevel.BAD)
        finally:
            customers.cancel()
            killing.cancel()

    async def _show_until_instances_ended(self, *tasks: asyncio.Task[None]) -> None:
        """Read the counts and refresh the view until the tasks are done and every instance has ended."""
        while not (all(task.done() for task in tasks) and self._have_all_instances_ended()):
            self._state.counts = await count_by_step_and_status(self._database.connection, Schema(SCHEMA))
            self._refresh_view()
            await asyncio.sleep(0.15)

    async def _send_payments(self, app: Durable) -> None:
        """Send one payment after the other; the bank reports every fifth one twice."""
        paying = [placed for placed in self.seen.placed if placed.amount is not None]
        await asyncio.sleep(0.5 * self._pace)
        for placed in paying:
            number, amount = placed.order.number, placed.amount or 0
            for _ in range(2 if number % 5 == 0 else 1):
                new = await app.signal(f"order:{number}", payment, Paid(amount), dedup_key=f"payment:{number}")
                self.seen.duplicate_payments += not new
            await asyncio.sleep(7 * self._pace / len(paying))

    async def _suspend_and_kill_worker(self) -> None:
        """Kill a worker in the middle of a charge: suspend it first, and check that its claim is still open."""
        await self._wait_until(lambda: self._charges >= CHARGES_BEFORE_KILL)
        victim = self._victim = self._workers.workers[1]
        while True:
            instance = await self._victim_charges.get()
            self._workers.suspend(victim)
            if instance in await self._read_claimed_steps(victim):
                break
            self._workers.resume(victim)
        await self._workers.kill(victim)
        await asyncio.sleep(IN_FLIGHT_TIME)
        claimed = await self._read_claimed_steps(victim)
        self.seen.interrupted = set(claimed)
        self._shown_instance = instance
        step, subject = claimed[instance], self._subjects[instance]
        others = f" (and {len(claimed) - 1} other steps)" if len(claimed) > 1 else ""
        self._report_event(f"{victim} killed with SIGKILL while running {step} for {subject}{others}", EventLevel.BAD)
        await asyncio.sleep(self._pace)
        await self._start_worker_and_wait(replaces=victim)

    async def _read_claimed_steps(self, worker: WorkerProcess) -> dict[int, str]:
        """The steps that a worker has claimed in the database, by instance."""
        query = Schema(SCHEMA).render("select id, step from @schema.instances where locked_by = $1")
        return await self._database.connection.run(Statement(query, (worker.name,), _decode_steps_by_id))

    async def _start_worker_and_wait(self, replaces: WorkerProcess | None = None) -> None:
        worker = await self._workers.start_one(replaces)
        await self._wait_until(lambda: worker.state is ProcessState.WORKING or worker.process.returncode is not None)
        if worker.state is not ProcessState.WORKING:
            raise DemoFailed(f"{worker} exited with code {worker.process.returncode} while it started")

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110  # the condition changes in other processes
            await asyncio.sleep(0.02)

    async def _poll_event_log(self) -> None:
        while True:
            self._record_and_report_new_entries()
            await asyncio.sleep(0.03)

    def _record_and_report_new_entries(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for entry in self._reader.read_new_entries():
                self._record_and_report_entry(entry)

    def _record_and_report_entry(self, entry: LogEntry) -> None:
        worker = self._workers.find_by_pid(entry.pid)
        match entry.kind:
            case "ready":
                worker.state, worker.name = ProcessState.WORKING, entry.worker
                role = f" and replaces {worker.replaces}" if worker.replaces is not None else ""
                self._report_event(f"{worker} (pid {worker.pid}) is ready{role}", EventLevel.GOOD)
            case "started":
                self._record_and_report_step_start(worker, entry)
            case "committed":
                self._record_and_report_step_commit(worker, entry)
            case "reaped":
                several = "1 instance" if len(entry.ids) == 1 else f"{len(entry.ids)} instances"
                self._report_event(f"lease expired: {several} reclaimed by {worker}", EventLevel.GOOD)

    def _record_and_report_step_start(self, worker: WorkerProcess, entry: LogEntry) -> None:
        self.seen.executions[entry.id] += 1
        self._subjects[entry.id] = entry.subject
        worker.running_steps[entry.id] = f"{entry.step} {entry.subject}"
        if entry.id in self.seen.interrupted - self.seen.resumed:
            self.seen.resumed.add(entry.id)
            if entry.id == self._shown_instance:
                self._report_event(f"{entry.step} for {entry.subject} runs again, on {worker}", EventLevel.GOOD)
        if worker is self._victim and entry.step == "charge":
            self._victim_charges.put_nowait(entry.id)

    def _record_and_report_step_commit(self, worker: WorkerProcess, entry: LogEntry) -> None:
        worker.running_steps.pop(entry.id, None)
        worker.steps += 1
        self._charges += entry.step == "charge"
        subject = self._subjects[entry.id]
        if entry.outcome == "Retry":
            self._report_event(f"{entry.machine} of {subject} raised an error and will be retried")
        elif entry.outcome == "Fail":
            self._expired += 1
            if self._expired == 1:
                self._report_event(f"{subject} was not paid in time and failed; more will follow")

    def _have_all_instances_ended(self) -> bool:
        return bool(self._state.counts) and all(count.status.terminal for count in self._state.counts)

    def _report_event(self, text: str, level: EventLevel = EventLevel.PLAIN) -> None:
        at = time.monotonic() - self._opened if self.seen.placed else 0.0
        event = DemoEvent(at, text, level)
        self._state.events.append(event)
        self._view.show_event(event)

    def _refresh_view(self) -> None:
        self._state.at = time.monotonic() - self._opened
        self._view.show_state(self._state)


def _make_orders(pace: float) -> list[tuple[Order, int | None]]:
    """Every fourth customer never pays and has a timeout of a few seconds; the others have two minutes."""
    orders: list[tuple[Order, int | None]] = []
    for number in range(1, ORDERS + 1):
        items = tuple(GOODS[(number + i) % len(GOODS)] for i in range(1 + number % 3))
        pays = number % 4 != 0
        pay_within = timedelta(minutes=2) if pays else timedelta(seconds=(4 + number / 9) * pace)
        orders.append((Order(number, items, pay_within), 10 * number if pays else None))
    return orders


def _decode_steps_by_id(rows: Sequence[Sequence[Any]]) -> dict[int, str]:
    return {row[0]: row[1] for row in rows}
