"""Real sessions, led through the orders in which their steps can happen.

In: rows to begin with, and a list of calls per session, each call one transaction. Out: a `Report`: how many schedules
were run, in what states they end, and the faults: a schedule that ends in an error that was not asked for (a deadlock
above all), breaks a check of the doctor, or fails the test's own `check`.

A step is one statement inside a function (see `breakpoints`), or a COMMIT; with `begin=True` also a BEGIN, which fixes
`now()`. A session that runs into a lock of another is not steppable until the other has let go; then it runs on to its
next stop by itself, as it would in life. `make interleavings` leads two sessions through every schedule; the tests lead
them through a sample where there are many. Three have too many, and are always led through a sample (see `schedules`).
Each schedule starts from fresh rows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, TypedDict, Unpack

import asyncpg
from tests.support.schedules import Sample, Schedules
from tests.support.sessions import READ_COMMITTED, SESSION, At, Call, Connection, Session

from gen_durable.store.schema import Schema
from gen_durable.store.sql_files import checks

__all__ = ["READ_COMMITTED", "End", "Explorer", "Fault", "Report", "Sample"]

# How many schedules of two sessions are run at most; more in a long run.
MOST = 500 if "INTERLEAVING_SAMPLES" in os.environ else 25

RESET = """
create or replace function @schema.explorer_reset() returns void language plpgsql as $$
begin
  delete from @schema.signals;
  delete from @schema.instances;
  delete from @schema.limits;
  delete from @schema.rate_buckets;
  delete from @schema.step_slots;
  delete from @schema.cascades;
  delete from @schema.allocated_ids;
  perform setval('@schema.instances_id_seq', 100), setval('@schema.signals_id_seq', 100);
end
$$;
"""


@dataclass(frozen=True, slots=True)
class End:
    """How one schedule ended: the answers (or errors) of each session, what is in the tables, and the order of commits.

    "AB": the first session committed before the second.
    """

    answers: tuple[list[Any], ...]
    rows: dict[int, Any]
    signals: list[Any]
    commits: str
    checkpoints: list[Any] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)
    transitions: list[Any] = field(default_factory=list)
    buckets: list[Any] = field(default_factory=list)

    @property
    def left(self) -> list[Any]:
        return self.answers[0]

    @property
    def right(self) -> list[Any]:
        return self.answers[1]


@dataclass(frozen=True, slots=True)
class Fault:
    """A schedule that must not end as it did. `sqlstates` are the errors that the server gave in it."""

    schedule: str
    problem: str
    sqlstates: frozenset[str] = frozenset()


@dataclass(slots=True)
class Report:
    """What exploring has found. `ends` counts the statuses that the rows ended with, by id.

    `is_complete`: every schedule was run, not only a sample of them.
    """

    schedules: int = 0
    is_complete: bool = False
    faults: list[Fault] = field(default_factory=list)
    ends: Counter[tuple[tuple[int, str], ...]] = field(default_factory=Counter)


class Options(TypedDict, total=False):
    """How to explore. `errors` are the SQLSTATEs that a call may end in; `first_fault` stops at the first fault.

    `then` is SQL that is run in the end of each schedule, before it is judged: what comes by itself a little later.
    `levels` are the isolation levels of the sessions. Without a `sample`, every schedule is run up to a number
    (`MOST`), and a sample of them if there are more.
    """

    begin: bool
    first_fault: bool
    errors: frozenset[str]
    then: str
    levels: Sequence[str]
    sample: Sample | None


def _usual_sample(options: Options) -> Sample | None:
    """An exploration that looks for a fault stops at the first, so it may look at all schedules."""
    return None if options.get("first_fault") else Sample(1, MOST)


class Explorer:
    """Leads sessions on one schema."""

    def __init__(self, schema: str, connections: Sequence[Connection]) -> None:
        self.schema = Schema(schema)
        self._leader, *others = connections
        self._commits: list[str] = []
        self._transactions_ended = 0
        self._sessions = [
            Session(name, connection, self._leader, self._commits)
            for name, connection in zip(ascii_uppercase, others, strict=False)
        ]
        render = self.schema.render
        self._doctor = " union all ".join(
            f"select '{name}', c.id, c.problem from ({sql}\n) as c" for name, sql in checks(self.schema)
        )
        self._rows = render("select * from @schema.instances order by id")
        self._signals = render("select * from @schema.signals order by id")
        self._checkpoints = render("select * from @schema.checkpoints order by instance_id")
        self._progress = render("select * from @schema.progress order by instance_id")
        self._transitions = render("select * from @schema.transitions order by instance_id, seq, n")
        self._buckets = render("select * from @schema.rate_buckets order by key")
        self._reset = render("select @schema.explorer_reset();")

    async def install(self, sql: str) -> None:
        """Put functions into the schema, and get the sessions ready."""
        await self._leader.execute(self.schema.render(RESET + sql))
        await self._leader.execute(SESSION)
        for session in self._sessions:
            await session.open()

    async def explore(
        self,
        given: str,
        left: Sequence[Call],
        right: Sequence[Call],
        check: Callable[[End], None],
        **options: Unpack[Options],
    ) -> Report:
        """Run the schedules of two sessions."""
        return await self.explore_sessions(given, [left, right], check, **options)

    async def explore_sessions(
        self, given: str, sides: Sequence[Sequence[Call]], check: Callable[[End], None], **options: Unpack[Options]
    ) -> Report:
        """Run the schedules of as many sessions as there are lists of calls."""
        levels = options.get("levels") or [READ_COMMITTED] * len(sides)
        for session, level in zip(self._sessions, levels, strict=True):
            session.isolation = level
        report = Report()
        schedules = Schedules(options.get("sample") or _usual_sample(options))
        while schedules.begin():
            self._commits.clear()
            await self._leader.execute(self._reset + self.schema.render(given))
            await self._walk(schedules, sides, begin=options.get("begin", False))
            if then := options.get("then"):
                await self._leader.execute(self.schema.render(then))
            fault = await self._judge(schedules.end(), check, options.get("errors", frozenset()), report)
            report.schedules += 1
            if fault is not None:
                report.faults.append(fault)
                if options.get("first_fault"):
                    break
        report.is_complete = schedules.is_complete
        return report

    async def _walk(self, schedules: Schedules, sides: Sequence[Sequence[Call]], *, begin: bool) -> None:
        """Run one schedule."""
        for session, calls in zip(self._sessions, sides, strict=True):
            await session.start(calls)
            if not begin:
                await session.go()
                await self._settle()
        while steppable := {s.name: s for s in self._sessions if s.at in (At.CLIENT, At.SERVER)}:
            await steppable[schedules.choose(list(steppable))].go()
            await self._settle()
        for session in self._sessions:
            if session.failure is not None:
                raise session.failure

    async def _settle(self) -> None:
        """Until each session has stopped, ended, or waits for one that has stopped."""
        while True:
            silent = [s for s in self._sessions if not await s.moved()]
            if self._transactions_ended != (count := sum(s.transactions_ended for s in self._sessions)):
                self._transactions_ended = count  # and locks were released with them
                self._recheck_blocked()
                continue
            if not silent:
                return
            blockers = await self._find_blockers()
            if _has_cycle(blockers):
                self._recheck_blocked()  # The server ends one of them.
            elif all(blockers.get(s.pid) and s.at is At.RUNNING for s in silent):
                for session in silent:
                    session.at = At.BLOCKED
                return
            # Otherwise one of them is busy: ask again.

    def _recheck_blocked(self) -> None:
        for session in self._sessions:
            if session.at is At.BLOCKED:
                session.at = At.RUNNING

    async def _find_blockers(self) -> dict[int, list[int]]:
        """By the pid of each session that waits for a lock of another: the pids of those."""
        pids = [s.pid for s in self._sessions]
        found = await self._leader.fetch(
            "select pid, pg_blocking_pids(pid) as others from unnest($1::int[]) as pid", pids
        )
        return {row["pid"]: [pid for pid in row["others"] if pid in pids] for row in found}

    async def _judge(
        self, schedule: str, check: Callable[[End], None], errors: frozenset[str], report: Report
    ) -> Fault | None:
        rows = await self._leader.fetch(self._rows)
        end = End(
            tuple(session.answers for session in self._sessions),
            {r["id"]: r for r in rows},
            await self._leader.fetch(self._signals),
            "".join(self._commits),
            await self._leader.fetch(self._checkpoints),
            await self._leader.fetch(self._progress),
            await self._leader.fetch(self._transitions),
            await self._leader.fetch(self._buckets),
        )
        report.ends[tuple((r["id"], r["status"]) for r in rows)] += 1
        after = "after " + " and ".join(str(session.steps) for session in self._sessions)
        raised = [a for answers in end.answers for a in answers if isinstance(a, asyncpg.PostgresError)]
        states = frozenset(str(e.sqlstate) for e in raised)
        if states - errors:
            return Fault(schedule, f"{[str(e) for e in raised]} {after}", states)
        found = await self._leader.fetch(self._doctor)
        if found:
            return Fault(schedule, f"the doctor found {[tuple(row) for row in found]}", states)
        try:
            check(end)
        except AssertionError as error:
            return Fault(schedule, f"{error} {after}", states)
        return None


def _has_cycle(blockers: dict[int, list[int]]) -> bool:
    """Whether some wait for each other."""

    def reachable(pids: Iterable[int], seen: set[int]) -> set[int]:
        for pid in pids:
            if pid not in seen:
                seen.add(pid)
                reachable(blockers.get(pid, []), seen)
        return seen

    return any(pid in reachable(others, set()) for pid, others in blockers.items())
