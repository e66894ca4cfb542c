"""Strings that attack a terminal, a log or a table, and rows that hold them in every column of text."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg

from gen_durable.store.schema import Schema

FORGED = "gen-durable: all 21 checks are clean"
"""A line that only the program itself may print."""
STRINGS = (
    "\x1b[2J\x1b[31mred\x07",
    "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x1b]0;title\x07\x1bP1$r\x1b\\\x9b31m\x9d8;;x\x9c\x85",
    f"x\n{FORGED}",
    f"x\r{FORGED}",
    f"x\r\n{FORGED}\x0b\x0c\x1c\x1d\x1e\x08\x08\x7f",
    f"x\u2028{FORGED}\u2029",
    "\u202egnp.exe\u2066a\u2067b\u2068c\u2069\u200e\u200f\u061c\u202a\u202b\u202c\u202d",
    "zero\u200bwidth\u200c\u200d\u2060\ufeff\xad\u034f\u3164\U000e0041\U000e0100",
    "[link=https://evil.example]click[/link]",
    "x[/red]",
    "[bold red]bold[/bold red] [@click=app.bell]b[/] :smile: \\[x]",
    "tab\there ",
    "plain, é, 日本語, ❤️, \xa0, $1 %s %d {0}",
)
ALL = "".join(STRINGS)
LINK = re.compile(r"\x1b\]8")
STYLE = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = 'Traceback (most recent call last):\n  File "{0}.py", line 1, in {0}\n{0}'


def store_hostile_rows(dsn: str, schema: str) -> int:
    """Write rows with hostile text in each column of text, and return how many instances there are.

    The instances 1 to 5 have all strings in each column, in five statuses; the others have one string each.
    """
    statuses = ("failed", "executing", "awaiting_signal", "runnable", "done")
    rows = [*((ALL, status) for status in statuses), *((text, "failed") for text in STRINGS)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number, (text, status) in enumerate(rows, 1):
            _store_instance(connection, Schema(schema), number, text, status)
        for text in (ALL, *STRINGS):
            _store_limits(connection, Schema(schema), text)
    return len(rows)


def _store_instance(connection: psycopg.Connection[Any], schema: Schema, number: int, text: str, status: str) -> None:
    key = f"{number} {text}"
    run = status == "executing"
    _insert(
        connection,
        schema,
        "instances",
        {
            "id": number,
            "status": status,
            **dict.fromkeys(("fsm", "step", "queue", "last_error", "error_type"), text),
            "last_traceback": _TRACEBACK.format(text),
            "partition_key": key,
            "unique_key": key.encode() + b"\0\xff",
            "unique_scope": ["runnable"],
            "metadata": json.dumps({text: text}),
            "state": json.dumps({text: [text]}),
            "result": json.dumps(text) if status == "done" else None,
            "awaits": [text] if status == "awaiting_signal" else None,
            "blocked_on": f"slot/{key}" if status == "runnable" else None,
            "rate_key": key,
            "locked_by": text if run else None,
            "lease_expires_at": "2099-01-01" if run else None,
            "finished_at": "2026-01-01" if status in ("failed", "done") else None,
            **dict.fromkeys(("claims", "seq", "crashes", "attempt"), 1),
            **dict.fromkeys(("has_signals", "has_journal"), True),
        },
    )
    moment = {"instance_id": number, "started_at": "2026-01-01", "duration": 0.5}
    outcome = {"seq": 0, "attempt": 1, "traceback": _TRACEBACK.format(text), "state": json.dumps(text)}
    names = dict.fromkeys(("step", "outcome", "next_step", "worker", "error", "error_type"), text)
    _insert(connection, schema, "transitions", moment | outcome | names)
    call = {"visit": 0, "n": 0, "attempt": 1, "parameters": json.dumps(text)}
    _insert(connection, schema, "activities", moment | call | dict.fromkeys(("step", "name", "error"), text))
    report = dict.fromkeys(("step", "branch", "message"), text)
    _insert(connection, schema, "progress", {"instance_id": number, **report, "detail": json.dumps(text)})
    signal = {"target_id": number, "name": text, "payload": json.dumps(text)}
    _insert(connection, schema, "signals", signal | {"dedup_key": "a" + text})
    _insert(connection, schema, "signals", signal | {"dedup_key": text, "consumed": True, "rejection": text})


def _store_limits(connection: psycopg.Connection[Any], schema: Schema, text: str) -> None:
    name = text.replace("/", "|")
    _insert(connection, schema, "limits", {"name": f"slots {name}", "kind": "concurrency", "slots": 1})
    _insert(connection, schema, "limits", {"name": f"rate {name}", "kind": "rate", "period": 9.0, "burst": 2})
    _insert(connection, schema, "rate_buckets", {"key": f"rate {name}/{text}", "drained_until": "2099-01-01"})


def _insert(connection: psycopg.Connection[Any], schema: Schema, table: str, values: dict[str, object]) -> None:
    columns, marks = ", ".join(values), ", ".join(_mark(name) for name in values)
    kept = "" if table != "instances" else "overriding system value "
    query = schema.render(f"insert into @schema.{table} ({columns}) {kept}values ({marks})")
    connection.execute(query.encode(), list(values.values()))


def _mark(column: str) -> str:
    return "%s::text[]::@schema.durable_status[]" if column == "unique_scope" else "%s"
