"""A normal load with an account of what it expects, in phases with and without hostile logins beside it."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

import asyncpg

from gen_durable import (
    Await,
    Concurrency,
    Context,
    Done,
    Durable,
    Finished,
    Handle,
    Machine,
    Outcome,
    Signal,
    Worker,
    step,
)
from gen_durable.errors import GenDurableError
from tools.hostile.attacks import CANARY, HELD, ROLES
from tools.hostile.rows_of_others import digest_sql, login_sql

FACTOR = 8.0
"""How much longer the normal load may take under attack (p50), at most; SECURITY.md has the measured value."""
AT_ONCE = 4
PATIENCE = 20.0

FILLED = ("signals", "transitions", "activities", "checkpoints", "progress")

go = Signal("go", str)
other = Signal("other", str)  # never awaited: it stays in the inbox


class Load(Machine):
    """A limit, a partition and a signal: what a neighbour could block."""

    @step(limit="load")
    async def start(self, secret: str, ctx: Context) -> Outcome[str]:
        return Await(go, then=self.answer, state=secret)

    @step
    async def answer(self, secret: str, ctx: Context) -> Outcome[str]:
        taken: str | None = ctx.take(go)
        return Done(f"{secret}/{taken}")


class Held(Machine, history="states"):
    """An instance with a row in every table of the journal, which waits during the whole run."""

    @step
    async def start(self, secret: str, ctx: Context) -> Outcome[str]:
        await ctx.run("keep", keep, secret)
        await ctx.checkpoint(secret)
        ctx.progress(0.5, secret, detail=secret)
        return Await(go, then=self.answer, state=secret)

    @step
    async def answer(self, secret: str, ctx: Context) -> Outcome[str]:
        taken: str | None = ctx.take(go)
        return Done(f"{secret}/{taken}")


def keep(secret: str) -> str:
    return secret


@dataclass(slots=True)
class Figures:
    """What was measured and what went wrong."""

    quiet: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    quiet_seconds: float = 0.0
    attacked_seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def factor(self, share: float) -> float:
        return percentile(self.attacked, share) / max(percentile(self.quiet, share), 1e-6)

    def verdict(self, factor: float) -> list[str]:
        found = list(self.problems)
        found += [name for name in self.seen if name.startswith(("READ", "INTERNAL"))]
        if not self.seen["calls"]:
            found.append("no attack was made")
        if self.factor(0.5) > factor:
            found.append(
                f"the load took {self.factor(0.5):.1f} times as long under attack; at most {factor:g} is documented"
            )
        return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else PATIENCE


class Run:
    """One run on a schema with roles; `dsns` has one for each role, for `load`, `worker`, and `owner`, a superuser."""

    def __init__(self, schema: str, dsns: Mapping[str, str]) -> None:
        self._schema = schema
        self._dsns = dsns
        self._next = 0
        self._token = secrets.token_hex(8)  # keys are one space for all logins: a known key can be taken before
        self.figures = Figures()

    async def go(self, seconds: float, phases: int, seed: int, without: tuple[str, ...] = ()) -> Figures:
        """Alternate phases without and with the attack, `seconds` in total."""
        limits = {"load": Concurrency(8)}
        client = Durable(self._dsns["load"], schema=self._schema)
        service = Durable(self._dsns["worker"], schema=self._schema)
        async with (
            client as app,
            service as engine,
            Worker(engine, machines=[Load(), Held()], queues={"default": 16}, limits=limits),
        ):
            held = [await app.insert(Held.start, CANARY, unique_key=f"held-{n}") for n in range(HELD)]
            before = await self._fill_held(held)
            for phase in range(phases * 2):
                is_attacked = phase % 2 == 1
                attackers = await self._start(seed + phase, without) if is_attacked else []
                began = time.monotonic()
                await asyncio.gather(
                    *(self._loop(app, began + seconds / phases / 2, is_attacked=is_attacked) for _ in range(AT_ONCE))
                )
                took = time.monotonic() - began
                await self._stop(attackers)
                if is_attacked:
                    self.figures.attacked_seconds += took
                else:
                    self.figures.quiet_seconds += took
            await self._compare(held, before)
            await self._end_held(held)
        await self._account()
        return self.figures

    async def _loop(self, app: Durable, until: float, *, is_attacked: bool) -> None:
        """Insert, signal, wait and compare, one instance after the other."""
        latencies = self.figures.attacked if is_attacked else self.figures.quiet
        while time.monotonic() < until:
            self._next += 1
            number = self._next
            began = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE):
                    handle = await app.insert(
                        Load.start,
                        f"{CANARY}-{number}",
                        unique_key=f"{self._token}-{number}",
                        partition_key=f"p{number % 50}",
                    )
                    await handle.signal(go, f"{CANARY}-go")
                    end = await handle.wait(timedelta(seconds=PATIENCE))
            except (GenDurableError, TimeoutError) as error:
                self.figures.problems.append(f"instance {number}: {type(error).__name__}: {error}"[:200])
                continue
            latencies.append(time.monotonic() - began)
            if end != Finished(handle.id, f"{CANARY}-{number}/{CANARY}-go"):
                self.figures.problems.append(f"instance {number} ended as {type(end).__name__}")

    async def _fill_held(self, held: list[Handle[str]]) -> dict[str, tuple[int, str]]:
        """Digests of the rows of the held instances, once each has some in every table of the journal."""
        for handle in held:
            await handle.signal(other, CANARY)
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await self._digests(held)
                if all(found[table][0] >= HELD for table in FILLED):
                    return found
                await asyncio.sleep(0.1)

    async def _digests(self, held: list[Handle[str]]) -> dict[str, tuple[int, str]]:
        """The number and the digest of the rows of the held instances, and of the shared rows, by table."""
        login = urlsplit(self._dsns["load"]).username or ""
        ids = ", ".join(str(handle.id) for handle in held)
        connection = await asyncpg.connect(self._dsns["owner"])
        try:
            number = await connection.fetchval(login_sql(login))
            rows = await connection.fetch(digest_sql(self._schema, number, f"i.id in ({ids})"))
        finally:
            await connection.close()
        return {row[0]: (row[1], row[2]) for row in rows}

    async def _compare(self, held: list[Handle[str]], before: dict[str, tuple[int, str]]) -> None:
        after = await self._digests(held)
        changed = [table for table in before if after[table] != before[table]]
        if changed:
            self.figures.problems.append(f"rows of held instances have changed in {', '.join(changed)}")

    async def _end_held(self, held: list[Handle[str]]) -> None:
        """The instances whose keys and ids the attackers knew are as they were, and take their signal."""
        for handle in held:
            await handle.signal(go, CANARY)
            if await handle.wait(timedelta(seconds=PATIENCE)) != Finished(handle.id, f"{CANARY}/{CANARY}"):
                self.figures.problems.append(f"instance {handle.id} with a known key did not end as it should")

    async def _start(self, seed: int, without: tuple[str, ...]) -> list[asyncio.subprocess.Process]:
        return [
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tools.hostile.attacker",
                self._dsns[role],
                self._schema,
                role,
                str(seed),
                *without,
                stdin=PIPE,
                stdout=PIPE,
            )
            for role in ROLES
        ]

    async def _stop(self, attackers: list[asyncio.subprocess.Process]) -> None:
        for process in attackers:
            output, _ = await process.communicate(b"")  # ends its input
            if process.returncode != 0:
                self.figures.problems.append(f"an attacker ended with {process.returncode}")
                continue
            self.figures.seen.update(json.loads(output))

    async def _account(self) -> None:
        """Compare the table with what the load has counted."""
        connection = await asyncpg.connect(self._dsns["worker"])
        try:
            rows = await connection.fetch(
                f"select status::text, count(*) from \"{self._schema}\".instances where fsm = 'Load' group by 1"
            )
        finally:
            await connection.close()
        found = {row[0]: row[1] for row in rows}
        expected = len(self.figures.quiet) + len(self.figures.attacked)
        if found != {"done": expected} and not self.figures.problems:
            self.figures.problems.append(f"the table has {found}, the load has counted {expected} that are done")


def describe(figures: Figures) -> str:
    lines = ["", f"{'':12}{'p50':>10}{'p99':>10}{'per second':>14}"]
    for name, values, seconds in (
        ("alone", figures.quiet, figures.quiet_seconds),
        ("attacked", figures.attacked, figures.attacked_seconds),
    ):
        rate = len(values) / max(seconds, 1e-6)
        lines.append(
            f"{name:12}{percentile(values, 0.5) * 1000:8.1f}ms{percentile(values, 0.99) * 1000:8.1f}ms{rate:14.1f}"
        )
    lines.append(f"{'factor':12}{figures.factor(0.5):10.1f}{figures.factor(0.99):10.1f}")
    answers = ", ".join(f"{name}: {count:,}" for name, count in sorted(figures.seen.items()))
    return "\n".join([*lines, f"attacks: {answers}"])
