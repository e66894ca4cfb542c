"""A worker process that dies in the middle of a step, and the machine that it runs.

In the process the step named by the state stops half way and says so on its standard output; then the test kills it.
The journal is a file: the effects that a step has on the world, which no transaction takes back.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from gen_durable import Context, Done, Durable, Fail, Machine, Next, Outcome, Worker, step


@dataclass(frozen=True)
class Plan:
    """Where the first worker shall die, and what was decided so far."""

    dies_in: str
    prepared: bool = False


class Effects(Machine):
    """Two steps, each with an effect at its beginning and one at its end."""

    def __init__(self, journal: Path, *, dying: bool = False) -> None:
        self.journal = journal
        self.dying = dying

    @step
    async def prepare(self, plan: Plan, ctx: Context) -> Outcome[str]:
        await self._effects(plan, ctx)
        return Next(self.act, Plan(plan.dies_in, prepared=True))

    @step
    async def act(self, plan: Plan, ctx: Context) -> Outcome[str]:
        await self._effects(plan, ctx)
        return Done(f"attempt {ctx.attempt}")

    async def on_error(self, state: Plan, ctx: Context, error: Exception) -> Outcome[str]:
        self._write(f"on_error {ctx.step}")
        return Fail(error)

    async def _effects(self, plan: Plan, ctx: Context) -> None:
        self._write(f"{ctx.step} begins, prepared {plan.prepared}, attempt {ctx.attempt}")
        if self.dying and plan.dies_in == ctx.step:
            print("here", flush=True)
            await asyncio.Event().wait()
        self._write(f"{ctx.step} ends")

    def _write(self, line: str) -> None:
        with self.journal.open("a") as file:
            file.write(line + "\n")


class Doomed:
    """The process, as the test holds it."""

    def __init__(self, process: asyncio.subprocess.Process, journal: Path) -> None:
        self._process = process
        self.journal = journal

    async def die(self) -> None:
        """Wait until the process is in the middle of the step, and kill it there."""
        assert self._process.stdout is not None
        async with asyncio.timeout(20):
            assert await self._process.stdout.readline() == b"here\n"
        self._process.send_signal(signal.SIGKILL)
        assert await self._process.wait() == -signal.SIGKILL

    def effects(self) -> list[str]:
        return self.journal.read_text().splitlines()


async def main(dsn: str, schema: str, journal: str) -> None:
    async with Durable(dsn, schema=schema) as app:
        await Worker(
            app,
            machines=[Effects(Path(journal), dying=True)],
            lease_ttl=timedelta(seconds=1.2),
            heartbeat_interval=timedelta(seconds=0.4),
            reap_interval=None,
            gc_interval=None,
        ).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
