"""One session of an exploration: a connection that runs its calls and stops wherever it is told to.

A stopped session waits for an advisory lock (its pid, its next gate) that the leader holds. It says so by a NOTICE,
which the server sends at once, so nothing here polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeAlias

import asyncpg

from gen_durable.store.statements import Statement

Connection: TypeAlias = "asyncpg.Connection[Any]"
# A call that depends on the answers before it is a function of them; it returns None if there is nothing to call.
Call: TypeAlias = Statement[Any] | Callable[[list[Any]], Statement[Any] | None]
READ_COMMITTED = "read committed"
PATIENCE = 0.002  # before a silent session is looked for among those that wait for a lock
SESSION = (
    "set synchronous_commit = off; set deadlock_timeout = '5ms'; set jit = off;"
    "set plan_cache_mode = force_generic_plan"  # or half of the time goes into planning
)


class At(Enum):
    """Where a session is."""

    RUNNING = "running"
    CLIENT = "before a BEGIN or COMMIT"
    SERVER = "at a breakpoint"
    BLOCKED = "waiting for a lock of another session"
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
        self.transactions_ended = 0
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

    async def start(self, calls: Sequence[Call]) -> None:
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

    async def _run_guarded(self, calls: Sequence[Call]) -> None:
        try:
            await self._run(calls)
        except Exception as error:
            self.failure = error
            self._arrived(At.ENDED, "failure")

    async def _run(self, calls: Sequence[Call]) -> None:
        for given in calls:
            call = given if isinstance(given, Statement) else given(self.answers)
            if call is None:
                continue
            await self._stop("begin")
            await self._connection.execute(
                f"begin isolation level {self.isolation}; set local explorer.gate = {self._gate}"
            )
            try:
                self.answers.append(call.read(await self._connection.fetch(call.text, *call.args)))
            except asyncpg.PostgresError as error:
                self.answers.append(error)
                await self._connection.execute("rollback")
                self.transactions_ended += 1
                break
            await self._stop("commit")
            await self._connection.execute("commit")
            self.transactions_ended += 1
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
