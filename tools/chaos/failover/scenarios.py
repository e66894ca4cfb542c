"""The ways in which a leader goes, under load, and what each costs.

In: a cluster. Out: a `Report` for each scenario: what was acknowledged and lost, how long nothing was acknowledged, and
how long after the promotion the first commit came.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import psycopg

from gen_durable import Durable
from tools.chaos.failover.cluster import Cluster, Node
from tools.chaos.failover.load import Account, Load, account, loaded

WARM_UP = 4.0
AFTER = 5.0
PROMOTION = 120.0


@dataclass(frozen=True)
class Report:
    """What a scenario showed."""

    name: str
    acknowledged: int
    unknown: int
    account: Account
    gap: float
    promoted: float
    first_commit: float
    resume: float


class Promotion:
    """Watches a standby, and notes the moment from which it can be written to."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self.at: float | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(psycopg.Error), psycopg.connect(self._dsn, autocommit=True) as connection:
                while not self._stop.wait(0.01):
                    row = connection.execute("select pg_is_in_recovery()").fetchone()
                    if row == (False,):
                        self.at = time.monotonic()
                        return
            time.sleep(0.05)

    async def wait(self) -> float:
        await asyncio.to_thread(self._thread.join, PROMOTION)
        if self.at is None:
            raise TimeoutError(f"no node was promoted within {PROMOTION:.0f} s")
        return self.at

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.asynccontextmanager
async def switched_over(cluster: Cluster, _leader: Node) -> AsyncGenerator[None]:
    switching = asyncio.create_task(asyncio.to_thread(cluster.switch_over))
    yield
    await switching


@contextlib.asynccontextmanager
async def killed(cluster: Cluster, leader: Node) -> AsyncGenerator[None]:
    cluster.kill(leader)
    yield
    cluster.start_agent(leader)


@contextlib.asynccontextmanager
async def frozen(cluster: Cluster, leader: Node) -> AsyncGenerator[None]:
    pids = leader.processes()
    cluster.freeze(pids)
    yield
    cluster.thaw(pids)


@contextlib.asynccontextmanager
async def agent_frozen(cluster: Cluster, leader: Node) -> AsyncGenerator[None]:
    assert leader.agent is not None
    cluster.freeze([leader.agent.pid])
    yield
    cluster.thaw([leader.agent.pid])


Fault = Callable[[Cluster, Node], contextlib.AbstractAsyncContextManager[None]]
SCENARIOS: dict[str, tuple[Fault, float]] = {
    "planned switchover": (switched_over, 2.0),
    "leader killed": (killed, 2.0),
    "leader frozen": (frozen, 2.0),
    # The old leader is alive but waits for a standby that left it: the watchdog probes after `PROBE_AFTER`.
    "agent frozen, two leaders": (agent_frozen, 10.0),
}
"""What happens, and how long after the promotion the first commit may come."""


async def run_scenario(cluster: Cluster, name: str, report: Callable[[str], None]) -> Report:
    """Run one scenario on a cluster that is whole; it is whole again in the end."""
    schema = f"failover_{secrets.token_hex(4)}"
    async with Durable(cluster.dsn, schema=schema, migrate=True):
        pass
    leader, standby = cluster.leader()
    promotion = Promotion(cluster.dsn_of(standby))
    try:
        async with loaded(cluster.dsn, schema) as load:
            await asyncio.sleep(WARM_UP)
            began = time.monotonic()
            report(f"{name}: {leader.name} is taken down, {standby.name} must take over")
            fault, resume = SCENARIOS[name]
            async with fault(cluster, leader):
                promoted = await promotion.wait()
                report(f"{name}: {standby.name} leads after {promoted - began:.1f} s")
                await _go_on(load, promoted)
            await asyncio.to_thread(cluster.until_whole)
            report(f"{name}: the cluster is whole again")
            await asyncio.sleep(1)
            await load.stop()
            ledger = load.ledger
        found = await account(cluster.dsn_of(standby), schema, ledger)
    finally:
        promotion.stop()
    times = sorted(ledger.times)
    around = [moment for moment in times if moment >= began - 1]
    return Report(
        name=name,
        acknowledged=ledger.acknowledged,
        unknown=ledger.unknown,
        account=found,
        gap=max((late - early for early, late in itertools.pairwise(around)), default=0.0),
        promoted=promoted - began,
        first_commit=next((moment - promoted for moment in times if moment >= promoted), float("inf")),
        resume=resume,
    )


async def _go_on(load: Load, promoted: float) -> None:
    """Some seconds with the new leader, after its first commit."""
    for _ in range(60):
        if load.ledger.times[-1] >= promoted:
            break
        await asyncio.sleep(1)
    await asyncio.sleep(AFTER)
