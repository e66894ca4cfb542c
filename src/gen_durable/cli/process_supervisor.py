"""Keep several processes of one command running.

A process that dies is replaced: at once if it ran for a while, else after a growing pause. One that drains and exits,
because a signal was sent to it alone, is not. The first SIGTERM or SIGINT to the supervisor is forwarded and the
processes drain; a second one kills them. Each process has a process group of its own, so Ctrl-C
reaches it once, through the supervisor, and not twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import Final

from gen_durable.backoff import GrowingPauses
from gen_durable.escaping_loggers import get_escaping_logger

log = get_escaping_logger("gen_durable.supervisor")
CANNOT_START: Final = 2
"""The exit code of a command that can never work as given: it is not restarted."""
STABLE_AFTER: Final = 10.0
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
_DRAINED: Final = frozenset({0, -signal.SIGTERM, -signal.SIGINT})  # killed by the signal while it started


async def supervise_processes(command: list[str], processes: int) -> int:
    """Run `processes` of `command` until SIGTERM or SIGINT, or until all were stopped one by one. Returns 0 if all
    have drained.
    """
    return await _ProcessSupervisor(command).run(processes)


class _ProcessSupervisor:
    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._running: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()
        self._code = 0

    async def run(self, processes: int) -> int:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._handle_signal, number)
        log.info("starting %d processes", processes)
        try:
            await asyncio.gather(*(self._run_and_restart_process(slot + 1) for slot in range(processes)))
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
        log.info("all processes have ended")
        return self._code

    async def _run_and_restart_process(self, slot: int) -> None:
        """Run one process after the other, until a stop or until one was stopped by itself."""
        pauses = GrowingPauses(FIRST_PAUSE, LONGEST_PAUSE)
        while not self._stopping.is_set():
            started = time.monotonic()
            process = await self._start_process()
            log.info("process %d: pid %d", slot, process.pid)
            code = await process.wait()
            self._running.discard(process)
            if self._stopping.is_set():
                self._record_exit_unless_drained(slot, code)
            elif code == CANNOT_START:
                self._code = CANNOT_START
                self._stop_processes(signal.SIGTERM)
            elif code in _DRAINED:
                log.info("process %d (pid %d) has drained and ended; it is not replaced", slot, process.pid)
                return
            else:
                pause = 0.0
                if time.monotonic() - started > STABLE_AFTER:
                    pauses.reset()
                else:
                    pause = pauses.next_seconds()
                log.warning(
                    "process %d (pid %d) %s; replacing it in %g s", slot, process.pid, _describe_exit(code), pause
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause)

    async def _start_process(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,  # never written to: it closes when the supervisor dies
            process_group=0,
        )
        self._running.add(process)
        if self._stopping.is_set():
            process.send_signal(signal.SIGTERM)
        return process

    def _record_exit_unless_drained(self, slot: int, code: int) -> None:
        if code not in _DRAINED:
            log.warning("process %d %s", slot, _describe_exit(code))
            self._code = self._code or 1

    def _handle_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("second signal: killing %d processes", len(self._running))
            self._code = 128 + number
            self._send_signal(signal.SIGKILL)
        else:
            log.info("%s: stopping %d processes", number.name, len(self._running))
            self._stop_processes(number)

    def _stop_processes(self, number: signal.Signals) -> None:
        self._stopping.set()
        self._send_signal(number)

    def _send_signal(self, number: signal.Signals) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
