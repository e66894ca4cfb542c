"""Finds the mutations of a Python file: changes of one line that may change what the code does.

In: the text of a file. Out: mutations, each with the piece of text it replaces. Pure. Lines that cannot change
behaviour have none: log calls, docstrings, annotations, `__slots__`, decorators, the arguments of raised errors, and
numbers at the top of a module (pauses, sizes of batches).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
SILENT_CALLS: Final = frozenset({"log", "logger", "warnings", "assert_never", "cast"})
SILENT_FUNCTIONS: Final = frozenset({"__repr__", "__str__"})
SILENT_KEYWORDS: Final = frozenset({"name", "stacklevel", "repr"})  # names of tasks and threads, warnings


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change: `old`, which starts at the offset `start`, becomes `new`."""

    kind: str
    function: str  # the qualified name; empty at the top of a module
    line: int
    lines: tuple[int, int]  # of the whole statement, or of the head of a compound one
    text: str  # the first line that changes, without its indentation
    start: int
    old: str
    new: str

    def apply(self, source: str) -> str:
        assert source[self.start : self.start + len(self.old)] == self.old
        return source[: self.start] + self.new + source[self.start + len(self.old) :]

    @property
    def changed(self) -> str:
        """The line that changes, as it becomes."""
        return self.text.replace(self.old, self.new, 1) if self.old in self.text else self.new


def find_mutations(source: str) -> list[Mutation]:
    """All mutations of a file, in the order of its text."""
    found = {(m.start, m.old, m.new): m for m in _Finder(source).find()}
    return sorted(found.values(), key=lambda m: (m.start, m.kind, m.new))


class _Finder:
    def __init__(self, source: str) -> None:
        self._source = source
        self._lines = source.splitlines()
        self._tree = ast.parse(source)
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def find(self) -> Iterator[Mutation]:
        yield from self._body(self._tree.body, "")

    def _body(self, body: list[ast.stmt], function: str) -> Iterator[Mutation]:
        for statement in body:
            yield from self._statement(statement, function)

    def _statement(self, statement: ast.stmt, function: str) -> Iterator[Mutation]:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if statement.name not in SILENT_FUNCTIONS and not _is_abstract(statement):
                    yield from self._body(statement.body, f"{function}.{statement.name}".lstrip("."))
                return
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Pass() | ast.Global() | ast.Nonlocal():
                return
            case ast.If() if _root(statement.test) == "TYPE_CHECKING":
                return
            case ast.Expr() if isinstance(statement.value, ast.Constant) or _is_silent(statement.value):
                return
            case ast.Assign() | ast.AnnAssign() if not function and _is_number(statement.value):
                return  # a pause, a size of batches: it changes how fast things are, not what they do
            case ast.Assign() if _root(statement.targets[0]) in ("__slots__", "__all__", "log", "logger"):
                return
            case _:
                yield from self._drop(statement, function)
        head = _head(statement)
        for node in head:
            yield from self._expression(node, statement, function)
        for field in ("body", "orelse", "finalbody"):
            yield from self._body(getattr(statement, field, []), function)
        for handler in getattr(statement, "handlers", []):
            if not _is_trivial(handler.body):
                yield self._replace("empty except", handler.body, "pass", handler.body[0], function)
            yield from self._body(handler.body, function)
        for case in getattr(statement, "cases", []):
            if case.guard is not None:
                yield self._negate(case.guard, function)
                yield from self._expression(case.guard, case.guard, function)
            yield from self._body(case.body, function)

    def _drop(self, statement: ast.stmt, function: str) -> Iterator[Mutation]:
        """Take out a statement. Locals stay: without its value, the next line raises, and every test sees it."""
        match statement:
            case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break() | ast.Raise():
                yield self._replace("drop statement", [statement], "pass", statement, function)
            case ast.Assign() if function and not all(isinstance(t, ast.Name) for t in statement.targets):
                yield self._replace("drop statement", [statement], "pass", statement, function)
            case ast.AnnAssign() if function and statement.value and isinstance(statement.target, ast.Attribute):
                yield self._replace("drop statement", [statement], "pass", statement, function)
            case ast.Return() if statement.value is None:
                yield self._replace("drop return", [statement], "pass", statement, function)
            case ast.Return(value=ast.Constant(value=None | False)):
                pass  # None is as false as False, which is flipped below
            case ast.Return():
                yield self._replace("return None", [statement], "return None", statement, function)
            case ast.If() | ast.While():
                yield self._negate(statement.test, function)
            case _:
                pass

    def _expression(self, node: ast.AST, statement: ast.AST, function: str) -> Iterator[Mutation]:
        match node:
            case ast.Call() if _is_silent(node):
                return
            case ast.Raise():
                if node.exc is not None and not isinstance(node.exc, ast.Call):
                    yield from self._expression(node.exc, statement, function)
                return
            case ast.JoinedStr() | ast.Lambda():
                return
            case ast.Call():
                if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
                    other = "max" if node.func.id == "min" else "min"
                    yield self._replace("swap min/max", [node.func], other, node, function)
                for keyword in node.keywords:
                    if keyword.arg is not None and keyword.arg not in SILENT_KEYWORDS:
                        yield self._drop_keyword(node, keyword, function)
            case ast.Compare() if len(node.ops) == 1:
                yield from self._between(
                    "swap comparison", (node.left, node.comparators[0]), COMPARISONS[type(node.ops[0])], node, function
                )
            case ast.BoolOp():
                words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                yield from self._between("swap and/or", (node.values[0], node.values[1]), words, node, function)
            case ast.UnaryOp(op=ast.Not()):
                yield self._replace("drop not", [node], f"({self._text(node.operand)})", statement, function)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                return
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                words = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
                yield from self._between("swap sign", (node.left, node.right), words, node, function)
            case ast.IfExp():
                yield self._negate(node.test, function)
            case ast.comprehension():
                for condition in node.ifs:
                    yield self._negate(condition, function)
            case ast.Constant(value=bool(value)):
                yield self._replace("flip constant", [node], str(not value), node, function)
            case ast.Constant(value=int(value)):
                yield self._replace("off by one", [node], str(value + 1), node, function)
            case ast.Constant(value=float(value)):
                yield self._replace("other constant", [node], str(value + 1), node, function)
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from self._expression(child, statement, function)

    def _negate(self, test: ast.expr, function: str) -> Mutation:
        return self._replace("negate condition", [test], f"not ({self._text(test)})", test, function)

    def _drop_keyword(self, call: ast.Call, keyword: ast.keyword, function: str) -> Mutation:
        start, end = self._span([keyword])
        after = self._source[end:]
        space = len(after) - len(after.lstrip())
        if after.lstrip().startswith(","):
            end += space + 1
            end += len(self._source[end:]) - len(self._source[end:].lstrip(" "))
        elif len(call.args) + len(call.keywords) > 1:
            start = self._source.rindex(",", 0, start)
        return self._mutation("drop keyword", (start, end), "", keyword.value, function)

    def _between(
        self, kind: str, operands: tuple[ast.expr, ast.expr], words: tuple[str, str], node: ast.AST, function: str
    ) -> Iterator[Mutation]:
        """Replace an operator, which is the only word between its operands apart from parentheses."""
        start, end = self._span([operands[0]])[1], self._span([operands[1]])[0]
        old, new = words
        at = self._source[start:end].find(old)
        if at >= 0:
            yield self._mutation(kind, (start + at, start + at + len(old)), new, node, function)

    def _replace(
        self, kind: str, nodes: Sequence[ast.stmt | ast.expr], new: str, node: ast.AST, function: str
    ) -> Mutation:
        return self._mutation(kind, self._span(nodes), new, node, function)

    def _mutation(self, kind: str, span: tuple[int, int], new: str, node: ast.AST, function: str) -> Mutation:
        start, end = span
        old = self._source[start:end]
        first = self._source.count("\n", 0, start) + 1
        last = first + old.count("\n")
        text = self._lines[first - 1].strip()
        return Mutation(kind, function, first, (getattr(node, "lineno", first), last), text, start, old, new)

    def _span(self, nodes: Sequence[ast.stmt | ast.expr | ast.keyword]) -> tuple[int, int]:
        first, last = nodes[0], nodes[-1]
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        return self._offset(first.lineno, first.col_offset), self._offset(last.end_lineno, last.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """The offset in characters; `ast` counts columns in bytes."""
        prefix = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(prefix)

    def _text(self, node: ast.expr) -> str:
        start, end = self._span([node])
        return self._source[start:end]


def _head(statement: ast.stmt) -> list[ast.AST]:
    """The expressions of a statement itself, without those of the statements inside it and without annotations."""
    match statement:
        case ast.AnnAssign():
            return [statement.value] if statement.value is not None else []
        case ast.Raise():
            return [statement]
        case _:
            return [
                child
                for child in ast.iter_child_nodes(statement)
                if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case)
            ]


def _is_silent(node: ast.expr) -> bool:
    """A call for a log, a type checker or a warning."""
    inner = node.value if isinstance(node, ast.Await) else node
    return isinstance(inner, ast.Call) and _root(inner.func) in SILENT_CALLS


def _is_abstract(statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """A protocol, an enum of texts, or a function without a body."""
    if isinstance(statement, ast.ClassDef):
        return any(_root(base) == "Protocol" for base in statement.bases)
    return any(_root(decorator) == "overload" for decorator in statement.decorator_list)


def _is_number(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _is_trivial(body: list[ast.stmt]) -> bool:
    return all(isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and _is_silent(s.value)) for s in body)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
