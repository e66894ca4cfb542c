"""The graph of a machine: every outcome in the code is an edge, and what cannot be seen is said so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import gen_durable
from gen_durable import (
    Await,
    Context,
    Done,
    Fail,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryPolicy,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)
from gen_durable import Next as Go
from gen_durable.graph import EVERY, UNKNOWN, Edge, Graph, graph

paid = Signal("paid.v2", int)
refused = Signal("refused")


@dataclass(frozen=True)
class Order:
    id: int


@job
async def measure(order: Order) -> int:
    return order.id


class Pack(Machine):
    @step
    async def pack(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)


class Checkout(Machine, version=2):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Await({paid, refused}, then=self.collect, state=order, timeout=timedelta(hours=1))

    @step
    async def collect(self, order: Order, ctx: Context) -> Outcome[int]:
        if ctx.take(paid) is None:
            return Fail("never came")
        return Next(self.pack, order)

    @step(name="pack-all", aliases=["pack"])
    def pack(self, order: Order, ctx: Context) -> Outcome[int]:
        children = [Start(Pack.pack, order), Start(measure, order)]
        return ScheduleChildren(children, then=self.ship, state=order)

    @step
    async def ship(self, order: Order, ctx: Context) -> Outcome[int]:
        if ctx.attempt < 3:
            return Retry(order)
        if not ctx.children:
            return Await(refused, state=order)
        return Done(1)

    async def on_error(self, state: Order, ctx: Context, error: Exception) -> Outcome[int]:
        return Retry(state) if ctx.attempt < 3 else Next(self.collect, state)


def edges_of(machine: type[Machine], source: str) -> list[tuple[str | None, str, str]]:
    return [(e.target, e.kind, e.label) for e in graph(machine).edges if e.source == source]


def test_every_kind_of_outcome_is_an_edge() -> None:
    """With durable names, signals by their names, and children by what is started."""
    assert graph(Checkout) == Graph(
        "Checkout",
        2,
        ("start", "collect", "pack-all", "ship"),
        (
            Edge("start", "collect", "await", "paid.v2 or refused or timeout"),
            Edge("collect", None, "fail"),
            Edge("collect", "pack-all", "next"),
            Edge("pack-all", "ship", "children", "Pack.pack, measure"),
            Edge("ship", "ship", "retry"),
            Edge("ship", "ship", "await", "refused"),
            Edge("ship", None, "done"),
            Edge(EVERY, EVERY, "error", "retry"),
            Edge(EVERY, "collect", "error", "next"),
        ),
    )


def test_class_instance_and_spec_give_the_same_graph() -> None:
    """All three are the machine."""
    assert graph(Checkout) == graph(Checkout()) == graph(Checkout.__gen_durable__)


def test_text() -> None:
    """A listing that is read from top to bottom."""
    assert graph(Checkout).text().splitlines() == [
        "Checkout, version 2",
        "  start",
        "    await paid.v2 or refused or timeout -> collect",
        "  collect",
        "    fail",
        "    next -> pack-all",
        "  pack-all",
        "    children Pack.pack, measure -> ship",
        "  ship",
        "    retry -> the same step",
        "    await refused -> the same step",
        "    done",
        "  on error, in every step",
        "    error retry -> the same step",
        "    error next -> collect",
    ]


def test_mermaid() -> None:
    """A state diagram; steps have ids of their own, so that no name can be taken for syntax."""
    lines = graph(Checkout).mermaid().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert '    state "pack-all" as s2' in lines
    assert "    [*] --> s0" in lines
    assert "    s0 --> s1 : await paid.v2 or refused or timeout" in lines
    assert "    s1 --> [*] : fail" in lines
    assert "    s4 --> s1 : error next" in lines


def test_what_could_be_mermaid_syntax_is_escaped() -> None:
    """Colons, quotes, semicolons and line breaks become entities."""
    odd = Graph("x", 1, ("end:state", "b"), (Edge("end:state", "b", "await", 'a"; b : c\n%% --> <d>'),))
    diagram = odd.mermaid()
    assert 'state "end#58;state" as s0' in diagram
    assert "s0 --> s1 : await a#34;#59; b #58; c#10;#37;#37; --#62; #60;d#62;" in diagram


def test_a_machine_in_order_has_no_problems() -> None:
    """Nothing to doubt in the checkout."""
    assert graph(Checkout).problems() == []


class Helped(Machine):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return await self._decide(order)

    async def _decide(self, order: Order) -> Outcome[int]:
        if order.id:
            return self._end()
        return await self._decide(order)

    def _end(self) -> Outcome[int]:
        return Done(1)

    @step
    async def whole(self, order: Order, ctx: Context) -> Outcome[int]:
        outcome: Outcome[int]
        if order.id == 1:
            outcome = Fail("x")
        elif order.id == 2:
            outcome = self._end()
        else:
            outcome = Go(self.start if order.id == 3 else self.choose, order)
        return outcome

    @step
    async def choose(self, order: Order, ctx: Context) -> Outcome[int]:
        then = self.start
        if order.id:
            then = self.whole
        return gen_durable.Next[int](then, order)

    @step
    async def spawn(self, order: Order, ctx: Context) -> Outcome[int]:
        starts: list[Start[int]] = []
        starts.append(Start(measure, order))
        return ScheduleChildren(children=starts, then=self.start, state=order)


def test_helpers_variables_and_choices_are_followed() -> None:
    """Methods that a step calls, both arms of a choice, every value of a variable, other names of an outcome."""
    assert edges_of(Helped, "start") == [(None, "done", "")]
    assert edges_of(Helped, "whole") == [
        (None, "fail", ""),
        (None, "done", ""),
        ("start", "next", ""),
        ("choose", "next", ""),
    ]
    assert edges_of(Helped, "choose") == [("start", "next", ""), ("whole", "next", "")]
    assert edges_of(Helped, "spawn") == [("start", "children", "measure")]


class Base(Machine):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.end, order)

    @step
    async def end(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)


class Child(Base, name="child"):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        if order.id:
            return Retry(order)
        return await super().start(order, ctx)


def test_inherited_steps_are_read_where_they_are_written() -> None:
    """A subclass has its own edges and, through super(), those of its base."""
    assert edges_of(Child, "start") == [("start", "retry", ""), ("end", "next", "")]
    assert edges_of(Child, "end") == [(None, "done", "")]
    assert graph(Child).name == "child"


def test_errors_stop_by_default() -> None:
    """A machine without on_error has the default policy, and fails after it."""
    assert edges_of(Base, EVERY) == [(EVERY, "error", "retry"), (None, "error", "fail")]


class Guarded(Machine, retry=RetryPolicy(attempts=5, then="give_up")):
    """Every step has a policy; one has its own."""

    @step
    async def refund(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(0)

    @step
    async def charge(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.ship, order)

    @step(retry=RetryPolicy(attempts=1, then=refund))
    async def ship(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)

    @step
    async def give_up(self, order: Order, ctx: Context) -> Outcome[int]:
        return Fail("given up")


def test_policies_are_edges() -> None:
    """Retries, and the step that runs when they are used up; the machine's `then` is not its own."""
    assert edges_of(Guarded, "charge") == [
        ("ship", "next", ""), ("charge", "error", "retry"), ("give_up", "error", "after 5 attempts"),
    ]  # fmt: skip
    assert edges_of(Guarded, "ship") == [(None, "done", ""), ("refund", "error", "after 1 attempt")]
    assert edges_of(Guarded, "give_up") == [(None, "fail", ""), ("give_up", "error", "retry")]
    assert edges_of(Guarded, EVERY) == [(None, "error", "fail")]
    assert "error after 5 attempts -> give_up" in graph(Guarded).text()
    assert [line for line in graph(Guarded).problems() if "give_up" in line or "ship" in line] == [
        "step 'ship' is not reached from 'refund': fine if instances are inserted there"
    ]


class OnlyErrors(Machine):
    """A policy is no outcome of a step."""

    @step(retry=RetryPolicy(then="end"))
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        raise NotImplementedError

    @step(retry=RetryPolicy(attempts=3))
    async def end(self, order: Order, ctx: Context) -> Outcome[int]:
        return Retry(order)


def test_error_edges_do_not_hide_problems() -> None:
    """A step that returns nothing, and one that never ends, are reported beside their policies."""
    assert graph(OnlyErrors).problems() == [
        "step 'start' has no outcome that can be found",
        "step 'end' never ends: it can only run again",
    ]


def elsewhere(order: Order) -> Outcome[int]:
    return Done(order.id)


class Doubtful(Machine):
    """Everything that deserves a word."""

    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        targets = {1: self.loop}
        return Next(targets[order.id], order)

    @step
    async def loop(self, order: Order, ctx: Context) -> Outcome[int]:
        return Retry(order)

    @step
    async def never(self, order: Order, ctx: Context) -> Outcome[int]:
        def inner() -> Outcome[int]:
            return Done(1)

        raise NotImplementedError(inner)

    @step
    async def outside(self, order: Order, ctx: Context) -> Outcome[int]:
        return elsewhere(order)

    @step
    async def helper(self, order: Order, ctx: Context) -> Outcome[int]:
        wrong: Any = self.on_error
        return Next(wrong, order)


def test_problems_are_told_in_sentences() -> None:
    """Unreachable steps softly, steps without a way out, targets that are no steps, and what is not known."""
    assert graph(Doubtful).problems() == [
        "step 'start' leads to a step that its source does not show (next)",
        "step 'outside': the outcome of elsewhere(order) cannot be found, so not all of its edges are known",
        "step 'helper' leads to 'on_error', which is not a step of Doubtful",
        "step 'loop' never ends: it can only run again",
        "step 'never' has no outcome that can be found",
        *(
            f"step '{name}' is not reached from 'start': fine if instances are inserted there, "
            "or if an unknown edge leads there"
            for name in ("loop", "never", "outside", "helper")
        ),
    ]


def test_unreached_steps_are_reported_softly() -> None:
    """Any step can be where `insert` begins."""
    assert graph(Helped).problems() == [
        f"step '{name}' is not reached from 'start': fine if instances are inserted there"
        for name in ("whole", "choose", "spawn")
    ]


HIDDEN = """
from gen_durable import Context, Done, Machine, Outcome, step

class Hidden(Machine):
    @step
    async def start(self, order: int, ctx: Context) -> Outcome[int]:
        return Done(1)

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[int]:
        return Done(1)
"""


def test_source_that_cannot_be_read_is_an_unknown_edge() -> None:
    """A machine made by exec, or shipped without source, has a graph all the same."""
    namespace: dict[str, Any] = {"__name__": "hidden"}
    exec(HIDDEN, namespace)
    found = graph(namespace["Hidden"])
    assert found.edges == (
        Edge("start", UNKNOWN, "unknown", "its source cannot be read"),
        Edge(EVERY, UNKNOWN, "unknown", "its source cannot be read"),
    )
    assert found.problems() == [
        "step 'start': its source cannot be read, so not all of its edges are known",
        "on_error: its source cannot be read, so not all of its edges are known",
    ]
    assert "unknown" in found.mermaid()
    assert graph(namespace["Hidden"].__gen_durable__).nodes == ("start",)


def test_a_spec_whose_class_cannot_be_found() -> None:
    """Its steps are read; what only the class knows is left out."""

    class Local(Machine):
        @step(name="first")
        async def start(self, order: Order, ctx: Context) -> Outcome[int]:
            return Next(self.end, order)

        @step
        async def end(self, order: Order, ctx: Context) -> Outcome[int]:
            return Next(self.start, order)

    found = graph(Local.__gen_durable__)
    assert found.edges == (Edge("first", "end", "next"), Edge("end", "first", "next"))
    assert found.edges == graph(Local).edges[:-2]


def test_a_job_is_a_graph_of_one_step() -> None:
    """It ends, or is tried again."""
    found = graph(measure.__gen_durable_step__.machine)
    assert found.edges == (Edge("run", None, "done"), Edge("run", "run", "error", "retry"))
    assert found.problems() == []


def test_a_machine_without_steps_has_an_empty_graph() -> None:
    """Nothing is drawn, and nothing breaks."""

    class Empty(Machine):
        pass

    empty = graph(Empty)
    assert empty.nodes == ()
    assert empty.problems() == []
    assert empty.mermaid().startswith("stateDiagram-v2")


def test_code_is_read_and_not_run() -> None:
    """Properties and modules that a name leads through are looked at without calling anything."""

    class Trap(Machine):
        @property
        def target(self) -> Any:
            raise AssertionError("this was run")

        @step
        async def start(self, order: Order, ctx: Context) -> Outcome[int]:
            return Next(self.target, order)

    assert edges_of(Trap, "start") == [("target", "next", "")]


def test_edges_print_as_a_line() -> None:
    """For logs and for failing tests."""
    assert str(Edge("a", "b", "await", "paid")) == "a -> b (await paid)"
    assert str(Edge("a", None, "done")) == "a -> end (done)"
