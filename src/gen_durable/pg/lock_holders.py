"""Which sessions hold locks on the tables of a schema, for errors that name them and say what to do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from gen_durable.printable_text import escape_to_one_line
from gen_durable.store.schema import Schema

SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session. `since` is when its transaction began; None if this login may not see it."""

    pid: int
    login: str | None
    application: str | None
    since: datetime | None

    def __str__(self) -> str:
        since = "hidden" if self.since is None else f"{self.since:%Y-%m-%d %H:%M:%S %Z}"
        login, application = escape_to_one_line(self.login or "?"), escape_to_one_line(self.application or "?")
        return f"pid {self.pid} (login {login}, application {application}, transaction since {since})"


async def find_lock_holders(driver_connection: asyncpg.Connection[Any], schema: Schema) -> list[LockHolder]:
    """The other sessions with locks on tables of the schema, the oldest transactions first."""
    rows = await driver_connection.fetch(_HOLDERS, schema.name)
    return [LockHolder(*row) for row in rows]


def describe_lock_holders(holders: list[LockHolder]) -> str:
    """The holders and what to do, as the end of an error message."""
    if not holders:
        return "Another session has locked it and is gone. Nothing was changed. Try again"
    more = f" and {len(holders) - SHOWN} more" if len(holders) > SHOWN else ""
    return (
        f"It is locked by {', '.join(map(str, holders[:SHOWN]))}{more}. Nothing was changed. Wait until these sessions "
        f"end their transactions, or end them with `select pg_terminate_backend({holders[0].pid})`, and try again"
    )


# A plain login sees pid, login and application of all sessions, and the time only of its own (pg_read_all_stats).
_HOLDERS: Final = """
select activity.pid, activity.usename::text, activity.application_name, activity.xact_start
from pg_catalog.pg_stat_activity activity
where activity.pid in (
  select held.pid from pg_catalog.pg_locks held
  join pg_catalog.pg_class c on c.oid = held.relation
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = $1
  where held.granted and held.pid <> pg_catalog.pg_backend_pid()
    and held.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
)
order by activity.xact_start nulls first, activity.pid
"""
