"""The shipped functions, cut open: the same text, with a stop before every statement that touches a table.

In: the text that `migrate` installs. Out: that text with `perform breakpoint(...)` before each statement, and, for a
mutation test, with one cure taken out. Nothing here is a copy: a function that changes is explored as changed, and a
cure that is renamed or moved makes `without` fail instead of passing for the wrong reason.

How a statement is found: outside of strings, comments and parentheses a `;` ends one. That is all of plpgsql that has
to be known here; a statement that only calls another of our functions is not stopped at, the callee is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from gen_durable.store.schema import Schema
from gen_durable.store.sql_files import functions

_FUNCTION = re.compile(r"create or replace function (?P<head>[^;]*?)\nas \$\$\n(?P<body>.*?)\n\$\$;", re.DOTALL)
_INLINED = re.compile(r"create or replace function [^;]*?\nreturn [^;]*;")
_TOKEN = re.compile(r"--[^\n]*|^#[^\n]*|'(?:[^']|'')*'|\"[^\"]*\"|\w+|[();]", re.MULTILINE)
# Reads that only steer the walk or read rows that this transaction has locked, and the sequence, which no transaction
# waits for: a stop there would multiply the schedules and show nothing new.
_STEERING = re.compile(
    r"\binto (level_priority|next_due_at|priority|due_at)\b"
    r"|\binto (ids|head_due_at|crowded_keys|found_rows, denied(_by_limits)?|gate|gates|locked_gates|old|policy)\b"
    r"|\binto (target_ids|live_ids, statuses|requested, workers_with_cancel_requests|marked|ending)\b"
    r"|^(parent_ids|parents|postponed|hidden_queues|listed_ids) := array"
    r"|^cascade_due :=|^select\s+array_agg\(\S+key_of_gate"
    r"|^(gates_to_unblock := array|is_lost :=|woken_queues := woken_queues\s+\|\| \S+unblock_slot_rows)"
    r"|^perform \S+keys_of_limits"
)
_HEADERS = {"if": "then", "elsif": "then", "while": "loop", "for": "loop", "declare": "begin"}

BREAKPOINT = """
drop trigger if exists breakpoint_row on @schema.instances;
create or replace function @schema.breakpoint(at text) returns void language plpgsql set lock_timeout = 0 as $$
declare
  gate constant text := nullif(current_setting('explorer.gate', true), '');
begin
  if gate is null then
    return;  -- not a session under exploration
  end if;
  raise notice 'breakpoint %', at;
  perform pg_advisory_xact_lock_shared(pg_backend_pid(), gate::int);
  perform set_config('explorer.gate', (gate::int + 1)::text, true);
end
$$;
create or replace function @schema.breakpoint_row() returns trigger language plpgsql as $$
begin
  perform @schema.breakpoint(tg_op || ' of a row');
  return new;
end
$$;
"""

# Stops between the rows of one insert as well: a batch takes its keys one after the other.
ROW_BREAKPOINTS = """
create trigger breakpoint_row before insert on @schema.instances
for each row execute function @schema.breakpoint_row();
"""


@dataclass(frozen=True, slots=True)
class Cure:
    """A piece of a function's text (with `@schema`) that a mutation takes out, and what is left in its place."""

    function: str
    text: str
    instead: str = ""


class CureIsGone(AssertionError):
    """There is nothing to take out. `make mutants`, which takes things out itself, knows it by its name."""


def instrumented(schema: Schema, *without: Cure, quiet: Collection[str] = ()) -> dict[str, str]:
    """All functions with breakpoints, by their head, and without the given cures. `quiet`: without breakpoints."""
    # A timeout measures life, not a session that is made to wait on purpose.
    text = re.sub(r"set lock_timeout = '\w+'", "set lock_timeout = '60s'", "\n".join(f.text for f in functions(schema)))
    readable = len(_FUNCTION.findall(text)) + len(_INLINED.findall(text))
    assert readable == text.count("create or replace function"), "a function that cannot be read"
    for cure in without:
        text = _mutated(text, schema, cure)
    found = {f["head"]: f[0] if _name(f, schema) in quiet else _cut_open(f, schema) for f in _FUNCTION.finditer(text)}
    return found | {f[0].partition("\nreturn ")[0]: f[0] for f in _INLINED.finditer(text)}


def _mutated(text: str, schema: Schema, cure: Cure) -> str:
    old, new = schema.render(cure.text), schema.render(cure.instead)
    # Overloads are written in one file: the one that holds the cure is meant.
    bodies = [f[0] for f in _FUNCTION.finditer(text) if _name(f, schema) == cure.function and old in f[0]]
    if len(bodies) != 1:
        raise CureIsGone(f"{cure.function} has no place that reads {cure.text!r}: has it been rewritten?")
    assert bodies[0].count(old) == 1, f"{cure.function} has several places that read {cure.text!r}"
    return text.replace(bodies[0], bodies[0].replace(old, new))


def _name(found: re.Match[str], schema: Schema) -> str:
    return found["head"].removeprefix(schema.render("@schema.")).partition("(")[0]


def _cut_open(found: re.Match[str], schema: Schema) -> str:
    # A stable function reads with the snapshot of the statement that calls it, so a stop inside changes nothing.
    if "language plpgsql" not in found["head"] or "\nstable" in found["head"]:
        return found[0]
    body, mark, name = found["body"], schema.render("@schema"), _name(found, schema)
    bare_call = re.compile(
        r"(perform|\w+ :=|select released\.[\w,. ]+ into [\w, ]+\s+from) "
        rf"{re.escape(mark)}\.\w+\([^()]*\)( as released)?;"
    )
    parts: list[str] = []
    done = 0
    for number, (start, end) in enumerate(_statements(body), 1):
        statement = body[start:end]
        if mark in statement and not bare_call.fullmatch(statement) and not _STEERING.search(statement):
            parts += [body[done:start], schema.render(f"perform @schema.breakpoint('{name} {number}');\n")]
            done = start
    parts.append(body[done:])
    return found[0].replace(body, "".join(parts))


def _statements(body: str) -> Iterator[tuple[int, int]]:
    """Start and end of each statement between a `begin` and its `end`."""
    tokens = ((t[0].lower(), t.start(), t.end()) for t in _TOKEN.finditer(body))
    real = (t for t in tokens if not t[0].startswith(("--", "#", "'", '"')))
    for word, start, end in real:
        if word in _HEADERS:
            _skip(real, _HEADERS[word])
        elif word == "end":
            _skip(real, ";")
        elif word not in ("begin", "then", "else", "loop"):
            last = end if word == ";" else _skip(real, ";")
            yield start, last


def _skip(tokens: Iterable[tuple[str, int, int]], until: str) -> int:
    """Move past the next `until` outside of parentheses; where it ends."""
    depth, end = 0, 0
    for word, _, end in tokens:  # noqa: B007  # the end of the last one is the answer
        depth += (word == "(") - (word == ")")
        if word == until and depth == 0:
            break
    return end
