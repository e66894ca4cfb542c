"""Several processes of one command, kept running.

In: a command and how many of it. Out: an exit code, when all have ended. A process that died is replaced, at once if it
had lived for a while and else after a pause that grows. The first SIGTERM or SIGINT is handed on and the processes
drain; a second one kills them. They are in process groups of their own, so that Ctrl-C reaches them once, through
us, and not twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from typing import Final

log = logging.getLogger("gen_durable.supervisor")
CANNOT_START: Final = 2
"""The exit code of a command that will never work as it was given: it is not tried again."""
STEADY: Final = 10.0
FIRST_PAUSE: Final = 0.5
LAST_PAUSE: Final = 30.0
_DRAINED: Final = frozenset({0, -signal.SIGTERM, -signal.SIGINT})  # killed by our signal: it had not even begun


async def supervise(command: list[str], processes: int) -> int:
    """Run `processes` of `command` until told to stop; 0 when all have drained."""
    return await _Supervisor(command).run(processes)


class _Supervisor:
    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._living: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()
        self._code = 0

    async def run(self, processes: int) -> int:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._heard, number)
        log.info("starting %d processes", processes)
        try:
            await asyncio.gather(*(self._keep(slot + 1) for slot in range(processes)))
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
        log.info("all processes have ended")
        return self._code

    async def _keep(self, slot: int) -> None:
        """Run one process after the other, until stopping."""
        pause = 0.0
        while not self._stopping.is_set():
            began = time.monotonic()
            process = await self._start()
            log.info("process %d: pid %d", slot, process.pid)
            code = await process.wait()
            self._living.discard(process)
            if self._stopping.is_set():
                self._ended(slot, code)
            elif code == CANNOT_START:
                self._code = CANNOT_START
                self._stop(signal.SIGTERM)
            else:
                steady = time.monotonic() - began > STEADY
                pause = 0.0 if steady else min(max(pause * 2, FIRST_PAUSE), LAST_PAUSE)
                log.warning("process %d (pid %d) %s; replacing it in %g s", slot, process.pid, _how(code), pause)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause)

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,  # never written to: its end tells the process that we are gone
            process_group=0,
        )
        self._living.add(process)
        if self._stopping.is_set():
            process.send_signal(signal.SIGTERM)
        return process

    def _ended(self, slot: int, code: int) -> None:
        if code not in _DRAINED:
            log.warning("process %d %s", slot, _how(code))
            self._code = self._code or 1

    def _heard(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("a second signal: killing %d processes", len(self._living))
            self._code = 128 + number
            self._send(signal.SIGKILL)
        else:
            log.info("%s: stopping %d processes", number.name, len(self._living))
            self._stop(number)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping.set()
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        for process in self._living:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
