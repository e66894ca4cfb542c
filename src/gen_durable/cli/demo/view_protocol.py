"""The data that the demo shows, and the protocol of its views."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from gen_durable.cli.demo.step_counts import StepCount
from gen_durable.cli.demo.worker_processes import WorkerProcess


class EventLevel(StrEnum):
    """Whether an event is good or bad news; views colour it."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """One line of the demo's report."""

    at: float
    text: str
    level: EventLevel


@dataclass(slots=True)
class DemoState:
    """The state of the demo at one time; `at` counts seconds since the shop opened."""

    location: str
    at: float = 0.0
    workers: list[WorkerProcess] = field(default_factory=list[WorkerProcess])
    counts: list[StepCount] = field(default_factory=list[StepCount])
    events: list[DemoEvent] = field(default_factory=list[DemoEvent])


class DemoView(Protocol):
    """Shows the demo to the user."""

    def show_event(self, event: DemoEvent) -> None:
        """Show an event."""
        ...

    def show_state(self, state: DemoState) -> None:
        """Show the current state; called several times a second."""
        ...
