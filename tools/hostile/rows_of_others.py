"""The rows of one login in every table of a schema: as text they are compared before and after an attack."""

from __future__ import annotations

from typing import Final

_OF_INSTANCES: Final = "in (select i.id from @.instances i where {instances})"
OWNED: Final = {
    "instances": f"id {_OF_INSTANCES}",
    "signals": f"target_id {_OF_INSTANCES}",
    "cascades": f"origin {_OF_INSTANCES}",
    "transitions": f"instance_id {_OF_INSTANCES}",
    "activities": f"instance_id {_OF_INSTANCES}",
    "checkpoints": f"instance_id {_OF_INSTANCES}",
    "progress": f"instance_id {_OF_INSTANCES}",
    "step_slots": f"instance_id {_OF_INSTANCES}",
    "allocated_ids": "login = {login}",
    "restricted_logins": "login = {login}",
    "grants": "login = {login}",
}
"""The tables with rows of logins, and which of them are those of one login."""
SHARED: Final = ("limits", "rate_buckets", "retentions", "gate_locks", "installation", "migrations")
"""The tables that belong to all logins: every row counts."""
CHANGED_BY_CLIENTS: Final = frozenset({"instances", "signals", "cascades"})
"""A client may signal and cancel instances of others."""


def digest_sql(schema: str, login: int, instances: str) -> str:
    """A query for the number and the digest of the rows of a login, table by table.

    `instances` is a condition on the table `instances`, with the alias `i`: those whose rows count.
    """
    parts = [_digest(table, condition.format(login=login, instances=instances)) for table, condition in OWNED.items()]
    parts += [_digest(table, "true") for table in SHARED]
    return " union all ".join(parts).replace("@.", f'"{schema}".') + " order by 1"


def _digest(table: str, condition: str) -> str:
    return (
        f"select '{table}', count(*), md5(string_agg(stored::text, ' ' order by stored::text)) "
        f"from @.{table} as stored where {condition}"
    )


def login_sql(name: str) -> str:
    """A query for the number of a login."""
    return f"select oid::bigint from pg_catalog.pg_roles where rolname = '{name}'"
