"""The checks of a run: compare the ledger with the effects and the accepted calls, and run the doctor."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncpg

from gen_durable.invariant_checker import diagnose
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema
from tools.chaos.effects import Execution
from tools.chaos.fleet import Fleet
from tools.chaos.load import Load
from tools.chaos.machines import BURST, PER_WORKER, SLOTS, TOKENS

SHOWN = 3
SLACK = 0.3  # seconds that the two clocks may come apart in half an hour, while the wall's is being corrected
CLEAN = frozenset({"rolling", "clock"})  # faults that cost nothing: no step runs again


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A condition, whether it holds, and its figures."""

    name: str
    meaning: str
    good: bool
    details: str


@dataclass(frozen=True, slots=True)
class Account:
    """Counts of executions and outcomes. `repeated` are executions without an outcome of their own."""

    effects: int
    outcomes: int
    repeated: int
    by_kills: int  # of these, because their worker was killed
    transactions: int  # and in transactions that were lost, whose step ran again by the same claim
    leases: int  # that workers lost and lived on
    ended: int  # claims that were to be cancelled, and were ended by the reaper
    claims_of_killed: int
    released: int
    kills: int

    @property
    def bound(self) -> int:
        """The most re-executions allowed: a kill costs the running steps, and as many that are not yet committed."""
        return self.kills * 2 * PER_WORKER + self.leases + self.ended + self.transactions

    @property
    def share(self) -> float:
        return self.repeated / self.outcomes if self.outcomes else 0.0


async def fill(connection: asyncpg.Connection[Any], load: Load, fleet: Fleet, executions: Sequence[Execution]) -> None:
    """Copy the effects and the accepted calls into the database."""
    effects = [(e.worker, e.id, e.claim, e.seq, e.attempt, e.step, e.began, e.ended) for e in executions]
    await connection.copy_records_to_table("effects", schema_name="chaos", records=effects)
    expected = [
        (key, instance, kind, None if result is None else json.dumps(result), partition)
        for key, instance, kind, result, partition in (accepted.row() for accepted in load.accepted)
    ]
    await connection.copy_records_to_table("expected", schema_name="chaos", records=expected)
    await connection.copy_records_to_table("sent", schema_name="chaos", records=load.sent)
    workers = [(process.name, process.process.pid, _wall(fleet.killed.get(process.name))) for process in fleet.all]
    await connection.copy_records_to_table("workers", schema_name="chaos", records=workers)
    for table, columns in (("ledger", "id, seq"), ("effects", "id, seq"), ("lost", "id"), ("expected", "id")):
        await connection.execute(f"create index on chaos.{table} ({columns})")
        await connection.execute(f"analyze chaos.{table}")
    await connection.execute("create index on gen_durable.instances ((metadata ->> 'by')) where metadata is not null")
    await connection.execute("analyze gen_durable.instances")


def _wall(moment: int | None) -> datetime | None:
    """A time of the monotonic clock as wall-clock time."""
    return None if moment is None else datetime.fromtimestamp((moment + offset()) / 1e9, UTC)


def offset() -> int:
    """Nanoseconds from the monotonic clock to the wall clock."""
    return time.time_ns() - time.monotonic_ns()


async def account(connection: asyncpg.Connection[Any], fleet: Fleet) -> Account:
    """Count executions and outcomes."""
    row = await connection.fetchrow(_ACCOUNT)
    assert row is not None
    return Account(**dict(row), kills=len(fleet.killed))


_ACCOUNT = """
with e as (
  select e.id, e.claims, e.seq, count(*) as times,
    exists (select from chaos.ledger l where l.id = e.id and l.claims = e.claims and l.seq = e.seq + 1) as committed
  from chaos.effects e group by e.id, e.claims, e.seq
),
o as (
  select o.id, o.claims, o.how, o.at >= w.killed_at as by_kill
  from chaos.lost o left join chaos.workers w on w.pid = split_part(o.worker, ':', 2)::int
)
select
  (select count(*) from chaos.effects) as effects,
  (select count(*) from chaos.ledger) as outcomes,
  (select coalesce(sum(times - committed::int), 0)::int from e) as repeated,
  (select count(*) from e join o using (id, claims) where not e.committed and o.by_kill) as by_kills,
  (select coalesce(sum(times - 1), 0)::int from e) as transactions,
  (select count(*) from o where how = 'reaped' and by_kill is not true) as leases,
  (select count(*) from o where how = 'ended' and by_kill is not true) as ended,
  (select count(*) from o where how <> 'released' and by_kill) as claims_of_killed,
  (select count(*) from o where how = 'released') as released
"""


async def check_database(
    connection: asyncpg.Connection[Any], dsn: str, found: Account, kinds: Sequence[str], log: Path
) -> list[CheckResult]:
    """The checks on the database and the server."""
    lines = await check_tables(connection)
    lines += _executions(found, kinds)
    lines.append(await _doctor(dsn))
    lines.append(_deadlocks(log, int(await connection.fetchval("select sum(deadlocks) from pg_stat_database"))))
    left = await connection.fetchval(
        "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    )
    lines.append(CheckResult("connections", "No connection is left behind.", left == 0, f"{left} left"))
    return lines


async def check_tables(connection: asyncpg.Connection[Any]) -> list[CheckResult]:
    """The checks on the tables alone."""
    lines = [await _check(connection, path.name, path.read_text()) for path in _checks()]
    return [*lines, await _rate(connection)]


def _checks() -> list[Any]:
    directory = files("tools.chaos") / "sql" / "checks"
    return sorted((path for path in directory.iterdir() if path.name.endswith(".sql")), key=lambda path: path.name)


async def _check(connection: asyncpg.Connection[Any], file: str, sql: str) -> CheckResult:
    # From the monotonic clock to the wall's; what that may be wrong by; the slots of the limit.
    for word, value in (("@offset", offset()), ("@slack", SLACK), ("@slots", SLOTS)):
        sql = sql.replace(word, str(value))
    rows = await connection.fetch(sql, timeout=300)
    name = re.sub(r"^\d+_|\.sql$", "", file).replace("_", " ")
    meaning = sql.splitlines()[0].removeprefix("-- ")
    return CheckResult(name, meaning, not rows, _show([f"{row['id']}: {row['problem']}" for row in rows]))


def _show(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    rest = f" (and {len(problems) - SHOWN} more)" if len(problems) > SHOWN else ""
    return f"{len(problems)} found. " + "; ".join(problems[:SHOWN]) + rest


async def _rate(connection: asyncpg.Connection[Any]) -> CheckResult:
    """In no interval are more tokens granted than the burst and the refill of the interval.

    A grant happens between the beginning of its transaction and the time in its row.
    """
    rows = await connection.fetch(
        "select extract(epoch from began)::float8 as began, extract(epoch from at)::float8 as at"
        " from chaos.grants order by at"
    )
    lowest, most = 0.0, 0.0
    for number, row in enumerate(rows):
        lowest = min(lowest, number - TOKENS * row["began"]) if number else -TOKENS * row["began"]
        most = max(most, number - TOKENS * row["at"] - lowest + 1)
    meaning = f"A limit of rate is never exceeded: {TOKENS} a second, {BURST} at once."
    return CheckResult("rate", meaning, most <= BURST + 0.001, f"{len(rows)} grants, at most {most:.2f} at once")


def _executions(found: Account, kinds: Sequence[str]) -> list[CheckResult]:
    figures = (
        f"{found.effects:,} executions, {found.outcomes:,} outcomes, {found.repeated:,} run again ({found.share:.2%})"
    )
    bound = (
        f"at most {found.kills} kills x 2 x {PER_WORKER} slots + {found.leases + found.ended:,} lost leases"
        f" + {found.transactions:,} lost transactions = {found.bound:,}; {found.by_kills:,} by kills"
    )
    lines = [
        CheckResult(
            "re-executions",
            "Steps run again only after a kill, a lost lease or a lost transaction.",
            found.repeated <= found.bound,
            f"{figures}, {bound}",
        )
    ]
    if CLEAN.issuperset(kinds):
        lines.append(
            CheckResult(
                "clean restarts",
                "Workers that are drained lose nothing: each execution has its outcome, no lease runs out.",
                found.repeated == 0 and found.leases == 0,
                f"{figures}, {found.leases} leases ran out, {found.released} claims given back unbegun",
            )
        )
    return lines


async def _doctor(dsn: str) -> CheckResult:
    link = PersistentConnection(ConnectionTarget(dsn))
    try:
        findings = await diagnose(link, Schema())
    finally:
        await link.close()
    bad = [f"{f.check}: {f.count} ({f.first[0].problem})" for f in findings if not f.is_clean]
    return CheckResult("doctor", f"All {len(findings)} checks of the doctor are clean.", not bad, _show(bad))


def _deadlocks(log: Path, counted: int) -> CheckResult:
    # The server's own counter goes with a crash; its log does not.
    logged = log.read_text(errors="replace").count("deadlock detected")
    return CheckResult("deadlocks", "No deadlock.", logged == counted == 0, f"{logged} in the log, {counted} counted")


def errors_in(log: Path) -> dict[str, int]:
    """The errors in the server's log by message, with numbers replaced."""
    words: Counter[str] = Counter()
    for level, text in re.findall(r" (ERROR|PANIC):  (.*)", log.read_text(errors="replace")):
        words[f"{level}: {re.sub(r'[0-9]+', 'N', text)[:120]}"] += 1
    return dict(words.most_common())


def check_harness(fleet: Fleet, load: Load) -> list[CheckResult]:
    """The checks on the worker processes and the load."""
    log_errors = fleet.log_errors()
    longest = max(fleet.drains, default=0.0)
    return [
        CheckResult("workers", "Workers end only when they are made to.", not fleet.findings, _show(fleet.findings)),
        CheckResult("logs", "No traceback in the log of a worker.", not log_errors, _show(log_errors)),
        CheckResult(
            "drains", "A worker that is asked to end does so.", True, f"{len(fleet.drains)}, longest {longest:.1f} s"
        ),
        CheckResult(
            "load", "No call was refused, or failed in an unforeseen way.", not load.findings, _show(load.findings)
        ),
    ]
