"""The worker: runs the steps of machines and jobs until it is stopped.

Its name is random, and no state outlives it: rows of a worker that died are found by their leases, never by its name.
`engine/runtime.py` builds the parts; `engine/README.md` explains them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from typing_extensions import Unpack

from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.engine.runtime import Runtime
from gen_durable.errors import ConfigError
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.jobs import Job
from gen_durable.limits import Policy, check_limit_policies
from gen_durable.machines import Machine
from gen_durable.operations.limits import declare_limit
from gen_durable.operations.retention import declare_retentions
from gen_durable.step_registry import Registry
from gen_durable.worker_options import Queue, WorkerKeywordArguments, WorkerOptions

log = get_escaping_logger("gen_durable.worker")


class Worker:
    """Runs steps: `await Worker(app, machines=[Checkout(stripe)], jobs=[greet]).run()`.

    `queues` maps each queue to serve to its concurrency or a `Queue`. `limits` are declared in the database when the
    worker starts; a limit that was changed with `set_limit` stays until its declaration in the code changes.
    """

    def __init__(
        self,
        app: Durable,
        *,
        machines: Iterable[Machine] = (),
        jobs: Iterable[Job[Any, Any]] = (),
        queues: Mapping[str, int | Queue] | None = None,
        limits: Mapping[str, Policy] | None = None,
        **options: Unpack[WorkerKeywordArguments],
    ) -> None:
        self._app = app
        self._services = services_of(app)
        self.options = WorkerOptions.from_keyword_arguments(queues, options)
        self._registry = Registry(machines, jobs)
        self._limits = check_limit_policies(limits) if limits is not None else {}
        if not self._registry.specs and self.options.queues:
            raise ConfigError("a worker with queues needs machines or jobs; one for maintenance only takes queues={}")
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.on_stuck_loop: Callable[[], None] | None = None
        """Called in a thread when the event loop has not answered for `max_loop_block`. Set it before `start`."""
        self._runtime: Runtime | None = None
        self._starting = False
        self._stop_task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain. A second signal exits at once.

        Signals reach the main thread only. In another thread, use `async with worker:`.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "Worker.run() handles signals and so needs the main thread: use `async with worker:`, or start and stop"
            )
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        starting: asyncio.Task[bool] = loop.create_task(self._open_and_start())

        def on_signal(number: int) -> None:
            if stop.is_set():
                # No clean-up of any kind: steps, threads and connections might not answer.
                log.warning("exit without draining; steps under way run again when their leases end")
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(128 + number)
            stop.set()
            starting.cancel()

        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, on_signal, number)
        opened = False
        try:
            try:
                opened = await starting
            except asyncio.CancelledError:
                if not stop.is_set():
                    raise
                log.info("worker %s: stopped while it started", self.name)
                return
            await stop.wait()
            log.info("worker %s: stopping", self.name)
        finally:
            try:
                await self.stop()
            finally:
                for number in signals:
                    loop.remove_signal_handler(number)
                starting.cancel()
                if opened:
                    await self._app.close()

    async def _open_and_start(self) -> bool:
        """Start, and open the `Durable` if it is not open. Returns whether this call opened it."""
        opened = await self._services.open_if_closed()
        try:
            await self.start()
        except BaseException:
            if opened:
                await self._app.close()
            raise
        return opened

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Declare limits and retentions, and start working. Opens the `Durable` if it is not open."""
        if self._starting:
            raise ConfigError("this worker was started already: create a new one")
        self._starting = True
        try:
            await self._services.open_if_closed()
            target = self._services.connection_target  # raises ConfigError if the Durable has only a pool
            await self._services.check_write_access()
            for name, policy in self._limits.items():
                await declare_limit(self._services, name, policy)
            await declare_retentions(self._services, self._registry.retentions)
        except BaseException:
            self._starting = False
            raise
        self._runtime = Runtime(
            self._services, target, self.options, self._registry, self.name, on_stuck_loop=self.on_stuck_loop
        )
        await self._runtime.start()
        if self.options.on_dead_letter is not None and (
            self.options.max_crashes is None or self.options.reap_interval is None
        ):
            log.warning("on_dead_letter is never called by a worker without max_crashes or with reap_interval=None")
        slots = ", ".join(f"{queue}={n}" for queue, n in self.options.concurrency_by_queue.items())
        log.info("worker %s: %s", self.name, slots or "maintenance only")

    async def stop(self) -> None:
        """Drain: stop picking, release rows that have not started, wait for steps under way, commit, close.

        Called inside a step of this worker, it begins the drain and returns: the drain waits for that step.
        """
        if self._runtime is None:
            return
        if self._stop_task is None:
            self._runtime.stop_starting_claims()
            self._stop_task = asyncio.get_running_loop().create_task(self._runtime.stop(), name="gen_durable stop")
        if asyncio.current_task() in self._runtime.tasks.running:
            return
        try:
            await asyncio.shield(self._stop_task)
        except asyncio.CancelledError:
            self._stop_task.cancel()
            raise
