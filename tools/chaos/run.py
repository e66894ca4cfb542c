"""A run: a server, a fleet, a load and a plan of faults; then quiet, and the verdict."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console

from gen_durable import Durable
from tools.chaos.checks import CLEAN, CheckResult, account, check_database, check_harness, errors_in, fill
from tools.chaos.display import Display, Figures, percentile
from tools.chaos.effects import Reader
from tools.chaos.faults import KINDS, Planned, World, impossible, plan
from tools.chaos.fleet import Fleet, Slot
from tools.chaos.load import Load
from tools.chaos.machines import PER_WORKER
from tools.chaos.proxy import Proxy
from tools.chaos.self_test import verify_checks
from tools.chaos.server import TROUBLE, Server

SETTLE_TIMEOUT = 120.0  # for all instances to end after the last fault


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    seed: int
    minutes: float
    kinds: list[str]
    workers: int
    lease: float
    pace: float
    load: float
    postgres: str | None
    sabotage: str | None
    prove: bool
    mount: bool
    keep: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    lines: list[CheckResult]
    figures: dict[str, Any]

    @property
    def good(self) -> bool:
        return all(line.good for line in self.lines)


class Run:
    """One run."""

    def __init__(self, options: Options, console: Console, home: Path) -> None:
        self._options = options
        self._console = console
        self._home = home
        self._figures = Figures()
        self._server = Server(home, options.postgres)

    async def go(self) -> Report:
        options, server = self._options, self._server
        await asyncio.to_thread(server.create, mount=options.mount)
        try:
            await server.start()
            kinds = self._possible()
            async with Durable(server.dsn(), migrate=True):
                pass
            await self._install()
            async with AsyncExitStack() as stack:
                proxies = [
                    await stack.enter_async_context(Proxy(server.port, random.Random(f"{options.seed} proxy {n}")))
                    for n in range(options.workers + 1)
                ]
                fleet = Fleet(server, [Slot(n, p) for n, p in enumerate(proxies[1:])], self._home, options.lease)
                stack.callback(fleet.destroy)
                return await self._work(World(server, fleet, proxies, options.lease), kinds)
        finally:
            await asyncio.to_thread(server.destroy)

    def _possible(self) -> list[str]:
        left_out = {kind: why for kind, why in impossible(self._server).items() if kind in self._options.kinds}
        for kind, why in left_out.items():
            self._console.print(f"[bold red]LEFT OUT[/] {kind}: {why}")
        return [kind for kind in self._options.kinds if kind not in left_out]

    async def _install(self) -> None:
        connection = await self._server.connect()
        try:
            await connection.execute((files("tools.chaos") / "sql" / "ledger.sql").read_text())
            if self._options.sabotage == "fence":
                await connection.execute(await _without_fence(connection))
        finally:
            await connection.close()

    async def _work(self, world: World, kinds: list[str]) -> Report:
        options, fleet = self._options, world.fleet
        seconds = options.minutes * 60
        reader = Reader(fleet.effects)
        title = f"chaos, seed {options.seed}: {', '.join(kinds) or 'no faults'}"
        async with Durable(self._server.dsn(world.proxies[0].port)) as app:
            # Where no lease may expire, no step may kill its worker either.
            is_hostile = not CLEAN.issuperset(kinds)
            load = Load(app, self._server, options.seed, options.load, is_hostile=is_hostile)
            await fleet.start()
            with Display(self._console, title, seconds) as screen:
                async with self._watched(reader, fleet, screen) as stage:
                    began = time.monotonic()
                    load.start()
                    stage("breaking things")
                    await self._break(world, plan(options.seed, seconds, kinds, options.pace))
                    await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
                    stage("settling")
                    settled = await self._settle(load)
                    took = time.monotonic() - began
        await fleet.stop()
        return await self._judge(load, fleet, reader, kinds, seconds=took, settled=settled)

    async def _break(self, world: World, faults: list[Planned]) -> None:
        """Carry the plan out. Faults may overlap; those of the server take turns."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
                group.create_task(self._one(world, fault))

    async def _one(self, world: World, fault: Planned) -> None:
        act, _ = KINDS[fault.kind]
        self._figures.faults[fault.kind] += 1
        self._figures.acting[fault.kind] += 1
        try:
            await act(world, random.Random(fault.seed))
        finally:
            self._figures.acting[fault.kind] -= 1

    @asynccontextmanager
    async def _watched(self, reader: Reader, fleet: Fleet, screen: Display) -> AsyncGenerator[Callable[[str], None]]:
        stage = "starting"

        def say(words: str) -> None:
            nonlocal stage
            stage = words

        async def watch() -> None:
            while True:
                fresh = await asyncio.to_thread(reader.read)
                self._figures.take(fresh, fleet.killed)
                with suppress(*TROUBLE):
                    connection = await self._server.connect(timeout=2)
                    try:
                        self._figures.outcomes = await connection.fetchval(
                            "select last_value from chaos.ledger_n_seq", timeout=2
                        )
                    finally:
                        connection.terminate()
                screen.show(self._figures, stage)
                await asyncio.sleep(0.5)

        task = asyncio.create_task(watch())
        try:
            yield say
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                raise RuntimeError("the watch has failed") from task.exception()

    async def _settle(self, load: Load) -> float | None:
        """Wait until everything has ended. Returns the seconds, or None after the timeout."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT):
                await load.finish()
                connection = await self._server.connect()
                try:
                    unfinished = "select exists (select from gen_durable.instances where finished_at is null)"
                    while await connection.fetchval(unfinished):  # noqa: ASYNC110  # there is no event to wait for
                        await asyncio.sleep(0.2)
                finally:
                    connection.terminate()
        except TimeoutError:
            return None
        return time.monotonic() - began

    async def _judge(
        self, load: Load, fleet: Fleet, reader: Reader, kinds: list[str], *, seconds: float, settled: float | None
    ) -> Report:
        self._figures.take(await asyncio.to_thread(reader.read), fleet.killed)
        connection = await self._server.connect()
        try:
            await fill(connection, load, fleet, reader.executions)
            found = await account(connection, fleet)
            lines = await check_database(connection, self._server.dsn(), found, kinds, self._server.log)
            if self._options.prove and all(line.good for line in lines):
                lines += await verify_checks(connection)
        finally:
            await connection.close()
        lines += check_harness(fleet, load)
        took = "it did not" if settled is None else f"{settled:.1f} s"
        lines.append(
            CheckResult(
                "settled",
                f"Everything ends within {SETTLE_TIMEOUT:.0f} s of the last fault.",
                settled is not None,
                took,
            )
        )
        takeovers = self._figures.takeovers
        figures = {
            "seed": self._options.seed,
            "kinds": kinds,
            "seconds": round(seconds, 1),
            "workers": self._options.workers,
            "slots": self._options.workers * PER_WORKER,
            "lease": self._options.lease,
            "good": all(line.good for line in lines),
            "instances": len(load.accepted),
            "transitions": found.outcomes,
            "per_second": round(found.outcomes / seconds, 1),
            "faults": dict(sorted(self._figures.faults.items())),
            "faults_total": self._figures.faults.total(),
            **asdict(found),
            "repeated_share": round(found.share, 5),
            "bound": found.bound,
            "takeovers": {
                "count": len(takeovers),
                "p50": round(percentile(takeovers, 0.5), 3),
                "p99": round(percentile(takeovers, 0.99), 3),
                "max": round(max(takeovers, default=0.0), 3),
            },
            "notes": reader.notes,
            "retries": dict(load.retries),
            "server_starts": self._server.starts,
            "server_errors": await asyncio.to_thread(errors_in, self._server.log),
            "kinds_of_instances": dict(Counter(accepted.item.kind for accepted in load.accepted)),
            "verdict": [asdict(line) for line in lines],
        }
        return Report(lines, figures)


async def _without_fence(connection: asyncpg.Connection[Any]) -> str:
    """The engine's own flush, which no longer asks whose claim it is."""
    fence = "g.id = o.id and g.claims = o.claim and g.seq = o.seq\n"
    text = str(await connection.fetchval("select pg_get_functiondef('gen_durable.flush'::regproc)"))
    if text.count(fence) != 1:
        raise ValueError("flush.sql has changed: the sabotage does not find its fence")
    return text.replace(fence, "g.id = o.id and g.seq = o.seq\n")


async def run(options: Options, console: Console) -> Report:
    """Run in a directory of its own, which is removed unless `keep` is set or a check fails."""
    # Under /tmp, whatever TMPDIR says: the server's user must reach it.
    home = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="gd-chaos-", dir="/tmp"))  # noqa: S108  # a fresh name
    keep = True
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # so that nothing is left behind
    try:
        report = await Run(options, console, home).go()
        keep = options.keep or not report.good
        return report
    finally:
        if keep:
            console.print(f"Logs and effects: {home}")
        else:
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
