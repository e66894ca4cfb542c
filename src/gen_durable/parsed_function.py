"""The source of one function of a machine, parsed: its calls, and the values that its names can have.

Nothing is run. `graph` reads the outcomes of steps from it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterable, Iterator
from typing import Any

from gen_durable.outcomes import OUTCOMES


class ParsedFunction:
    """One function: its parsed code, and the values of names in it."""

    def __init__(self, function: types.FunctionType, code: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.function = function
        self.body = code.body
        arguments = [*code.args.posonlyargs, *code.args.args]
        self._self = arguments[0].arg if arguments else ""
        self._assigned: dict[str, list[ast.expr]] = {}
        for node in walk_outside_nested_code(code.body):
            if isinstance(node, ast.Assign):
                pairs = [(target, node.value) for target in node.targets]
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                pairs = [(node.target, node.value)]
            else:
                continue
            for target, value in pairs:
                if isinstance(target, ast.Name):
                    self._assigned.setdefault(target.id, []).append(value)

    def is_self_attribute(self, node: ast.expr) -> bool:
        """Whether an expression is `self.something`."""
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self._self

    def list_possible_expressions(self, node: ast.expr, *, through: frozenset[str] = frozenset()) -> Iterator[Any]:
        """The expressions that a value can come from: both arms of a conditional, every assignment of a variable."""
        if isinstance(node, ast.IfExp):
            yield from self.list_possible_expressions(node.body, through=through)
            yield from self.list_possible_expressions(node.orelse, through=through)
        elif isinstance(node, ast.NamedExpr):
            yield from self.list_possible_expressions(node.value, through=through)
        elif isinstance(node, ast.Name) and node.id in self._assigned and node.id not in through:
            for value in self._assigned[node.id]:
                yield from self.list_possible_expressions(value, through=through | {node.id})
        else:
            yield node

    def resolve_name(self, node: ast.expr) -> object:
        """The value of a name or dotted name at module level or in the enclosing function; None if unknown."""
        if isinstance(node, ast.Name):
            free = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=False))
            try:
                return free[node.id].cell_contents if node.id in free else self.function.__globals__.get(node.id)
            except ValueError:  # the cell is empty: the class is defined before the name
                return None
        if isinstance(node, ast.Attribute):
            owner = self.resolve_name(node.value)
            # getattr_static: reading code must not run properties
            return None if owner is None else inspect.getattr_static(owner, node.attr, None)
        return None

    def find_created_outcome_type(self, called: ast.expr) -> type | None:
        """The type of outcome that a call creates, under whatever name it was imported."""
        if isinstance(called, ast.Subscript):
            called = called.value
        meant = self.resolve_name(called)
        if meant is None and isinstance(called, ast.Name):
            return next((o for o in OUTCOMES if o.__name__ == called.id), None)
        return next((o for o in OUTCOMES if o is meant), None)


def read_function_ast(function: types.FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    first = tree.body[0] if tree.body else None
    return first if isinstance(first, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def walk_outside_nested_code(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes in source order, except those inside nested functions and classes."""
    for node in nodes:
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield from walk_outside_nested_code(ast.iter_child_nodes(node))


def find_call_argument(call: ast.Call, position: int | None, name: str) -> ast.expr | None:
    if position is not None and position < len(call.args):
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def make_source_excerpt(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 40 else text[:37] + "..."
