"""Picker: claim due rows as slots fall free.

In: pokes (local work, NOTIFY, a slot that fell free) and the clock. Out: claims, handed to the worker to be started.
One statement serves all queues. Between picks it sleeps until the next row falls due, or for the poll interval, which
doubles up to its ceiling while nothing comes; so timers fire on time and an idle worker is nearly silent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gen_durable.config import WorkerOptions
from gen_durable.core.background import BackgroundTask
from gen_durable.engine.fair_turns import FairTurns
from gen_durable.engine.scan_floors import ScanFloors
from gen_durable.engine.slots import QueueSlots
from gen_durable.pg.connection import PersistentConnection
from gen_durable.store.statements import Statements
from gen_durable.store.types import Claim, Picked
from gen_durable.telemetry import Events, PartitionContended, QueueSaturation, RowsBlocked, RowsThrottled, RowsUnblocked
from gen_durable.telemetry import RowsPicked as PickedEvent

STOP_WAIT: Final = 5.0
MAX_LOAD: Final = 2000
LOAD_REST: Final = 0.005


class Picker(BackgroundTask):
    """The picker of one worker."""

    def __init__(
        self,
        link: PersistentConnection,
        calls: Statements,
        options: WorkerOptions,
        *,
        worker: str,
        known: list[str],
        on_claims: Callable[[list[Claim], float], None],
        on_crowded: Callable[[str], None],
        on_woken: Callable[[frozenset[str]], None],
        events: Events,
        load: Callable[[], int],
    ) -> None:
        super().__init__("picker")
        self._link = link
        self._calls = calls
        self._options = options
        self._worker = worker
        self._known = known
        self._on_claims = on_claims
        self._on_crowded = on_crowded
        self._on_woken = on_woken
        self._events = events
        self._load = load
        self.lanes = {name: QueueSlots(name, slots, options.prefetch) for name, slots in options.slots.items()}
        self._bell = asyncio.Event()
        self._due: dict[str, float] = {}
        self._rest = options.poll_interval.total_seconds()
        self._polled = 0.0
        self._floors = ScanFloors()
        self._turns = FairTurns(options.fair)
        self._asking: asyncio.Task[Picked] | None = None

    def poke(self, queue: str) -> int:
        """There may be work in a queue. Returns how many more rows could be taken from it here."""
        lane = self.lanes.get(queue)
        if lane is None or self._stopping:
            return 0
        lane.poked = True
        self._bell.set()
        return lane.room

    def due(self, queue: str, seconds: float) -> None:
        """A row of a queue falls due in so many seconds: be awake then."""
        moment = time.monotonic() + seconds
        if moment < self._due.get(queue, float("inf")):
            self._due[queue] = moment
            self._bell.set()

    def poke_all(self) -> None:
        for name in self.lanes:
            self.poke(name)

    def freed(self) -> None:
        """A slot fell free: what was due while there was no room for it can be asked for now."""
        self._bell.set()

    async def stop(self) -> None:
        """Stop picking. A pick under way is waited for: its claims are handed over like any other."""
        await super().stop()
        asking, self._asking = self._asking, None
        if asking is not None:
            await asyncio.wait([asking], timeout=STOP_WAIT)
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                asking.exception()

    async def run_once(self) -> float:
        """Picker once for every queue that has room and reason; then rest until there is another reason."""
        self._bell.clear()
        demands = self._demands()
        if demands:
            picked = await self._pick(demands)
            if picked.claims:
                return 0.0
        wait = self._until_next()
        try:
            async with asyncio.timeout(wait):
                await self._bell.wait()
        except TimeoutError:
            pass
        return 0.0

    async def _pick(self, demands: dict[str, int]) -> Picked:
        lease = self._options.lease_ttl.total_seconds()
        for name in demands:
            self.lanes[name].poked = False
            self.lanes[name].paced()
            self._due.pop(name, None)
        self._asking = asyncio.get_running_loop().create_task(self._asked(demands, lease), name="gen_durable pick")
        try:
            # A claim must not get lost between the database and us: stopping waits for the answer.
            picked = await asyncio.shield(self._asking)
        except BaseException:
            for name in demands:
                self.lanes[name].poked = True
            raise
        return picked

    async def _asked(self, demands: dict[str, int], lease: float) -> Picked:
        asked = time.monotonic()
        floors = self._floors.of(demands)
        turns = self._turns.of(demands)
        picked = await self._link.run(
            self._calls.pick(self._worker, demands, self._known, lease, floors=floors, turns=turns)
        )
        self._floors.note(picked, floors, time.monotonic() - asked)
        self._turns.note(picked)
        if picked.claims:
            self._on_claims(picked.claims, asked)
        self._note(demands, picked)
        if picked.woken:
            self._on_woken(picked.woken)
        return picked

    def _note(self, demands: dict[str, int], picked: Picked) -> None:
        now = time.monotonic()
        short = {news.queue: news for news in picked.news}
        for name in demands:
            lane, news = self.lanes[name], short.get(name)
            if news is None:
                lane.poked = True  # full: there may be more, so go on as soon as a slot is free
                self._on_crowded(name)
            else:
                moments = [m for m in (news.next_due, self._floors.full_in(name)) if m is not None]
                if moments:
                    # A nearer moment may have been told while the statement was under way.
                    self._due[name] = min(self._due.get(name, float("inf")), now + max(min(moments), 0.0))
        base = self._options.poll_interval.total_seconds()
        self._rest = base if picked.claims else min(self._rest * 2, self._options.max_poll_interval.total_seconds())
        self._polled = now
        if self._events.active:
            self._tell(demands, picked)

    def _tell(self, demands: dict[str, int], picked: Picked) -> None:
        counts = dict.fromkeys(demands, 0)
        for claim in picked.claims:
            counts[claim.queue] += 1
        for name, demand in demands.items():
            lane = self.lanes[name]
            self._events.emit(PickedEvent(name, counts[name], demand, self._worker))
            self._events.emit(QueueSaturation(name, lane.running, len(lane.buffer), lane.concurrency, lane.ahead))
        for news in picked.news:
            if news.contended:
                self._events.emit(PartitionContended(news.queue, news.contended))
        for gate, count in picked.blocked.items():
            kind, _, key = gate.partition("/")
            self._events.emit(RowsThrottled(key, count) if kind == "rate" else RowsBlocked(key, count))
        for queue in picked.woken:
            self._events.emit(RowsUnblocked(queue))

    def _demands(self) -> dict[str, int]:
        if self._load() > MAX_LOAD:
            return {}  # the database does not keep up with what we have done: do not claim more
        now = time.monotonic()
        polling = now - self._polled >= self._rest
        demands: dict[str, int] = {}
        for name, lane in self.lanes.items():
            reason = lane.poked or polling or self._due.get(name, now + 1) <= now
            if reason and (demand := lane.demand(self._options.min_demand)):
                demands[name] = demand
        return demands

    def _until_next(self) -> float | None:
        """Seconds until there is a reason to pick; None: until somebody rings.

        Only queues that would ask for rows count. A moment that has passed for one without room is no reason: the slot
        that falls free is, and waking up for the moment again and again would burn a core.
        """
        if self._load() > MAX_LOAD:
            return LOAD_REST
        able = [name for name, lane in self.lanes.items() if lane.demand(self._options.min_demand)]
        if not able:
            return None
        moments = [self._polled + self._rest, *(self._due[name] for name in able if name in self._due)]
        return max(min(moments) - time.monotonic(), 0.0)
