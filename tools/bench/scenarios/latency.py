"""Latencies of an idle system: insert → done, signal → done, and how late timers are.

A pause before each sample lets every process go idle. The bare ceiling is the sum of the round trips
that have to be: insert, pick, flush; and between processes a NOTIFY.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from gen_durable import Durable, Finished, Handle, Start, Status
from gen_durable.core.services import services_of
from gen_durable.pg.connector import connect_to_first_usable_host
from gen_durable.store.types import Commit, OutgoingSignal
from tools.bench.ceiling import RunStatement, finish, open_runner, pick
from tools.bench.process_main import Parent
from tools.bench.processes import start_role
from tools.bench.result import Result, compare_latencies
from tools.bench.scenario import Progress, Scenario, Size, run_in_rounds
from tools.bench.server import Server
from tools.bench.work import Patient, go_on, look_at_clock, noop, worker

NAME = "latency"
WARM = 10
TIMER_SPAN = 3.0
Samples = dict[str, list[float]]


async def rest() -> None:
    await asyncio.sleep(random.uniform(0.005, 0.015))


# --- insert → done, one process -------------------------------------------------------------------


async def same(parent: Parent, app: Durable, *, samples: int) -> dict[str, Any]:
    await parent.wait_for_start()
    found: list[float] = []
    async with worker(app):
        for number in range(WARM + samples):
            await rest()
            began = time.monotonic()
            await (await app.insert(noop, number)).wait()
            found.append(time.monotonic() - began)
    return {"done": found[WARM:]}


async def same_bare(parent: Parent, app: Durable, *, samples: int) -> dict[str, Any]:
    await parent.wait_for_start()
    run_statement = await open_runner(app)
    found: list[float] = []
    for number in range(WARM + samples):
        await rest()
        began = time.monotonic()
        await run_statement(services_of(app).statements.insert([Start(noop, number)], "raise"))
        await finish(run_statement, app, await pick(run_statement, app, 1))
        found.append(time.monotonic() - began)
    return {"done": found[WARM:]}


# --- insert → done, two processes -----------------------------------------------------------------


async def other_worker(parent: Parent, app: Durable) -> dict[str, Any]:
    """The worker's process: when it has committed which instance."""
    ends: dict[int, float] = {}

    def ended(instance: int, *_: object) -> None:
        ends[instance] = time.monotonic()

    services_of(app).completion_watcher.report_end = ended  # type: ignore[method-assign, assignment]
    await parent.wait_for_start()
    async with worker(app):
        await parent.wait_for_stop()
    return {"ends": ends}


async def other_client(parent: Parent, app: Durable, *, samples: int) -> dict[str, Any]:
    """The client's process: when it has inserted, and when it knows of the end."""
    await parent.wait_for_start()
    found: list[tuple[int, float, float]] = []
    for number in range(WARM + samples):
        await rest()
        began = time.monotonic()
        handle = await app.insert(noop, number)
        await handle.wait()
        found.append((handle.id, began, time.monotonic()))
    return {"seen": found[WARM:]}


async def other_bare(parent: Parent, app: Durable, *, samples: int) -> dict[str, Any]:
    """Insert and NOTIFY on one connection, LISTEN on another, then pick and flush there; at the end one read."""
    await parent.wait_for_start()
    client, runner = await open_runner(app), await open_runner(app)
    listening = (await connect_to_first_usable_host(services_of(app).connection_target)).driver_connection
    message = asyncio.Event()
    await listening.add_listener(services_of(app).statements.schema.channel, lambda *_: message.set())
    committed: list[float] = []
    known: list[float] = []
    for number in range(WARM + samples):
        await rest()
        message.clear()
        began = time.monotonic()
        (row,) = await client(services_of(app).statements.insert([Start(noop, number)], "raise"))
        await client(services_of(app).statements.notify(["default"]))
        await message.wait()
        await finish(runner, app, await pick(runner, app, 1))
        committed.append(time.monotonic() - began)
        await client(services_of(app).statements.ends_of([row.id]))
        known.append(time.monotonic() - began)
    return {"committed": committed[WARM:], "known": known[WARM:]}


# --- signal → done --------------------------------------------------------------------------------


async def signal(parent: Parent, app: Durable, *, samples: int) -> dict[str, Any]:
    await parent.wait_for_start()
    found: list[float] = []
    async with worker(app):
        for number in range(WARM + samples):
            handle = await app.insert(Patient.begin, number)
            while (await handle.get()).status is not Status.AWAITING_SIGNAL:
                await rest()
            await rest()
            began = time.monotonic()
            await handle.signal(go_on)
            await handle.wait()
            found.append(time.monotonic() - began)
    return {"done": found[WARM:]}


async def signal_bare(parent: Parent, app: Durable, *, samples: int) -> dict[str, Any]:
    await parent.wait_for_start()
    run_statement = await open_runner(app)
    found: list[float] = []
    for number in range(WARM + samples):
        target = await _park(run_statement, app, number)
        await rest()
        began = time.monotonic()
        await run_statement(
            services_of(app).statements.signal([OutgoingSignal(target, None, go_on.name, "null", None)])
        )
        await finish(run_statement, app, await pick(run_statement, app, 1))
        found.append(time.monotonic() - began)
    return {"done": found[WARM:]}


async def _park(run_statement: RunStatement, app: Durable, number: int) -> int:
    await run_statement(services_of(app).statements.insert([Start(Patient.begin, number)], "raise"))
    (claim,) = await pick(run_statement, app, 1)
    waits = f'{{"awaits": ["{go_on.name}"], "seen": []}}'
    await run_statement(
        services_of(app).statements.flush(
            [Commit(claim.id, claim.epoch, claim.seq, "await", "end", value="1", extra=waits)]
        )
    )
    return claim.id


# --- timers ---------------------------------------------------------------------------------------


def _timers(samples: int) -> list[Start[float]]:
    moments = (0.3 + TIMER_SPAN * (number + random.random()) / samples for number in range(samples))
    return [Start(look_at_clock, 1, delay=timedelta(seconds=moment)) for moment in moments]


async def timer(parent: Parent, app: Durable, *, samples: int) -> dict[str, Any]:
    """How long after its moment a job begins, by the clock that the server and we share."""

    async def late(handle: Handle[float]) -> float:
        match await handle.wait():
            case Finished(result=began):
                return began - (await handle.get()).eligible_at.timestamp()
            case other:
                raise AssertionError(f"a timer ended as {other}")

    await parent.wait_for_start()
    async with worker(app):
        handles = await app.insert_many(_timers(samples))
        await asyncio.sleep(TIMER_SPAN + 1)
        return {"done": [await late(handle) for handle in handles]}


async def timer_bare(parent: Parent, app: Durable, *, samples: int) -> dict[str, Any]:
    """A loop that sleeps until the due time that the last pick returned, and picks again."""
    await parent.wait_for_start()
    run_statement = await open_runner(app)
    began: dict[int, float] = {}
    await run_statement(services_of(app).statements.insert(_timers(samples), "raise"))
    while len(began) < samples:
        picked = await run_statement(
            services_of(app).statements.pick("bare", {"default": 10}, ["look_at_clock/1/run"], 15)
        )
        now = time.time()
        began |= {claim.id: now for claim in picked.claims}
        if picked.claims:
            await finish(run_statement, app, picked.claims)
        elif picked.unmet and picked.unmet[0].next_due is not None:
            await asyncio.sleep(max(picked.unmet[0].next_due, 0))
    return {"done": [at - (await app.get(one)).eligible_at.timestamp() for one, at in began.items()]}


# --- the scenario ---------------------------------------------------------------------------------


async def run(server: Server, size: Size, progress: Progress) -> list[Result]:
    def alone(role: str) -> Callable[[], Awaitable[Samples]]:
        async def once() -> Samples:
            async with server.app() as app, start_role(app, f"{__name__}:{role}", samples=size.samples) as child:
                child.send("go")
                return await child.result()

        return once

    async def apart() -> Samples:
        async with (
            server.app() as app,
            start_role(app, f"{__name__}:other_worker") as working,
            start_role(app, f"{__name__}:other_client", samples=size.samples) as client,
        ):
            working.send("go")
            await asyncio.sleep(0.3)
            client.send("go")
            seen = (await client.result())["seen"]
            working.send("stop")
            ends = (await working.result())["ends"]
        return {
            "committed": [ends[str(instance)] - began for instance, began, _ in seen],
            "known": [known - began for _, began, known in seen],
        }

    found = await run_in_rounds(
        size,
        progress,
        {
            "same process, bare": alone("same_bare"),
            "same process": alone("same"),
            "other process, bare": alone("other_bare"),
            "other process": apart,
            "signal, bare": alone("signal_bare"),
            "signal": alone("signal"),
            "timer, bare": alone("timer_bare"),
            "timer": alone("timer"),
        },
    )

    def row(name: str, case: str, samples: str = "done", note: str = "") -> Result:
        ours, bare = ([taken[samples] for taken in found[key]] for key in (case, f"{case}, bare"))
        return compare_latencies(NAME, name, ours, bare, note=note)

    return [
        row("insert → done, same process", "same process", note="until wait() returns"),
        row("insert → done, other process", "other process", "committed", "until the worker has committed"),
        row("insert → known, other process", "other process", "known", "until wait() returns: it polls from 3 ms on"),
        row("signal → done, same process", "signal", note="until wait() returns"),
        row("timer lateness", "timer", note="from the moment it is due to the first line of the step"),
    ]


SCENARIO = Scenario(NAME, "Latencies when idle", "ms", run)
