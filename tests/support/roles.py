"""Logins for each of the roles, on a schema that has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg

from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema

GROUPS = ("owner", "worker", "client", "producer", "reader", "viewer", "admin")
PASSWORD = "of-a-test"


def login_dsn(dsn: str, user: str) -> str:
    parts = urlsplit(dsn)
    place = parts.netloc.rsplit("@", 1)[-1]
    return urlunsplit(parts._replace(netloc=f"{user}:{PASSWORD}@{place}"))


async def make_roles(dsn: str, schema: str, prefix: str) -> None:
    link = PersistentConnection(ConnectionTarget(dsn))
    try:
        await migrate(link, Schema(schema), roles=prefix)
    finally:
        await link.close()


@contextmanager
def logins(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    """The DSN of a login for each role; `stranger` has none, `client2` and `producer2` are second logins."""
    asyncio.run(make_roles(dsn, schema, schema))
    wanted = {role: f"{schema}_{role}" for role in GROUPS[1:]} | {"client2": f"{schema}_client", "stranger": ""}
    wanted["producer2"] = f"{schema}_producer"
    with psycopg.connect(dsn, autocommit=True) as connection:
        for login, role in wanted.items():
            connection.execute(f"create role {schema}_l_{login} login password '{PASSWORD}'")
            if role:
                connection.execute(f"grant {role} to {schema}_l_{login}")
        yield {login: login_dsn(dsn, f"{schema}_l_{login}") for login in wanted}
        connection.execute(f"reassign owned by {schema}_owner to current_user")
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename like %s", [f"{schema}\\_%"]
        )
        for role in (*(f"l_{login}" for login in wanted), *GROUPS):
            connection.execute(f"drop owned by {schema}_{role}")
            connection.execute(f"drop role {schema}_{role}")
