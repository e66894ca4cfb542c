"""Progress: bars in a terminal, lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class ProgressBars:
    """One bar per scenario. It is drawn rarely: the machine is being measured."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[last]}"),
            console=console,
            refresh_per_second=2,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def add(self, title: str) -> Bar:
        """A bar for the next scenario."""
        if not self._console.is_terminal:
            self._console.print(f"{title} ...")
        return Bar(self._console, self._bars, self._bars.add_task(title, total=0, last=""))


class Bar:
    """How far one scenario is."""

    def __init__(self, console: Console, bars: Progress, task: TaskID) -> None:
        self._console = console
        self._bars = bars
        self._task = task
        self._total = 0
        self._began = time.monotonic()

    def expect(self, steps: int) -> None:
        self._total += steps
        self._bars.update(self._task, total=self._total)

    def done(self, label: str) -> None:
        self._bars.update(self._task, advance=1, last=label)
        if not self._console.is_terminal:
            self._console.print(f"  {time.monotonic() - self._began:5.1f} s  {label}")
