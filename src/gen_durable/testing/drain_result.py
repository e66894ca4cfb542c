"""The result of a drain: the executions in their order, counts of them, and the instances that have not ended.

Its text is meant for the message of a failing test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gen_durable.errors import GenDurableError
from gen_durable.instances import Status
from gen_durable.testing.instance_snapshot import Snapshot

LOST: Final = "lost"
UNDECODABLE: Final = "undecodable"
PUT_BACK: Final = "put back"
SIGNAL_REJECTED: Final = "signal rejected"
LISTED: Final = 10
"""How many instances a message lists."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of one step.

    `outcome` is the name of the outcome's class ("Next", "Done", ...), "lost" if nothing was committed (a crash),
    "undecodable" if the stored state did not fit the step, "signal rejected" if a signal did not fit its type and was
    set aside, or "put back" if the outcome names a limit that is not declared. `error` is the exception that the step
    raised, or the reason why it was put back.
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
        """The step, for messages."""
        return f"{self.machine}.{self.step}"

    def __str__(self) -> str:
        raised = f" after {self.error!r}" if self.error is not None else ""
        return f"instance {self.id} {self.label} (attempt {self.attempt}): {self.outcome}{raised}"


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The executions of a drain in their order, and the instances that have not ended, by id."""

    executions: tuple[Execution, ...] = ()
    waiting: tuple[Snapshot, ...] = ()
    unknown_step_ids: frozenset[int] = frozenset()
    """The waiting instances whose machine, version or step the harness does not have."""

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
        """How many instances are done."""
        return self.outcomes.get("Done", 0)

    @property
    def failed(self) -> int:
        """How many instances failed."""
        return self.outcomes.get("Fail", 0)

    @property
    def retried(self) -> int:
        """How many executions ended in a `Retry`, of a job, of `on_error` or of a step."""
        return self.outcomes.get("Retry", 0)

    @property
    def awaiting(self) -> int:
        """How many instances wait for a signal."""
        return sum(w.status is Status.AWAITING_SIGNAL for w in self.waiting)

    @property
    def errors(self) -> tuple[Exception, ...]:
        """The errors of steps, in order; also those that a retry or `on_error` has handled."""
        return tuple(e.error for e in self.executions if e.error is not None)

    def reraise(self) -> None:
        """Raise the first error of a step with its own traceback; do nothing if there is none."""
        for error in self.errors:
            raise error

    def __str__(self) -> str:
        ran = ", ".join(f"{label} {times}" for label, times in self.steps.items())
        lines = [
            f"{self.executed} steps ran: {ran}" if ran else "no step ran",
            f"{self.done} done, {self.failed} failed, {self.retried} retried, {len(self.waiting)} still waiting",
            *describe_instances(self.waiting, self.unknown_step_ids),
        ]
        return "\n".join(lines)


class Runaway(GenDurableError):
    """A drain ran more steps than its limit; `tally` has them."""

    def __init__(self, message: str, tally: DrainResult) -> None:
        super().__init__(message)
        self.tally = tally


def describe_instances(instances: Iterable[Snapshot], unknown_step_ids: frozenset[int]) -> list[str]:
    """A line for each of the first ten instances."""
    snapshots = list(instances)
    lines = [f"  {one}{missing_machine_hint(one) if one.id in unknown_step_ids else ''}" for one in snapshots[:LISTED]]
    if len(snapshots) > LISTED:
        lines.append(f"  and {len(snapshots) - LISTED} more")
    return lines


def missing_machine_hint(one: Snapshot) -> str:
    """The end of a sentence about an instance whose machine the harness does not have."""
    return f"; the harness has no {one.machine} version {one.version} with a step {one.step!r}"
