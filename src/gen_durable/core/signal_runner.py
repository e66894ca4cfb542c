"""Runs signals: those that come while others are under way share a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gen_durable.core.call_grouper import CallGrouper
from gen_durable.core.statement_runner import StatementRunner
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import OutgoingSignal

MAX_GROUPED_BYTES: Final = 10_000


@dataclass(frozen=True, slots=True)
class SignalResult:
    """The verdict of `signal.sql`, and the queue to wake, if any."""

    verdict: str
    woken_queue: str | None


class SignalRunner(CallGrouper[OutgoingSignal, SignalResult]):
    """Sends the signals of one `Durable`. A target that another transaction has locked holds up its own signal only."""

    def __init__(self, statements: StatementBuilder, statement_runner: StatementRunner) -> None:
        super().__init__()
        self._statements = statements
        self._statement_runner = statement_runner

    async def send(self, outgoing: OutgoingSignal) -> SignalResult:
        """Send a signal; a large one has a transaction of its own."""
        if outgoing.payload is not None and len(outgoing.payload) > MAX_GROUPED_BYTES:
            return await self.run_alone(outgoing)
        return await self.run(outgoing)

    async def run_together(self, calls: Sequence[OutgoingSignal]) -> list[SignalResult | None]:
        results = await self._send(calls, skip_locked=True)
        return [None if result.verdict == "locked" else result for result in results]

    async def run_alone(self, call: OutgoingSignal) -> SignalResult:
        (result,) = await self._send((call,), skip_locked=False)
        return result

    def may_run_twice(self, call: OutgoingSignal) -> bool:
        """With a dedup key a second delivery is recognised."""
        return call.dedup_key is not None

    async def _send(self, calls: Sequence[OutgoingSignal], *, skip_locked: bool) -> list[SignalResult]:
        rows = await self._statement_runner.run(
            self._statements.signal(calls, skip_locked=skip_locked),
            "signal",
            may_run_twice=all(map(self.may_run_twice, calls)),
        )
        return [SignalResult(verdict, queue) for _, verdict, queue in rows]
