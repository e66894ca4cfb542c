"""Two views of the story: a picture that moves, for a terminal, and lines, for everything else."""

from __future__ import annotations

from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gen_durable.cli.demo.checks import Verdict
from gen_durable.cli.demo.machines import Checkout, Pack, stocktake
from gen_durable.cli.demo.processes import State
from gen_durable.cli.demo.view import Event, Scene, Tone
from gen_durable.doctor import StepCount
from gen_durable.instances import Status
from gen_durable.machines import StepSpec

LONGEST_BAR: Final = 40
MOST_EVENTS: Final = 9
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
_TONES: Final = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.BAD: "bold red"}
_STATES: Final = {State.STARTING: "yellow", State.WORKING: "green", State.KILLED: "bold red", State.STOPPED: "dim"}


class Lines:
    """One line per event, and one a second for how things stand."""

    def __init__(self) -> None:
        self._shown = 0.0

    def event(self, event: Event) -> None:
        print(f"{event.at:5.1f} s  {event.text}", flush=True)

    def show(self, scene: Scene) -> None:
        if scene.at - self._shown >= 1:
            self._shown = scene.at
            print(f"{scene.at:5.1f} s  {_in_words(scene.counts)}", flush=True)


class Picture:
    """Instances as bars, workers, and the last events, drawn again and again in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        console = live.console
        self._bar = max(10, min(LONGEST_BAR, console.width - BESIDE_BAR))
        self._events = max(3, min(MOST_EVENTS, console.height - BESIDE_EVENTS))

    def event(self, event: Event) -> None:
        """Events are part of the scene."""

    def show(self, scene: Scene) -> None:
        picture = Group(
            _panel("instances", _instances(scene.counts, self._bar)),
            _panel("worker processes", _workers(scene)),
            _panel("what happened", _events(scene, self._events)),
            Text(f" {scene.at:4.1f} s   {scene.where}", "dim", no_wrap=True, overflow="ellipsis"),
        )
        self._live.update(picture, refresh=True)


def _in_words(counts: list[StepCount]) -> str:
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


def _panel(title: str, content: Table | Group) -> Panel:
    return Panel(content, title=title, title_align="left", border_style="dim")


def _instances(counts: list[StepCount], width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    totals: dict[str, int] = {}
    for count in counts:
        totals[count.machine] = totals.get(count.machine, 0) + count.count
    for step in _steps():
        machine = step.machine.name
        here = [count for count in counts if (count.machine, count.step) == (machine, step.name)]
        table.add_row(
            Text(machine, "bold") + Text(f".{step.name}", "default"),
            _bar(here, totals.get(machine, 1), width),
            _counts(here),
        )
    return table


def _steps() -> list[StepSpec]:
    machines = (Checkout.__gen_durable__, Pack.__gen_durable__, stocktake.__gen_durable_step__.machine)
    return [step for machine in machines for step in machine.steps.values()]


def _bar(counts: list[StepCount], total: int, width: int) -> Text:
    bar = Text()
    for count in sorted(counts, key=lambda t: list(Status).index(t.status), reverse=True):
        bar.append("█" * max(1, round(count.count * width / total)), _COLOURS[count.status])
    bar.truncate(width)
    bar.append("·" * (width - len(bar)), "bright_black")
    return bar


def _counts(counts: list[StepCount]) -> Text:
    parts = [Text(f"{t.count} {t.status.value.replace('_', ' ')}", _COLOURS[t.status]) for t in counts]
    text = Text(", ").join(parts)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _workers(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 2))
    for member in scene.members:
        state = "killed (SIGKILL)" if member.state is State.KILLED else member.state.value
        doing = ", ".join(list(member.doing.values())[:3])
        more = f" +{len(member.doing) - 3}" if len(member.doing) > 3 else ""
        table.add_row(
            Text(str(member), "bold"),
            Text(f"pid {member.pid}", "dim"),
            Text(state, _STATES[member.state]),
            Text(f"{member.steps:3} steps"),
            Text(doing + more, "cyan", no_wrap=True, overflow="ellipsis"),
        )
    return table


def _events(scene: Scene, most: int) -> Group:
    lines: list[Text] = []
    for event in scene.events[-most:]:
        line = Text(f"{event.at:5.1f} s  ", "dim", no_wrap=True, overflow="ellipsis")
        lines.append(line.append(event.text, _TONES[event.tone]))
    return Group(*lines, *[Text("") for _ in range(most - len(lines))])


def summary(verdict: Verdict, console: Console) -> None:
    """The verdict as plain text, the same for both views."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("what ran")
    for column in ("instances", "steps executed", "outcomes committed", "run again"):
        table.add_column(column, justify="right")
    for ran in verdict.ran:
        table.add_row(ran.machine, str(ran.instances), str(ran.executed), str(ran.committed), str(ran.again))
    console.print()
    console.print(table)
    console.print()
    for check in verdict.checks:
        mark, style = ("ok  ", "green") if check.ok else ("FAIL", "bold red")
        console.print(Text(f"{mark} ", style) + Text(check.words), soft_wrap=True)
