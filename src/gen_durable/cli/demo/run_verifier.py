"""Verifies after the demo that no outcome was lost and none was committed twice.

The checks compare the script's observations with the database. Every committed outcome adds one to an instance's `seq`,
and an order's path has a known length: a lower `seq` is a lost outcome and a higher one a doubled outcome, however
often its steps were executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gen_durable import Failed, Finished
from gen_durable.cli.database_opener import ConnectedDatabase
from gen_durable.cli.demo.demo_script import DemoObservations, PlacedOrder
from gen_durable.cli.demo.machines import Receipt
from gen_durable.cli.demo.worker_program import SCHEMA
from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.instances import Ending
from gen_durable.invariant_checker import diagnose
from gen_durable.operations.wait import wait
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

SHIPPED: Final = 5  # place, collect, charge, pack, ship
NOT_PAID: Final = 2  # place, collect
PACKED: Final = 1


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A condition, in words, and whether it holds."""

    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class MachineTotals:
    """How often the steps of one machine were executed and committed."""

    machine: str
    instances: int
    committed: int
    executed: int

    @property
    def repeated_executions(self) -> int:
        """Executions without a commit, because their worker was killed."""
        return self.executed - self.committed


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The result of the demo."""

    totals: tuple[MachineTotals, ...]
    checks: tuple[CheckResult, ...]

    @property
    def has_passed(self) -> bool:
        """Whether all checks hold."""
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """The columns of an instance that the checks read."""

    id: int
    machine: str
    status: str
    seq: int
    parent: int | None


async def verify_run(database: ConnectedDatabase, seen: DemoObservations) -> DemoReport:
    """Compare the observations with the database."""
    async with Durable(database.dsn, schema=SCHEMA) as app:
        endings = await asyncio.gather(
            *(wait(services_of(app), p.handle.id, p.handle.codec, _WAIT) for p in seen.placed)
        )
    rows = await database.connection.run(Statement(Schema(SCHEMA).render(_ROWS), (), _decode_instance_rows))
    findings = await diagnose(database.connection, Schema(SCHEMA))
    broken = [finding.check for finding in findings if not finding.is_clean]
    checks = [
        *_check_orders(seen.placed, seen.seconds, endings),
        check_outcome_counts(seen, rows),
        check_packed_items(seen.placed, rows),
        _check_killed_worker(seen),
        _check_stocktake_job(seen, rows),
        CheckResult(
            seen.duplicate_payments > 0, f"{seen.duplicate_payments} payments were reported twice and counted once"
        ),
        CheckResult(seen.drained, "on SIGTERM the workers finished their steps and exited with code 0"),
        CheckResult(
            not broken,
            f"doctor: {f'{broken} found violations' if broken else f'all {len(findings)} checks are clean'}",
        ),
    ]
    return DemoReport(_count_by_machine(seen, rows), tuple(checks))


def _check_orders(placed: list[PlacedOrder], seconds: float, endings: list[Ending[Receipt]]) -> list[CheckResult]:
    """Every order ended as its customer's behaviour requires."""
    wrong = [p.order.number for p, ending in zip(placed, endings, strict=True) if not has_ended_as_expected(p, ending)]
    shipped = sum(p.amount is not None for p in placed)
    if wrong:
        return [CheckResult(ok=False, text=f"orders {wrong} have a wrong result")]
    return [
        CheckResult(bool(placed), f"all {len(placed)} orders ended, each with the right result ({seconds:.1f} s)"),
        CheckResult(
            shipped > 0, f"{shipped} were paid, packed and shipped; {len(placed) - shipped} were not paid in time"
        ),
    ]


def has_ended_as_expected(placed: PlacedOrder, ending: Ending[Receipt]) -> bool:
    if placed.amount is None:
        return ending == Failed(placed.handle.id, "payment never came")
    parcel = tuple(f"wrapped {name}" for name in placed.order.items)
    return ending == Finished(placed.handle.id, Receipt(placed.order.number, placed.amount, parcel))


def check_outcome_counts(seen: DemoObservations, rows: list[InstanceRow]) -> CheckResult:
    """Each instance has as many committed outcomes as its path has steps, and at least as many executions."""
    due = {p.handle.id: SHIPPED if p.amount is not None else NOT_PAID for p in seen.placed}
    due |= {row.id: PACKED for row in rows if row.machine == "Pack"}
    seqs = {row.id: row.seq for row in rows}
    lost = [i for i, steps in due.items() if seqs.get(i, 0) < steps or seen.executions[i] < steps]
    doubled = [i for i, steps in due.items() if seqs.get(i, 0) > steps]
    if lost or doubled:
        return CheckResult(
            ok=False, text=f"instances that lost an outcome: {lost}; that committed one twice: {doubled}"
        )
    total = sum(due.values())
    return CheckResult(ok=True, text=f"nothing was lost and nothing committed twice: {total} steps, {total} outcomes")


def check_packed_items(placed: list[PlacedOrder], rows: list[InstanceRow]) -> CheckResult:
    """Each paid order started exactly one child per item, and all of them are done."""
    due = sorted(p.handle.id for p in placed if p.amount is not None for _ in p.order.items)
    packed = sorted(row.parent or 0 for row in rows if row.machine == "Pack" and row.status == "done")
    total = sum(row.machine == "Pack" for row in rows)
    ok = due == packed and total == len(due)
    return CheckResult(ok, f"{len(packed)} items were packed, each once, for {len(set(packed))} orders")


def _check_killed_worker(seen: DemoObservations) -> CheckResult:
    resumed = seen.interrupted & seen.resumed
    return CheckResult(
        bool(seen.interrupted) and resumed == seen.interrupted,
        f"a worker was killed in the middle of {len(seen.interrupted)} steps; {len(resumed)} ran again on another one",
    )


def _check_stocktake_job(seen: DemoObservations, rows: list[InstanceRow]) -> CheckResult:
    (row,) = (row for row in rows if row.machine == "stocktake")
    return CheckResult(
        row.status == "done", f"the failing job was executed {seen.executions[row.id]} times and is {row.status}"
    )


def _count_by_machine(seen: DemoObservations, rows: list[InstanceRow]) -> tuple[MachineTotals, ...]:
    machines = dict.fromkeys(row.machine for row in rows)
    return tuple(
        MachineTotals(
            machine,
            sum(row.machine == machine for row in rows),
            sum(row.seq for row in rows if row.machine == machine),
            sum(seen.executions[row.id] for row in rows if row.machine == machine),
        )
        for machine in machines
    )


def _decode_instance_rows(rows: Sequence[Sequence[Any]]) -> list[InstanceRow]:
    return [InstanceRow(*row) for row in rows]


_WAIT: Final = timedelta(seconds=1)
_ROWS: Final = "select id, fsm, status::text, seq, parent_id from @schema.instances order by id"
