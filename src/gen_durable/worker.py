"""The worker: the corridor that joins the rooms.

    pick → (hold, lane) → run → flush → wake
              ↑ keep: beats, in a thread        reap, gc: on every worker, from row truth alone

In: machines, jobs and options. Out: steps run and outcomes committed, until told to stop. A worker has no identity that
outlives it: its name is random, and nothing is ever reclaimed by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

from typing_extensions import Unpack

from gen_durable.backoff import backoff
from gen_durable.client import Durable
from gen_durable.config import Queue, WorkerOptions, WorkerSettings
from gen_durable.core.background import BackgroundTask
from gen_durable.core.payloads import ClaimEncryption
from gen_durable.core.services import services_of
from gen_durable.engine.claim_runner import ClaimRunner
from gen_durable.engine.claims import ActiveClaim, ClaimTable
from gen_durable.engine.committer import Committer
from gen_durable.engine.dead_letters import DeadLetters
from gen_durable.engine.executor import Executor
from gen_durable.engine.fanout import children_reader
from gen_durable.engine.heartbeat import Heartbeat
from gen_durable.engine.journal import JournalWriter
from gen_durable.engine.picker import Picker
from gen_durable.engine.reaper import Gc, Reaper
from gen_durable.engine.slots import Slots
from gen_durable.engine.step_limits import StepLimits
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.engine.transactional import TransactionalExecutor
from gen_durable.errors import ConfigError
from gen_durable.jobs import Job
from gen_durable.limits import Policy, check_policies
from gen_durable.machines import Machine
from gen_durable.operations.limits import declare_limit
from gen_durable.pg.connection import PersistentConnection
from gen_durable.pg.faults import ConnectionLost, SqlError
from gen_durable.registry import Registry
from gen_durable.store.types import Claim, Wakeups
from gen_durable.telemetry import ClaimLost, EventLoopBlocked, QueueDrained

log = logging.getLogger("gen_durable.worker")
CANCEL_GRACE: Final = 1.0
TRANSACTIONS: Final = 10  # connected when they are needed first


class Worker:
    """Runs steps: `await Worker(app, machines=[Checkout(stripe)], jobs=[greet]).run()`.

    `queues` are those to serve, each with its concurrency or a `Queue`. `limits` are declared in the database when the
    worker starts; what an operator has changed since is left alone until the declaration itself changes.
    """

    def __init__(
        self,
        app: Durable,
        *,
        machines: Iterable[Machine] = (),
        jobs: Iterable[Job[Any, Any]] = (),
        queues: Mapping[str, int | Queue] | None = None,
        limits: Mapping[str, Policy] | None = None,
        **options: Unpack[WorkerSettings],
    ) -> None:
        self._app = app
        self._services = services_of(app)
        self.options = WorkerOptions.from_settings(queues, options)
        self._registry = Registry(machines, jobs)
        self._limits = check_policies(limits) if limits is not None else {}
        if not self._registry.specs and self.options.queues:
            raise ConfigError("a worker with queues needs machines or jobs; one for maintenance only takes queues={}")
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._holdings = ClaimTable()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._stop_task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain; a second signal leaves at once."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def heard(number: int) -> None:
            if stop.is_set():
                # At once means at once: no step, thread or connection is asked.
                log.warning("left without draining; what was under way runs again when its lease has run out")
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(128 + number)
            stop.set()

        opened = await self._services.ensure_open()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, heard, number)
        try:
            async with self:
                await stop.wait()
                log.info("worker %s: stopping", self.name)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            if opened:
                await self._app.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start all rooms. The `Durable` must be open."""
        if self._started:
            raise ConfigError("this worker was started already: make a new one")
        self._started = True
        try:
            await self._services.ensure_open()
            self._target = self._services.target  # refused here, when there is only a pool
            for name, policy in self._limits.items():
                await declare_limit(self._services, name, policy)
        except BaseException:
            self._started = False  # nothing to stop
            raise
        self._build()
        if self.options.queues:
            await self._connect()
            self._endpoint = _Endpoint(self.name, self._pick, self._look)
            self._services.notifier.add_worker(self._endpoint)
            self._keep.start()
            self._pick.start()
        for room in self._upkeep:
            room.start()
        if self._letters is not None and (self.options.max_crashes is None or self.options.reap_interval is None):
            log.warning("on_dead_letter is never called by a worker without max_crashes or with reap_interval=None")
        slots = ", ".join(f"{queue}={n}" for queue, n in self.options.slots.items())
        log.info("worker %s: %s", self.name, slots or "maintenance only")

    async def _connect(self) -> None:
        """Connect what the first row needs, so that it does not wait for that. Later is fine too: links heal."""
        await asyncio.gather(*(link.connect() for link in self._links[:2]), return_exceptions=True)

    def _build(self) -> None:
        """The rooms, and who tells whom."""
        services, options = self._services, self.options
        self._threads = ThreadPool(options.threads or max(sum(options.slots.values()), 1))
        self._links = [PersistentConnection(self._target) for _ in range(4)]
        pick_link, flush_link, side_link, upkeep_link = self._links
        self._flush = Committer(
            flush_link, side_link, services.statements, options.flush_batch, self._woke, worker=self.name
        )
        self._pick = Picker(
            pick_link,
            services.statements,
            options,
            worker=self.name,
            known=self._registry.known,
            on_claims=self._claimed,
            on_crowded=services.notifier.notify_overflow,
            on_woken=services.notifier.wake_all,
            events=services.events,
            load=lambda: self._flush.load,
        )
        self._lanes = Slots(
            self._pick.lanes,
            self._tasks,
            claim=self._begin,
            give_back=self._give_back,
            on_free=self._pick.freed,
        )
        self._scribe = JournalWriter(
            services.pool,
            services.statements.schema.name,
            services.journal_statements,
            self._threads,
            services.installation,
            seal=services.encryption,
        )
        doors = StepLimits(services.engine_requests, services.statements, services.notifier.wake_all)
        sealer = (
            None
            if services.encryption is None
            else ClaimEncryption(services.encryption, services.pool, services.statements)
        )
        run = Executor(
            self.name,
            self._threads,
            children_reader(services.pool, services.statements, services.encryption),
            doors,
            self._scribe,
            sealer=sealer,
        )
        self._transact = TransactionalExecutor(
            run, self._target, services.statements, TRANSACTIONS, self._woke, worker=self.name
        )
        self._live = ClaimRunner(
            run,
            self._flush,
            self._transact,
            registry=self._registry,
            holdings=self._holdings,
            options=options,
            events=services.events,
            endings=services.completions,
            wake=services.notifier,
            on_due=self._due,
            lend=self._lanes.lend,
            take_back=self._lanes.take_back,
            spawn=self._spawn,
            give_back=self._give_back,
            ask_why=self._ask_why,
        )
        self._keep = Heartbeat(
            self._target,
            services.statements,
            self._holdings,
            lease=options.lease_ttl.total_seconds(),
            interval=options.heartbeat_interval.total_seconds(),
            on_lost=self._lost,
            on_asked=self._asked,
            on_lag=self._lagged,
        )
        hook = options.on_dead_letter
        self._letters = (
            None
            if hook is None
            else DeadLetters(hook, services.pool, services.statements, self._threads, services.encryption)
        )
        self._upkeep: list[BackgroundTask] = []
        if options.reap_interval is not None:
            self._upkeep.append(
                Reaper(
                    upkeep_link,
                    services.statements,
                    options,
                    known=self._registry.known,
                    silent=self._registry.silent,
                    wake=services.notifier,
                    events=services.events,
                    on_dead=lambda ids: None if self._letters is None else self._letters.take(ids),
                )
            )
        if options.gc_interval is not None:
            self._upkeep.append(Gc(upkeep_link, services.statements, options, services.events))

    async def stop(self) -> None:
        """Drain: stop picking, give back what has not begun, wait for steps under way, commit, close."""
        if not self._started:
            return
        if self._stop_task is None:
            self._lanes.stopping = self._live.stopping = True
            self._stop_task = asyncio.get_running_loop().create_task(self._stop(), name="gen_durable stop")
        try:
            await asyncio.shield(self._stop_task)
        except asyncio.CancelledError:
            self._stop_task.cancel()
            raise

    async def _stop(self) -> None:
        try:
            if self.options.queues:
                await self._pick.stop()
                await self._drain()
                await self._keep.stop()
            for room in self._upkeep:
                await room.stop()
            if self._letters is not None:
                await self._letters.close(self.options.drain_timeout.total_seconds())
            if not self._holdings.all():
                await asyncio.gather(*(link.close() for link in self._links), return_exceptions=True)
                await self._transact.close()
        finally:
            # Also when the drain is interrupted: nothing of ours may go on beating for rows that nobody runs.
            self._keep.halt()
            if self._letters is not None:
                self._letters.halt()
            if self.options.queues:
                self._services.notifier.remove_worker(self._endpoint)
            for held in self._holdings.all():
                self._abandon(held)
            for task in self._tasks:
                task.cancel()
            for link in self._links:
                link.close_soon()
            self._transact.close_soon()
            await self._flush.close()
            await self._scribe.close()
            self._threads.close()

    async def _drain(self) -> None:
        lanes = self._pick.lanes.values()
        unstarted = [held for held in self._holdings.all() if held.task is None]
        await self._release([(held, None, None) for held in unstarted])
        deadline = time.monotonic() + self.options.drain_timeout.total_seconds()
        while self._tasks and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        overdue = [held for held in self._holdings.all() if held.task is not None and not held.task.done()]
        if self._services.events.active:
            for lane in lanes:
                released = sum(held.claim.queue == lane.name for held in unstarted)
                self._services.events.emit(
                    QueueDrained(lane.name, released, sum(h.claim.queue == lane.name for h in overdue))
                )
        if overdue:
            log.warning("worker %s: %d steps did not end within drain_timeout", self.name, len(overdue))
            await self._interrupt(overdue)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.drain_timeout.total_seconds() + CANCEL_GRACE):
                await self._flush.idle()

    async def _interrupt(self, overdue: list[ActiveClaim]) -> None:
        """Cancel steps and give their rows back. A step in a thread cannot be stopped: its row waits for its lease."""
        stoppable = [held for held in overdue if not held.in_thread]
        for held in stoppable:
            self._abandon(held)
        tasks = [held.task for held in stoppable if held.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_GRACE)
        await self._release([(held, None, None) for held in stoppable if held.task is None or held.task.done()])

    async def _release(self, several: list[tuple[ActiveClaim, float | None, str | None]]) -> None:
        if not several:
            return
        rows = sorted((held.claim.id, held.claim.epoch, delay, reason) for held, delay, reason in several)
        try:
            released = await self._services.pool.run_safely(self._services.statements.release(rows))
            self._services.notifier.wake_all(released.woken)
            for held, delay, _ in several:
                if delay is not None:
                    self._due(held.claim.queue, delay)
                if delay is None or held.claim.partition_key is not None:
                    self._services.notifier.wake(held.claim.queue)
        except (ConnectionLost, SqlError) as error:
            log.warning(
                "%d rows could not be given back (%s); their leases will run out", len(rows), type(error).__name__
            )
        for held, _, _ in several:
            self._holdings.remove(held)

    def _claimed(self, claims: list[Claim], asked: float) -> None:
        """Rows came in, leased since `asked`: start what has a slot, buffer the rest; give back what came too late."""
        late: list[tuple[ActiveClaim, float | None, str | None]] = []
        for claim in claims:
            held = ActiveClaim(
                claim, self._registry.following(claim.machine, claim.version, claim.step), extended=asked
            )
            former = self._holdings.get(claim.id)
            if former is not None and (former.task is None or not former.task.done()):
                # Our own claim had run out, and we have won the row back: the first execution ends. (A task that is
                # done has handed in its outcome, and we hear of the row before we hear of the commit.)
                self._lost([former])
            self._holdings.add(held)
            if claim.children is None or (claim.children and any(not c.status.terminal for c in claim.children)):
                # It goes on without some of its children: they may be listed for cancelling.
                self._services.notifier.cancel_children(claim.id)
            if self._lanes.stopping:
                late.append((held, None, None))
            else:
                self._lanes.take(held)
        if late:
            self._spawn(self._release(late))

    def _begin(self, held: ActiveClaim) -> Coroutine[Any, Any, None]:
        return self._live.claim(held)

    def _give_back(self, held: ActiveClaim, reason: str) -> None:
        self._spawn(self._release([(held, self._later(held), reason)]))

    def _later(self, held: ActiveClaim) -> float:
        """How long a row rests that could not even be begun: longer each time it is claimed in vain."""
        return backoff(min(held.claim.epoch, 8), base=timedelta(seconds=5), cap=timedelta(minutes=10)).total_seconds()

    def _lost(self, several: list[ActiveClaim]) -> None:
        """The heartbeat found claims taken over: stop their tasks, whose outcomes would be stale anyway."""
        for held in several:
            if self._holdings.get(held.claim.id) is not held:
                continue  # it ended meanwhile
            log.warning("instance %d: its claim was taken over by another worker", held.claim.id)
            if self._services.events.active:
                self._services.events.emit(ClaimLost(held.claim.id, held.claim.machine, held.claim.step))
            self._abandon(held)
            self._holdings.remove(held)

    def _look(self) -> None:
        """Some of our claims are to be cancelled: find out which."""
        self._spawn(self._look_for_asked())

    async def _look_for_asked(self) -> None:
        claims = sorted((held.claim.id, held.claim.epoch) for held in self._holdings.all())
        if claims:
            with contextlib.suppress(ConnectionLost, SqlError):  # the next heartbeat looks again
                self._asked(await self._services.pool.run_safely(self._services.statements.cancel_requests(claims)))

    def _asked(self, reasons: dict[int, str]) -> None:
        """Claims are to be cancelled: stop their steps, or what comes of them."""
        for instance, reason in reasons.items():
            held = self._holdings.get(instance)
            if held is None or held.reason is not None:
                continue
            held.reason = reason
            if held.task is None:
                self._lanes.drop(held)
                self._live.drop(held)
            elif held.in_step and not held.in_thread:
                held.claim.abandoned = True
                held.task.cancel()

    async def _ask_why(self, held: ActiveClaim) -> str:
        """Why a claim is to be cancelled, of which its own outcome has heard first."""
        try:
            asked = await self._services.pool.run_safely(
                self._services.statements.cancel_requests([(held.claim.id, held.claim.epoch)])
            )
        except (ConnectionLost, SqlError):
            asked = {}
        return asked.get(held.claim.id, "cancelled")

    def _abandon(self, held: ActiveClaim) -> None:
        held.claim.abandoned = True
        if held.task is not None:
            held.task.cancel()
        else:
            self._lanes.drop(held)

    def _due(self, queue: str, seconds: float) -> None:
        """We have committed a delay or a deadline: wake up for it, or let those know who serve that queue."""
        if queue in self._pick.lanes:
            self._pick.due(queue, seconds)
        else:
            self._services.notifier.wake(queue)

    def _woke(self, wakeups: Wakeups | None) -> None:
        """A flush made rows runnable; `None` means that the queues are unknown, so pick from all of them."""
        if wakeups is None:
            self._pick.poke_all()
        else:
            self._services.notifier.publish(wakeups)

    def _lagged(self, seconds: float) -> None:
        if self._services.events.active:
            self._services.events.emit(EventLoopBlocked(seconds))
        if seconds > 1:
            log.warning(
                "the event loop was blocked for %.1f s: a step does not await; make it `def` to run in a thread",
                seconds,
            )

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """What the notifier calls of a worker."""

    name: str
    picker: Picker
    look: Callable[[], None]

    def wake(self, queue: str) -> int:
        return self.picker.poke(queue)

    def wake_all(self) -> None:
        self.picker.poke_all()

    def check_cancels(self) -> None:
        self.look()
