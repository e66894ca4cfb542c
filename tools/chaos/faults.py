"""The faults. Each is a function that does its harm, waits, and undoes what does not undo itself."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tools.chaos.fleet import Fleet, Slot, faketime
from tools.chaos.proxy import Proxy
from tools.chaos.server import TROUBLE, Server


@dataclass(frozen=True, slots=True)
class World:
    """The parts that faults break. `lease` is that of the workers, in seconds."""

    server: Server
    fleet: Fleet
    proxies: list[Proxy]
    lease: float


Fault = Callable[[World, random.Random], Awaitable[None]]


@asynccontextmanager
async def a_berth(world: World, rng: random.Random) -> AsyncGenerator[Slot]:
    """A slot without another fault, with a working process."""
    slots = rng.sample(world.fleet.slots, len(world.fleet.slots))
    slot = next((b for b in slots if not b.busy.locked()), slots[0])
    async with slot.busy:
        if slot.now is not None:
            await world.fleet.ready(slot.now, timeout=10)
        yield slot


async def sigkill(world: World, rng: random.Random) -> None:
    """SIGKILL a worker; another comes after a moment."""
    async with a_berth(world, rng) as slot:
        if slot.now is not None:
            world.fleet.kill(slot.now)
        await asyncio.sleep(rng.choice((0.0, 0.0, 1.0)))
        world.fleet.spawn(slot)


async def sigstop(world: World, rng: random.Random) -> None:
    """SIGSTOP a worker for longer than its lease: others take its work over; then it goes on as if nothing were."""
    async with a_berth(world, rng) as slot:
        process = slot.now
        if process is None:
            return
        process.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(world.lease * rng.uniform(1.1, 1.6))
        finally:
            process.send(signal.SIGCONT)


async def rolling(world: World, rng: random.Random) -> None:
    """Replace a worker as a deploy does: the next one works before this one is asked to end."""
    await _replace(world, rng, None)


async def clock(world: World, rng: random.Random) -> None:
    """Replace a worker by one whose clock is two hours off."""
    await _replace(world, rng, rng.choice(("+2h", "-2h")))


async def _replace(world: World, rng: random.Random, skew: str | None) -> None:
    async with a_berth(world, rng) as slot:
        former = slot.now
        fresh = world.fleet.spawn(slot, skew)
        await world.fleet.ready(fresh)
        if former is not None:
            await world.fleet.drain(former)


async def terminate(world: World, rng: random.Random) -> None:
    """A storm of pg_terminate_backend: half of all connections, again and again for a second."""
    async with world.server.turn:
        with suppress(*TROUBLE):
            connection = await world.server.connect()
            try:
                for _ in range(10):
                    await connection.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity"
                        " where backend_type = 'client backend' and pid <> pg_backend_pid() and random() < 0.5"
                    )
                    await asyncio.sleep(0.1)
            finally:
                await connection.close(timeout=2)


async def backend(world: World, rng: random.Random) -> None:
    """SIGKILL one backend, as the OOM killer does: the server resets all of them and recovers."""
    async with world.server.turn:
        with suppress(*TROUBLE):
            connection = await world.server.connect()
            try:
                pid = await connection.fetchval(
                    "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
                    " order by random() limit 1"
                )
                if pid in world.server.processes():
                    os.kill(pid, signal.SIGKILL)
            finally:
                connection.terminate()
        await world.server.start()


async def fast(world: World, rng: random.Random) -> None:
    """Restart Postgres, fast: sessions are ended, a checkpoint is made."""
    async with world.server.turn:
        await world.server.stop(signal.SIGINT)
        await world.server.start()


async def immediate(world: World, rng: random.Random) -> None:
    """Restart Postgres, immediate: it recovers from its log."""
    async with world.server.turn:
        await world.server.stop(signal.SIGQUIT)
        await world.server.start()


async def postmaster(world: World, rng: random.Random) -> None:
    """SIGKILL the postmaster and all its children."""
    async with world.server.turn:
        await asyncio.to_thread(world.server.kill)
        await world.server.start()


async def freeze(world: World, rng: random.Random) -> None:
    """SIGSTOP all of Postgres for longer than the lease: connections stay open without an answer."""
    async with world.server.turn:
        world.server.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(world.lease * rng.uniform(1.1, 1.8))
        finally:
            world.server.send(signal.SIGCONT)


async def outage(world: World, rng: random.Random) -> None:
    """Shut Postgres down for longer than the lease."""
    async with world.server.turn:
        await world.server.stop(rng.choice((signal.SIGINT, signal.SIGQUIT)))
        await asyncio.sleep(world.lease * rng.uniform(1.1, 1.8))
        await world.server.start()


async def delay(world: World, rng: random.Random) -> None:
    """Every message takes 20 to 150 ms longer, for some of the workers."""
    some = _some(world, rng)
    for proxy in some:
        proxy.delay = rng.uniform(0.02, 0.15)
    try:
        await asyncio.sleep(rng.uniform(1, 4))
    finally:
        for proxy in some:
            proxy.delay = 0.0


async def stall(world: World, rng: random.Random) -> None:
    """Nothing gets through for some of the workers, for longer than the lease; then it goes on, or is cut."""
    some = _some(world, rng)
    for proxy in some:
        proxy.stall()
    try:
        await asyncio.sleep(world.lease * rng.uniform(0.5, 1.8))
    finally:
        for proxy in some:
            if rng.random() < 0.3:
                proxy.reset()
            proxy.flow()


async def reset(world: World, rng: random.Random) -> None:
    """Cut all connections, a few times in a row."""
    for _ in range(rng.randint(1, 5)):
        for proxy in world.proxies:
            proxy.reset()
        await asyncio.sleep(rng.uniform(0.05, 0.4))


async def swallow(world: World, rng: random.Random) -> None:
    """Answers are lost after the server has committed, for some of the workers."""
    some = _some(world, rng)
    for proxy in some:
        proxy.swallowing = rng.uniform(0.05, 0.3)
    try:
        await asyncio.sleep(rng.uniform(1, 3))
    finally:
        for proxy in some:
            proxy.swallowing = 0.0


def _some(world: World, rng: random.Random) -> list[Proxy]:
    return rng.sample(world.proxies, rng.randint(1, max(1, len(world.proxies) - 1)))


async def diskfull(world: World, rng: random.Random) -> None:
    """The disk of Postgres is full for a while; a server that has given up on it is started again afterwards."""
    async with world.server.turn:
        await asyncio.to_thread(world.server.fill, rng.choice((0, 64 * 1024, 1024 * 1024)))
        try:
            await asyncio.sleep(rng.uniform(2, 5))
        finally:
            await asyncio.to_thread(world.server.empty)
        await world.server.start()


async def locks(world: World, rng: random.Random) -> None:
    """Another session locks rows, or the whole table, for a while."""
    rows = (
        "select id from gen_durable.instances where id = any (array("
        " select id from gen_durable.instances where finished_at is null order by random() limit 60"
        ")) order by id for update"
    )
    table = "lock table gen_durable.instances in access exclusive mode"
    with suppress(*TROUBLE):
        connection = await world.server.connect()
        try:
            await connection.execute("begin; set local lock_timeout = '5s'")
            await connection.execute(rows if rng.random() < 0.7 else table)
            await asyncio.sleep(rng.uniform(1, world.lease * 1.5))
            await connection.execute("rollback")
        finally:
            connection.terminate()


KINDS: dict[str, tuple[Fault, int]] = {  # with its weight: how often it comes, beside the others
    "sigkill": (sigkill, 5),
    "sigstop": (sigstop, 3),
    "rolling": (rolling, 3),
    "clock": (clock, 2),
    "terminate": (terminate, 2),
    "backend": (backend, 1),
    "fast": (fast, 1),
    "immediate": (immediate, 1),
    "postmaster": (postmaster, 1),
    "freeze": (freeze, 1),
    "outage": (outage, 1),
    "delay": (delay, 1),
    "stall": (stall, 2),
    "reset": (reset, 2),
    "swallow": (swallow, 3),
    "diskfull": (diskfull, 1),
    "locks": (locks, 2),
}
GROUPS = {
    "all": tuple(KINDS),
    "proxy": ("delay", "stall", "reset", "swallow"),
    "postgres": ("terminate", "backend", "fast", "immediate", "postmaster", "freeze", "outage"),
    "workers": ("sigkill", "sigstop", "rolling", "clock"),
}


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault of a plan: when, which, and the number that its own choices come from."""

    at: float
    kind: str
    seed: str


def chosen(words: str) -> list[str]:
    """The kinds that `sigkill,proxy` stands for, in the order of the table."""
    names = {name for word in words.split(",") if word for name in GROUPS.get(word, (word,))}
    if unknown := names - set(KINDS):
        raise ValueError(f"no such fault: {', '.join(sorted(unknown))}. There are: {', '.join([*KINDS, *GROUPS])}")
    return [name for name in KINDS if name in names]


def impossible(server: Server) -> dict[str, str]:
    """Faults that this machine does not permit, and why."""
    why: dict[str, str] = {}
    if not server.mounted:
        why["diskfull"] = "a tmpfs cannot be mounted (that needs root, and no --no-mount)"
    if faketime() is None:
        why["clock"] = "libfaketime is not installed (apt-get install faketime)"
    return why


def plan(seed: int, seconds: float, kinds: list[str], pace: float) -> list[Planned]:
    """The faults of a run: all from the seed. Kinds come as from a bag, so that a short run has each of them too."""
    rng = random.Random(f"{seed} faults")
    found: list[Planned] = []
    bag: list[str] = []
    at = min(2.0, pace)
    while kinds and at < seconds:
        if not bag:
            # The first bag has each kind once.
            bag = [kind for kind in kinds for _ in range(KINDS[kind][1] if found else 1)]
            rng.shuffle(bag)
        found.append(Planned(at, bag.pop(), f"{seed} {len(found)}"))
        at += pace * rng.uniform(0.5, 1.5)
    return found
