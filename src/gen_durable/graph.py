"""The graph of a machine, read from its code: its steps, and the edges between them.

Nothing is run: the source of each step is parsed, and each outcome in it is an edge. A target that the source does not
show (a lookup in a dict, missing source) becomes an edge of kind "unknown", never an error.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from gen_durable.machines import Machine, MachineSpec, StepSpec
from gen_durable.outcomes import Await, Done, Fail, Next, Retry, ScheduleChildren
from gen_durable.parsed_function import (
    ParsedFunction,
    find_call_argument,
    make_source_excerpt,
    read_function_ast,
    walk_outside_nested_code,
)
from gen_durable.retry_policy import RetryPolicy
from gen_durable.signals import Signal
from gen_durable.starts import Start

Kind: TypeAlias = Literal["next", "retry", "await", "children", "done", "fail", "error", "unknown"]

EVERY: Final = "*"
"""As a source: every step. As a target: the step that raised."""
UNKNOWN: Final = "?"
"""A target that the source does not show."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One outcome of a step. `target` is None if the instance ends."""

    source: str
    target: str | None
    kind: Kind
    label: str = ""

    def __str__(self) -> str:
        return f"{self.source} -> {self.target or 'end'} ({self.kind_and_label})"

    @property
    def kind_and_label(self) -> str:
        """The kind and the label."""
        return f"{self.kind} {self.label}".rstrip()


@dataclass(frozen=True, slots=True)
class Graph:
    """The steps of a machine in source order, and the edges between them."""

    name: str
    version: int
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]

    def text(self) -> str:
        """The graph as an indented listing for a terminal."""
        lines = [f"{self.name}, version {self.version}"]
        for node in (*self.nodes, EVERY):
            mine = [edge for edge in self.edges if edge.source == node]
            if node != EVERY or mine:
                lines.append(f"  {_TITLES.get(node, node)}")
            for edge in mine:
                target = "" if edge.target is None else f" -> {'the same step' if edge.target == node else edge.target}"
                lines.append(f"    {edge.kind_and_label}{target}")
        return "\n".join(lines)

    def mermaid(self) -> str:
        """The graph as the source of a Mermaid state diagram."""
        ids = {node: f"s{number}" for number, node in enumerate(self.nodes)}
        used = {name for edge in self.edges for name in (edge.source, edge.target)}
        for other in sorted(name for name in used if name is not None and name not in ids):
            ids[other] = f"s{len(ids)}"
        lines = ["stateDiagram-v2"]
        lines += [f'    state "{_escape_for_mermaid(_TITLES.get(name, name))}" as {id_}' for name, id_ in ids.items()]
        if self.nodes:
            lines.append("    [*] --> s0")
        for edge in self.edges:
            target = "[*]" if edge.target is None else ids[edge.target]
            lines.append(f"    {ids[edge.source]} --> {target} : {_escape_for_mermaid(edge.kind_and_label)}")
        return "\n".join(lines)

    def problems(self) -> list[str]:
        """Possible mistakes, one sentence each. Not errors: `insert` may start at any step."""
        found: list[str] = []
        for edge in self.edges:
            source = "on_error" if edge.source == EVERY else f"step {edge.source!r}"
            if edge.kind == "unknown":
                found.append(f"{source}: {edge.label}, so not all of its edges are known")
            elif edge.target == UNKNOWN:
                found.append(f"{source} leads to a step that its source does not show ({edge.kind_and_label})")
            elif edge.target not in (None, EVERY, *self.nodes):
                found.append(f"{source} leads to {edge.target!r}, which is not a step of {self.name}")
        for node in self.nodes:
            out = [edge for edge in self.edges if edge.source == node and edge.kind != "error"]
            if not out:
                found.append(f"step {node!r} has no outcome that can be found")
            elif all(edge.target == node for edge in out):
                found.append(f"step {node!r} never ends: it can only run again")
        unseen = [node for node in self.nodes if node not in self._find_reachable_steps()]
        doubt = "" if all(edge.target != UNKNOWN for edge in self.edges) else ", or if an unknown edge leads there"
        found += [
            f"step {node!r} is not reached from {self.nodes[0]!r}: fine if instances are inserted there{doubt}"
            for node in unseen
        ]
        return found

    def _find_reachable_steps(self) -> set[str]:
        reached: set[str] = set()
        due = [*self.nodes[:1], *(edge.target for edge in self.edges if edge.source == EVERY)]
        while due:
            node = due.pop()
            if node is not None and node not in reached:
                reached.add(node)
                due += [edge.target for edge in self.edges if edge.source == node]
        return reached


def graph(machine: type[Machine] | Machine | MachineSpec) -> Graph:
    """The graph of a machine: of its class, of an instance of it, or of its spec."""
    if isinstance(machine, MachineSpec):
        spec, cls = machine, _find_machine_class(machine)
    else:
        cls = machine if isinstance(machine, type) else type(machine)
        spec = cls.__gen_durable__
    edges: list[Edge] = []
    for step in spec.steps.values():
        if _is_job(step):
            edges += [Edge(step.name, None, "done"), Edge(step.name, step.name, "error", "retry")]
        else:
            edges += _EdgeReader(spec, cls, step.name, step.name).read_edges(step.fn)
        if not _is_job(step) and step.retry is not None:
            edges += _retry_policy_edges(step, step.retry)
    if cls is not None and cls.on_error is Machine.on_error:
        edges += _default_error_edges(spec)
    elif cls is not None:
        read = _EdgeReader(spec, cls, EVERY, EVERY).read_edges(cast(Any, cls.on_error))
        edges += [edge if edge.kind == "unknown" else _relabel_as_error_edge(edge) for edge in read]
    return Graph(spec.name, spec.version, tuple(spec.steps), tuple(dict.fromkeys(edges)))


def _retry_policy_edges(step: StepSpec, policy: RetryPolicy) -> Iterator[Edge]:
    """The edges of a policy that the step or its machine names."""
    if policy.attempts != 1:
        yield Edge(step.name, step.name, "error", "retry")
    if step.step_after_retries is not None:
        count = f"after {policy.attempts} attempt{'' if policy.attempts == 1 else 's'}"
        yield Edge(step.name, step.step_after_retries.name, "error", count)


def _default_error_edges(spec: MachineSpec) -> Iterator[Edge]:
    """The edges of errors in a machine without an `on_error`."""
    if any(step.retry is None for step in spec.steps.values()):
        yield Edge(EVERY, EVERY, "error", "retry")
    yield Edge(EVERY, None, "error", "fail")


class _EdgeReader:
    """Collects the edges of one step: the outcomes in its code, and in the methods of the machine that it calls."""

    def __init__(self, spec: MachineSpec, cls: type[Machine] | None, source: str, itself: str) -> None:
        self._spec = spec
        self._cls = cls
        self._source = source
        self._itself = itself
        self._seen: set[types.CodeType] = set()

    def read_edges(self, function: Callable[..., Any]) -> Iterator[Edge]:
        if not isinstance(function, types.FunctionType):
            yield self._make_unknown_edge(f"{type(function).__name__} has no source")
            return
        if function.__code__ in self._seen:
            return
        self._seen.add(function.__code__)
        code = read_function_ast(function)
        if code is None:
            yield self._make_unknown_edge("its source cannot be read")
            return
        scope = ParsedFunction(function, code)
        for node in walk_outside_nested_code(code.body):
            if isinstance(node, ast.Call):
                yield from self._read_edges_of_call(node, scope)
            elif isinstance(node, ast.Return) and node.value is not None:
                yield from self._make_edges_of_unknown_returns(node.value, scope)

    def _read_edges_of_call(self, call: ast.Call, scope: ParsedFunction) -> Iterator[Edge]:
        """The edges of a call that creates an outcome, or that calls a method of the machine."""
        made = scope.find_created_outcome_type(call.func)
        if made is not None:
            yield from self._read_edges_of_outcome(made, call, scope)
            return
        method = self._find_method(call.func, scope)
        if method is not None:
            yield from self.read_edges(method)

    def _read_edges_of_outcome(self, made: type, call: ast.Call, scope: ParsedFunction) -> Iterator[Edge]:
        if made is Done:
            yield Edge(self._source, None, "done")
        elif made is Fail:
            yield Edge(self._source, None, "fail")
        elif made is Retry:
            yield Edge(self._source, self._itself, "retry")
        elif made is Next:
            for target in self._target_steps(find_call_argument(call, 0, "step"), scope):
                yield Edge(self._source, target, "next")
        elif made is Await:
            then = find_call_argument(call, None, "then")
            label = _await_label(call, scope)
            for target in self._target_steps(then, scope) if then is not None else [self._itself]:
                yield Edge(self._source, target, "await", label)
        elif made is ScheduleChildren:
            label = _children_label(find_call_argument(call, 0, "children"), scope)
            for target in self._target_steps(find_call_argument(call, None, "then"), scope):
                yield Edge(self._source, target, "children", label)

    def _make_edges_of_unknown_returns(self, value: ast.expr, scope: ParsedFunction) -> Iterator[Edge]:
        """An unknown edge for each returned value that is neither an outcome nor the result of a known method."""
        for part in scope.list_possible_expressions(value):
            bare = part.value if isinstance(part, ast.Await) else part
            if isinstance(bare, ast.Call) and (
                scope.find_created_outcome_type(bare.func) or self._find_method(bare.func, scope)
            ):
                continue
            yield self._make_unknown_edge(f"the outcome of {make_source_excerpt(bare)} cannot be found")

    def _target_steps(self, expression: ast.expr | None, scope: ParsedFunction) -> list[str]:
        """The steps that an expression can refer to: `self.x`, a conditional of these, or a variable."""
        if expression is None:
            return [UNKNOWN]
        names = [
            self._stored_step_name(c.attr) if scope.is_self_attribute(c) else UNKNOWN
            for c in scope.list_possible_expressions(expression)
        ]
        return list(dict.fromkeys(names))

    def _stored_step_name(self, attribute: str) -> str:
        """The stored name of a method's step; the name of the method if it is not a step."""
        if self._cls is not None:
            mine = getattr(inspect.getattr_static(self._cls, attribute, None), "__gen_durable_step__", None)
            return mine.name if isinstance(mine, StepSpec) else attribute
        return next((s.name for s in self._spec.steps.values() if s.fn.__name__ == attribute), attribute)

    def _find_method(self, called: ast.expr, scope: ParsedFunction) -> types.FunctionType | None:
        """The method behind `self.x` or `super().x`."""
        if not isinstance(called, ast.Attribute) or self._cls is None:
            return None
        if scope.is_self_attribute(called):
            found = inspect.getattr_static(self._cls, called.attr, None)
        elif ast.unparse(called.value) == "super()":
            found = _find_super_method(self._cls, called.attr, scope.function)
        else:
            return None
        return found if isinstance(found, types.FunctionType) else None

    def _make_unknown_edge(self, why: str) -> Edge:
        return Edge(self._source, UNKNOWN, "unknown", why)


_TITLES: Final = {EVERY: "on error, in every step", UNKNOWN: "unknown"}


def _relabel_as_error_edge(edge: Edge) -> Edge:
    return Edge(edge.source, edge.target, "error", f"{edge.kind} {edge.label}".rstrip())


def _is_job(step: StepSpec) -> bool:
    """A job's function is not marked: the mark is on the `Job` around it."""
    return getattr(step.fn, "__gen_durable_step__", None) is None


def _find_machine_class(spec: MachineSpec) -> type[Machine] | None:
    """The class of a spec, found by the qualified names of its steps; None if it is not there."""
    for step in spec.steps.values():
        found: object = sys.modules.get(step.fn.__module__)
        for part in step.fn.__qualname__.split(".")[:-1]:
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, Machine) and found.__gen_durable__ is spec:
            return found
    return None


def _find_super_method(cls: type, attribute: str, function: types.FunctionType) -> object:
    """The method that `super().attribute` calls in a function: the next one in the MRO with other code."""
    codes = [base.__dict__[attribute] for base in cls.__mro__ if attribute in base.__dict__]
    later = [f for f in codes if getattr(f, "__code__", None) is not function.__code__]
    return later[0] if later else None


def _await_label(call: ast.Call, scope: ParsedFunction) -> str:
    signals = find_call_argument(call, 0, "signals")
    several = signals.elts if isinstance(signals, (ast.Set, ast.List, ast.Tuple)) else [signals]
    names: list[str] = []
    for one in several:
        meant = scope.resolve_name(one) if one is not None else None
        if isinstance(meant, Signal):
            names.append(meant.name)
        elif isinstance(one, (ast.Name, ast.Attribute)):
            names.append(ast.unparse(one))
    timeout = find_call_argument(call, None, "timeout")
    if timeout is not None and not (isinstance(timeout, ast.Constant) and timeout.value is None):
        names.append("timeout")
    return " or ".join(names)


def _children_label(children: ast.expr | None, scope: ParsedFunction) -> str:
    """The started steps, found in the argument, in the values of its variable, or in the whole function."""
    near = list(scope.list_possible_expressions(children)) if children is not None else []
    for nodes in (near, scope.body):
        calls = [n for n in walk_outside_nested_code(nodes) if isinstance(n, ast.Call) and _is_start_call(n, scope)]
        names = [_started_step_name(find_call_argument(call, 0, "step"), scope) for call in calls]
        if names:
            return ", ".join(dict.fromkeys(names))
    return ""


def _is_start_call(call: ast.Call, scope: ParsedFunction) -> bool:
    meant = scope.resolve_name(call.func)
    return meant is Start or (meant is None and isinstance(call.func, ast.Name) and call.func.id == "Start")


def _started_step_name(step: ast.expr | None, scope: ParsedFunction) -> str:
    spec = getattr(scope.resolve_name(step), "__gen_durable_step__", None) if step is not None else None
    if isinstance(spec, StepSpec):
        return spec.machine.name if _is_job(spec) else spec.label
    return make_source_excerpt(step) if step is not None else UNKNOWN


def _escape_for_mermaid(text: str) -> str:
    """Text for a Mermaid diagram: characters that could be syntax become entities."""
    return "".join(c if c.isalnum() or c in " _.,-" else f"#{ord(c)};" for c in text)
