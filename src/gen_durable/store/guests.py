"""The calls that may run on a caller's own connection, whatever its driver.

In: the calls of `Calls`. Out: the same with parameters that are texts, each cast where it stands: every driver binds a
text alike, and no codec or adapter that the caller has set up for arrays, JSON or times can touch it. They also notify
inside the caller's transaction, so that workers hear of the work with its commit and not before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from gen_durable.outcomes import Start
from gen_durable.store.calls import Call, Calls
from gen_durable.store.rows import CancelTarget, Delivery, Inserted

INSERT: Final = (
    *("text[]", "int[]", "text[]", "jsonb[]", "text[]", "smallint[]", "text[]", "float8[]", "timestamptz[]"),
    *("bytea[]", "text[]", "text", "jsonb[]", "text[]", "jsonb[]", "text"),
)
SIGNAL: Final = ("bigint[]", "bytea[]", "text[]", "jsonb[]", "text[]", "text")
CANCEL: Final = ("bigint[]", "bytea[]", "text", "boolean", "text")
_PARAMETER: Final = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class GuestCalls:
    """`insert`, `signal` and `cancel` for a caller's connection."""

    calls: Calls

    def insert(self, starts: Sequence[Start[Any]], on_conflict: str) -> Call[list[Inserted]]:
        call = self.calls.insert(starts, on_conflict)
        # Once for a queue: more would be the same news.
        text = (
            "select m.ord, m.id, m.inserted, case when m.inserted and m.first then pg_notify($16, m.queue) end from "  # noqa: S608
            "(select i.*, q.queue, row_number() over (partition by q.queue, i.inserted order by i.ord) = 1 as first "
            f'from "{self.calls.schema.name}".insert($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15) as i, '
            "lateral (select ($5)[i.ord] as queue) as q) as m order by m.ord"
        )
        return _with_texts(Call(text, (*call.args, self.calls.schema.channel), call.read), INSERT)

    def signal(self, delivery: Delivery) -> Call[list[tuple[int | None, str, str | None]]]:
        call = self.calls.signal([delivery])
        text = (
            "select s.ord, s.target, s.verdict, s.woken, case when s.woken is not null then pg_notify($6, s.woken) end "  # noqa: S608
            f'from "{self.calls.schema.name}".signal($1,$2,$3,$4,$5) as s'
        )
        return _with_texts(Call(text, (*call.args, self.calls.schema.channel), call.read), SIGNAL)

    def cancel(
        self, instance: int | None, key: bytes | None, reason: str, *, cascade: bool
    ) -> Call[tuple[list[CancelTarget], list[str]]]:
        """What is to be rung is rung by the caller's commit, and not told."""
        call = self.calls.cancel([(instance, key)], reason, cascade=cascade)
        text = (
            "select c.ord, c.target, c.was, c.verdict, null, "  # noqa: S608
            "(select count(*) from (select pg_notify($5, w.bell) from unnest(c.woken) as w (bell)) as n) "
            f'from "{self.calls.schema.name}".cancel($1,$2,$3,$4,true) as c'
        )
        return _with_texts(Call(text, (*call.args, self.calls.schema.channel), call.read), CANCEL)


def _with_texts(call: Call[Any], types: Sequence[str]) -> Call[Any]:
    def typed(parameter: re.Match[str]) -> str:
        return f"cast({parameter[0]} as text)::{types[int(parameter[1]) - 1]}"

    return Call(_PARAMETER.sub(typed, call.text), tuple(_text(value) for value in call.args), call.read)


def named(text: str, before: str, after: str = "") -> str:
    """A statement with `$1` written as another driver wants it: `%(p1)s`, or `:p1`."""
    return _PARAMETER.sub(lambda parameter: f"{before}p{parameter[1]}{after}", text)


def names(args: Sequence[object]) -> dict[str, object]:
    """The parameters that go with `named`."""
    return {f"p{n}": value for n, value in enumerate(args, start=1)}


def _text(value: object) -> str | None:
    """A value as Postgres reads it from text."""
    match value:
        case None:
            return None
        case list():
            items = cast("list[object]", value)
            return "{" + ",".join("NULL" if item is None else _quoted(item) for item in items) + "}"
        case bytes():
            return "\\x" + value.hex()
        case datetime():
            return value.isoformat()
        case _:
            return str(value)


def _quoted(item: object) -> str:
    return '"' + str(_text(item)).replace("\\", "\\\\").replace('"', '\\"') + '"'
