"""Two views of the demo: a live picture for a terminal, and lines for everything else."""

from __future__ import annotations

from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gen_durable.cli.console import make_escaped_text, print_line
from gen_durable.cli.demo.machines import Checkout, Pack, stocktake
from gen_durable.cli.demo.run_verifier import DemoReport
from gen_durable.cli.demo.step_counts import StepCount
from gen_durable.cli.demo.view_protocol import DemoEvent, DemoState, EventLevel
from gen_durable.cli.demo.worker_processes import ProcessState
from gen_durable.instances import Status
from gen_durable.machines import StepSpec

MAX_BAR: Final = 40
MAX_EVENTS: Final = 9
BESIDE_BAR: Final = 60
BESIDE_EVENTS: Final = 18
_COLOURS: Final = {
    Status.RUNNABLE: "white",
    Status.EXECUTING: "bright_cyan",
    Status.AWAITING_SIGNAL: "blue",
    Status.AWAITING_CHILDREN: "magenta",
    Status.DONE: "green",
    Status.FAILED: "yellow",
    Status.CANCELLED: "red",
}
_LEVEL_STYLES: Final = {EventLevel.PLAIN: "", EventLevel.GOOD: "green", EventLevel.BAD: "bold red"}
_STATE_STYLES: Final = {
    ProcessState.STARTING: "yellow",
    ProcessState.WORKING: "green",
    ProcessState.KILLED: "bold red",
    ProcessState.STOPPED: "dim",
}


class LineView:
    """Prints one line per event, and one summary line per second."""

    def __init__(self) -> None:
        self._shown = 0.0

    def show_event(self, event: DemoEvent) -> None:
        print_line(f"{event.at:5.1f} s  {event.text}")

    def show_state(self, state: DemoState) -> None:
        if state.at - self._shown >= 1:
            self._shown = state.at
            print_line(f"{state.at:5.1f} s  {_summary_line(state.counts)}")


class LiveView:
    """Draws instances as bars, the workers, and the latest events, updated in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        console = live.console
        self._bar = max(10, min(MAX_BAR, console.width - BESIDE_BAR))
        self._events = max(3, min(MAX_EVENTS, console.height - BESIDE_EVENTS))

    def show_event(self, event: DemoEvent) -> None:
        """Does nothing: the state holds the events."""

    def show_state(self, state: DemoState) -> None:
        picture = Group(
            _make_titled_panel("instances", _instances_table(state.counts, self._bar)),
            _make_titled_panel("worker processes", _workers_table(state)),
            _make_titled_panel("events", _latest_event_lines(state, self._events)),
            make_escaped_text(f" {state.at:4.1f} s   {state.location}", "dim", is_cut=True),
        )
        self._live.update(picture, refresh=True)


def _summary_line(counts: list[StepCount]) -> str:
    orders = dict.fromkeys(Status, 0)
    items = dict.fromkeys(Status, 0)
    for count in counts:
        counted = {"Checkout": orders, "Pack": items}.get(count.machine)
        if counted is not None:
            counted[count.status] += count.count
    waiting, ended = orders[Status.AWAITING_SIGNAL], (orders[Status.DONE], orders[Status.FAILED])
    moving = sum(orders.values()) - waiting - sum(ended)
    return (
        f"orders: {waiting} wait for payment, {moving} under way, {ended[0]} shipped, {ended[1]} not paid; "
        f"items: {items[Status.DONE]} of {sum(items.values())} packed"
    )


def _make_titled_panel(title: str, content: Table | Group) -> Panel:
    return Panel(content, title=title, title_align="left", border_style="dim")


def _instances_table(counts: list[StepCount], width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    totals: dict[str, int] = {}
    for count in counts:
        totals[count.machine] = totals.get(count.machine, 0) + count.count
    for step in _list_steps_of_demo_machines():
        machine = step.machine.name
        here = [count for count in counts if (count.machine, count.step) == (machine, step.name)]
        table.add_row(
            make_escaped_text(machine, "bold") + make_escaped_text(f".{step.name}", "default"),
            _status_bar(here, totals.get(machine, 1), width),
            _status_counts_text(here),
        )
    return table


def _list_steps_of_demo_machines() -> list[StepSpec]:
    machines = (Checkout.__gen_durable__, Pack.__gen_durable__, stocktake.__gen_durable_step__.machine)
    return [step for machine in machines for step in machine.steps.values()]


def _status_bar(counts: list[StepCount], total: int, width: int) -> Text:
    bar = make_escaped_text("")
    for count in sorted(counts, key=lambda t: list(Status).index(t.status), reverse=True):
        bar.append("█" * max(1, round(count.count * width / total)), _COLOURS[count.status])
    bar.truncate(width)
    bar.append("·" * (width - len(bar)), "bright_black")
    return bar


def _status_counts_text(counts: list[StepCount]) -> Text:
    parts = [make_escaped_text(f"{t.count} {t.status.value.replace('_', ' ')}", _COLOURS[t.status]) for t in counts]
    text = make_escaped_text(", ").join(parts)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _workers_table(state: DemoState) -> Table:
    table = Table.grid(padding=(0, 2))
    for worker in state.workers:
        label = "killed (SIGKILL)" if worker.state is ProcessState.KILLED else worker.state.value
        steps = ", ".join(list(worker.running_steps.values())[:3])
        more = f" +{len(worker.running_steps) - 3}" if len(worker.running_steps) > 3 else ""
        table.add_row(
            make_escaped_text(str(worker), "bold"),
            make_escaped_text(f"pid {worker.pid}", "dim"),
            make_escaped_text(label, _STATE_STYLES[worker.state]),
            make_escaped_text(f"{worker.steps:3} steps"),
            make_escaped_text(steps + more, "cyan", is_cut=True),
        )
    return table


def _latest_event_lines(state: DemoState, most: int) -> Group:
    lines: list[Text] = []
    for event in state.events[-most:]:
        line = make_escaped_text(f"{event.at:5.1f} s  ", "dim", is_cut=True)
        lines.append(line.append_text(make_escaped_text(event.text, _LEVEL_STYLES[event.level])))
    return Group(*lines, *[make_escaped_text("") for _ in range(most - len(lines))])


def print_report(report: DemoReport, console: Console) -> None:
    """Print the report as plain text, the same for both views."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("machine")
    for column in ("instances", "steps executed", "outcomes committed", "repeated"):
        table.add_column(column, justify="right")
    for totals in report.totals:
        table.add_row(
            totals.machine,
            str(totals.instances),
            str(totals.executed),
            str(totals.committed),
            str(totals.repeated_executions),
        )
    console.print()
    console.print(table)
    console.print()
    for check in report.checks:
        mark, style = ("ok  ", "green") if check.ok else ("FAIL", "bold red")
        console.print(make_escaped_text(f"{mark} ", style) + make_escaped_text(check.text), soft_wrap=True)
