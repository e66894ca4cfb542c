"""What a drain did, and what it left behind.

In: executions in the order they ran, and the instances that have not ended. Out: counts, and a text that a failing test
can show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gen_durable.errors import GenDurableError
from gen_durable.instances import Status
from gen_durable.testing.snapshot import Snapshot

LOST: Final = "lost"
UNDECODABLE: Final = "undecodable"
LISTED: Final = 10
"""How many waiting instances a message lists."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of one step.

    `outcome` is the name of the outcome's class ("Next", "Done", ...), "lost" when nothing was committed (a crash), or
    "undecodable" when the stored state did not fit the step. `error` is what the step raised, whatever came of it.
    """

    id: int
    machine: str
    version: int
    step: str
    attempt: int
    outcome: str
    error: Exception | None

    @property
    def label(self) -> str:
        """The step, as messages call it."""
        return f"{self.machine}.{self.step}"

    def __str__(self) -> str:
        raised = f" after {self.error!r}" if self.error is not None else ""
        return f"instance {self.id} {self.label} (attempt {self.attempt}): {self.outcome}{raised}"


@dataclass(frozen=True, slots=True)
class Tally:
    """The executions of a drain in their order, and the instances that have not ended, by id."""

    executions: tuple[Execution, ...] = ()
    waiting: tuple[Snapshot, ...] = ()
    unknown_steps: frozenset[int] = frozenset()
    """The waiting instances whose machine, version or step the harness was not given."""

    @property
    def executed(self) -> int:
        """How many steps ran."""
        return len(self.executions)

    @property
    def steps(self) -> dict[str, int]:
        """How often each step ran, as `{"Checkout.start": 1}`, in the order of their first runs."""
        return dict(Counter(e.label for e in self.executions))

    @property
    def outcomes(self) -> dict[str, int]:
        """How often each outcome was committed, as `{"Next": 2, "Done": 1}`."""
        return dict(Counter(e.outcome for e in self.executions))

    @property
    def done(self) -> int:
        """How many instances ended well."""
        return self.outcomes.get("Done", 0)

    @property
    def failed(self) -> int:
        """How many instances failed for good."""
        return self.outcomes.get("Fail", 0)

    @property
    def replayed(self) -> int:
        """How many executions ended in a `Retry`: a job's retries, and what `on_error` or a step asked for."""
        return self.outcomes.get("Retry", 0)

    @property
    def awaiting(self) -> int:
        """How many instances wait for a signal now."""
        return sum(w.status is Status.AWAITING_SIGNAL for w in self.waiting)

    @property
    def errors(self) -> tuple[Exception, ...]:
        """What steps raised, in order; also where a retry or `on_error` made up for it."""
        return tuple(e.error for e in self.executions if e.error is not None)

    def reraise(self) -> None:
        """Raise the first error that a step raised, with its own traceback; without one, do nothing."""
        for error in self.errors:
            raise error

    def __str__(self) -> str:
        ran = ", ".join(f"{label} {times}" for label, times in self.steps.items())
        lines = [
            f"{self.executed} steps ran: {ran}" if ran else "no step ran",
            f"{self.done} done, {self.failed} failed, {self.replayed} replayed, {len(self.waiting)} still waiting",
            *listed(self.waiting, self.unknown_steps),
        ]
        return "\n".join(lines)


class Runaway(GenDurableError):
    """A drain ran more steps than its limit. `tally` tells which."""

    def __init__(self, message: str, tally: Tally) -> None:
        super().__init__(message)
        self.tally = tally


def listed(waiting: Iterable[Snapshot], unknown_steps: frozenset[int]) -> list[str]:
    """A line for each waiting instance, as far as they fit a message."""
    several = list(waiting)
    lines = [f"  {one}{not_given(one) if one.id in unknown_steps else ''}" for one in several[:LISTED]]
    if len(several) > LISTED:
        lines.append(f"  and {len(several) - LISTED} more")
    return lines


def not_given(one: Snapshot) -> str:
    """The end of a sentence about an instance that the harness cannot run."""
    return f"; the harness was not given {one.machine} version {one.version} with a step {one.step!r}"
