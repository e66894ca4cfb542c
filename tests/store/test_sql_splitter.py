"""The splitter finds the semicolons that end a statement, in the package's own files and in every kind of quote."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen_durable.store.sql_splitter import split_sql_statements

SQL = Path(__file__).parents[2] / "src/gen_durable"
FILES = sorted(SQL.rglob("*.sql"))
PIECES = ["'", "''", '"', "$$", "$a$", "$1", "a$b$", "--", "\n", "/*", "*/", ";", "e", "E'", "\\", "x", " ", "ä"]


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        ("select 1", ["select 1"]),
        ("select 1;", ["select 1;"]),
        ("a; b;\n", ["a;", " b;\n"]),
        ("a;\n-- the end\n", ["a;\n-- the end\n"]),
        ("-- a; comment\na;b", ["-- a; comment\na;", "b"]),
        ("a;/* ; /* nested; */ ; */ b; c", ["a;", "/* ; /* nested; */ ; */ b;", " c"]),
        ("select ';', 'it''s;'; b", ["select ';', 'it''s;';", " b"]),
        (r"select 'a\'; b", [r"select 'a\';", " b"]),
        (r"select E'a\';', e'''\\'; b", [r"select E'a\';', e'''\\';", " b"]),
        ('select ";", "a"";"; b', ['select ";", "a"";";', " b"]),
        ("do $$ a; $1 $$; b", ["do $$ a; $1 $$;", " b"]),
        ("do $f$ a; $$ b; $$ $g$; $f$; c", ["do $f$ a; $$ b; $$ $g$; $f$;", " c"]),
        ("do $ä1$ a; $ä1$; b", ["do $ä1$ a; $ä1$;", " b"]),
        ("select a$b$; c$b$; d", ["select a$b$;", " c$b$;", " d"]),
        ("select $1; select $2;", ["select $1;", " select $2;"]),
        ("select '--'; b -- ';\n; c", ["select '--';", " b -- ';\n;", " c"]),
        ("select '/*'; b; '*/'", ["select '/*';", " b;", " '*/'"]),
        ("select 1 - -1; select 4/2;", ["select 1 - -1;", " select 4/2;"]),
        ("a; 'open; b", ["a;", " 'open; b"]),
        ("a; $$open; b", ["a;", " $$open; b"]),
    ],
)
def test_a_statement_ends_at_a_bare_semicolon(text: str, statements: list[str]) -> None:
    assert split_sql_statements(text) == statements


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_joined_statements_are_the_text(text: str) -> None:
    """Nothing is lost, also of texts that no server would accept."""
    statements = split_sql_statements(text)
    assert "".join(statements) == text
    assert all(statements)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_our_own_files(file: Path) -> None:
    """Each statement of a file begins with a word of SQL, and a function is one statement."""
    text = file.read_text()
    statements = split_sql_statements(text)
    assert "".join(statements) == text
    assert "begin atomic" not in text.lower(), "the splitter does not know this kind of body"
    for statement in statements:
        code = [line for line in statement.splitlines() if line.strip() and not line.lstrip().startswith("--")]
        assert code[0].split()[0] in KEYWORDS, code[0]
        assert statement.count("create or replace function") <= 1


KEYWORDS = {"alter", "comment", "create", "delete", "do", "drop", "grant", "insert", "select", "set", "update", "with"}
