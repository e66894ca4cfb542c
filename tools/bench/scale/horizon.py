"""A long reader under load.

A loop without an engine puts jobs in and takes them out as fast as it can: insert 100, pick 100, done, and retention
every tenth time. Meanwhile a transaction with a snapshot stays open, so that no dead row goes away: not by vacuum, and
not by the reads that would otherwise mark dead index entries. What a pick costs before, during and after is the
question: the head of the queue's index fills with entries of rows that were picked and cannot be forgotten.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import asyncpg

from gen_durable.engine.pick_scan_positions import PickScanPositions
from gen_durable.starts import Start
from gen_durable.store.statements import Statement
from gen_durable.store.types import Commit
from tools.bench.scale.dataset import Table
from tools.bench.scale.statement_round import KNOWN, LEASE, M

GC_EVERY: Final = 10
_COUNTERS: Final = """
select s.n_dead_tup as dead, pg_relation_size('@schema.instances_pick') as pick_bytes,
       pg_total_relation_size(s.relid) as total_bytes, s.autovacuum_count as autovacuums,
       i.idx_blks_hit + i.idx_blks_read as pick_blocks
from pg_stat_user_tables s, pg_statio_user_indexes i
where s.relid = '@schema.instances'::regclass and i.indexrelid = '@schema.instances_pick'::regclass
"""


@dataclass(slots=True)
class Window:
    """Some seconds of the run."""

    phase: str  # 'before', 'during', 'after'
    at: float  # seconds since the start, at its end
    jobs_per_s: float
    pick_p50_ms: float
    pick_p99_ms: float
    dead_rows: int
    pick_blocks_per_job: float  # pages of the pick index, by all statements
    pick_index_mb: float
    total_mb: float
    autovacuums: int

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Tally:
    began: float
    jobs: int = 0
    picks: list[float] = field(default_factory=list)


async def watch(
    dsn: str, table: Table, seconds: tuple[float, float, float], window: float, say: Callable[[Window], None]
) -> list[Window]:
    """Drain and refill for `seconds` before, during and after the long reader."""
    tally, stop = _Tally(time.monotonic()), asyncio.Event()
    drain = asyncio.create_task(_drain(table, tally, stop))
    seen: list[Window] = []
    try:
        for phase, length in zip(("before", "during", "after"), seconds, strict=True):
            reader = await _open(dsn, table) if phase == "during" else None
            try:
                ends = time.monotonic() + length
                while (left := ends - time.monotonic()) > 0.5:
                    seen.append(await _window(table, tally, phase, min(window, left), drain))
                    say(seen[-1])
            finally:
                if reader is not None:
                    await reader.close()
    finally:
        stop.set()
        await drain
    return seen


async def _open(dsn: str, table: Table) -> asyncpg.Connection[Any]:
    reader = await asyncpg.connect(dsn)
    await reader.execute("begin isolation level repeatable read")
    await reader.execute(table.schema.render("select id from @schema.instances limit 1"))
    return reader


async def _window(table: Table, tally: _Tally, phase: str, seconds: float, drain: asyncio.Task[None]) -> Window:
    before = await _counters(table)
    jobs, picks, since = tally.jobs, len(tally.picks), time.monotonic()
    await asyncio.wait([drain], timeout=seconds)
    if drain.done():
        await drain
    took = time.monotonic() - since
    after = await _counters(table)
    done, times = tally.jobs - jobs, sorted(tally.picks[picks:]) or [took]
    return Window(
        phase,
        time.monotonic() - tally.began,
        done / took,
        statistics.median(times) * 1e3,
        times[min(len(times) - 1, len(times) * 99 // 100)] * 1e3,
        after["dead"],
        (after["pick_blocks"] - before["pick_blocks"]) / max(done, 1),
        after["pick_bytes"] / 1e6,
        after["total_bytes"] / 1e6,
        after["autovacuums"],
    )


async def _counters(table: Table) -> dict[str, Any]:
    (row,) = await table.fetch(_COUNTERS)
    return dict(row)


async def _drain(table: Table, tally: _Tally, stop: asyncio.Event) -> None:
    connection, calls = table.main, table.calls
    starts = [Start(M.s, {"n": 1}) for _ in range(100)]
    positions = PickScanPositions()
    for turn in range(2**62):
        if stop.is_set():
            return
        await _run(connection, calls.insert(starts, "raise"))
        sent = positions.to_pick_argument(["default"])
        pick = calls.pick("w", {"default": 100}, KNOWN, LEASE, scan_positions=sent)
        began = time.perf_counter()
        rows = await connection.fetch(pick.text, *pick.args)
        took = time.perf_counter() - began
        tally.picks.append(took)
        picked = pick.read(rows)
        positions.update_from_pick(picked, sent, took)
        held = sorted(picked.claims, key=lambda claim: claim.id)
        await _run(connection, calls.flush([Commit(c.id, c.epoch, c.seq, "done", value='{"ok": true}') for c in held]))
        tally.jobs += len(held)
        if turn % GC_EVERY == 0:
            await _run(connection, calls.gc(0, 0, 0, 100 * GC_EVERY))


async def _run(connection: asyncpg.Connection[Any], call: Statement[Any]) -> None:
    await connection.fetch(call.text, *call.args)
