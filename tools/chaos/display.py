"""What is seen of a run: a table that lives in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tools.chaos.checks import CheckResult
from tools.chaos.effects import Execution


@dataclass
class Figures:
    """What is counted while it goes on."""

    outcomes: int = 0
    executions: int = 0
    under_way: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    acting: Counter[str] = field(default_factory=Counter[str])
    takeovers: list[float] = field(default_factory=list[float])
    _last: dict[int, Execution] = field(default_factory=dict[int, Execution])

    def take(self, fresh: list[Execution], killed: dict[str, int]) -> None:
        """Executions that have begun: one of a killed worker's that begins elsewhere is a takeover."""
        self.executions += len(fresh)
        for execution in sorted(fresh, key=lambda e: e.began):
            former = self._last.get(execution.id)
            if former is not None and former.began > execution.began:
                continue
            self._last[execution.id] = execution
            if former is None or former.seq != execution.seq or former.worker == execution.worker:
                continue
            at = killed.get(former.worker)
            if at is not None and execution.began > at:
                self.takeovers.append((execution.began - at) / 1e9)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


class Display:
    """Shows the figures."""

    def __init__(self, console: Console, title: str, seconds: float) -> None:
        self._console = console
        self._title = title
        self._seconds = seconds
        self._began = time.monotonic()
        self._said = 0.0
        self._live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, figures: Figures, stage: str) -> None:
        elapsed = time.monotonic() - self._began
        if self._live is not None:
            self._live.update(self._table(figures, stage, elapsed))
        elif elapsed - self._said >= 10:
            self._said = elapsed
            again = max(0, figures.executions - figures.outcomes)
            self._console.print(
                f"{elapsed:5.0f} s  {stage}: {figures.outcomes:,} transitions ({figures.outcomes / elapsed:,.0f}/s),"
                f" {again:,} executions without outcome, {figures.faults.total()} faults, takeover p50"
                f" {percentile(figures.takeovers, 0.5):.1f} s"
            )

    def _table(self, figures: Figures, stage: str, elapsed: float) -> Group:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
        again = max(0, figures.executions - figures.outcomes)
        rows = {
            "elapsed": f"{elapsed:,.0f} of {self._seconds:,.0f} s, {stage}",
            "transitions": f"{figures.outcomes:,}  ({figures.outcomes / max(elapsed, 1):,.0f}/s)",
            "executions without outcome": f"{again:,} (some are under way)",
            "faults": f"{figures.faults.total()}",
            "takeover": f"p50 {percentile(figures.takeovers, 0.5):.1f} s, max {max(figures.takeovers, default=0):.1f} s"
            f" ({len(figures.takeovers)})",
        }
        for name, value in rows.items():
            table.add_row(Text(name, "dim"), value)
        kinds = Text()
        for kind, times in sorted(figures.faults.items()):
            style = "bold red" if figures.acting[kind] else "default"
            kinds.append(f"{kind} {times}   ", style)
        return Group(Text(self._title, "bold"), table, kinds)


def show_checks(console: Console, lines: list[CheckResult]) -> None:
    """Print the checks as a table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("", "check", "condition", "figures"):
        table.add_column(column)
    for line in lines:
        mark = Text("ok", "green") if line.good else Text("BAD", "bold red")
        table.add_row(mark, line.name, line.meaning, Text(line.details, "dim" if line.good else "yellow"))
    console.print(table)
