"""A scenario: a name, and a coroutine that measures and returns rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tools.bench.result import Result
from tools.bench.server import Server

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    """The amounts of work of a run."""

    name: str
    rounds: int
    jobs: int
    chains: int
    children: int
    sync_jobs: int
    singles: int
    samples: int
    parked: int | None = None
    """How many parked instances the memory scenario creates; `None` leaves that out, since it takes minutes."""


SMALL = Size("small", 1, jobs=3_000, chains=500, children=1_000, sync_jobs=1_000, singles=200, samples=25)
FULL = Size("full", 3, jobs=20_000, chains=16_000, children=5_000, sync_jobs=6_000, singles=1_000, samples=150)


class Progress(Protocol):
    """Receives the progress of a scenario."""

    def expect(self, steps: int) -> None:
        """Expect this many more steps."""
        ...

    def done(self, label: str) -> None:
        """Count one step as done."""
        ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """One module of `bench.scenarios`."""

    name: str
    title: str
    unit: str
    run: Callable[[Server, Size, Progress], Awaitable[list[Result]]]


async def run_in_rounds(
    size: Size, progress: Progress, cases: Mapping[str, Callable[[], Awaitable[T]]]
) -> dict[str, list[T]]:
    """Run all cases once per round; every other round in reverse, so that no case always runs first."""
    progress.expect(size.rounds * len(cases))
    found: dict[str, list[T]] = {label: [] for label in cases}
    for number in range(size.rounds):
        order = list(cases) if number % 2 == 0 else list(cases)[::-1]
        for label in order:
            found[label].append(await cases[label]())
            progress.done(label)
    return found
