"""Two views of the story: a picture that moves, for a terminal, and lines, for everything else."""

from __future__ import annotations

from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gen_durable.cli.demo.crew import State
from gen_durable.cli.demo.machines import Checkout, Pack, stocktake
from gen_durable.cli.demo.stage import Event, Scene, Tone
from gen_durable.cli.demo.verdict import Verdict
from gen_durable.insight import Tally
from gen_durable.instances import Status
from gen_durable.machines import StepSpec

BAR: Final = 40
EVENTS: Final = 9
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
            print(f"{scene.at:5.1f} s  {_in_words(scene.tallies)}", flush=True)


class Picture:
    """Instances as bars, workers, and the last events, drawn again and again in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def event(self, event: Event) -> None:
        """Events are part of the scene."""

    def show(self, scene: Scene) -> None:
        self._live.update(_picture(scene), refresh=True)


def _in_words(tallies: list[Tally]) -> str:
    orders = dict.fromkeys(Status, 0)
    items = dict.fromkeys(Status, 0)
    for tally in tallies:
        counted = {"Checkout": orders, "Pack": items}.get(tally.machine)
        if counted is not None:
            counted[tally.status] += tally.count
    waiting, ended = orders[Status.AWAITING_SIGNAL], (orders[Status.DONE], orders[Status.FAILED])
    moving = sum(orders.values()) - waiting - sum(ended)
    return (
        f"orders: {waiting} wait for payment, {moving} under way, {ended[0]} shipped, {ended[1]} not paid; "
        f"items: {items[Status.DONE]} of {sum(items.values())} packed"
    )


def _picture(scene: Scene) -> Group:
    return Group(
        Panel(_instances(scene.tallies), title="instances", title_align="left", border_style="dim"),
        Panel(_workers(scene), title="worker processes", title_align="left", border_style="dim"),
        Panel(_events(scene), title="what happened", title_align="left", border_style="dim"),
        Text(f" {scene.at:4.1f} s   {scene.where}", "dim"),
    )


def _instances(tallies: list[Tally]) -> Table:
    table = Table.grid(padding=(0, 2))
    totals: dict[str, int] = {}
    for tally in tallies:
        totals[tally.machine] = totals.get(tally.machine, 0) + tally.count
    for step in _steps():
        machine = step.machine.name
        here = [tally for tally in tallies if (tally.machine, tally.step) == (machine, step.name)]
        table.add_row(
            Text(machine, "bold") + Text(f".{step.name}", "default"), _bar(here, totals.get(machine, 1)), _counts(here)
        )
    return table


def _steps() -> list[StepSpec]:
    machines = (Checkout.__gen_durable__, Pack.__gen_durable__, stocktake.__gen_durable_step__.machine)
    return [step for machine in machines for step in machine.steps.values()]


def _bar(tallies: list[Tally], total: int) -> Text:
    bar = Text()
    for tally in sorted(tallies, key=lambda t: list(Status).index(t.status), reverse=True):
        bar.append("█" * max(1, round(tally.count * BAR / max(total, 1))), _COLOURS[tally.status])
    bar.truncate(BAR)
    bar.append("·" * (BAR - len(bar)), "bright_black")
    return bar


def _counts(tallies: list[Tally]) -> Text:
    parts = [Text(f"{t.count} {t.status.value.replace('_', ' ')}", _COLOURS[t.status]) for t in tallies]
    return Text(", ").join(parts)


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


def _events(scene: Scene) -> Group:
    last = scene.events[-EVENTS:]
    lines = [Text(f"{e.at:5.1f} s  ", "dim") + Text(e.text, _TONES[e.tone]) for e in last]
    return Group(*lines, *[Text("") for _ in range(EVENTS - len(last))])


def summary(verdict: Verdict, console: Console) -> None:
    """The verdict as plain text, the same for both views."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("what ran")
    for column in ("instances", "steps committed", "steps executed", "of these in vain"):
        table.add_column(column, justify="right")
    for ran in verdict.ran:
        table.add_row(ran.machine, str(ran.instances), str(ran.committed), str(ran.executed), str(ran.again))
    console.print()
    console.print(table)
    console.print()
    for check in verdict.checks:
        mark, style = ("ok  ", "green") if check.ok else ("FAIL", "bold red")
        console.print(Text(f"{mark} ", style) + Text(check.words), soft_wrap=True)
