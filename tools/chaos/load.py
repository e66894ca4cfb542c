"""The load: lanes of instances of all kinds, each made from the seed and driven to its end.

Everything that the engine has accepted is written down here, with what is expected of it. A call whose answer was lost
is made again where the engine knows it again (a unique key, a dedup key); where it does not, the call counts as made
perhaps.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, TypeVar

from gen_durable import Durable, Start
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable, NoTarget, TooLarge
from gen_durable.starts import LIVE, Scope
from gen_durable.validation import MAX_METADATA, MAX_PAYLOAD
from tools.chaos.hostile import Blocker, Hanging, Harm, Large, Poison, Urgent
from tools.chaos.machines import (
    Book,
    Box,
    Chain,
    Delays,
    Doom,
    Doomed,
    Family,
    Flaky,
    Joined,
    Mailbox,
    Narrow,
    Paced,
    Parent,
    Relay,
    Sum,
    Timer,
    Turn,
    Work,
    bye,
    ping,
)
from tools.chaos.server import TROUBLE, Server

EVER: Final[tuple[Scope, ...]] = (*LIVE, "done", "failed", "cancelled")
NAPS = (0, 0, 5, 5, 10, 20, 50)
T = TypeVar("T")
Drive = Callable[["Load", "Item", int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Item:
    """One instance of the load: how it starts, what comes of it, and who does something to it meanwhile."""

    key: str
    kind: str
    start: Start[Any]
    result: Sum | Joined | None = None
    drive: Drive | None = None
    rng: random.Random | None = None
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """An item that the engine has accepted."""

    item: Item
    id: int

    def row(self) -> tuple[object, ...]:
        result = None if self.item.result is None else asdict(self.item.result)
        return self.item.key, self.id, self.item.kind, result, self.item.partition_key


def _start(step: Any, state: object, key: str, **options: Any) -> Start[Any]:
    return Start(step, state, unique_key=key, unique_scope=EVER, **options)


def _work(rng: random.Random, most: int) -> Work:
    naps = tuple(rng.choice(NAPS) for _ in range(3))
    # Now and then a step that takes its time: of two executions of it, one comes back too late for the other.
    if rng.random() < 0.12:
        naps = (*naps, rng.choice((400, 400, 1500)))
    return Work(rng.randint(1, most), naps)


def chain(key: str, rng: random.Random) -> Item:
    work = _work(rng, 12)
    return Item(key, "Chain", _start(Chain.work, work, key), work.outcome())


def mailbox(key: str, rng: random.Random) -> Item:
    return Item(key, "Mailbox", _start(Mailbox.wait, Box(), key), None, Load.post, rng)


def parent(key: str, rng: random.Random) -> Item:
    # One in two hundred has enough children to be started in parts.
    several = 1200 if rng.random() < 0.005 else rng.randint(0, 8)
    works = tuple(_work(rng, 3) if several < 100 else Work(1) for _ in range(several))
    joined = Joined(2, several, sum(work.outcome().value for work in works))
    return Item(key, "Parent", _start(Parent.split, Family(works), key), joined)


def turn(key: str, rng: random.Random) -> Item:
    work, partition = Work(1, (rng.choice(NAPS),)), f"p{rng.randint(1, 6)}"
    start = _start(Turn.take, work, key, partition_key=partition)
    return Item(key, "Turn", start, work.outcome(), partition_key=partition)


def narrow(key: str, rng: random.Random) -> Item:
    work = Work(1, (rng.choice((20, 50, 100)),))
    return Item(key, "Narrow", _start(Narrow.squeeze, work, key), work.outcome())


def paced(key: str, rng: random.Random) -> Item:
    return Item(key, "Paced", _start(Paced.tick, Work(1), key), Work(1).outcome())


def timer(key: str, rng: random.Random) -> Item:
    delays = Delays(rng.choice((0.05, 0.5, 1.5)), rng.choice((0.05, 0.5, 2.0)))
    return Item(key, "Timer", _start(Timer.start, delays, key), Sum(3, 0))


def book(key: str, rng: random.Random) -> Item:
    work = _work(rng, 4)
    return Item(key, "Book", _start(Book.write, work, key), work.outcome())


def flaky(key: str, rng: random.Random) -> Item:
    return Item(key, "Flaky", _start(Flaky.work, Work(1), key), Work(1).outcome())


def relay(key: str, rng: random.Random) -> Item:
    work = _work(rng, 2)
    return Item(key, "Relay", _start(Relay.hand, work, key), Sum(1, work.steps))


def doomed(key: str, rng: random.Random) -> Item:
    way = rng.choice(("park", "linger", "family"))
    return Item(key, "Doomed", _start(Doomed.begin, Doom(way), key), None, Load.doom, rng)


def poison(key: str, rng: random.Random) -> Item:
    """The first one, and one in twenty, kills its worker until it ends failed."""
    is_poison = key.endswith("-0") or rng.random() < 0.05
    start = _start(Poison.kill, Harm(is_poison=is_poison), key, delay=rng.uniform(1, 4))
    return Item(key, "Poison", start, None if is_poison else Sum(1, 1))


def hanging(key: str, rng: random.Random) -> Item:
    return Item(key, "Hanging", _start(Hanging.hang, Harm(), key, delay=rng.uniform(1, 6)), Sum(1, 7))


def blocker(key: str, rng: random.Random) -> Item:
    harm = Harm(seconds=rng.choice((0.0, 0.0, 0.5, 3.5)))
    return Item(key, "Blocker", _start(Blocker.block, harm, key, delay=rng.uniform(2, 8)), Sum(1, 1))


def large(key: str, rng: random.Random) -> Item:
    size = rng.choice((1_000, 100_000, 499_900))
    start = _start(Large.grow, Harm(filler="x" * size), key, delay=rng.uniform(0.5, 3))
    return Item(key, "Large", start, Sum(2, 2 * size), Load.exceed, rng)


def urgent(key: str, rng: random.Random) -> Item:
    start = _start(Urgent.hurry, Work(1), key, priority=-10, delay=rng.uniform(0.1, 1))
    return Item(key, "Urgent", start, Work(1).outcome())


# How many of each kind are under way at once, at most.
FEEDS: dict[str, tuple[Callable[[str, random.Random], Item], int]] = {
    "Chain": (chain, 100),
    "Mailbox": (mailbox, 25),
    "Parent": (parent, 8),
    "Turn": (turn, 20),
    "Narrow": (narrow, 12),
    "Paced": (paced, 12),
    "Timer": (timer, 30),
    "Book": (book, 12),
    "Flaky": (flaky, 8),
    "Relay": (relay, 8),
    "Doomed": (doomed, 6),
    "Urgent": (urgent, 6),
    "Large": (large, 3),
}
HOSTILE: dict[str, tuple[Callable[[str, random.Random], Item], int]] = {
    "Poison": (poison, 3),
    "Hanging": (hanging, 3),
    "Blocker": (blocker, 2),
}


class Load:
    """Inserts, signals and cancels until it is stopped; then it finishes its open calls."""

    def __init__(
        self, app: Durable, server: Server, seed: int, share: float = 1.0, *, is_hostile: bool = False
    ) -> None:
        self._feeds = FEEDS | HOSTILE if is_hostile else FEEDS
        self._app = app
        self._server = server
        self._seed = seed
        self._share = share
        self._under_way: Counter[str] = Counter()
        self._low = 0
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted: list[Accepted] = []
        self.sent: list[tuple[int, int, bool]] = []
        self.findings: list[str] = []
        self.retries: Counter[str] = Counter()

    def start(self) -> None:
        self._begin(self._look())
        for kind, (make, most) in self._feeds.items():
            self._begin(self._feed(kind, make, max(round(most * self._share), 2)))

    async def finish(self) -> None:
        """Begin nothing new, and see that what was begun can end."""
        self._stop.set()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.findings.append(f"the load failed with {type(error).__name__}: {error}")

    async def _look(self) -> None:
        """See how many of each kind are under way."""
        while not self._stop.is_set():
            try:
                connection = await self._server.connect(timeout=3)
                try:
                    while not self._stop.is_set():
                        rows = await connection.fetch(
                            "select fsm, count(*) as n, min(id) as low from gen_durable.instances where id > $1"
                            " and finished_at is null and parent_id is null and metadata is null group by fsm",
                            self._low,
                            timeout=5,
                        )
                        self._under_way = Counter({row["fsm"]: row["n"] for row in rows})
                        self._low = min((row["low"] for row in rows), default=self._low + 1) - 1
                        await asyncio.sleep(0.25)
                finally:
                    connection.terminate()
            except TROUBLE:
                await asyncio.sleep(0.25)

    async def _feed(self, kind: str, make: Callable[[str, random.Random], Item], most: int) -> None:
        number = 0
        while not self._stop.is_set():
            room = most - self._under_way[kind]
            if room <= 0:
                await asyncio.sleep(0.1)
                continue
            several = [
                make(f"{kind}-{n}", random.Random(f"{self._seed} {kind} {n}")) for n in range(number, number + room)
            ]
            number += room
            self._under_way[kind] += room
            starts = [item.start for item in several]
            handles = await self._insist("insert", partial(self._app.insert_many, starts, on_conflict="existing"))
            for item, handle in zip(several, handles, strict=True):
                self.accepted.append(Accepted(item, handle.id))
                if item.drive is not None:
                    self._begin(item.drive(self, item, handle.id))
            await asyncio.sleep(0.02)

    async def _insist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that the engine knows again, until it is answered."""
        while True:
            try:
                return await call()
            except (DatabaseUnavailable, DatabaseRefused) as error:
                self.retries[f"{what}: {type(error).__name__}"] += 1
                await asyncio.sleep(0.2)

    async def post(self, item: Item, instance: int) -> None:
        """Letters to a mailbox: some known by a key, some of those twice, some unknown; and a last one."""
        rng = item.rng
        assert rng is not None
        for letter in range(rng.randint(0, 6)):
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.05, 0.3)))
            if rng.random() < 0.7:
                acked = True
                for _ in range(rng.choice((1, 1, 2))):
                    send = partial(self._app.signal, instance, ping, letter, dedup_key=f"letter {letter}")
                    await self._insist("signal", send)
            else:
                acked = await self._try_once(instance, letter)
            self.sent.append((instance, letter, acked))
        try:
            await self._insist("signal", lambda: self._app.signal(instance, bye, 0, dedup_key="bye"))
        except NoTarget:
            self.retries["the last letter had come already"] += 1  # its answer was lost, and the mailbox has ended

    async def _try_once(self, instance: int, letter: int) -> bool:
        try:
            return await self._app.signal(instance, ping, letter)
        except (DatabaseUnavailable, DatabaseRefused):
            self.retries["signals that were sent perhaps"] += 1
            return False

    async def exceed(self, item: Item, instance: int) -> None:
        """Calls beyond a bound, which are refused before they reach the database."""
        for what, call in (
            ("insert", partial(self._app.insert, Large.grow, Harm(filler="x" * MAX_PAYLOAD))),
            ("metadata", partial(self._app.insert, Large.grow, Harm(), metadata={"x": "x" * MAX_METADATA})),
        ):
            try:
                await call()
            except TooLarge:
                self.retries[f"{what}: refused as too large"] += 1
            else:
                self.findings.append(f"an {what} beyond its bound was accepted")

    async def doom(self, item: Item, instance: int) -> None:
        """Cancel it after a while."""
        assert item.rng is not None
        await asyncio.sleep(item.rng.uniform(0.0, 2.0))
        await self._insist("cancel", lambda: self._app.cancel(instance))
