"""The end of the demo: was anything lost, was anything committed twice?

In: what the story saw from outside, and the database. Out: checks, each of which really compares the two. At its heart:
every committed outcome adds one to an instance's `seq`, and an order's path has a known length. One too few is a lost
outcome, one too many a doubled one, however often its steps were executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gen_durable import Failed, Finished
from gen_durable.cli.database import Database
from gen_durable.cli.demo.machines import Receipt
from gen_durable.cli.demo.program import SCHEMA
from gen_durable.cli.demo.script import Placed, Told
from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.doctor import diagnose
from gen_durable.instances import Ending
from gen_durable.operations.wait import wait
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

SHIPPED: Final = 5  # place, collect, charge, pack, ship
NOT_PAID: Final = 2  # place, collect
PACKED: Final = 1


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, in words, and whether it does."""

    ok: bool
    words: str


@dataclass(frozen=True, slots=True)
class Ran:
    """The work of one machine: what was committed, and what was executed for it."""

    machine: str
    instances: int
    committed: int
    executed: int

    @property
    def again(self) -> int:
        """Executions that came to nothing, because their worker was gone."""
        return self.executed - self.committed


@dataclass(frozen=True, slots=True)
class Verdict:
    """The summary."""

    ran: tuple[Ran, ...]
    checks: tuple[Check, ...]

    @property
    def good(self) -> bool:
        """Whether all checks hold."""
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class Row:
    """What the database says about an instance."""

    id: int
    machine: str
    status: str
    seq: int
    parent: int | None


async def judge(database: Database, told: Told) -> Verdict:
    """Compare what was seen with what is stored."""
    async with Durable(database.dsn, schema=SCHEMA) as app:
        endings = await asyncio.gather(
            *(wait(services_of(app), p.handle.id, p.handle.codec, _MOMENT) for p in told.placed)
        )
    rows = await database.link.run(Statement(Schema(SCHEMA).render(_ROWS), (), _read))
    findings = await diagnose(database.link, Schema(SCHEMA))
    broken = [finding.check for finding in findings if not finding.clean]
    checks = [
        *_orders(told.placed, told.seconds, endings),
        outcomes(told, rows),
        items(told.placed, rows),
        _crash(told),
        _job(told, rows),
        Check(told.paid_twice > 0, f"{told.paid_twice} payments were reported twice and counted once"),
        Check(told.drained, "asked to stop, the workers finished what they had and left with exit code 0"),
        Check(
            not broken,
            f"doctor: {f'{broken} found broken rows' if broken else f'all {len(findings)} checks are clean'}",
        ),
    ]
    return Verdict(_ran(told, rows), tuple(checks))


def _orders(placed: list[Placed], seconds: float, endings: list[Ending[Receipt]]) -> list[Check]:
    """Every order has the very ending that its customer's behaviour asks for."""
    wrong = [p.order.number for p, ending in zip(placed, endings, strict=True) if not as_expected(p, ending)]
    shipped = sum(p.amount is not None for p in placed)
    if wrong:
        return [Check(ok=False, words=f"orders {wrong} did not end as they should")]
    return [
        Check(
            bool(placed), f"all {len(placed)} orders reached their end, each with the right result ({seconds:.1f} s)"
        ),
        Check(shipped > 0, f"{shipped} were paid, packed and shipped; {len(placed) - shipped} were not paid in time"),
    ]


def as_expected(placed: Placed, ending: Ending[Receipt]) -> bool:
    if placed.amount is None:
        return ending == Failed(placed.handle.id, "payment never came")
    parcel = tuple(f"wrapped {name}" for name in placed.order.items)
    return ending == Finished(placed.handle.id, Receipt(placed.order.number, placed.amount, parcel))


def outcomes(told: Told, rows: list[Row]) -> Check:
    """Each instance has as many committed outcomes as its path has steps, and was executed at least that often."""
    due = {p.handle.id: SHIPPED if p.amount is not None else NOT_PAID for p in told.placed}
    due |= {row.id: PACKED for row in rows if row.machine == "Pack"}
    seqs = {row.id: row.seq for row in rows}
    lost = [i for i, steps in due.items() if seqs.get(i, 0) < steps or told.executions[i] < steps]
    doubled = [i for i, steps in due.items() if seqs.get(i, 0) > steps]
    if lost or doubled:
        return Check(ok=False, words=f"instances that lost an outcome: {lost}; that committed one twice: {doubled}")
    total = sum(due.values())
    return Check(ok=True, words=f"nothing was lost and nothing committed twice: {total} steps, {total} outcomes")


def items(placed: list[Placed], rows: list[Row]) -> Check:
    """Each paid order started one child per item, no more, and all of them are done."""
    due = sorted(p.handle.id for p in placed if p.amount is not None for _ in p.order.items)
    packed = sorted(row.parent or 0 for row in rows if row.machine == "Pack" and row.status == "done")
    all_of_them = sum(row.machine == "Pack" for row in rows)
    ok = due == packed and all_of_them == len(due)
    return Check(ok, f"{len(packed)} items were packed, each once, for {len(set(packed))} orders")


def _crash(told: Told) -> Check:
    again = told.held & told.again
    return Check(
        bool(told.held) and again == told.held,
        f"a worker was killed in the middle of {len(told.held)} steps; {len(again)} of them ran again on another",
    )


def _job(told: Told, rows: list[Row]) -> Check:
    (row,) = (row for row in rows if row.machine == "stocktake")
    return Check(
        row.status == "done", f"the failing job was executed {told.executions[row.id]} times and is {row.status}"
    )


def _ran(told: Told, rows: list[Row]) -> tuple[Ran, ...]:
    machines = dict.fromkeys(row.machine for row in rows)
    return tuple(
        Ran(
            machine,
            sum(row.machine == machine for row in rows),
            sum(row.seq for row in rows if row.machine == machine),
            sum(told.executions[row.id] for row in rows if row.machine == machine),
        )
        for machine in machines
    )


def _read(rows: Sequence[Sequence[Any]]) -> list[Row]:
    return [Row(*row) for row in rows]


_MOMENT: Final = timedelta(seconds=1)
_ROWS: Final = "select id, fsm, status::text, seq, parent_id from @schema.instances order by id"
