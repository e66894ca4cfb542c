"""Names say what things are: no identifier and no log line of the package uses a metaphor or a word of two meanings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import gen_durable

SOURCE = Path(gen_durable.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
QUERIES = sorted(SOURCE.rglob("*.sql"))
METAPHORS = "room lane brood door letter bell ring scribe desk site orders stranger ration hand_over take_turn"
"""Stage props, each in place of a word of the field. The plural counts too."""
AMBIGUOUS = "asked told swept sweep look turn note hold held keep guest"
"""Words that had several meanings. Whole words: `notes` and `on_hold` count, `keeper` and `notebook` do not."""
IN_SENTENCES = {"look", "turn", "note", "hold", "held", "keep", "guest"}
"""Ambiguous as identifiers, but plain verbs in the sentences of log lines."""
PLAIN_IN_SQL = "hold held keep"
"""Plain verbs in the comments and errors of SQL, and with one meaning in its names (keep_done, keeps_claim)."""
FORBIDDEN = [*METAPHORS.split(), *AMBIGUOUS.split()]
EXCEPTED = r"dead_letters?|history_keep|__notes__"  # the field's own word; the public name of a setting; Python's
PUBLIC = {"keep"}  # an option of insert
SHOPS = {"orders"}  # the demo sells things
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def words_of(name: str) -> str:
    """A name in snake_case, whatever it was written in."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower().replace(" ", "_")


def found_in(name: str, forbidden: Iterable[str] = FORBIDDEN) -> list[str]:
    """The forbidden words that are parts of a name."""
    if name in PUBLIC:
        return []
    words = re.sub(rf"(?<![a-z0-9])(?:{EXCEPTED})(?![a-z0-9])", "", words_of(name))
    return [word for word in forbidden if re.search(rf"(?<![a-z0-9]){word}s?(?![a-z0-9])", words)]


def forbidden_in(path: Path) -> list[str]:
    """The words that a file may not use."""
    excepted = {*(PLAIN_IN_SQL.split() if path.suffix == ".sql" else ()), *(SHOPS if "demo" in path.parts else ())}
    return [word for word in FORBIDDEN if word not in excepted]


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a module gives to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(name=name, asname=other):
                yield node.lineno, other or name.rpartition(".")[2]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case _:
                pass


def log_lines(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts that a module gives to a logger."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=attr)) if attr in LOG_CALLS:
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.lineno, part.value
            case _:
                pass


def test_the_search_finds_what_it_should() -> None:
    """Words in any spelling are found; the exceptions and longer words are not."""
    assert found_in("RingBell") == ["bell", "ring"]
    assert found_in("_hand_over_tokens") == ["hand_over"]
    assert found_in("wasTold") == ["told"]
    assert found_in("_step_notes") == ["note"]
    assert (
        found_in("on_dead_letter") == found_in("DeadLetterHookCaller") == found_in("string") == found_in("planes") == []
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_python_names(path: Path) -> None:
    """Modules, classes, functions, parameters, attributes and variables; and what is logged."""
    tree, forbidden = ast.parse(path.read_text()), forbidden_in(path)
    names = [(0, str(path.relative_to(SOURCE).with_suffix(""))), *identifiers(tree)]
    in_logs = [word for word in forbidden if word not in IN_SENTENCES]
    found = [(line, name, found_in(name, forbidden)) for line, name in names]
    found += [(line, text, found_in(text, in_logs)) for line, text in log_lines(tree)]
    assert not [f"{line}: {name} ({', '.join(words)})" for line, name, words in found if words]


def test_no_class_name_is_used_twice() -> None:
    """One name, one class, in all modules of the package."""
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", QUERIES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_sql_names(path: Path) -> None:
    """Functions, tables, columns, indexes, CTEs, aliases and variables: every word of SQL that is not a comment."""
    text = re.sub(r"--.*", "", path.read_text())
    names = [path.stem, *re.findall(r"[A-Za-z_][A-Za-z_0-9]*", text)]
    assert not sorted({name for name in names if found_in(name, forbidden_in(path))})
