"""Two real sessions, led through every order in which their steps can happen.

In: rows to begin with, and two lists of calls, each call one transaction of its own session. Out: a `Report`: how many
schedules there are, in what states they end, and the faults: a schedule that ends in an error nobody asked for (a
deadlock above all), breaks a check of the doctor, or fails the test's own `check`.

A step is one statement inside a function (see `breakpoints`), or a COMMIT; with `begin=True` also a BEGIN, which fixes
`now()`. A session that runs into a lock of the other is not steppable until the other has let go; then it runs on to
its next stop by itself, as it would in life. Schedules are found by depth-first search, each replayed from fresh rows.

A stopped session waits for an advisory lock (its pid, its next gate) that the leader holds. It says so by a NOTICE,
which the server sends at once, so nothing here polls, except to see whether a silent session waits for a lock.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import asyncpg

from gen_durable.store.schema import Schema, checks
from gen_durable.store.statements import Statement

Connection: TypeAlias = "asyncpg.Connection[Any]"
READ_COMMITTED = "read committed"
PATIENCE = 0.002  # before a silent session is looked for among those that wait for a lock
SESSION = (
    "set synchronous_commit = off; set deadlock_timeout = '5ms'; set jit = off;"
    "set plan_cache_mode = force_generic_plan"  # or half of the time goes into planning
)
RESET = """
create or replace function @schema.explorer_reset() returns void language plpgsql as $$
begin
  delete from @schema.signals;
  delete from @schema.instances;
  delete from @schema.limits;
  delete from @schema.rate_buckets;
  delete from @schema.step_slots;
  delete from @schema.cascades;
  perform setval('@schema.instances_id_seq', 100), setval('@schema.signals_id_seq', 100);
end
$$;
"""


class At(Enum):
    """Where a session is."""

    RUNNING = "running"
    CLIENT = "before a BEGIN or COMMIT"
    SERVER = "at a breakpoint"
    BLOCKED = "waiting for a lock of the other"
    ENDED = "ended"


class Session:
    """One connection that runs its transactions, stopping wherever it has to ask."""

    def __init__(self, name: str, connection: Connection, leader: Connection, commits: list[str]) -> None:
        self.name = name
        self._commits = commits
        self.pid = connection.get_server_pid()
        self.at = At.ENDED
        self.isolation = READ_COMMITTED
        self.answers: list[Any] = []
        self.steps: list[str] = []
        self._connection, self._leader = connection, leader
        self._gate = 0
        self._moved = asyncio.Event()
        self._go = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failure: Exception | None = None  # of the connection, not of a statement
        connection.add_log_listener(self._heard)

    async def open(self) -> None:
        await self._connection.execute(SESSION)
        await self._leader.execute("select pg_advisory_lock($1, $2)", self.pid, self._gate)

    async def start(self, calls: Sequence[Statement[Any]]) -> None:
        """Begin a new run: up to before the first BEGIN."""
        self.answers, self.steps = [], []
        self.at = At.RUNNING
        self._moved.clear()
        self._task = asyncio.create_task(self._run_guarded(calls))
        await self._moved.wait()

    async def go(self) -> None:
        """Let it run on from where it stopped."""
        at, self.at = self.at, At.RUNNING
        self._moved.clear()
        if at is At.CLIENT:
            self._go.set()
        else:
            self._gate += 1
            await self._leader.execute(
                "select pg_advisory_lock($1, $2), pg_advisory_unlock($1, $2 - 1)", self.pid, self._gate
            )

    async def moved(self) -> bool:
        """Whether it has come to a stop, after a moment of patience."""
        if self.at is At.RUNNING:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._moved.wait()
            except TimeoutError:
                return False
        return True

    async def _run_guarded(self, calls: Sequence[Statement[Any]]) -> None:
        try:
            await self._run(calls)
        except Exception as error:
            self.failure = error
            self._arrived(At.ENDED, "failure")

    async def _run(self, calls: Sequence[Statement[Any]]) -> None:
        for call in calls:
            await self._stop("begin")
            await self._connection.execute(
                f"begin isolation level {self.isolation}; set local explorer.gate = {self._gate}"
            )
            try:
                self.answers.append(call.read(await self._connection.fetch(call.text, *call.args)))
            except asyncpg.PostgresError as error:
                self.answers.append(error)
                await self._connection.execute("rollback")
                break
            await self._stop("commit")
            await self._connection.execute("commit")
            self._commits.append(self.name)
        self._arrived(At.ENDED, "end")

    async def _stop(self, step: str) -> None:
        self._go.clear()
        self._arrived(At.CLIENT, step)
        await self._go.wait()

    def _heard(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        word, _, place = str(message.message).partition(" ")
        if word == "breakpoint":
            self._arrived(At.SERVER, place)

    def _arrived(self, at: At, step: str) -> None:
        self.at = at
        self.steps.append(step)
        self._moved.set()


@dataclass(frozen=True, slots=True)
class End:
    """How one schedule ended: the answers (or errors) of both sides, what is in the tables, and the order of commits.

    "AB": the left one committed first.
    """

    left: list[Any]
    right: list[Any]
    rows: dict[int, Any]
    signals: list[Any]
    commits: str
    checkpoints: list[Any] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fault:
    """A schedule that must not end as it did. `sqlstates` are the errors that the server gave in it."""

    schedule: str
    problem: str
    sqlstates: frozenset[str] = frozenset()


@dataclass(slots=True)
class Report:
    """What exploring has found. `ends` counts the statuses that the rows ended with, by id."""

    schedules: int = 0
    faults: list[Fault] = field(default_factory=list)
    ends: Counter[tuple[tuple[int, str], ...]] = field(default_factory=Counter)


class Explorer:
    """Leads two sessions on one schema."""

    def __init__(self, schema: str, connections: Sequence[Connection]) -> None:
        self.schema = Schema(schema)
        self._leader, left, right = connections
        self._commits: list[str] = []
        self._sessions = (
            Session("A", left, self._leader, self._commits),
            Session("B", right, self._leader, self._commits),
        )
        render = self.schema.render
        self._doctor = " union all ".join(
            f"select '{name}', c.id, c.problem from ({sql}\n) as c" for name, sql in checks(self.schema)
        )
        self._rows = render("select * from @schema.instances order by id")
        self._signals = render("select * from @schema.signals order by id")
        self._checkpoints = render("select * from @schema.checkpoints order by instance_id")
        self._progress = render("select * from @schema.progress order by instance_id")
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
        left: Sequence[Statement[Any]],
        right: Sequence[Statement[Any]],
        check: Callable[[End], None],
        *,
        begin: bool = False,
        first_fault: bool = False,
        errors: frozenset[str] = frozenset(),
        then: str = "",
        levels: tuple[str, str] = (READ_COMMITTED, READ_COMMITTED),
    ) -> Report:
        """Run every schedule. `errors` are the SQLSTATEs that a call may end in; `first_fault` stops at the first.

        `then` is SQL that is run in the end of each, before it is judged: what comes by itself a little later.
        `levels` are the isolation levels of both sides.
        """
        for session, level in zip(self._sessions, levels, strict=True):
            session.isolation = level
        report = Report()
        prefix: list[str] = []
        while True:
            self._commits.clear()
            await self._leader.execute(self._reset + self.schema.render(given))
            trail = await self._walk(prefix, (left, right), begin)
            if then:
                await self._leader.execute(self.schema.render(then))
            fault = await self._judge(trail, check, errors, report)
            report.schedules += 1
            if fault is not None:
                report.faults.append(fault)
                if first_fault:
                    return report
            while trail and trail[-1][0] == trail[-1][1][-1]:
                trail.pop()
            if not trail:
                return report
            chosen, choices = trail.pop()
            prefix = [c for c, _ in trail] + [choices[choices.index(chosen) + 1]]

    async def _walk(
        self, prefix: Sequence[str], sides: Sequence[Sequence[Statement[Any]]], begin: bool
    ) -> list[tuple[str, list[str]]]:
        """One schedule: the given choices, then always the first. Returns each choice and what it was chosen from."""
        trail: list[tuple[str, list[str]]] = []
        for session, calls in zip(self._sessions, sides, strict=True):
            await session.start(calls)
            if not begin:
                await session.go()
                await self._settle()
        while True:
            steppable = [s for s in self._sessions if s.at in (At.CLIENT, At.SERVER)]
            if not steppable:
                for session in self._sessions:
                    if session.failure is not None:
                        raise session.failure
                return trail
            names = [s.name for s in steppable]
            wanted = prefix[len(trail)] if len(trail) < len(prefix) else names[0]
            assert wanted in names, f"the schedule {''.join(prefix)} cannot be replayed at step {len(trail)}: {names}"
            trail.append((wanted, names))
            await steppable[names.index(wanted)].go()
            await self._settle()

    async def _settle(self) -> None:
        """Until each session has stopped, ended, or waits for the other."""
        for session in self._sessions:
            if session.at is At.BLOCKED:
                session.at = At.RUNNING  # perhaps; it is asked below
        while True:
            silent = [s for s in self._sessions if not await s.moved()]
            if not silent:
                return
            waits = await self._leader.fetch(
                "select p.pid from unnest($1::int[]) as p (pid) where pg_blocking_pids(p.pid) && $2",
                [s.pid for s in silent],
                [s.pid for s in self._sessions],
            )
            waiting = {row["pid"] for row in waits}
            stuck = [s for s in silent if s.pid in waiting and s.at is At.RUNNING]
            if len(stuck) == len(silent) < len(self._sessions):
                for session in stuck:
                    session.at = At.BLOCKED
                return
            # Both wait for each other: the server will break it. Or one is just busy: ask again.

    async def _judge(
        self, trail: list[tuple[str, list[str]]], check: Callable[[End], None], errors: frozenset[str], report: Report
    ) -> Fault | None:
        left, right = self._sessions
        rows = await self._leader.fetch(self._rows)
        end = End(
            left.answers,
            right.answers,
            {r["id"]: r for r in rows},
            await self._leader.fetch(self._signals),
            "".join(self._commits),
            await self._leader.fetch(self._checkpoints),
            await self._leader.fetch(self._progress),
        )
        report.ends[tuple((r["id"], r["status"]) for r in rows)] += 1
        schedule = "".join(name for name, _ in trail)
        raised = [a for a in (*left.answers, *right.answers) if isinstance(a, asyncpg.PostgresError)]
        states = frozenset(str(e.sqlstate) for e in raised)
        if states - errors:
            return Fault(schedule, f"{[str(e) for e in raised]} after {left.steps} and {right.steps}", states)
        found = await self._leader.fetch(self._doctor)
        if found:
            return Fault(schedule, f"the doctor found {[tuple(row) for row in found]}", states)
        try:
            check(end)
        except AssertionError as error:
            return Fault(schedule, f"{error} after {left.steps} and {right.steps}", states)
        return None
